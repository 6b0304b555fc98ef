"""Generating token by token: peers that keep a state, and peers that recompute.

Peers with a state generate from the first token to the last. Peers that recompute
everything for each token would take days at lengths of thousands: they generate some of
the tokens, and the time for all is summed along the line between those.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from linkern.bench.clocks import Peak, Prepared, Real, Turn
from linkern.bench.memory import peak_by_growth, peak_by_tracing
from linkern.bench.peers import Meaning, Peer
from linkern.bench.scaling import checkpoints, integral, prefixes
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule

__all__ = ["Generator", "Spans"]

# Repetitions within a turn, whatever the clock says.
_MOST = 100


@dataclass(frozen=True, kw_only=True)
class Generator(Peer):
    """One way to generate, in this process."""

    # From a length to a session that can generate that many tokens.
    start: Callable[[int], Any]
    # ``generate(session, start, stop)`` generates these tokens. For a token whose
    # predecessors the session never saw, it must do the same work as if it had: this is
    # how memory is measured.
    generate: Callable[[Any, int, int], object]
    # From a session to the bytes that it keeps from one token to the next.
    held: Callable[[Any], int]
    # True if every token recomputes all before it.
    recomputes: bool = False
    prepare: str = ""
    kinds: tuple[str, ...] = ("generate",)
    meaning: Meaning = "unjudged"
    longest: int | None = None
    traced: bool = True

    def ready(self, task: Task, length: int, seed: int) -> Prepared:  # noqa: ARG002
        """Return the spans to generate; the tokens were drawn beforehand."""
        return Spans(self, length, task.samples)


class Spans:
    """A generator at one length, prepared to generate all tokens or samples of them."""

    def __init__(
        self,
        generator: Generator,
        length: int,
        samples: int,
        clock: Callable[[], float] = Schedule.clock,
    ) -> None:
        self.generator, self.length, self.clock = generator, length, clock
        sampled = generator.recomputes
        self.spans = prefixes(length, samples) if sampled else checkpoints(length)

    def answer(self, rows: list[int]) -> list[Real]:  # noqa: ARG002
        """Return nothing: generators are not judged in a run, but by their tests."""
        return []

    def _once(self) -> list[float]:
        session, seconds = self.generator.start(self.length), []
        for start, stop in self.spans:
            before = self.clock()
            self.generator.generate(session, start, stop)
            seconds.append(self.clock() - before)
        return seconds

    def turn(self, window: float) -> Turn:
        """Generate all spans, repeatedly if that is short, and return their times."""
        # The first call loads libraries and starts threads, and after every pause other
        # data is in the caches.
        few = min(self.length, 128)
        self.generator.generate(self.generator.start(few), 0, few)
        runs = [self._once()]
        # A processor that has slept takes a while to be fast again: a run that is over
        # in a moment would be measured while it wakes up.
        count = math.ceil(window / max(sum(runs[0]), 1e-9))
        runs += [self._once() for _ in range(min(count, _MOST) - 1)]
        each = tuple(median(x) for x in zip(*runs, strict=True))
        total = integral(self.spans, each, self.length)
        return Turn(total, len(runs), spans=self.spans, span_seconds=each)

    def peak(self, *, traced: bool) -> Peak:
        """Return the memory of preparation and the last token, and what is held."""
        sessions = []

        def last_token() -> None:
            sessions.append(self.generator.start(self.length))
            self.generator.generate(sessions[0], self.length - 1, self.length)

        extra = (peak_by_tracing if traced else peak_by_growth)(last_token)
        return Peak(extra, self.generator.held(sessions[0]))
