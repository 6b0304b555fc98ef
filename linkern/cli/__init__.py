"""The ``linkern`` command: each subcommand is imported when it is asked for."""

from difflib import get_close_matches
from importlib import import_module

import click

from linkern._version import __version__

__all__ = ["COMMANDS", "main"]

# For each subcommand: its module and name under `linkern.cli`, and the first sentence
# of its help, so that `linkern --help` imports none of them.
COMMANDS = {
    "verify": ("verdicts:verify", "Judge a kernel by the laws of its operator."),
    "grade": (
        "grading:grade",
        "Grade candidates: verdict, score and cause, each within a time.",
    ),
    "demo": (
        "demonstration:demo",
        "Judge a faulty kernel that is shipped with linkern.",
    ),
    "list": ("listing:list_", "Show the operators, the checks or the declarations."),
    "explain": ("explaining:explain_", "Explain a check or an operator."),
    "fingerprint": (
        "fingerprints:fingerprint",
        "Measure the precision, epsilon and chunk size of a kernel.",
    ),
    "emulate": (
        "emulation:emulate",
        "Run CUDA C++ on a CPU, and report what its threads do wrong.",
    ),
    "check-bundle": ("bundles:check_bundle", "Run the reproducers of a bundle again."),
    "bench": ("benches:bench", "Measure linkern beside its peers and the machine."),
}


class LazyGroup(click.Group):
    """Group whose commands are those of `COMMANDS`, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Return a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"linkern.cli.{module}"), attribute)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown name with the nearest one that is known."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, 1)
            meant = f"verify {name} --op OPERATOR" if ":" in name else "".join(near)
            known = f"the commands are {', '.join(COMMANDS)}."
            hint = f"did you mean `linkern {meant}`?" if meant else known
            ctx.fail(f'unknown command "{name}"; {hint}')
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the table without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="linkern")
def main() -> None:
    """Use the numerical reference and the referee for linear attention."""
