"""``linkern bench``: linkern beside its peers and the limits, on a CPU or a GPU."""

import sys
from pathlib import Path
from typing import Any

import click

from linkern.bench.cpu import CPU
from linkern.bench.cuda import CUDA
from linkern.cli.benches.measuring import explain, measure
from linkern.cli.options import EXIT_USAGE, file_option, sandbox_option
from linkern.testing import UsageError
from linkern.testing.target.frameworks import FRAMEWORKS

__all__ = ["bench"]


@click.group(invoke_without_command=True)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME",
    help=f"Of {', '.join(task.name for task in CPU.tasks)}. Default: all but "
    f"{', '.join(task.name for task in CPU.tasks if not task.default)}; --device cuda "
    "has others. Repeatable.",
)
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens. Default: those of the task. Repeatable.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    help="Who is measured beside linkern. Default: all that are installed. A function "
    "FILE.py:NAME, causal linear attention on (B, H, T, dim), is judged on what was "
    "timed. Repeatable.",
)
@click.option(
    "--framework",
    type=click.Choice([*FRAMEWORKS]),
    help="Array library of such functions. Default: inferred.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="For every contestant. Default: the cores that this process may use.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda has tasks, peers and goals of its own, and takes no threads.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    metavar="N",
    help="With --device cuda: end in about this time. Contestants that compile longer "
    "than their share are left out; linkern and copying never are.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="With --device cuda: measure nothing; print which cut of each kernel the "
    "planner picks on which card, and why. Needs no GPU.",
)
@click.option("--quick", is_flag=True, help="Two tasks, short lengths, few rounds.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@sandbox_option
@file_option("--json", "Write what was measured as JSON.")
@file_option("--plot", "Draw roofline, times and crossover (.png, .svg, .pdf).")
@click.option(
    "--compare",
    "compared",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OLD.json",
    help="Say what has changed beyond noise since that run.",
)
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Measure linkern beside its peers and the machine.

    Every contestant is judged against a float64 answer, then all take turns, each in a
    process of its own. `linkern bench generation` measures generating token by token.

    Exit code: 0 measured, whatever goals were missed; 1 a function of yours is wrong or
    failed; 2 the options cannot be used.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        suite = CUDA if options["device"] == "cuda" else CPU
        if options["explain"]:
            explain(suite, options)
            return
        right = measure(suite, options)
    except (UsageError, ImportError, OSError, ValueError) as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    sys.exit(int(not right))
