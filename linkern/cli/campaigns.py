"""``linkern verify --all``: the catalogue or a folder, judged by an engine."""

import sys
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from linkern.cli.files import name_file, write_files
from linkern.cli.options import EXIT_INTERRUPTED
from linkern.cli.plans import plans_of_catalogue, plans_of_folder
from linkern.testing import UsageError
from linkern.testing.campaign import record
from linkern.testing.campaign.candidates import files_of
from linkern.testing.campaign.engine import PROCESSES, engine_of
from linkern.testing.campaign.outcomes import outcomes
from linkern.testing.campaign.task import Task, Unjudged
from linkern.testing.report import terminal
from linkern.testing.report.report import EXIT_CODES, exit_code_of, write_whole
from linkern.testing.runner.plan import fresh_seed
from linkern.testing.runner.rounds import rounds_of

__all__ = ["Campaign", "campaign_of", "judge"]

_STYLES = {0: "green", 1: "bold red", 3: "yellow"}


@dataclass(frozen=True)
class Campaign:
    """Kernels to judge, and what the report has of them so far.

    Parameters
    ----------
    seed : int
        Seed of the examples of all kernels.
    tasks : dict of str to Task
        The kernels, by the settings that their verdicts depend on.
    entries : dict of str to dict
        Their parts of the report, as far as they are judged.
    """

    seed: int
    tasks: dict[str, Task]
    entries: dict[str, dict[str, Any]]

    @property
    def left(self) -> dict[str, Task]:
        """The kernels that are not in the report."""
        return {k: task for k, task in self.tasks.items() if k not in self.entries}

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The entries, in the order of the kernels."""
        return [self.entries[key] for key in self.tasks if key in self.entries]

    def text(self) -> str:
        """Return the report as JSON."""
        return record.text(self.reports, seed=self.seed, complete=not self.left)


def campaign_of(folder: str | None, options: dict[str, Any]) -> Campaign:
    """Return the campaign that the options ask for, and what it resumes from.

    Without a seed in the options it has that of the report which it resumes.
    """
    path, seed = options["json_path"], options["seed"]
    entries: dict[str, dict[str, Any]] = {}
    if options["command"] is not None:
        msg = "--all and --command exclude each other; a program is one target."
        raise UsageError(msg)
    if options["resume"] and path is None:
        msg = "--resume needs --json FILE, the report to resume."
        raise UsageError(msg)
    if options["resume"] and path.exists():
        seed_before, entries = record.read(path)
        seed = seed_before if seed is None else seed
    seed = fresh_seed() if seed is None else seed
    tasks = _tasks(folder, options | {"seed": seed, "jobs": 1})  # jobs of each kernel
    by_key = {record.key(task): task for task in tasks}
    return Campaign(seed, by_key, {k: entries[k] for k in by_key if k in entries})


def _tasks(folder: str | None, options: dict[str, Any]) -> list[Task]:
    if folder is None:
        return [Task(plan) for plan in plans_of_catalogue(options)]
    plans = plans_of_folder(folder, options)
    rounds_of(plans[0])  # inputs that cannot be used are no fault of a candidate
    return [Task(plan, files_of(plan.target)) for plan in plans]


def judge(console: Console, campaign: Campaign, options: dict[str, Any]) -> int:
    """Judge what is left, write the report after each kernel; return the exit code."""
    path, interrupted = options["json_path"], False
    if campaign.entries:
        console.print(f"{len(campaign.entries)} of {len(campaign.tasks)} are judged.")
    try:
        _judge(console, campaign, options)
    except KeyboardInterrupt:
        interrupted = True
        console.print(f"interrupted: {len(campaign.left)} kernels are not judged.")
    terminal.wide_enough(console).print(_overview(campaign))
    if path is not None:
        name_file(console, path)
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)
    return exit_code_of(each["verdict"] for each in campaign.reports)


def _judge(console: Console, campaign: Campaign, options: dict[str, Any]) -> None:
    left = campaign.left
    if not left:
        return
    plan = next(iter(left.values())).plan
    where = options["executor"] or PROCESSES
    default = replace(plan, jobs=None).processes
    with engine_of(where, options["jobs"], default) as engine:
        _write(campaign, options)  # the engine can be used: what was there is replaced
        for key, outcome in outcomes(engine, left):
            campaign.entries[key] = record.entry(key, outcome)
            _write(campaign, options)
            _show(console, campaign, campaign.entries[key])
            if isinstance(outcome, Unjudged):
                console.print(Text(f"  {outcome.message}"), soft_wrap=True)
                continue
            if outcome.exit_code:
                terminal.show(console, outcome, verbose=options["verbose"])
            write_files(console, outcome, options)


def _write(campaign: Campaign, options: dict[str, Any]) -> None:
    if options["json_path"] is not None:
        write_whole(options["json_path"], campaign.text())


def _show(console: Console, campaign: Campaign, values: dict[str, Any]) -> None:
    """Print the line of a kernel."""
    target, op, *others = _row(values)
    how = ", ".join(word for word in others if word)
    console.print(
        Text(f"{len(campaign.entries)}/{len(campaign.tasks)} "),
        _verdict(values),
        Text(f"{target} as {op}" + f" ({how})" * bool(how)),
        soft_wrap=True,
    )


def _row(values: dict[str, Any]) -> tuple[str, ...]:
    """Return the target of an entry, its operator, library and options."""
    settings = values["settings"]
    options = settings["options"].items()
    words = ", ".join(f"{k}={v}" for k, v in options if v is not None)
    library = values.get("environment", settings)["framework"]
    return values["target"], values["op"], library or "", words


def _verdict(values: dict[str, Any]) -> Text:
    return Text(values["verdict"], style=_STYLES[EXIT_CODES[values["verdict"]]])


def _overview(campaign: Campaign) -> Table:
    """Return a table of the kernels, their verdicts, and the checks that failed."""
    table = Table(title="verdicts", title_justify="left")
    for name in ("target", "op", "library", "options", "verdict", "checks"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    for values in campaign.reports:
        checks = values.get("checks", ())
        failed = [c["name"] for c in checks if c["verdict"] in ("failed", "error")]
        known = [c["name"] for c in checks if c["verdict"] == "xfailed"]
        words = ", ".join(failed) or (f"known: {', '.join(known)}" if known else "")
        table.add_row(*map(escape, _row(values)), _verdict(values), escape(words))
    return table
