"""Pictures of what was measured: time and memory against length, both logarithmic."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from linkern.bench.report import Report

__all__ = ["plot", "require_matplotlib"]


def require_matplotlib() -> None:
    """Raise `ImportError`, naming the extra to install, if there is no Matplotlib."""
    if find_spec("matplotlib") is None:
        msg = (
            "pictures need Matplotlib, which is not installed; "
            "install it with `pip install linkern[plot]`."
        )
        raise ImportError(msg)


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draw time and memory against length and write the picture.

    Parameters
    ----------
    reports : sequence of Report
        What was measured; a row of pictures for each.
    path : pathlib.Path
        A file; its ending says the format, such as ``.png`` or ``.svg``.

    Raises
    ------
    ImportError
        If Matplotlib is not installed.
    ValueError
        If Matplotlib does not write the format.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 -- optional

    figure = Figure(figsize=(10, 4.5 * len(reports)), layout="constrained")
    rows = figure.subplots(len(reports), 2, squeeze=False)
    for report, (time, memory) in zip(reports, rows, strict=True):
        _draw(report, time, memory)
    figure.savefig(path)


def _draw(report: Report, time: Any, memory: Any) -> None:
    """Draw one setting."""
    for name in dict.fromkeys(row.contestant for row in report.measured):
        rows = [row for row in report.measured if row.contestant == name]
        lengths = [row.length for row in rows]
        times = [row.seconds for row in rows]
        below = [x.median - x.low for x in times]
        above = [x.high - x.median for x in times]
        medians = [x.median for x in times]
        time.errorbar(lengths, medians, (below, above), marker="o", label=name)
        memory.plot(lengths, [row.held_bytes for row in rows], marker="o", label=name)
    lengths = sorted({row.length for row in report.measured})
    what = report.setting.partition(":")[0]
    _finish(time, lengths, "seconds to generate all tokens", f"{what}: time")
    _finish(memory, lengths, "bytes kept between tokens", f"{what}: memory")


def _finish(axes: Any, lengths: list[int], label: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label, title=title)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
