"""Reports for people: a table of the checks, and under it what each failure means."""

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult, Report
from linkern.testing.spec.declarations import as_text

__all__ = ["explained", "report", "summary_row", "wide_enough"]

_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold red",
    "xfailed": "yellow",
    "unsupported": "dim",
    "inconclusive": "yellow",
}


def report(plan: Plan, found: Report) -> RenderableType:
    """Return a report as a table followed by its failures."""
    table = Table()
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("examples", justify="right")
    table.add_column("worst error / bound", justify="right")
    for check in found.checks:
        table.add_row(
            check.name,
            Text(check.verdict, style=_STYLES[check.verdict]),
            str(check.examples),
            _ratio(check.worst_ratio),
        )
    parts: list[RenderableType] = [_title(plan), table]
    reasons: dict[str, list[str]] = {}
    for check in found.checks:
        if check.verdict == "unsupported":
            reasons.setdefault(check.message, []).append(check.name)
        elif check.verdict != "passed" or check.message:
            parts.append(explained(plan, check))
    parts += [_not_applicable(names, why) for why, names in reasons.items()]
    if found.exit_code == 1:
        parts.append(_cause(found))
    parts.append(_footer(found))
    return Group(*parts)


def summary_row(found: Report) -> tuple[RenderableType, ...]:
    """Return the verdict of a report and what failed, for a table of many."""
    notable = [c.name for c in found.checks if c.verdict in ("failed", "error")]
    known = [c.name for c in found.checks if c.verdict == "xfailed"]
    words = ", ".join(notable) or (f"known: {', '.join(known)}" if known else "")
    return Text(found.verdict, style=_STYLES[found.verdict]), escape(words)


def _title(plan: Plan) -> Text:
    fed = f"{plan.framework}: {', '.join(plan.dtypes)}"
    return Text(f"{plan.target} as {plan.op} ({fed})", style="bold")


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def explained(plan: Plan, check: CheckResult) -> RenderableType:
    """Return what the verdict of a check means: law, input, entry, command."""
    style = _STYLES[check.verdict]
    text = Text.assemble("\n", (check.verdict, style), f" {check.name}: ")
    text.append(check.message)
    if check.verdict in ("passed", "unsupported"):
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
    text = Text("unsupported", style=_STYLES["unsupported"])
    return text.append(f" {', '.join(names)}: {why}", style="not dim")


def _cause(found: Report) -> Text:
    """Name the cause, or else say what is known."""
    if found.diagnosis is not None:
        return Text.assemble("\n", ("cause", "bold"), f" {found.diagnosis.sentence}")
    kept = [c.name for c in found.checks if c.verdict == "passed"]
    known = f"; the laws kept: {', '.join(kept)}" if kept else ""
    text = Text.assemble("\n", ("cause", "bold"), " none of the known deviations ")
    return text.append(f"reproduces what it returns{known}")


def _footer(found: Report) -> RenderableType:
    ran = [check for check in found.checks if check.verdict != "unsupported"]
    examples = sum(check.examples for check in ran)
    declared = found.contract.items()
    relaxed = ", ".join(f"{key}={as_text(value)}" for key, value in declared)
    text = Text("\n")
    if not found.complete:
        text.append("interrupted, so far ")
    text.append(found.verdict, style=_STYLES[found.verdict])
    text.append(f": {len(ran)} of {len(found.checks)} checks, {examples} examples")
    text.append(f"; declared: {relaxed}" if relaxed else "; nothing declared")
    return text


def wide_enough(console: Console) -> Console:
    """Give output that is not a terminal room for the tables."""
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console
