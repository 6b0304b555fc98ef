"""States that are wrong when one call hands them over to the next; packed sequences."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.formats import Format, rounded
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    gated,
    hypothesis,
    takes,
)
from linkern.testing.diagnosis.hypotheses.indexing import ORDERS
from linkern.testing.diagnosis.hypotheses.measuring import (
    decimals,
    fitted,
    geometric,
    spelt,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.roundings import formats
from linkern.testing.diagnosis.hypotheses.rules import (
    Reading,
    predicted,
    silenced,
)
from linkern.testing.diagnosis.hypotheses.spans import State, resumed, span_of
from linkern.testing.problems.problem import Problem

# From a span, the state before it and the right state after it, to the state that the
# next span starts from.
Handover = Callable[[Problem, State | None, State], State | None]
Change = Callable[[Bounded], Bounded]
# Name, words, and which of memory (0) and normalizer (1) are meant.
Part = tuple[str, str, tuple[int, ...]]


def _passed_on(problem: Problem, handover: Handover) -> Bounded:
    """Return the outputs of spans that start from what is handed over."""
    state: State | None = None
    outputs = []
    for first, last in pairwise((0, *problem.knobs["cuts"], problem.length)):
        span = span_of(problem, first, last)
        output, right = resumed(span, state)
        outputs.append(output)
        if last < problem.length:
            state = handover(span, state, right)
    # What is handed over has errors of its own, as that of the operator has.
    bound = np.concatenate([x.bound for x in outputs], axis=-2) + problem.solve().bound
    return Bounded(np.concatenate([x.output for x in outputs], axis=-2), bound)


def _handed(name: str, phrase: str, handover: Handover) -> Deviation:
    return Deviation(name, phrase, partial(_passed_on, handover=handover))


def _parts(evidence: Evidence) -> list[Part]:
    """Return the state and, where it has two parts, each of them."""
    whole: Part = ("state", "a state", (0, 1))
    if len(evidence.scope.operator.state) == 1:
        return [whole]
    memory: Part = ("memory", "the memory of a state", (0,))
    return [whole, memory, ("normalizer", "the normalizer of a state", (1,))]


def _exchange(parts: tuple[int, ...], left: Handover) -> Handover:
    """Return the handover of the right state, but for some parts as `left` has them."""

    def handover(span: Problem, state: State | None, right: State) -> State:
        changed = left(span, state, right)
        if changed is None:
            changed = tuple(Bounded(0 * x.output, 0 * x.bound) for x in right)
        both = enumerate(zip(right, changed, strict=True))
        return tuple(new if i in parts else old for i, (old, new) in both)

    return handover


def _change(parts: tuple[int, ...], change: Change) -> Handover:
    """Return the handover that changes some parts of the state."""
    return _exchange(parts, lambda *call: tuple(change(x) for x in call[2]))


@hypothesis("spans", 10)
def ignored(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are ignored."""
    for part, phrase, parts in _parts(evidence):
        nothing = _exchange(parts, lambda *_: None)
        yield _handed(f"{part}_ignored", f"{phrase} ignored", nothing)


@hypothesis("spans", 25)
def lacking(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that lack tokens."""
    last = "without its last token"
    for part, phrase, parts in _parts(evidence):
        left = _exchange(parts, _without_last)
        yield _handed(f"{part}_lacks_last_token", f"{phrase} {last}", left)
    sizes = (2, 4, 8, 16, 32, 64) if gated(evidence.scope) else evidence.all_sizes
    tails = (_without_tail, _without_writes)[: 1 + gated(evidence.scope)]
    for chunk in sizes:
        for least, where in ((chunk, ""), (0, ", shorter sequences included")):
            last = f"without the tokens after the last full chunk of {chunk}{where}"
            for tail in tails:
                for part, phrase, parts in _parts(evidence):
                    left = _exchange(parts, partial(tail, chunk=chunk, least=least))
                    yield _handed(f"{part}_lacks_tail", f"{phrase} {last}", left)


def _without_last(span: Problem, state: State | None, right: State) -> State | None:
    del right
    return resumed(span_of(span, 0, span.length - 1), state)[1]


def _without_tail(
    span: Problem, state: State | None, right: State, *, chunk: int, least: int
) -> State | None:
    full = span.length // chunk * chunk
    if full == span.length or span.length < least:
        return right
    return resumed(span_of(span, 0, full), state)[1] if full else state


def _without_writes(
    span: Problem, state: State | None, right: State, *, chunk: int, least: int
) -> State | None:
    """Let the tail decay the memory, but neither write to it nor erase."""
    full = span.length // chunk * chunk
    if full == span.length or span.length < least:
        return right
    return resumed(silenced(span, full), state)[1]


@hypothesis("spans", 11, takes("log_decay"))
def undecayed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that the first token after them does not decay."""
    del evidence

    def predict(problem: Problem) -> Bounded | None:
        def rule(reading: Reading) -> Reading | None:
            g = reading.get("log_decay")
            if g is None or g.ndim < 3:
                return None
            g = np.array(g)
            g[:, :, list(problem.knobs["cuts"])] = 0
            return reading.with_inputs(log_decay=g)

        return predicted(problem, rule)

    phrase = "a state that the first token after it does not decay"
    yield Deviation("state_not_decayed_by_first_token", phrase, predict)


@hypothesis("spans", 20)
def moved(evidence: Evidence) -> Iterator[Deviation]:
    """Yield memories that are transposed, or of another head."""
    del evidence
    memory = "the memory of a state transposed"
    yield _handed("state_transposed", memory, _change((0,), _transposed))
    for phrase, order in ORDERS.items():
        change = _moving(order)
        first = phrase.endswith("first head")
        name = "state_of_first_head" if first else "state_of_other_head"
        which = f"the memory of the state of {phrase}"
        yield _handed(name, which, _change((0,), change))


@hypothesis("spans", 30)
def scaled_states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states with a measured factor."""
    for part, phrase, parts in _parts(evidence):

        def scaled(
            factor: float,
            name: str = f"{part}_scaled",
            phrase: str = phrase,
            parts: tuple[int, ...] = parts,
        ) -> Deviation:
            what = f"{phrase} times {spelt(factor)}"
            return _handed(name, what, _change(parts, _times(factor)))

        usual = fitted(evidence, scaled, geometric(-2, 2))
        yield from map(scaled, decimals(usual) if usual else ())


def _moving(order: Callable[[Real], Real]) -> Change:
    return lambda x: Bounded(order(x.output), order(x.bound))


def _times(factor: float) -> Change:
    return lambda x: Bounded(factor * x.output, abs(factor) * x.bound)


def _transposed(x: Bounded) -> Bounded:
    square = x.output.ndim == 4 and x.output.shape[-1] == x.output.shape[-2]
    if not square:
        return x
    return Bounded(np.swapaxes(x.output, -1, -2), np.swapaxes(x.bound, -1, -2))


@hypothesis("spans", 21)
def rounded_states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are rounded when they are returned."""
    for to in formats(evidence):
        for part, phrase, parts in _parts(evidence):
            what = f"{phrase} {to.phrase} when it is returned"
            yield _handed(f"{part}_rounded", what, _change(parts, _rounding(to)))


def _rounding(to: Format) -> Change:
    return lambda x: rounded(x, to)
