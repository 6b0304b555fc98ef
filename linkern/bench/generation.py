"""The cost of generating token by token, for whoever can be started and asked for more.

A contestant is a name, a function that prepares for a length, and one that generates.
Those that keep a state are run from the first token to the last. Those that begin anew
with every token would take days where the length is thousands: they generate some of
the tokens, and the time for all is summed along the line between those.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from linkern.bench.curves import Span, checkpoints, integral, prefixes
from linkern.bench.memory import peak_by_growth, peak_by_tracing
from linkern.bench.timing import Schedule, Spread, interleaved

__all__ = ["Contestant", "Measured", "measure"]

# Repetitions within a turn, whatever the clock says.
_MOST = 100


@dataclass(frozen=True)
class Contestant:
    """One way to generate.

    Parameters
    ----------
    name : str
        Short, as in ``--contestant``.
    summary : str
        What it does, in a few words.
    prepare : callable
        From a length to a session that can generate that many tokens.
    generate : callable
        ``generate(session, start, stop)`` generates these tokens. Asked for a token
        whose predecessors it never saw, it must do the same work as if it had: that is
        how memory is measured.
    held : callable
        From a session to the bytes that it keeps from one token to the next.
    recomputes : bool
        Whether every token starts anew from all before it.
    traced : bool
        Whether `tracemalloc` sees its memory.
    longest : int or None
        Length above which it is left out; None for no such length.
    """

    name: str
    summary: str
    prepare: Callable[[int], Any]
    generate: Callable[[Any, int, int], object]
    held: Callable[[Any], int]
    recomputes: bool = False
    traced: bool = True
    longest: int | None = None


@dataclass(frozen=True)
class Measured:
    """What one contestant needed for one length.

    Parameters
    ----------
    contestant, summary : str
        Which one.
    length : int
        Tokens generated.
    seconds : Spread
        For all of them.
    spans : tuple of (int, int)
        The tokens that were timed together.
    span_seconds : tuple of float
        Lowest seconds of all rounds for each span: whatever else the machine did in so
        short a time only added to it.
    sampled : bool
        Whether the spans leave tokens out, so that `seconds` is an estimate.
    held_bytes : int
        Kept from one token to the next, at the end.
    peak_bytes : int or None
        The most memory at once, preparation and the last token; None if not known.
    peak_by : {"tracemalloc", "resident memory"}
        How that was measured.
    """

    contestant: str
    summary: str
    length: int
    seconds: Spread
    spans: tuple[Span, ...]
    span_seconds: tuple[float, ...]
    sampled: bool
    held_bytes: int
    peak_bytes: int | None
    peak_by: str

    @property
    def tokens_per_second(self) -> float:
        """Tokens for each second of generating all of them."""
        return self.length / self.seconds.median

    @property
    def positions(self) -> tuple[float, ...]:
        """The middle of each span, counted from 1."""
        return tuple((start + stop + 1) / 2 for start, stop in self.spans)

    @property
    def seconds_per_token(self) -> tuple[float, ...]:
        """Lowest seconds for a token of each span."""
        spans = zip(self.spans, self.span_seconds, strict=True)
        return tuple(x / (stop - start) for (start, stop), x in spans)


def measure(
    contestants: Sequence[Contestant],
    lengths: Sequence[int],
    schedule: Schedule | None = None,
    *,
    samples: int = 12,
    progress: Callable[[str, int], object] | None = None,
) -> tuple[Measured, ...]:
    """Measure all contestants at all lengths, in turns.

    Parameters
    ----------
    contestants : sequence of Contestant
        Who takes part.
    lengths : sequence of int
        Tokens to generate.
    schedule : Schedule, optional
        How often, and by which clock.
    samples : int
        Tokens that a contestant which recomputes generates at each length.
    progress : callable, optional
        Called with a name and a length before each turn.

    Returns
    -------
    tuple of Measured
        Length by length, in the order of the contestants.
    """
    schedule = schedule or Schedule()
    found: list[Measured] = []
    for length in lengths:
        racing = [c for c in contestants if c.longest is None or length <= c.longest]
        turns = interleaved(
            {c.name: _turn(c, length, samples, schedule) for c in racing},
            schedule,
            partial(_tell, progress, length),
        )
        found += [_measured(c, length, samples, turns[c.name]) for c in racing]
    return tuple(found)


def _tell(
    progress: Callable[[str, int], object] | None, length: int, name: str
) -> None:
    if progress is not None:
        progress(name, length)


def _spans(contestant: Contestant, length: int, samples: int) -> tuple[Span, ...]:
    return prefixes(length, samples) if contestant.recomputes else checkpoints(length)


def _warm_up(contestant: Contestant, length: int) -> None:
    """Generate a little that nobody times.

    The first call loads libraries and starts threads, and after every pause the
    processor has other things in its caches.
    """
    few = min(length, 128)
    contestant.generate(contestant.prepare(few), 0, few)


def _turn(
    contestant: Contestant, length: int, samples: int, schedule: Schedule
) -> Callable[[], tuple[float, ...]]:
    """Return a function that generates and returns the seconds for each span."""
    spans = _spans(contestant, length, samples)
    clock = schedule.clock

    def once() -> list[float]:
        session = contestant.prepare(length)
        taken = []
        for start, stop in spans:
            before = clock()
            contestant.generate(session, start, stop)
            taken.append(clock() - before)
        return taken

    def turn() -> tuple[float, ...]:
        _warm_up(contestant, length)
        samples = [once()]
        # A processor that has slept takes a while to be fast again: what is over in
        # a moment would be measured waking up.
        wanted = schedule.window / max(sum(samples[0]), 1e-9)
        samples += [once() for _ in range(min(math.ceil(wanted), _MOST) - 1)]
        return tuple(median(x) for x in zip(*samples, strict=True))

    return turn


def _measured(
    contestant: Contestant,
    length: int,
    samples: int,
    turns: Sequence[tuple[float, ...]],
) -> Measured:
    spans = _spans(contestant, length, samples)
    sessions = []

    def last_token() -> None:
        sessions.append(contestant.prepare(length))
        contestant.generate(sessions[0], length - 1, length)

    peak = (peak_by_tracing if contestant.traced else peak_by_growth)(last_token)
    return Measured(
        contestant=contestant.name,
        summary=contestant.summary,
        length=length,
        seconds=Spread.of([integral(spans, turn, length) for turn in turns]),
        spans=spans,
        span_seconds=tuple(min(x) for x in zip(*turns, strict=True)),
        sampled=contestant.recomputes and len(spans) < length,
        held_bytes=contestant.held(sessions[0]),
        peak_bytes=peak,
        peak_by="tracemalloc" if contestant.traced else "resident memory",
    )
