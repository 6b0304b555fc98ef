"""Reports for a terminal: a table of checks, then an explanation of each failure."""

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult
from linkern.testing.spec.declarations import as_text

if TYPE_CHECKING:
    from linkern.testing.report.report import Report

__all__ = ["explained", "report", "summary_row", "wide_enough"]

_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold red",
    "xfailed": "yellow",
    "not_applicable": "dim",
    "covered": "dim",
    "skipped": "dim",
    "inconclusive": "yellow",
}


def report(result: "Report") -> RenderableType:
    """Return a report as a table followed by its failures."""
    table = Table()
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("examples", justify="right")
    table.add_column("worst error / bound", justify="right")
    for check in result.checks:
        table.add_row(
            check.name,
            Text(check.verdict, style=_STYLES[check.verdict]),
            str(check.examples),
            _ratio(check.worst_ratio),
        )
    parts: list[RenderableType] = [_title(result), table]
    reasons: dict[str, list[str]] = {}
    for check in result.checks:
        if not check.applies:
            reasons.setdefault(check.message, []).append(check.name)
        elif check.verdict != "passed" or check.message:
            parts.append(explained(result.plan, check))
    parts += [_not_applicable(names, why) for why, names in reasons.items()]
    if result.exit_code == 1:
        parts.append(_cause(result))
    parts.append(_footer(result))
    return Group(*parts)


def summary_row(result: "Report") -> tuple[RenderableType, ...]:
    """Return the verdict and the failed checks of a report, for a table of reports."""
    notable = [c.name for c in result.checks if c.verdict in ("failed", "error")]
    known = [c.name for c in result.checks if c.verdict == "xfailed"]
    words = ", ".join(notable) or (f"known: {', '.join(known)}" if known else "")
    return Text(result.verdict, style=_STYLES[result.verdict]), escape(words)


def _title(result: "Report") -> Text:
    """Return the headline: target, operator, library, and what was settled for it."""
    plan = result.plan
    fed = f"{plan.framework}: {', '.join(plan.dtypes)}"
    text = Text(f"{plan.target} as {plan.op} ({fed})", style="bold")
    for note in result.notes:
        text.append(f"\n{note}", style="not bold")
    return text


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def explained(plan: Plan, check: CheckResult) -> RenderableType:
    """Return the explanation of a verdict: law, input, entry, command."""
    style = _STYLES[check.verdict]
    text = Text.assemble("\n", (check.verdict, style), f" {check.name}: ")
    text.append(check.message)
    if check.verdict == "passed" or not check.applies:
        return Text.assemble(*text.split("\n", include_separator=False)[1:])
    text.append(f"\n  law       {check.statement}")
    example = check.counterexample
    if example is not None:
        text.append(
            f"\n  {'input   ' if example.died else 'smallest'}  {example.input}"
        )
        if example.got is not None:
            text.append(f"\n  entry     {example.index} of (B, H, T, V)")
            text.append(f"\n  got       {example.got!r}")
            text.append(f"\n  exact     {example.exact!r}")
            text.append(f"\n  bound     {example.bound:.3g}")
            text.append(f" (error / bound: {_ratio(example.ratio)})")
    text.append(f"\n  again     {command(plan, check.name)}")
    return text


def _not_applicable(names: list[str], why: str) -> Text:
    text = Text("not judged", style="dim")
    return text.append(f" {', '.join(names)}: {why}", style="not dim")


def _cause(result: "Report") -> Text:
    """Return the diagnosed cause, or the checks that passed."""
    if result.diagnosis is not None:
        return Text.assemble("\n", ("cause", "bold"), f" {result.diagnosis.sentence}")
    kept = [c.name for c in result.checks if c.verdict == "passed"]
    known = f"; the laws kept: {', '.join(kept)}" if kept else ""
    text = Text.assemble("\n", ("cause", "bold"), " none of the known deviations ")
    return text.append(f"reproduces what it returns{known}")


def _footer(result: "Report") -> RenderableType:
    ran = [check for check in result.checks if check.applies]
    examples = sum(check.examples for check in ran)
    declared = result.plan.contract.declared().items()
    relaxed = ", ".join(f"{key}={as_text(value)}" for key, value in declared)
    text = Text("\n")
    if not result.complete:
        text.append("interrupted, so far ")
    text.append(result.verdict, style=_STYLES[result.verdict])
    text.append(f": {len(ran)} of {len(result.checks)} checks, {examples} examples")
    text.append(f"; declared: {relaxed}" if relaxed else "; nothing declared")
    if result.stopped:
        left = len(result.not_run)
        text.append(f"; stopped at the first failure: {left} checks not run")
    return text


def wide_enough(console: Console) -> Console:
    """Give output that is not a terminal room for the tables."""
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console
