"""The way to judge again: a command where a shell finds the kernel, else a call."""

import shlex
from copy import copy
from dataclasses import replace

from linkern.cli.plans import plan_of_target
from linkern.cli.verdicts import verify
from linkern.testing import Contract, Plan
from linkern.testing.runner.reproduce import command


def kernel(query, key, value):
    return value


def test_a_function_of_a_notebook_is_judged_again_by_a_call():
    contract = Contract(layout="bthd")
    for target in ("__main__:kernel", "package.module:test.<locals>.kernel"):
        plan = Plan(target, "gla", contract, profile="quick", function=kernel)
        assert command(plan, "causality") == (
            "verify(kernel, op='gla', profile='quick', seed=0, "
            "contract={'layout': 'bthd'}, checks=['causality'])"
        )


def test_a_function_of_a_module_is_judged_again_by_a_command():
    plan = Plan("package.module:kernel", "gla", profile="quick", function=kernel)
    assert command(plan, "causality") == (
        "linkern verify package.module:kernel --op gla --profile quick --seed 0 "
        "--check causality"
    )


OPTIONS = {
    "dtypes": ("float16",),
    "options": {"chunk_size": 16},
    "timeout": 2.0,
    "expect_failure": {"causality": "a reason", "prefix": "another"},
}


def test_a_call_has_all_that_the_verdict_depends_on():
    plan = Plan("__main__:kernel", "gla", framework="torch", function=kernel, **OPTIONS)
    said = command(plan, "causality", expecting=True)
    called = {}
    eval(said, {"verify": lambda _, **options: called.update(options), "kernel": 0})
    assert called == {
        "op": "gla",
        "profile": "default",
        "seed": 0,
        "framework": "torch",
        "timeout": 2.0,
        "dtypes": ["float16"],
        "options": {"chunk_size": 16},
        "checks": ["causality"],
        "expect_failure": {"causality": "a reason"},
    }


def test_a_command_has_all_that_the_verdict_depends_on():
    plan = Plan("module:kernel", "gla", memory_limit=0.5, in_process=True, **OPTIONS)
    assert plan_of_words(command(plan)) == plan
    one = replace(plan, checks=("causality",), expect_failure={})
    assert plan_of_words(command(plan, "causality")) == one
    expected = replace(one, expect_failure={"causality": "a reason"})
    assert plan_of_words(command(plan, "causality", expecting=True)) == expected


def plan_of_words(line):
    """Return the plan that `linkern verify` makes of a command."""
    _, _, *words = shlex.split(line)
    # Of a copy: a command keeps the names of its help option from its first context.
    with copy(verify).make_context("verify", words) as context:
        options = dict(context.params)
    return plan_of_target(options.pop("target"), options)
