"""Comparison of two runs: changes beyond noise, and differences of the machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linkern.bench.records import Row, Run
from linkern.bench.timing import Spread

__all__ = ["Change", "changes", "differences"]

# Rounds below which lowest and highest are no estimate of the noise.
_FEWEST = 3
_SAME = ("processor", "cores", "system", "python", "blas", "libraries")


@dataclass(frozen=True)
class Change:
    """Difference between one peer's times in two runs: new over old."""

    row: Row
    seconds: Spread
    # The same of times in units of the product of two matrices, measured in the same
    # rounds: a machine that is slower altogether is divided out.
    relative: Spread | None

    @property
    def verdict(self) -> str:
        """The change beyond noise: "faster", "slower", or empty.

        The ranges of the two relative times, lowest to highest over the rounds, do not
        overlap. Fewer than three rounds are no range.
        """
        judged = self.relative or self.seconds
        if judged.rounds < _FEWEST:
            return ""
        # The range of a quotient lies on one side of 1 just where the ranges are apart.
        return "slower" if judged.low > 1 else "faster" if judged.high < 1 else ""


def changes(old: Run, new: Run) -> tuple[Change, ...]:
    """Return the changes of all times that both runs have."""
    limits = {peer.name for peer in new.suite.limits}
    results = []
    for row in new.rows:
        before = old.row(row.task, row.length, row.peer)
        if before is None or before.seconds is None or row.seconds is None:
            continue
        now, then = new.relative(row), old.relative(before)
        if row.peer in limits or now is None or then is None:
            relative = None
        else:
            relative = now.over(then)
        results.append(Change(row, row.seconds.over(before.seconds), relative))
    return tuple(results)


def differences(old: Run, new: Run) -> tuple[str, ...]:
    """Return lines of text about all differences that are not the code."""
    lines = []
    for name in _SAME:
        then, now = getattr(old.machine, name), getattr(new.machine, name)
        if then != now:
            lines.append(f"{name}: {_plain(then)} then, {_plain(now)} now")
    if old.threads != new.threads:
        lines.append(f"threads: {old.threads} then, {new.threads} now")
    return tuple(lines)


def _plain(x: Any) -> str:
    if isinstance(x, Mapping):
        return ", ".join(f"{name} {version}" for name, version in x.items())
    return str(x)
