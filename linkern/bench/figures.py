"""Figures: roofline, time against length, crossover with softmax; and generating."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from linkern.bench.peers import SOFTMAX
from linkern.bench.records import Row, Run
from linkern.bench.tasks import OURS, Task

__all__ = ["draw_generation", "draw_run", "require_matplotlib"]

_TASK = "causal"
# Keyword arguments of Matplotlib for each peer.
Styles = dict[str, dict[str, Any]]


def require_matplotlib() -> None:
    """Raise `ImportError`, naming the extra to install, if there is no Matplotlib."""
    if find_spec("matplotlib") is None:
        msg = (
            "pictures need Matplotlib, which is not installed; "
            "install it with `pip install linkern[plot]`."
        )
        raise ImportError(msg)


@contextmanager
def _saved(
    path: Path, rows: int, columns: int, size: tuple[float, float]
) -> Iterator[Any]:
    """Lend axes in a grid, and write the figure; its ending says the format."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 -- optional

    figure = Figure(figsize=size, layout="constrained")
    yield figure.subplots(rows, columns, squeeze=False)
    figure.savefig(path)


def draw_run(run: Run, path: Path) -> None:
    """Draw a run on a CPU and write the figure; the ending of the file says its format.

    Time and crossover are those of its first task that has several lengths, `causal` if
    it is there. Raises `ImportError` without Matplotlib, and `ValueError` for a format
    that it does not write.
    """
    with _saved(path, 1, 3, (17, 5.5)) as ((roofline, times, crossing),):
        names = [task.name for task in run.tasks()]
        several = [name for name in names if len(run.lengths(name)) > 1]
        task = _TASK if _TASK in names else (several or names)[0]
        _roofline(run, roofline)
        styles = _styles(run.names(task))
        _times(run, task, styles, times)
        _crossing(run, task, styles, crossing)


def draw_generation(run: Run, path: Path) -> None:
    """Draw time and memory of generating against length, as `draw_run`."""
    tasks = run.tasks()
    with _saved(path, len(tasks), 2, (10, 4.5 * len(tasks))) as panels:
        for task, (time, memory) in zip(tasks, panels, strict=True):
            _generation(run, task, time, memory)


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
    _finish(
        axes,
        xlabel="operations per byte of inputs and outputs",
        ylabel="GFLOP/s, as the chunk form at 64 executes",
        title=f"{OURS} below the limits of the machine",
    )


def _styles(names: list[str]) -> Styles:
    """Return the style of each peer in all panels: no two alike, linkern boldly."""
    from matplotlib import colormaps  # noqa: PLC0415 -- optional

    # Pairs of a dark and a light shade: the light ones are for the last.
    order = (*range(0, 20, 2), *range(1, 20, 2))
    shades = cycle(colormaps["tab20"](i) for i in order)
    return {
        name: {"color": "black", "linewidth": 2.5}
        if name == OURS
        else {"color": next(shades), "linewidth": 1.0}
        for name in names
    }


def _bars(axes: Any, rows: list[Row], **style: Any) -> None:
    """Draw medians and ranges against length."""
    points = [(row.length, row.seconds) for row in rows if row.seconds is not None]
    if not points:
        return
    lengths, medians = [x for x, _ in points], [y.median for _, y in points]
    below = [y.median - y.low for _, y in points]
    above = [y.high - y.median for _, y in points]
    axes.errorbar(lengths, medians, (below, above), marker="o", **style)


def _rows(run: Run, task: str, name: str) -> list[Row]:
    """Return the rows of a peer, length by length; none of a limit."""
    return [
        row
        for length in run.lengths(task)
        for row in run.peers(task, length)
        if row.peer == name
    ]


def _times(run: Run, task: str, styles: Styles, axes: Any) -> None:
    for peer, style in styles.items():
        _bars(axes, _rows(run, task, peer), label=peer, **style)
    title = f"{task}: time against length"
    _finish(axes, xlabel="tokens", ylabel="seconds", title=title)


def _crossing(run: Run, task: str, styles: Styles, axes: Any) -> None:
    """Draw the time of softmax over that of every other peer."""
    for peer, style in styles.items():
        points = []
        for row in _rows(run, task, peer):
            softmax = run.seconds(task, row.length, SOFTMAX)
            if softmax and row.seconds and peer != SOFTMAX:
                points.append((row.length, softmax.median / row.seconds.median))
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=peer, **style)
    axes.axhline(1.0, color="0.3", linestyle=":")
    first = run.crossover(task)
    if first is not None:
        axes.axvline(first, color="0.3", linestyle=":", label=f"crossover: {first}")
    title = f"{task}: crossover with softmax"
    _finish(axes, xlabel="tokens", ylabel="time of softmax / time", title=title)


def _finish(axes: Any, **labels: str) -> None:
    axes.set(xscale="log", yscale="log", **labels)
    axes.grid(visible=True, which="both", alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        # Below: anywhere else it would lie over the points of some machine.
        axes.legend(
            fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3
        )


def _generation(run: Run, task: Task, time: Any, memory: Any) -> None:
    for name in run.names(task.name):
        rows = _rows(run, task.name, name)
        lengths, held = [row.length for row in rows], [row.held_bytes for row in rows]
        _bars(time, rows, label=name)
        memory.plot(lengths, held, marker="o", label=name)
    lengths = [*run.lengths(task.name)]
    for axes, word, label in (
        (time, "time", "seconds to generate all tokens"),
        (memory, "memory", "bytes kept between tokens"),
    ):
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        axes.set_title(f"{task.summary.partition(':')[0]}: {word}")
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xticks([], minor=True)
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
