"""States that a target takes and returns as several arrays, as kernels of xLSTM do."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linkern.oracle import Bounded
from linkern.testing import run
from linkern.testing.api import plan_of
from linkern.testing.kernels.correct.mlstm import by_tokens, in_parts
from linkern.testing.problems.expected import kept_over
from linkern.testing.runner.loop import CheckFinished, Opened
from linkern.testing.runner.reproduce import write
from linkern.testing.spec.operators import OPERATORS

LAWS = ("value_on_reals", "state_value", "state_split", "decoding", "state_linearity")

right = in_parts()


def changed(change):
    """A right kernel whose returned state is another one."""

    def kernel(q, k, v, i=None, f=None, c_initial=None, n_initial=None,
               m_initial=None, return_last_states=False, scale=None):  # fmt: skip
        states = {"c_initial": c_initial, "n_initial": n_initial}
        output, state = right(
            q, k, v, i, f, scale=scale, m_initial=m_initial, **states,
            return_last_states=True,
        )  # fmt: skip
        return (output, change(*state)) if return_last_states else output

    return kernel


weight_of_one = changed(lambda c, n, m: (c, n, np.where(np.isinf(m), m, 0)))


def judged(kernel, laws=LAWS, **options):
    """Return the first event of a run, and the results of its laws by name."""
    plan = plan_of(
        kernel,
        op="mlstm",
        checks=laws,
        contract={"min_length": 1},
        **{"profile": "quick", "seed": 5, "diagnose": False, **options},
    )
    opened, *events = run(plan)
    assert isinstance(opened, Opened)
    return opened, {
        e.result.name: e.result for e in events if isinstance(e, CheckFinished)
    }


def failures(kernel):
    _, results = judged(kernel)
    assert {x.verdict for x in results.values()} <= {"passed", "failed", "covered"}
    return {x.name: x.message for x in results.values() if x.verdict == "failed"}


@pytest.mark.parametrize("kernel", [right, in_parts(by_tokens())])
def test_a_state_may_be_over_any_weight(kernel):
    """Over the largest logarithm, as published kernels keep it, and over the sum."""
    assert failures(kernel) == {}


@pytest.mark.parametrize(
    ("change", "laws"),
    [
        (lambda c, n, m: (c, n, m + 0.25), {"state_value", "state_split", "decoding"}),
        (lambda c, n, m: (c, n, m - 900), {"state_value"}),
        (lambda c, n, m: (c, n, np.full_like(m, np.nan)), {"state_value"}),
        (lambda c, n, m: (2 * c, n, m), {"state_value", "state_split", "decoding"}),
        (lambda c, n, m: (c, 2 * n, m), {"state_value", "state_split", "decoding"}),
    ],
)
def test_parts_that_do_not_fit_are_caught(change, laws):
    assert laws <= {*failures(changed(change))}


def test_parts_that_are_missing_are_named():
    said = failures(changed(lambda c, _n, m: (c, m)))["decoding"]
    assert "takes a state as c_initial, n_initial, m_initial" in said
    assert "returned 2 of it" in said


def test_a_reproducer_passes_each_part(tmp_path):
    kernel = f"{Path(__file__)}:weight_of_one"
    opened, results = judged(kernel, ("state_split",), dtypes=("float32",), jobs=1)
    result = results["state_split"]
    script = write(opened.plan, result, result.counterexample, tmp_path)
    assert subprocess.run([sys.executable, script], check=False).returncode == 1
    text = script.read_text(encoding="utf-8").replace("weight_of_one", "right")
    script.write_text(text, encoding="utf-8")
    assert subprocess.run([sys.executable, script], check=False).returncode == 0


def test_an_epsilon_of_a_published_kernel_is_set_to_zero():
    """Beside a denominator over ``e^m`` it would be ``eps e^m``, and `m` differs."""

    def with_epsilon(q, k, v, i=None, f=None, scale=None, eps=1e-6):
        output, _ = by_tokens()(q, k, v, i, f, scale=scale)
        return output * (1 - 100 * eps)

    laws = ("value_on_reals",)
    opened, results = judged(with_epsilon, laws)
    assert opened.notes == ("eps=0.0 is passed: mlstm adds none",)
    assert results["value_on_reals"].verdict == "passed"
    opened, results = judged(with_epsilon, laws, options={"eps": 1e-6})
    assert opened.notes == ()
    assert results["value_on_reals"].verdict == "failed"


@pytest.mark.parametrize(
    ("op", "memory", "weight"),
    [
        ("mlstm", (1, 1, 3, 4), (1, 1, 1)),
        ("abc", (1, 1, 5, 7), (1, 1, 5)),
        ("rwkv4", (1, 1, 1, 6), (1, 1, 6)),
    ],
)
def test_the_weight_of_a_memory_is_that_of_its_row_or_column(op, memory, weight):
    rng = np.random.default_rng(3)
    x, z = rng.normal(size=memory), rng.normal(size=weight)
    exact = Bounded(x, 1e-9 * abs(x)), Bounded(z, np.full(weight, 1e-12))
    kept = rng.normal(size=weight)
    sums = x * np.exp(z[..., None, :] if op == "rwkv4" else z[..., None])
    memory_kept, weight_kept = kept_over(OPERATORS[op], (x, kept), exact)
    over = np.exp(kept[..., None, :] if op == "rwkv4" else kept[..., None])
    assert np.allclose(memory_kept.output * over, sums, rtol=1e-13)
    ratio = memory_kept.bound / abs(memory_kept.output)
    assert ((ratio > 1e-9) & (ratio < 1.1e-9)).all()
    assert np.array_equal(weight_kept.output, kept)
