"""States that a target takes and returns as several arrays, as kernels of xLSTM do."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linkern.oracle import Bounded
from linkern.testing import run
from linkern.testing.api import plan_of
from linkern.testing.kernels.correct.mlstm import by_tokens
from linkern.testing.problems.expected import kept_over
from linkern.testing.runner.loop import CheckFinished, Opened
from linkern.testing.runner.reproduce import write
from linkern.testing.spec.operators import OPERATORS

LAWS = ("value_on_reals", "state_value", "state_split", "decoding", "state_linearity")


def in_parts(change=lambda *parts: parts):
    """A right kernel that takes and returns three arrays, after a change of those."""
    whole = by_tokens()

    def kernel(
        q, k, v, i=None, f=None, *, scale=None, c_initial=None, n_initial=None,
        m_initial=None, return_last_states=False,
    ):  # fmt: skip
        state = None
        if c_initial is not None:
            memory = np.concatenate([c_initial, n_initial[..., None]], axis=-1)
            state = memory, m_initial
        output, (memory, m) = whole(q, k, v, i, f, scale=scale, initial_state=state)
        parts = change(memory[..., :-1], memory[..., -1], m)
        return (output, parts) if return_last_states else output

    return kernel


right = in_parts()
weight_of_one = in_parts(lambda c, n, m: (c, n, np.where(np.isinf(m), m, 0)))


def over(weight):
    """Return the change to a state over another weight."""
    return lambda c, n, m: (c / weight, n / weight, m + np.log(weight).astype(m.dtype))


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


def failures(kernel, laws=LAWS):
    _, results = judged(kernel, laws)
    assert {x.verdict for x in results.values()} <= {"passed", "failed", "covered"}
    return {x.name: x.message for x in results.values() if x.verdict == "failed"}


@pytest.mark.parametrize("kernel", [right, in_parts(over(0.3)), in_parts(over(20.0))])
def test_a_state_may_be_over_any_weight(kernel):
    """Over the sum of the weights, or a part of it as the largest of them is one."""
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
    assert laws <= {*failures(in_parts(change), sorted(laws))}


def test_parts_that_are_missing_are_named():
    said = failures(in_parts(lambda c, _n, m: (c, m)))["decoding"]
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
