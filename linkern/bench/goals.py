"""What linkern sets out to reach on a CPU, as data, and whether a run reached it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from linkern.bench.peers import OURS
from linkern.bench.runs import SOFTMAX, Run

__all__ = ["GOALS", "Goal", "Outcome", "outcomes"]

_MIB = 2.0**20


@dataclass(frozen=True)
class Goal:
    """One number to be reached.

    Parameters
    ----------
    task : str
        Which task.
    lengths : tuple of int
        At each of these, or at those of them that were measured.
    quantity : {"speed", "peak", "seconds", "extra", "saving", "exponent"}
        How many times as fast as others; the share of the GEMM peak; seconds; bytes
        beside inputs and outputs; how many times less of them than others; the power
        of the length that time grows with.
    least, most : float or None
        The number is to be at least and at most this.
    against : tuple of str
        The others: the best of these, or of all that compute the same.
    whom : str
        The others in words.
    """

    task: str
    lengths: tuple[int, ...]
    quantity: str
    least: float | None = None
    most: float | None = None
    against: tuple[str, ...] = ()
    whom: str = "the fastest peer"

    def text(self) -> str:
        """Return the goal in words."""
        bounds = [
            f"{word} {_shown(x, self.quantity)}"
            for word, x in (("at least", self.least), ("at most", self.most))
            if x is not None
        ]
        what = _WORDS[self.quantity].format(whom=self.whom)
        return f"{what} {' and '.join(bounds)}"


@dataclass(frozen=True)
class Outcome:
    """What a run says of a goal at one length.

    Parameters
    ----------
    goal : Goal
        Which one.
    length : int or None
        Tokens; None for what is fitted over all.
    value : float or None
        What was reached; None if nothing was measured to compare with.
    peer : str
        Whom it was compared with; empty if with nobody.
    """

    goal: Goal
    length: int | None
    value: float | None
    peer: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; None if that is not known."""
        if self.value is None:
            return None
        low, high = self.goal.least, self.goal.most
        return (low is None or self.value >= low) and (
            high is None or self.value <= high
        )

    @property
    def verdict(self) -> str:
        """The same as one word."""
        return {True: "met", False: "missed", None: "not measured"}[self.met]

    def reached(self) -> str:
        """Return the value as text, and whom it was compared with."""
        if self.value is None:
            return "-"
        whom = f" ({self.peer})" if self.peer else ""
        return _shown(self.value, self.goal.quantity) + whom


_WORDS = MappingProxyType(
    {
        "speed": "times as fast as {whom}:",
        "peak": "share of the GEMM peak:",
        "seconds": "time:",
        "extra": "memory beside inputs and outputs:",
        "saving": "times less memory than {whom}:",
        "exponent": "power of the length that time grows with:",
    }
)


def _shown(x: float, quantity: str) -> str:
    if quantity == "peak":
        return f"{100 * x:.1f} %"
    if quantity == "seconds":
        return f"{1e6 * x:.4g} us"
    if quantity == "extra":
        return f"{x / _MIB:.1f} MiB"
    return f"{x:.2f}" + ("x" if quantity in ("speed", "saving") else "")


_SHORT, _MIDDLE, _LONG = (512,), (1024, 2048, 4096), (16384, 65536)
_ALL = (*_SHORT, *_MIDDLE, *_LONG)
_TORCH = (
    "torch-loop-64",
    "torch-loop-128",
    "torch-parallel-64",
    "torch-parallel-128",
    "torch-compile",
)
_AUTOGRAD = "torch autograd"


def _speed(
    task: str, lengths: tuple[int, ...], least: float, *against: str, whom: str = ""
) -> Goal:
    words = whom or (against[0] if against else "the fastest peer")
    return Goal(task, lengths, "speed", least, None, against, words)


GOALS = (
    _speed("causal", _SHORT, 1.0),
    _speed("causal", _MIDDLE, 1.3),
    _speed("causal", _LONG, 2.0),
    _speed("causal", (4096,), 2.2, "ft-kernel"),
    _speed("causal", (4096,), 5.0, "ft"),
    _speed("causal", (4096,), 9.0, SOFTMAX),
    _speed("causal", (16384,), 30.0, SOFTMAX),
    Goal("causal", _ALL, "peak", 0.40),
    Goal("causal", _ALL, "extra", most=12 * _MIB),
    Goal("causal", _ALL, "exponent", 0.95, 1.05),
    Goal("one-thread", (512, 4096, 16384), "peak", 0.42),
    _speed("wide", (1024, 4096, 16384), 1.7),
    Goal("wide", (1024, 4096, 16384), "peak", 0.45),
    _speed("narrow", (1024, 4096, 16384), 1.0),
    _speed("float64", (512, 4096, 16384), 1.3),
    Goal("float64", (512, 4096, 16384), "peak", 0.35),
    # Two cores give up to 2; "must not fall back to one core's speed".
    _speed("one-head", (16384,), 1.3, "linkern-one-thread", whom="one thread of it"),
    _speed("noncausal", (4096,), 1.0, "torch"),
    _speed("noncausal", _LONG, 2.0, "torch"),
    _speed("gradient", (4096,), 1.0, *_TORCH, whom=_AUTOGRAD),
    _speed("gradient", _LONG, 1.3, *_TORCH, whom=_AUTOGRAD),
    _speed("gradient", (4096, *_LONG), 2.5, "ft"),
    Goal("gradient", (4096, *_LONG), "saving", 3.0, None, _TORCH, _AUTOGRAD),
    Goal("gradient", (4096, *_LONG), "saving", 3.0, None, ("ft",), "ft"),
    Goal("decode-1", (512,), "seconds", most=17e-6),
    Goal("decode-64", (256,), "seconds", most=0.5e-3),
    Goal("million", (2**20,), "extra", most=16 * _MIB),
)


def outcomes(run: Run) -> tuple[Outcome, ...]:
    """Return what a run says of every goal whose task and length it has."""
    found: list[Outcome] = []
    for goal in GOALS:
        measured = [x for x in run.lengths(goal.task) if x in goal.lengths]
        if goal.quantity == "exponent":
            if measured:
                power = run.exponent(goal.task, OURS)
                found.append(Outcome(goal, None, power))
            continue
        found += [_QUANTITIES[goal.quantity](run, goal, x) for x in measured]
    return tuple(found)


def _speed_of(run: Run, goal: Goal, length: int) -> Outcome:
    if "linkern-one-thread" in goal.against:
        other = run.row(goal.task, length, goal.against[0])
    else:
        other = run.fastest(goal.task, length, goal.against)
    ratio = None if other is None else run.ratio(other)
    if other is None or ratio is None:
        return Outcome(goal, length, None)
    return Outcome(goal, length, ratio.median, other.peer)


def _peak_of(run: Run, goal: Goal, length: int) -> Outcome:
    row = run.row(goal.task, length, OURS)
    share = None if row is None else run.fraction(row)
    return Outcome(goal, length, None if share is None else share.median)


def _seconds_of(run: Run, goal: Goal, length: int) -> Outcome:
    seconds = run.seconds(goal.task, length, OURS)
    return Outcome(goal, length, None if seconds is None else seconds.median)


def _extra_of(run: Run, goal: Goal, length: int) -> Outcome:
    row = run.row(goal.task, length, OURS)
    return Outcome(goal, length, None if row is None else row.extra_bytes)


def _saving_of(run: Run, goal: Goal, length: int) -> Outcome:
    ours = run.row(goal.task, length, OURS)
    known = [
        (row.extra_bytes, row.peer)
        for row in run.contestants(goal.task, length)
        if row.peer in goal.against and row.extra_bytes
    ]
    if not known or ours is None or not ours.extra_bytes:
        return Outcome(goal, length, None)
    least, peer = min(known)
    return Outcome(goal, length, least / ours.extra_bytes, peer)


_QUANTITIES: Mapping[str, Callable[[Run, Goal, int], Outcome]] = MappingProxyType(
    {
        "speed": _speed_of,
        "peak": _peak_of,
        "seconds": _seconds_of,
        "extra": _extra_of,
        "saving": _saving_of,
    }
)
