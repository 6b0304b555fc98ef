"""What was measured, as tables for a terminal and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from linkern.bench.curves import crossover, exponent
from linkern.bench.generation import Measured
from linkern.bench.machine import Machine
from linkern.bench.paper import SOURCE, TABLES
from linkern.bench.timing import Spread

__all__ = ["Report", "quoted_table", "to_json", "write_json"]

SCHEMA = 1
# Below this, a token costs what calling functions costs, whatever it attends to.
_FIT_FROM = 64


@dataclass(frozen=True)
class Report:
    """All that was measured in one setting, and what follows from it.

    Parameters
    ----------
    setting : str
        What was generated.
    baseline : str
        The contestant that others are compared with.
    measured : tuple of Measured
        Length by length.
    """

    setting: str
    baseline: str
    measured: tuple[Measured, ...]

    def ratio(self, row: Measured) -> Spread | None:
        """Return how many times as long as the baseline at the same length."""
        for other in self.measured:
            if (other.contestant, other.length) == (self.baseline, row.length):
                return row.seconds.over(other.seconds)
        return None

    def longest(self) -> dict[str, Measured]:
        """Return each contestant at the greatest length it was measured at."""
        ordered = sorted(self.measured, key=lambda row: row.length)
        return {row.contestant: row for row in ordered}

    def exponents(self) -> dict[str, float | None]:
        """Return `p` of ``seconds per token ~ position^p``, from position 64 on."""
        found = {}
        for name, row in self.longest().items():
            points = [
                (position, seconds)
                for position, seconds in zip(
                    row.positions, row.seconds_per_token, strict=True
                )
                if position >= _FIT_FROM
            ]
            found[name] = exponent([x for x, _ in points], [y for _, y in points])
        return found

    def crossovers(self) -> dict[str, int | None]:
        """Return from which length on the baseline takes less, for other states.

        Contestants that recompute were timed at single tokens and are left out.
        """
        longest = self.longest()
        ours = longest.get(self.baseline)
        return {
            name: crossover(ours.spans, ours.span_seconds, row.span_seconds)
            for name, row in longest.items()
            if ours is not None and row is not ours and row.spans == ours.spans
        }

    def table(self) -> Table:
        """Return the measurements as a table."""
        table = Table(title=self.setting, title_justify="left")
        table.add_column("tokens", justify="right", no_wrap=True)
        table.add_column("contestant", no_wrap=True)
        for name in ("seconds", "tokens/s", f"time / {self.baseline}", "held", "peak"):
            table.add_column(name, justify="right", no_wrap=True)
        previous = None
        for row in self.measured:
            if previous not in (None, row.length):
                table.add_section()
            previous = row.length
            ratio = self.ratio(row)
            peak = "?" if row.peak_bytes is None else _bytes(row.peak_bytes)
            table.add_row(
                str(row.length),
                row.summary,
                _spread(row.seconds) + (" *" if row.sampled else ""),
                _number(row.tokens_per_second),
                "" if ratio is None else _spread(ratio),
                _bytes(row.held_bytes),
                peak if row.peak_by == "tracemalloc" else f"~{peak}",
            )
        return table

    def notes(self) -> tuple[str, ...]:
        """Return what has to be said below the table."""
        lines = [
            (
                "median (lowest-highest) of the rounds; held: kept between tokens; "
                "peak: preparation and last token, ~ by the growth of the process; "
                "exponents and crossings from the lowest time of each span"
            )
        ]
        counts = sorted({len(row.spans) for row in self.measured if row.sampled})
        if counts:
            number = " or ".join(map(str, counts))
            lines.append(
                f"* from {number} sampled prefixes, summed along the line between them"
            )
        for name, power in self.exponents().items():
            if power is not None:
                length = self.longest()[name].length
                lines.append(
                    f"{name}: time of a token grows like its position to the "
                    f"{power:+.2f}, up to {length}"
                )
        for name, first in self.crossovers().items():
            where = "at no length measured" if first is None else f"from {first} on"
            lines.append(f"{self.baseline} takes less than {name} {where}")
        return tuple(lines)


def quoted_table() -> Table:
    """Return the paper's own numbers as a table, labelled as quoted."""
    table = Table(title=SOURCE, title_justify="left")
    table.add_column("images", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in ("images/s", "linear does", "CPU s/image", "GPU s/image"):
        table.add_column(name, justify="right", no_wrap=True)
    for quoted in TABLES:
        for row in quoted.rows:
            table.add_row(
                f"{quoted.name}, {quoted.length} tokens",
                row.method,
                f"{row.images_per_second:g}",
                f"{quoted.ratio(row):.0f}x" if quoted.ratio(row) != 1 else "",
                f"{row.cpu_seconds:g}",
                f"{row.gpu_seconds:g}",
            )
        table.add_section()
    return table


def to_json(machine: Machine, reports: Sequence[Report]) -> dict[str, Any]:
    """Return reports as values that JSON can hold.

    Parameters
    ----------
    machine : Machine
        On what.
    reports : sequence of Report
        What was measured, one for each setting.

    Returns
    -------
    dict
        Times in seconds, memory in bytes.
    """
    return {
        "schema": SCHEMA,
        "machine": asdict(machine),
        "settings": [_setting(report) for report in reports],
        "quoted": {"source": SOURCE, "tables": [asdict(x) for x in TABLES]},
    }


def _setting(report: Report) -> dict[str, Any]:
    rows = []
    for row in report.measured:
        ratio = report.ratio(row)
        rows.append(
            {
                **asdict(row),
                "tokens_per_second": row.tokens_per_second,
                "ratio_to_baseline": None if ratio is None else asdict(ratio),
            }
        )
    return {
        "setting": report.setting,
        "baseline": report.baseline,
        "measured": rows,
        "exponents": report.exponents(),
        "crossovers": report.crossovers(),
    }


def write_json(machine: Machine, reports: Sequence[Report], path: Path) -> None:
    """Write reports as JSON."""
    text = json.dumps(to_json(machine, reports), indent=2, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def _spread(spread: Spread) -> str:
    if spread.low == spread.high:
        return _number(spread.median)
    low, high = _number(spread.low), _number(spread.high)
    return f"{_number(spread.median)} ({low}-{high})"


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def _bytes(count: int) -> str:
    if count >= 2**20:
        return f"{_number(count / 2**20)} MiB"
    return f"{count / 2**10:.0f} KiB"
