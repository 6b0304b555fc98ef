"""Options shared by several commands: the target and its declarations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from linkern.testing import Contract
from linkern.testing.spec.declarations import pairs
from linkern.testing.target.frameworks import FRAMEWORKS
from linkern.testing.target.protocol import MEMORY_LIMIT

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "STDOUT",
    "campaign_options",
    "candidate_options",
    "contract_of",
    "file_option",
    "in_existing_folder",
    "inputs_option",
    "ranks_option",
    "sandbox_option",
    "target_options",
]

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# A name of a file that is none.
STDOUT = Path("-")


def in_existing_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse a file in a missing folder before the run, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        msg = f"there is no folder {path.absolute().parent}."
        raise click.BadParameter(msg, context, parameter)
    return path


def file_option(flag: str, text: str, *, dash: bool = False) -> Callable[..., Any]:
    """Return an option that names a file to write, as ``flag_path``.

    With `dash` the name may be ``-``, the standard output.
    """
    return click.option(
        flag,
        f"{flag.removeprefix('--')}_path",
        type=click.Path(path_type=Path, dir_okay=False, writable=True, allow_dash=dash),
        metavar="FILE",
        callback=in_existing_folder,
        help=text,
    )


sandbox_option = click.option(
    "--sandbox",
    is_flag=True,
    help="Run it by bubblewrap: no network, and no file that it could write to.",
)
_NAME = click.argument("target", required=False)
_OP = click.option("--op", help="Operator that it claims to be (`linkern list`).")
_COMMAND = click.option(
    "--command",
    metavar="WORDS",
    help="A program instead of TARGET: './kernel {inputs} {outputs}', "
    "safetensors files.",
)
_IN_PROCESS = click.option(
    "--in-process", is_flag=True, help="Do not use a child process."
)
_INTERPRET = click.option(
    "--interpret",
    is_flag=True,
    help="Run its Triton kernels by Triton's interpreter: no GPU is needed.",
)
# How a target is called, whatever it is.
_CLAIMS = (
    click.option(
        "--declare",
        multiple=True,
        metavar="KEY=VALUE",
        help="What it declares; undeclared means strictest. Repeatable.",
    ),
    click.option(
        "--contract", type=click.Path(path_type=Path), help="The same, as TOML."
    ),
    click.option(
        "--option",
        multiple=True,
        metavar="NAME=VALUE",
        help="A keyword argument of every call, as Python writes it. Repeatable.",
    ),
    click.option(
        "--framework",
        help=f"{'/'.join(FRAMEWORKS)}. Default: inferred from the target.",
    ),
    click.option("--device", default="cpu", show_default=True),
    click.option(
        "--dtype",
        multiple=True,
        help="Default float32 and float64, as far as it takes them. Repeatable.",
    ),
    click.option(
        "--timeout",
        type=float,
        help="Seconds for one call. Default: 20; 120 if it is interpreted, with JAX, "
        "or on a device.",
    ),
    click.option(
        "--memory",
        default=MEMORY_LIMIT,
        show_default=True,
        help="GiB that it may allocate on the CPU.",
    ),
)


inputs_option = click.option(
    "--inputs",
    metavar="FILE",
    help="Judge laws on these inputs first: safetensors, named as the operator's.",
)


def _numbers_of_ranks(
    _context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    """Return the numbers of a list such as ``2,3``."""
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        msg = (
            f'must be numbers of ranks, separated by commas, such as 2,3; got "{text}".'
        )
        raise click.BadParameter(msg, param=parameter) from None


ranks_option = click.option(
    "--ranks",
    metavar="N,N",
    callback=_numbers_of_ranks,
    help="Judge a function of torch.distributed, or of `jax.shard_map`, on so many "
    "ranks, as if on one: 2,3.",
)


_CAMPAIGN = (
    click.option(
        "--all",
        "several",
        is_flag=True,
        help="Judge many kernels: the catalogue, or those of a folder.",
    ),
    click.option(
        "--executor",
        metavar="WHERE",
        help="Where kernels are judged with --all: processes (default), dask:// for a "
        "cluster of processes on this machine, dask://host:port for a scheduler's.",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Judge the kernels that the report of --json does not have yet.",
    ),
)


def campaign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a campaign over many kernels."""
    for option in reversed(_CAMPAIGN):
        command = option(command)
    return command


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a target: name, operator, contract, arrays and limits."""
    for option in reversed(
        (_NAME, _OP, _COMMAND, *_CLAIMS, _INTERPRET, _IN_PROCESS, sandbox_option)
    ):
        command = option(command)
    return command


def candidate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of several targets, each in processes of its own."""
    for option in reversed((_OP, *_CLAIMS, sandbox_option)):
        command = option(command)
    return command


def contract_of(options: dict[str, Any]) -> Contract:
    """Return the contract: declarations of the file, then of the command line."""
    declared: dict[str, Any] = {}
    if options["contract"] is not None:
        declared.update(Contract.from_file(options["contract"]))
    declared.update(pairs("--declare", "KEY=VALUE", options["declare"]))
    return Contract.from_mapping(declared)
