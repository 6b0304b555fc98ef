"""What a target keeps from one call to the next."""

from collections.abc import Iterator

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import INPUT_NAMES

__all__ = ["repetitions"]


def repetitions(evidence: Evidence) -> Iterator[Deviation]:
    """Yield replayed outputs, stale inputs, and states left by the call before."""
    replayed = [probe.problem for probe in evidence.telling if _is_replayed(probe)]
    if len(replayed) == len(evidence.telling):
        same = [name for name in INPUT_NAMES if all(_same(x, name) for x in replayed)]
        of = f"the same {' and '.join(same)}" if same else "the same shape"
        yield Deviation(
            "replays_output",
            f"the output of an earlier call that had {of}",
            lambda problem: _replayed(problem, replayed),
        )
    yield from _stale_inputs()
    for tokens, what in ((None, "the last state"), (1, "the last token")):
        for same_length, of in ((True, "shape"), (False, "heads and dimensions")):

            def left(
                problem: Problem, tokens: int | None = tokens, same: bool = same_length
            ) -> tuple[Real, Real]:
                return _left(problem, tokens, same_length=same)

            yield variant(
                "state_kept_between_calls",
                f"{what} of the call before to start from, if that had the same {of}",
                before=left,
            )


def _stale_inputs() -> Iterator[Deviation]:
    """Yield calls that use an input of the call before."""
    for name in INPUT_NAMES:
        for tokens, of in ((1, "first token"), (0, "shape")):

            def predict(
                problem: Problem, name: str = name, tokens: int = tokens
            ) -> Bounded:
                previous = problem.knobs.get("previous")
                if previous is None or previous.shape != problem.shape:
                    return problem.solve()
                stale, fresh = getattr(previous, name), getattr(problem, name)
                if not np.array_equal(stale[..., :tokens, :], fresh[..., :tokens, :]):
                    return problem.solve()
                return problem.with_inputs(**{name: stale}).solve()

            yield Deviation(
                "stale_input",
                f"the {name} of the call before, if that had the same {of}",
                predict,
            )


def _is_replayed(probe: Probe) -> bool:
    knobs = probe.problem.knobs
    previous = knobs.get("previous")
    return (
        previous is not None
        and previous.shape == probe.problem.shape
        and np.array_equal(knobs["returned"], probe.got)
    )


def _same(problem: Problem, name: str) -> bool:
    previous = problem.knobs["previous"]
    return np.array_equal(getattr(previous, name), getattr(problem, name))


def _replayed(problem: Problem, replayed: list[Problem]) -> Bounded:
    if all(problem is not other for other in replayed):
        return problem.solve()
    returned = problem.knobs["returned"]
    return Bounded(returned, np.zeros_like(returned))


def _left(
    problem: Problem, tokens: int | None, *, same_length: bool
) -> tuple[Real, Real]:
    """Return the keys and values that a state of the call before was made of."""
    previous = problem.knobs.get("previous")
    if previous is None or not _fits(previous, problem, same_length=same_length):
        return problem.key[..., :0, :], problem.value[..., :0, :]
    first = 0 if tokens is None else -tokens
    key, value = previous.key[..., first:, :], previous.value[..., first:, :]
    return key.astype(np.float64), value.astype(np.float64)


def _fits(previous: Problem, problem: Problem, *, same_length: bool) -> bool:
    if same_length:
        return previous.shape == problem.shape
    shapes = (
        (previous.key.shape, previous.value.shape),
        (
            problem.key.shape,
            problem.value.shape,
        ),
    )
    return all(
        one[:2] == other[:2] and one[3] == other[3]
        for one, other in zip(*shapes, strict=True)
    )
