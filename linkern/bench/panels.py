"""A run as three pictures: roofline, time against length, crossover with softmax."""

from itertools import cycle
from pathlib import Path
from typing import Any

from linkern.bench.peers import OURS
from linkern.bench.plotting import require_matplotlib
from linkern.bench.runs import SOFTMAX, Run

__all__ = ["draw_run"]

_TASK = "causal"
# What Matplotlib is told of each contestant.
Styles = dict[str, dict[str, Any]]


def draw_run(run: Run, path: Path) -> None:
    """Draw the pictures and write them.

    Parameters
    ----------
    run : Run
        What was measured; time and crossover are those of its first task that has
        several lengths, `causal` if it is there.
    path : pathlib.Path
        A file; its ending says the format.

    Raises
    ------
    ImportError
        If Matplotlib is not installed.
    ValueError
        If Matplotlib does not write the format.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 -- optional

    figure = Figure(figsize=(17, 5.5), layout="constrained")
    roofline, times, crossing = figure.subplots(1, 3)
    task = _chosen(run)
    _roofline(run, roofline)
    styles = _styles(run, task)
    _times(run, task, styles, times)
    _crossing(run, task, styles, crossing)
    figure.savefig(path)


def _chosen(run: Run) -> str:
    names = [task.name for task in run.tasks()]
    several = [name for name in names if len(run.lengths(name)) > 1]
    return _TASK if _TASK in names else (several or names)[0]


def _roofline(run: Run, axes: Any) -> None:
    """Draw linkern's rate below the two limits of its machine, task by task."""
    limits = []
    for task in run.tasks():
        points = []
        for length in run.lengths(task.name):
            seconds = run.seconds(task.name, length, OURS)
            work, moved = task.operations(length), task.compulsory_bytes(length)
            peak = run.peak(task.name, length)
            bandwidth = run.bandwidth(task.name, length)
            if not (seconds and work and moved and peak and bandwidth):
                continue
            points.append((work / moved, work / seconds.median / 1e9))
            limits.append((peak.median / 1e9, bandwidth.median / 1e9))
        if points:
            axes.plot(*zip(*points, strict=True), "o", label=task.name)
    for word, line, (rate, bytes_) in (
        ("highest", "-", max(limits, default=(0.0, 0.0))),
        ("lowest", ":", min(limits, default=(0.0, 0.0))),
    ):
        if rate:
            xs = (1.0, rate / bytes_, 1000.0)
            label = f"{word} limits: {rate:.0f} GFLOP/s, {bytes_:.0f} GB/s"
            axes.plot(xs, (bytes_, rate, rate), line, color="0.3", label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="operations per byte of inputs and outputs",
        ylabel="GFLOP/s, as the chunk form at 64 executes",
        title=f"{OURS} below the limits of the machine",
    )
    _finish(axes)


def _styles(run: Run, task: str) -> Styles:
    """Return how everybody is drawn, in all pictures: no two alike, linkern boldly."""
    from matplotlib import colormaps  # noqa: PLC0415 -- optional

    # Pairs of a dark and a light shade: the light ones are for the last.
    order = (*range(0, 20, 2), *range(1, 20, 2))
    shades = cycle(colormaps["tab20"](i) for i in order)
    return {
        name: {"color": "black", "linewidth": 2.5}
        if name == OURS
        else {"color": next(shades), "linewidth": 1.0}
        for name in dict.fromkeys(row.peer for row in run.rows if row.task == task)
    }


def _times(run: Run, task: str, styles: Styles, axes: Any) -> None:
    for peer, style in styles.items():
        points = [
            (length, seconds)
            for length in run.lengths(task)
            if run.row(task, length, peer) in run.contestants(task, length)
            and (seconds := run.seconds(task, length, peer)) is not None
        ]
        if not points:
            continue
        lengths = [length for length, _ in points]
        medians = [x.median for _, x in points]
        below = [x.median - x.low for _, x in points]
        above = [x.high - x.median for _, x in points]
        axes.errorbar(lengths, medians, (below, above), marker="o", label=peer, **style)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="seconds")
    axes.set(title=f"{task}: time against length")
    _finish(axes)


def _crossing(run: Run, task: str, styles: Styles, axes: Any) -> None:
    """Draw the time of softmax over that of everybody else."""
    for peer, style in styles.items():
        points = []
        for length in run.lengths(task):
            softmax = run.seconds(task, length, SOFTMAX)
            row = run.row(task, length, peer)
            if row not in run.contestants(task, length) or peer == SOFTMAX:
                continue
            if softmax and row is not None and row.seconds:
                points.append((length, softmax.median / row.seconds.median))
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=peer, **style)
    axes.axhline(1.0, color="0.3", linestyle=":")
    first = run.crossover(task)
    if first is not None:
        axes.axvline(first, color="0.3", linestyle=":", label=f"crossover: {first}")
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set(ylabel="time of softmax / time", title=f"{task}: crossover with softmax")
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(visible=True, which="both", alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        # Below: anywhere else it would lie over the points of some machine.
        axes.legend(
            fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3
        )
