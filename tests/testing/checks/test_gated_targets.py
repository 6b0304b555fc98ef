"""Operators with gates as programs, files, bundles, and with gradients of their own."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import linkern
from linkern.testing import UsageError
from linkern.testing.api import plan_of, report_of, reports
from linkern.testing.report import bundle
from linkern.testing.runner.reproduce import write
from linkern.testing.target.loading import load
from tests.marks import slow_unless
from tests.testing.gated_targets import gated_delta_rule, kda

EXAMPLE = Path(__file__).parents[3] / "examples" / "gated_delta_rule.py"
QUICK = {"profile": "quick", "dtypes": ("float32",), "diagnose": False}
PROGRAM = """
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

with safe_open(sys.argv[1], "numpy") as file:
    given = {name: file.get_tensor(name) for name in file.keys()}
    scale = float(file.metadata()["scale"])
q, k, v = given["query"], given["key"], given["value"]
g = given.get("log_decay", np.zeros(v.shape[:-1], v.dtype))
beta = given.get("beta", np.ones(v.shape[:-1], v.dtype))
state = np.zeros((*k.shape[:2], k.shape[3], v.shape[3]), v.dtype)
state = given.get("initial_memory", state)
output = np.zeros_like(v)
for t in range(v.shape[2]):
    if t % 16 != SKIPPED:
        state = np.exp(g[:, :, t, None, None]) * state
    found = (k[:, :, t, :, None] * state).sum(-2)
    written = beta[:, :, t, None] * (v[:, :, t] - found)
    state = state + k[:, :, t, :, None] * written[:, :, None]
    output[:, :, t] = (v.dtype.type(scale) * q[:, :, t, :, None] * state).sum(-2)
save_file({"output": output, "memory": state}, sys.argv[2])
"""


def result_of(plan):
    report = report_of(plan)
    for _, so_far in reports(plan):
        report = so_far
    return report


def verify(kernel, **options):
    return result_of(plan_of(kernel, **options))


def run_again(script):
    words = [sys.executable, str(script)]
    return subprocess.run(words, check=False, capture_output=True)


def program(tmp_path, skipped):
    pytest.importorskip("safetensors")
    file = tmp_path / "kernel.py"
    file.write_text(PROGRAM.replace("SKIPPED", str(skipped)))
    return f"{shlex.join([sys.executable, str(file)])} {{inputs}} {{outputs}}"


def judged_program(tmp_path, skipped, *checks):
    plan = plan_of(
        "",
        op="gated_delta_rule",
        command=program(tmp_path, skipped),
        contract={"takes_state": True},
        checks=checks,
        shrink=False,
        **QUICK,
    )
    return plan, result_of(plan)


def test_a_program_gets_gates_by_name(tmp_path):
    _, report = judged_program(tmp_path, -1, "short_sequences", "leaves_no_trace")
    assert report.verdict == "passed", [x.message for x in report.checks]


def test_the_failure_of_a_program_can_be_run_again(tmp_path):
    plan, report = judged_program(tmp_path, 0, "short_sequences", "value_on_reals")
    failed = [x for x in report.checks if x.verdict == "failed"]
    assert failed
    script = write(plan, failed[-1], failed[-1].counterexample, tmp_path)
    again = run_again(script)
    assert again.returncode == 1, again.stdout + again.stderr
    bundle.write(report, tmp_path / "bundle")
    assert {x.outcome for x in bundle.check(tmp_path / "bundle")} == {"reproduced"}


def test_the_failure_of_a_function_can_be_run_again(tmp_path):
    flawed = f"{EXAMPLE}:with_stale_read"
    checks = ("value_on_integers", "value_on_reals")
    plan = plan_of(flawed, op="gated_delta_rule", checks=checks, **QUICK)
    report = result_of(plan)
    for found in report.checks:
        assert found.verdict == "failed"
        script = write(plan, found, found.counterexample, tmp_path)
        again = run_again(script)
        assert again.returncode == 1, again.stdout + again.stderr
    bundle.write(report, tmp_path / "bundle")
    assert {x.outcome for x in bundle.check(tmp_path / "bundle")} == {"reproduced"}


def test_the_example_is_right_and_its_flaw_is_found():
    checks = ("value_on_integers", "value_on_reals", "state_split", "decay_extremes")
    options = {"op": "gated_delta_rule", "checks": checks, **QUICK}
    assert verify(f"{EXAMPLE}:gated_delta_rule", **options).verdict == "passed"
    report = verify(f"{EXAMPLE}:with_stale_read", **options)
    assert {x.name for x in report.checks if x.verdict == "failed"} >= {
        "value_on_reals",
        "decay_extremes",
    }


# -- gradients that a target declares

GRADIENTS = ("gradient_value", "gradient_of_state")


@pytest.mark.parametrize(
    "op",
    slow_unless(lambda x: x == "gla", ["gla", "rwkv6", "oja", "gated_delta_product"]),
)
def test_gradients_of_numpy_kernels(op):
    options = {**QUICK, "dtypes": ("float64",)}
    report = verify(getattr(linkern, op), op=op, checks=GRADIENTS, **options)
    assert report.verdict == "passed", [x.message for x in report.checks]
    assert all(x.verdict == "passed" for x in report.checks)


def spoilt(change):
    """Gradients of the delta rule with gates, under names and in an order of their own.

    A tuple of gradients has the order of the parameters.
    """
    right = linkern.gated_delta_rule

    def kernel(q, k, v, beta, g, scale=None, initial_state=None):
        result = right(q, k, v, g, beta, scale=scale, initial_state=initial_state)
        return result.output, result.state

    def vjp(do, q, k, v, beta, g, scale=None, initial_state=None, dht=None):
        found = right.vjp(
            do,
            initial_state,
            dht,
            query=q,
            key=k,
            value=v,
            log_decay=g,
            beta=beta,
            scale=scale,
        )
        names = ("query", "key", "value", "beta", "log_decay")
        return change([found[n] for n in names] + [found.get("initial_state")])

    kernel.vjp = vjp
    return kernel


def decay_is_late(found):
    return [*found[:4], np.roll(found[4], 1, axis=-1), found[5]]


def state_is_halved(found):
    if found[5] is None:
        return found
    memory = found[5].memory / 2
    return [*found[:5], type(found[5])(memory, None)]


@pytest.mark.parametrize(
    ("change", "check"),
    slow_unless(
        lambda _, check: check is not None,
        [
            (lambda found: found, None),
            (decay_is_late, "gradient_value"),
            (state_is_halved, "gradient_of_state"),
            (lambda found: found[:3], "gradient_value"),
        ],
    ),
)
def test_a_declared_vjp_is_called_by_name_and_judged(change, check):
    options = {**QUICK, "dtypes": ("float64",), "checks": GRADIENTS}
    report = verify(spoilt(change), op="gated_delta_rule", **options)
    verdicts = {x.name: x.verdict for x in report.checks}
    if check is None:
        assert set(verdicts.values()) == {"passed"}, report.checks
    else:
        assert verdicts[check] == "failed"
    if change is state_is_halved:
        assert verdicts["gradient_value"] == "passed"


def test_gradients_that_are_missing_in_a_dict_are_named():
    def kernel(query, key, value, log_decay=None):
        return kda(query, key, value, log_decay)[0]

    kernel.vjp = lambda output_cotangent, **given: {"query": given["query"]}
    options = {**QUICK, "checks": ("gradient_value",)}
    (found,) = verify(kernel, op="gla", **options).checks
    assert found.verdict == "failed"
    assert "no gradient reaches the key" in found.message


def test_parameters_of_a_vjp_that_mean_nothing_are_refused():
    def right(q, k, v, g=None, beta=None):
        return gated_delta_rule(q, k, v, g, beta)[0]

    right.vjp = lambda q, k, v, do: None
    with pytest.raises(UsageError, match="no parameter for the log_decay"):
        load(right, "module:right", op="gated_delta_rule")
    right.vjp = lambda q, k, v, g, beta: None
    with pytest.raises(UsageError, match="no parameter for the cotangent"):
        load(right, "module:right", op="gated_delta_rule")
