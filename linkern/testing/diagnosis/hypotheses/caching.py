"""Outputs, inputs and states that a target keeps from one call to the next."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    causal,
    hypothesis,
)
from linkern.testing.diagnosis.hypotheses.spans import after, from_state, span_of
from linkern.testing.problems.problem import Problem


@hypothesis("outputs", 20)
def replayed_outputs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield the output of an earlier call."""
    replayed = [probe.problem for probe in evidence.informative if _is_replayed(probe)]
    if len(replayed) != len(evidence.informative):
        return
    names = evidence.scope.operator.names
    same = [name for name in names if all(_same(x, name) for x in replayed)]
    which = f"the same {' and '.join(same)}" if same else "the same shape"

    def predict(problem: Problem) -> Bounded:
        if all(problem is not other for other in replayed):
            return problem.solve()
        returned = problem.knobs["returned"]
        return Bounded(returned, np.zeros_like(returned))

    phrase = f"the output of an earlier call that had {which}"
    yield Deviation("replays_output", phrase, predict)


def _is_replayed(probe: Probe) -> bool:
    params = probe.problem.knobs
    previous = params.get("previous")
    return (
        previous is not None
        and previous.shape == probe.problem.shape
        and np.array_equal(params["returned"], probe.got)
    )


def _same(problem: Problem, name: str) -> bool:
    previous = problem.knobs["previous"]
    return np.array_equal(previous.inputs[name], problem.inputs[name])


@hypothesis("outputs", 21)
def stale_inputs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield an input of the call before."""
    for one in evidence.scope.operator.inputs:
        axis = one.token_axis
        for tokens, what in ((1, "first token"), (0, "shape")):

            def predict(
                problem: Problem,
                name: str = one.name,
                axis: int = axis or 0,
                tokens: int = tokens,
            ) -> Bounded:
                previous = problem.knobs.get("previous")
                if previous is None or previous.shape != problem.shape:
                    return problem.solve()
                stale, fresh = previous.inputs[name], problem.inputs[name]
                first = (slice(None),) * axis + (slice(tokens),)
                if not np.array_equal(stale[first], fresh[first]):
                    return problem.solve()
                return problem.with_inputs(**{name: stale}).solve()

            if axis is not None:
                phrase = f"the {one.name} of the call before, if that had the same"
                yield Deviation("stale_input", f"{phrase} {what}", predict)


@hypothesis("outputs", 22, causal)
def kept_states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that were left by the call before."""
    del evidence
    for tokens, what in ((None, "the last state"), (1, "the last token")):
        for same_length, which in ((True, "shape"), (False, "heads and dimensions")):
            yield Deviation(
                "state_kept_between_calls",
                f"{what} of the call before to start from, if that had the same "
                f"{which}",
                partial(_resumed, tokens=tokens, same_length=same_length),
            )


def _resumed(problem: Problem, *, tokens: int | None, same_length: bool) -> Bounded:
    """Return the output from the state, or the last token, of the call before."""
    previous = problem.knobs.get("previous")
    if previous is None or not _fits(previous, problem, same_length=same_length):
        return problem.solve()
    if tokens is not None:
        previous = span_of(previous, previous.length - tokens, previous.length)
    return from_state(problem, after(previous))


def _fits(previous: Problem, problem: Problem, *, same_length: bool) -> bool:
    one, other = previous.shape, problem.shape
    dims = ("batch", "heads", "key_dim", "value_dim")
    return one == other or (
        not same_length and all(getattr(one, x) == getattr(other, x) for x in dims)
    )
