"""``linkern fingerprint``: measure the arithmetic of a target."""

import json
import sys
from typing import Any

import click
from rich.console import Console

from linkern.cli.options import (
    EXIT_USAGE,
    contract_of,
    file_option,
    target_options,
)
from linkern.testing import OPERATORS, UsageError
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.fingerprint import Fingerprint, sheet
from linkern.testing.fingerprint import fingerprint as measure
from linkern.testing.report import terminal
from linkern.testing.runner.opening import open_target, scope_of, settle
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.declarations import keywords

__all__ = ["fingerprint"]


@click.command()
@target_options
@file_option("--json", "Write the measurements as JSON.")
def fingerprint(target: str | None, **options: Any) -> None:
    """Measure the precision, epsilon and chunk size of a kernel.

    Precision is the number of significand bits that survive in each stage of TARGET.

    Exit code: 0 measured; 1 a declaration is contradicted; 2 the target, contract or
    options cannot be used, or the target did not survive.
    """
    console = terminal.wide_enough(Console())
    try:
        fingerprints = _measured(target, options)
        if options["json_path"] is not None:
            values = [one.to_dict() for one in fingerprints]
            text = json.dumps(values, indent=2, allow_nan=False) + "\n"
            options["json_path"].write_text(text, encoding="utf-8")
    except (UsageError, OSError) as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    for one in fingerprints:
        console.print(sheet(one))
    sys.exit(int(any(one.contradicted for one in fingerprints)))


def _measured(target: str | None, options: dict[str, Any]) -> list[Fingerprint]:
    if (target is None) == (options["command"] is None):
        msg = "name one target, or a program with --command."
        raise UsageError(msg)
    if options["op"] is None:
        msg = f"say which operator the target is with --op: {', '.join(OPERATORS)}."
        raise UsageError(msg)
    interpret = options["interpret"]
    plan = Plan(
        target=target or options["command"],
        op=options["op"],
        contract=contract_of(options),
        framework=options["framework"],
        device=options["device"],
        dtypes=options["dtype"] or (() if interpret else ("float32", "float64")),
        timeout=options["timeout"],
        memory_limit=options["memory"],
        in_process=options["in_process"],
        interpret=interpret,
        sandbox=options["sandbox"],
        options=keywords("--option", options["option"]),
        command=options["command"],
    )
    opened = open_target(plan)
    try:
        plan, _ = settle(plan, opened)
        return [measure(opened, scope_of(plan, opened, name)) for name in plan.dtypes]
    except TargetRaised as raised:
        msg = f"the target raised {raised}."
        raise UsageError(msg) from None
    except TargetDied as death:
        msg = f"the target {death.reason}."
        raise UsageError(msg) from None
    finally:
        opened.close()
