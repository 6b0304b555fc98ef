"""Gradients on NumPy in closed form, against the tape, slopes and wrong versions."""

import numpy as np
import pytest
from hypothesis import given, settings

from linkern.kernels.numpy import (
    backward,
    bwd_schedule,
    bwd_workspace,
    chunk_bwd,
    decay_grad,
    workspace,
)
from linkern.kernels.numpy.backward import pullback
from linkern.kernels.numpy.forward import attend
from tests.kernels.numpy.backward_problems import (
    KINDS,
    from_tape,
    near,
    problem,
    problems,
)

pytestmark = pytest.mark.usefixtures("no_kept_buffers")


def law_as_the_tape(back, case):
    near(back(*case.arrays(), **case.options()), from_tape(case))


@settings(max_examples=150)
@given(problems())
def test_gradients_are_those_of_the_array_code(case):
    law_as_the_tape(pullback, case)


def law_slopes(back, case):
    """The gradient along a direction is the slope of the forward pass along it."""
    rng = np.random.default_rng(1)
    ways = [None if x is None else rng.normal(size=x.shape) for x in case.inputs]
    if ways[3] is not None:
        ways[3] = -abs(ways[3]) * (case.inputs[3] < 0) * np.isfinite(case.inputs[3])
    gradients = back(*case.arrays(), **case.options())
    along = sum(
        (g * d).sum() for g, d in zip(gradients, ways, strict=True) if g is not None
    )
    step = 2.0**-18

    def moved(by):
        ends = zip(case.inputs, ways, strict=True)
        ends = [None if x is None else x + by * d for x, d in ends]
        results = zip(attend(*ends, **case.options()), case.cotangents, strict=True)
        return sum((x * c).sum() for x, c in results if c is not None)

    # The third derivative times step^2 = 2^-36, and rounding 2^-52 / step = 2^-34.
    slope = (moved(step) - moved(-step)) / (2 * step)
    assert abs(slope - along) <= 2.0**-24 * (1 + abs(slope))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_slopes_of_the_forward_engine(kind):
    law_slopes(pullback, problem(np.random.default_rng(3), **KINDS[kind]))


def law_linear(back, case):
    rng = np.random.default_rng(2)
    other = [None if x is None else rng.normal(size=x.shape) for x in case.cotangents]
    both = zip(case.cotangents, other, strict=True)
    both = [None if x is None else 2 * x - 3 * y for x, y in both]
    first, second, expected = (
        back(*case.inputs, *cotangents, **case.options())
        for cotangents in (case.cotangents, other, both)
    )
    parts = zip(first, second, strict=True)
    near([None if x is None else 2 * x - 3 * y for x, y in parts], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_linear_in_the_cotangents(kind):
    law_linear(pullback, problem(np.random.default_rng(4), **KINDS[kind]))


# Mistakes, as patches of the modules.


def without_normalizer_term(patch):
    zero = lambda ws, *_: ws.grad_denominator.fill(0)  # noqa: E731
    patch.setattr(chunk_bwd, "_grad_denominator", zero)


def with_mask_transposed(patch):
    right = bwd_workspace.BackwardWorkspace.__init__

    def wrong(self, *args, **options):
        right(self, *args, **options)
        if self.causal:
            self.causal_mask = self.causal_mask.T.copy()

    patch.setattr(bwd_workspace.BackwardWorkspace, "__init__", wrong)


def with_shifted_state_cotangents(patch):
    """Keys get the state cotangent before their chunk instead of the one after it."""
    right = bwd_schedule.key_value_grad

    def wrong(ws, tokens):
        ws.grad_state_after, kept = ws.grad_state_before, ws.grad_state_after
        right(ws, tokens)
        ws.grad_state_after = kept

    patch.setattr(bwd_schedule, "key_value_grad", wrong)


def without_chunk_decay(patch):
    """State cotangents pass a chunk without its decay."""
    patch.setattr(chunk_bwd, "_decay_over_chunk", lambda ws, chunk, state: state)


def with_decays_shifted(patch):
    right = decay_grad.DecayGrad.write

    def wrong(self, output):
        right(self, output)
        output[...] = np.roll(output, 1, axis=2)

    patch.setattr(decay_grad.DecayGrad, "write", wrong)


def with_pairs_of_a_token_with_itself(patch):
    right = decay_grad.DecayGrad.__init__

    def wrong(self, heads, chunks, size, dtype):
        right(self, heads, chunks, size, dtype)
        self._mask = -np.tri(size, size + 1, 1, dtype=self._mask.dtype)[:, None, None]

    patch.setattr(decay_grad.DecayGrad, "__init__", wrong)


def without_the_memory_before(patch):
    """Gradients of log-decays lack the state that passes the whole chunk."""
    right = decay_grad.DecayGrad.write

    def wrong(self, output):
        self.state_carried[...] = 0
        right(self, output)

    patch.setattr(decay_grad.DecayGrad, "write", wrong)


def without_slope(patch):
    copied = lambda self, grad, features, output: output.__setitem__(  # noqa: E731
        ..., grad
    )
    patch.setattr(bwd_workspace.BackwardWorkspace, "write_input_grad", copied)


def without_state_cotangent(patch):
    patch.setattr(backward, "_or_zeros", lambda x, like: np.zeros_like(like))


def with_first_memory_everywhere(patch):
    patch.setattr(bwd_schedule, "_pass_state", lambda ws, state: None)


MUTANTS = {
    without_normalizer_term: "causal",
    with_mask_transposed: "causal",
    with_shifted_state_cotangents: "causal",
    without_slope: "causal",
    without_state_cotangent: "causal",
    without_chunk_decay: "decays",
    with_decays_shifted: "decays",
    with_pairs_of_a_token_with_itself: "decays",
    without_the_memory_before: "decays",
    with_first_memory_everywhere: "everything",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_laws_catch_wrong_versions(monkeypatch, mutant):
    case = problem(np.random.default_rng(5), **KINDS[MUTANTS[mutant]])
    law_as_the_tape(pullback, case)
    law_slopes(pullback, case)
    mutant(monkeypatch)
    workspace.clear()  # buffers know what they were made for
    with pytest.raises(AssertionError):
        law_as_the_tape(pullback, case)
    with pytest.raises(AssertionError):
        law_slopes(pullback, case)


def test_linearity_catches_a_cotangent_that_is_used_twice():
    def squared(*arrays, **options):
        *inputs, output, memory, normalizer = arrays
        return pullback(*inputs, output * output, memory, normalizer, **options)

    with pytest.raises(AssertionError):
        law_linear(squared, problem(np.random.default_rng(6)))
