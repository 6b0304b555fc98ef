"""Gradients on NumPy in closed form: against the tape, slopes, and wrong versions."""

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


def law_as_the_tape(back, of):
    near(back(*of.arrays(), **of.options()), from_tape(of))


@settings(max_examples=150)
@given(problems())
def test_gradients_are_those_of_the_array_code(of):
    law_as_the_tape(pullback, of)


def law_slopes(back, of):
    """The gradient along a direction is the slope of the forward engine along it."""
    rng = np.random.default_rng(1)
    ways = [None if x is None else rng.normal(size=x.shape) for x in of.inputs]
    if ways[3] is not None:
        ways[3] = -abs(ways[3]) * (of.inputs[3] < 0) * np.isfinite(of.inputs[3])
    found = back(*of.arrays(), **of.options())
    along = sum(
        (g * d).sum() for g, d in zip(found, ways, strict=True) if g is not None
    )
    step = 2.0**-18

    def moved(by):
        ends = zip(of.inputs, ways, strict=True)
        ends = [None if x is None else x + by * d for x, d in ends]
        made = zip(attend(*ends, **of.options()), of.cotangents, strict=True)
        return sum((x * c).sum() for x, c in made if c is not None)

    # The third derivative times step^2 = 2^-36, and rounding 2^-52 / step = 2^-34.
    slope = (moved(step) - moved(-step)) / (2 * step)
    assert abs(slope - along) <= 2.0**-24 * (1 + abs(slope))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_slopes_of_the_forward_engine(kind):
    law_slopes(pullback, problem(np.random.default_rng(3), **KINDS[kind]))


def law_linear(back, of):
    rng = np.random.default_rng(2)
    other = [None if x is None else rng.normal(size=x.shape) for x in of.cotangents]
    both = zip(of.cotangents, other, strict=True)
    both = [None if x is None else 2 * x - 3 * y for x, y in both]
    first, second, due = (
        back(*of.inputs, *cotangents, **of.options())
        for cotangents in (of.cotangents, other, both)
    )
    parts = zip(first, second, strict=True)
    near([None if x is None else 2 * x - 3 * y for x, y in parts], due)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_linear_in_the_cotangents(kind):
    law_linear(pullback, problem(np.random.default_rng(4), **KINDS[kind]))


# What can be done wrong, as patches of the modules.


def without_normalizer_term(patch):
    zero = lambda block, *_: block.weight_cotangent.fill(0)  # noqa: E731
    patch.setattr(chunk_bwd, "_weight_cotangent", zero)


def with_mask_transposed(patch):
    right = bwd_workspace.Adjoint.__init__

    def wrong(self, *args, **options):
        right(self, *args, **options)
        if self.causal:
            self.mask = self.mask.T.copy()

    patch.setattr(bwd_workspace.Adjoint, "__init__", wrong)


def with_own_cotangents(patch):
    """Keys of a chunk see what its own queries add: inclusive, not exclusive."""
    right = bwd_schedule.pull_keys

    def wrong(block, of):
        block.lost, kept = block.told, block.lost
        right(block, of)
        block.lost = kept

    patch.setattr(bwd_schedule, "pull_keys", wrong)


def without_what_was_lost(patch):
    """A cotangent goes back through a chunk as if its decays were none."""
    patch.setattr(chunk_bwd, "_through", lambda block, chunk, state: state)


def with_decays_shifted(patch):
    right = decay_grad.PairSums.write

    def wrong(self, output):
        right(self, output)
        output[...] = np.roll(output, 1, axis=2)

    patch.setattr(decay_grad.PairSums, "write", wrong)


def with_pairs_of_a_token_with_itself(patch):
    right = decay_grad.PairSums.__init__

    def wrong(self, heads, chunks, size, dtype):
        right(self, heads, chunks, size, dtype)
        self._mask = -np.tri(size, size + 1, 1, dtype=self._mask.dtype)[:, None, None]

    patch.setattr(decay_grad.PairSums, "__init__", wrong)


def without_the_memory_before(patch):
    """Log-decays forget the memory that they let through the whole chunk."""
    right = decay_grad.PairSums.write

    def wrong(self, output):
        self.whole[...] = 0
        right(self, output)

    patch.setattr(decay_grad.PairSums, "write", wrong)


def without_slope(patch):
    copied = lambda self, found, features, output: output.__setitem__(  # noqa: E731
        ..., found
    )
    patch.setattr(bwd_workspace.Adjoint, "through_features", copied)


def without_state_cotangent(patch):
    patch.setattr(backward, "_or_zeros", lambda x, like: np.zeros_like(like))


def with_first_memory_everywhere(patch):
    patch.setattr(bwd_schedule, "_carried_up", lambda block, memory: None)


MUTANTS = {
    without_normalizer_term: "causal",
    with_mask_transposed: "causal",
    with_own_cotangents: "causal",
    without_slope: "causal",
    without_state_cotangent: "causal",
    without_what_was_lost: "decays",
    with_decays_shifted: "decays",
    with_pairs_of_a_token_with_itself: "decays",
    without_the_memory_before: "decays",
    with_first_memory_everywhere: "everything",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_laws_catch_wrong_versions(monkeypatch, mutant):
    of = problem(np.random.default_rng(5), **KINDS[MUTANTS[mutant]])
    law_as_the_tape(pullback, of)
    law_slopes(pullback, of)
    mutant(monkeypatch)
    workspace.clear()  # buffers know what they were made for
    with pytest.raises(AssertionError):
        law_as_the_tape(pullback, of)
    with pytest.raises(AssertionError):
        law_slopes(pullback, of)


def test_linearity_catches_a_cotangent_that_is_used_twice():
    def squared(*arrays, **options):
        *inputs, output, memory, normalizer = arrays
        return pullback(*inputs, output * output, memory, normalizer, **options)

    with pytest.raises(AssertionError):
        law_linear(squared, problem(np.random.default_rng(6)))
