"""Sequences whose bits depend on what is computed with them, promised to be the same.

A sequence is computed alone and in batches of some sizes, packed with another, and cut
into spans; its values are right in each of them.
"""

from collections.abc import Callable

import numpy as np

from linkern.testing.checks.registry import (
    no_state,
    not_batch_invariant,
    not_causal,
    not_split_invariant,
)
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sizes import in_words
from linkern.testing.errors import TargetRaised
from linkern.testing.influence.maps import Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["other_bits"]

# Batch, heads, length, key and value dimension; tokens before a cut.
SIZES, CUT = (7, 2, 70, 4, 5), 32


def other_bits(target: Target, scope: Scope) -> Diagnosis | None:
    """Return how calls have to differ for one sequence to have other bits.

    Parameters
    ----------
    target : Target
        Behind its fence; it is called some twenty times.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if bits are the same, or no declaration promises it.
    """
    if not_batch_invariant(scope) is not None:
        return None
    kind = "normal" if scope.operator.feature_map else "mild"
    shape = nearest_shape(scope, SIZES)
    rng = np.random.default_rng(0)
    problem = real_problem(scope, shape, kind, "normal", rng)
    split = all(no(scope) is None for no in (no_state, not_causal, not_split_invariant))
    tried: tuple[tuple[str, bool, Callable[[Target, Problem], str]], ...] = (
        ("batch", True, _batched),
        ("batch", scope.interface.cu_seqlens is not None, _packed),
        ("split", split, _split),
    )
    for axis, applies, observe in tried:
        try:
            words = observe(target, problem) if applies else ""
        except TargetRaised:
            continue
        if words:
            alone = "at once" if axis == "split" else "alone"
            sentence = f"returns other bits for a sequence {words} than for it {alone}"
            promise = "rows" if axis == "split" else "false"
            declared = (f"batch_invariant={promise}",)
            return Diagnosis(f"not_{axis}_invariant", sentence, np.inf, declared)
    return None


def _output(target: Target, problem: Problem, **options: object) -> Real:
    reply = target.call(Call(problem.inputs, **options))  # type: ignore[arg-type]
    return np.asarray(reply.output, dtype=np.float64)


def _batched(target: Target, problem: Problem) -> str:
    """Return the batch sizes, and places in a batch, that change bits."""
    count = problem.shape.batch
    alone = [_output(target, problem.of_batch([n]))[0] for n in range(count)]
    places: dict[int, set[int]] = {}
    for size in range(2, count + 1):
        together = _output(target, problem.of_batch(list(range(size))))
        pairs = zip(together, alone[:size], strict=True)
        changed = {at for at, pair in enumerate(pairs) if not _same(*pair)}
        if changed:
            places[size] = changed
    if not places:
        return ""
    words, _ = in_words("batch sizes", places, range(2, count + 1))
    last = all(changed == {size - 1} for size, changed in places.items())
    return f"in {words}" + ", as the last of them," * last


def _packed(target: Target, problem: Problem) -> str:
    row, cut = problem.of_batch([0]), _cut(problem)
    packed = _output(target, row, segments=((0, cut, row.length),))
    parts = ((0, cut), (cut, row.length))
    alone = [_output(target, row.span(*part)) for part in parts]
    same = _same(packed, np.concatenate(alone, axis=2))
    return "" if same else f"of {cut} tokens packed with another"


def _split(target: Target, problem: Problem) -> str:
    row, cut = problem.of_batch([0]), _cut(problem)
    parts = _output(target, row, cuts=(cut,), wants_state=True)
    if _same(parts, _output(target, row)):
        return ""
    return f"split after {cut} tokens and decoded from the state"


def _cut(problem: Problem) -> int:
    """Return the tokens before a cut: on the declared grid, and less than all."""
    contract = problem.scope.contract
    step = int(np.lcm(contract.chunk_size or 1, contract.length_multiple_of))
    return max(CUT // step, 1) * step


def _same(one: Real, other: Real) -> bool:
    return np.array_equal(one, other, equal_nan=True)
