"""Output of the benchmarks: lines of text, and a line of progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["progress", "say"]


def say(console: Console, *lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Lend a function that shows the current step.

    It draws when it is called, between turns: a thread that draws would take a core.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, auto_refresh=False) as bar:
        shown = bar.add_task("", total=None)
        yield lambda text: bar.update(shown, description=text, refresh=True)
