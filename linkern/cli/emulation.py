"""``linkern emulate``: a function of CUDA C++ on a CPU, on a file of tensors."""

import sys
from pathlib import Path
from typing import Any

import click

from linkern.cli.options import EXIT_USAGE, in_existing_folder
from linkern.testing import UsageError
from linkern.testing.emulator.arguments import Binding, binding
from linkern.testing.emulator.calls import Call
from linkern.testing.emulator.judging import emulated

__all__ = ["emulate"]


def _bindings(
    _: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> list[Binding]:
    try:
        return [binding(f"--{parameter.name}", text) for text in texts]
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def _pairs(
    _: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[str, str]]:
    for text in texts:
        if "=" not in text and parameter.name == "number":
            msg = f"`{parameter.opts[0]}` must be NAME=VALUE, got {text!r}."
            raise click.BadParameter(msg)
    return [
        (name, value or "1") for name, _, value in (x.partition("=") for x in texts)
    ]


_FILE = click.Path(path_type=Path, dir_okay=False)
_ARRAY = "PARAMETER=TENSOR[AXES]"


@click.command("emulate")
@click.argument("source", type=_FILE)
@click.argument("inputs", type=_FILE)
@click.argument("outputs", type=_FILE, callback=in_existing_folder)
@click.option("--entry", required=True, help="Kernel, or host function that launches.")
@click.option("--grid", metavar="X,Y,Z", help="Blocks, for a kernel: `B*H,1,1`.")
@click.option("--block", metavar="X,Y,Z", help="Threads of a block, for a kernel.")
@click.option(
    "--shared", default="0", metavar="BYTES", help="Dynamic shared memory of a block."
)
@click.option(
    "--read",
    multiple=True,
    metavar=_ARRAY,
    callback=_bindings,
    help="An input: `q=query[B,H,T,K]`. A last `?`: null if there is none. Repeatable.",
)
@click.option(
    "--write",
    multiple=True,
    metavar=_ARRAY,
    callback=_bindings,
    help="An output, NaN at first: `out=output[B,H,T,V]`. Repeatable.",
)
@click.option(
    "--zeros",
    multiple=True,
    metavar=_ARRAY,
    callback=_bindings,
    help="An output that the caller sets to zero. Repeatable.",
)
@click.option(
    "--number",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="A number, from sizes of axes: `C=H*K`, `scale=K**-0.5`. Repeatable.",
)
@click.option(
    "--return",
    "returns",
    multiple=True,
    metavar="TENSOR",
    help="Name of a tensor that a host function returns. Repeatable.",
)
@click.option(
    "--define",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="A macro, as a number of sizes or as text. Repeatable.",
)
@click.option(
    "--schedules",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Orders of threads to compare, bit by bit.",
)
@click.option(
    "--sanitize",
    type=click.Choice(["thread", "address"]),
    multiple=True,
    help="Look for data races, or for accesses out of bounds. Repeatable.",
)
@click.option(
    "--seconds", default=60.0, show_default=True, help="Seconds for one run of it."
)
def emulate(source: Path, inputs: Path, outputs: Path, **options: Any) -> None:
    """Run CUDA C++ on a CPU, and report what its threads do wrong.

    SOURCE is a file of CUDA C++; ENTRY one of its kernels, or a function that launches
    them. INPUTS and OUTPUTS are safetensors files. Parameters are found by name:
    tensors of INPUTS, numbers of --number, and sizes of the axes that --read names.

    Exit code: 0 the outputs are written; 1 a fault: a data race, an access out of
    bounds, undefined behaviour, or results that depend on the order of threads; 2 it
    cannot be compiled or called.
    """
    call = Call(
        source,
        options["entry"],
        reads=options["read"],
        writes=options["write"],
        zeros=options["zeros"],
        numbers=options["number"],
        grid=options["grid"],
        block=options["block"],
        shared=options["shared"],
        defines=options["define"],
        returns=options["returns"],
    )
    try:
        faults = emulated(
            call,
            inputs,
            outputs,
            schedules=options["schedules"],
            modes=options["sanitize"],
            seconds=options["seconds"],
        )
    except UsageError as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    for fault in faults:
        click.echo(f"linkern: {fault}", err=True)
    sys.exit(int(bool(faults)))
