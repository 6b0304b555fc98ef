"""The way to judge again: a command where a shell finds the kernel, else a call."""

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
