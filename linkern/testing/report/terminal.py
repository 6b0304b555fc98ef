"""Reports for a terminal: verdict, cause and first failure, then the rest in short."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from linkern.testing.diagnosis.diagnosis import Picture
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.report.counting import (
    conclusion,
    declared,
    declaring,
    in_words,
    more,
    not_judged,
    of_rounds,
    with_more_time,
)
from linkern.testing.report.thumbnail import thumbnail
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.snippet import snippet

if TYPE_CHECKING:
    from linkern.testing.report.report import Report

__all__ = ["explained", "report", "show", "wide_enough"]

_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold red",
    "xfailed": "yellow",
    "inconclusive": "yellow",
    **dict.fromkeys(INAPPLICABLE, "dim"),
}
# Verdicts that need a reason, the worst first.
_NOTABLE = ("failed", "error", "inconclusive", "xfailed")
# Further failures that have a row of their own.
MOST_ROWS = 5


@dataclass(frozen=True)
class Thumbnail:
    """Influence map in characters, in those that the terminal has.

    Parameters
    ----------
    picture : Picture
        The map.
    """

    picture: Picture

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        """Yield the lines."""
        del console
        for line in thumbnail(self.picture, ascii_only=options.ascii_only):
            yield Text(line, no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class Entry:
    """A text that wraps beside its label.

    Parameters
    ----------
    label : str
        Stands on the first line alone, padded to its column.
    text : str
        Wraps between words within the width of the console.
    style : str
        Style of the label.
    """

    label: str
    text: str
    style: str = ""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        """Yield the lines."""
        indent = len(self.label)
        width = max(options.max_width - indent, 20)
        lines = Text(self.text).wrap(console, width) or [Text()]
        for position, line in enumerate(lines):
            label = (" " * indent, "") if position else (self.label, self.style)
            line.rstrip()
            yield Text.assemble(label, line)


def report(result: "Report", *, verbose: bool = False) -> RenderableType:
    """Return a report: verdict, cause, first failure, the rest in short, the count.

    Parameters
    ----------
    result : Report
        Verdicts and counterexamples.
    verbose : bool
        Explain every failure, and show every check.
    """
    notable = [c for verdict in _NOTABLE for c in result.checks if c.verdict == verdict]
    in_full = notable if verbose else [c for c in notable[:1] if c.verdict != "xfailed"]
    notes = [Entry("note: ", note) for note in result.notes]
    parts = [_headline(result), *_cause(result, verbose=verbose), *notes]
    parts += [part for c in in_full for part in ("", explained(result.plan, c))]
    parts += [part for c in in_full[:1] for part in _program(result.plan, c)]
    rest = notable[len(in_full) :]
    if rest:
        parts += ["", *_rows(rest)]
    parts += ["", _table(result)] if verbose else [""]
    parts += _why_not_judged(result) if verbose else _in_short(result)
    examples = sum(check.examples for check in result.checks if check.applies)
    words = f"{examples} examples; {declared(result)}; seed {result.plan.seed}"
    tried = Entry("tried: ", words, "dim")
    return Group(*parts, tried, _count(result))


def show(console: Console, result: "Report", *, verbose: bool = False) -> None:
    """Print a report; commands are longer than lines, and left whole."""
    console.print(report(result, verbose=verbose), crop=False)


def explained(plan: Plan, check: CheckResult) -> RenderableType:
    """Return the explanation of a verdict: law, input, entry, command."""
    style = _STYLES[check.verdict]
    first = Entry(
        f"{in_words(check.verdict)} ", f"{check.name}: {check.message}", style
    )
    if check.verdict == "passed" or not check.applies:
        return first
    lines = [first, Entry("  law       ", check.statement)]
    example = check.counterexample
    if example is not None:
        lines.append(
            Entry("  input     " if example.died else "  smallest  ", example.input)
        )
        if example.got is not None:
            lines += [
                Entry("  entry     ", example.entry),
                Entry("  got       ", repr(example.got)),
                Entry("  expected  ", repr(example.expected)),
                Entry(
                    "  bound     ",
                    f"{example.bound:.3g} (error / bound: {_ratio(example.ratio)})",
                ),
            ]
    if example is not None and example.repeats is False:
        alone = "right in a new process, where no call came before it"
        lines.append(Entry("  alone     ", alone))
    # Commands and programs are copied, so their lines are whole, whatever the width.
    again = f"  again     {check.again or command(plan, check.name)}"
    return Group(*lines, Text(again, no_wrap=True, overflow="ignore"))


def _program(plan: Plan, check: CheckResult) -> Iterator[RenderableType]:
    """Yield the failure as a program, if it is small enough."""
    program = snippet(plan, check)
    if program is not None:
        yield Text("\nas a program, for an issue:\n")
        shown = textwrap.indent(program, "  ")
        yield Text(shown, no_wrap=True, overflow="ignore")


def _headline(result: "Report") -> RenderableType:
    plan = result.plan
    so_far = "" if result.complete else "interrupted, so far "
    where = "" if plan.device == "cpu" else f" on {plan.device}"
    fed = f"{plan.framework}{where}: {', '.join(plan.dtypes)}"
    if plan.ranks:
        fed += f"; on {' and '.join(map(str, plan.ranks))} ranks"
    style = _STYLES[result.verdict]
    words = f"{plan.target} as {plan.op} ({fed})"
    return Entry(f"{so_far}{result.verdict}: ", words, style)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def _cause(result: "Report", *, verbose: bool) -> list[RenderableType]:
    """Return the cause, with its map if some of it is right; or that none shows.

    What was not measured is left out where both the place and the factor are known.
    """
    cause = result.diagnosis
    lines: list[RenderableType] = []
    if cause is not None:
        known = cause.where and cause.factor is not None and not verbose
        texts = {
            "or as well: ": "; ".join(cause.alternatives),
            "usual line: ": cause.hint,
            "if that is meant: ": declaring(cause),
            "not measured: ": "" if known else "; ".join(cause.not_measured),
        }
        lines += [Entry("cause: ", cause.sentence, "bold")]
        lines += [Entry(label, text) for label, text in texts.items() if text]
        if cause.picture is not None and "." in "".join(cause.picture.cells):
            lines += ["", Thumbnail(cause.picture)]
    return lines


def _rows(checks: Sequence[CheckResult]) -> Iterator[RenderableType]:
    """Yield a row for each further failure, and a line with those that have none."""
    shown, rest = checks[:MOST_ROWS], checks[MOST_ROWS:]
    widest = max(len(check.name) for check in shown)
    yield Text("further checks, worst error / bound:")
    for check in shown:
        verdict = "" if check.verdict == "failed" else f"{check.verdict}, "
        label = f"  {check.name:{widest}} {_ratio(check.worst_ratio):>8}  "
        yield Entry(label, verdict + check.message, _STYLES[check.verdict])
    if rest:
        yield Entry(f"  and {len(rest)} more: ", _names(rest))


def _names(checks: Sequence[CheckResult]) -> str:
    return ", ".join(check.name for check in checks)


def _in_short(result: "Report") -> Iterator[RenderableType]:
    """Yield the laws that were kept, and how many others could be judged."""
    passed = [check for check in result.checks if check.verdict == "passed"]
    if passed:
        yield Entry("passed: ", _names(passed), _STYLES["passed"])
    if result.plan.seconds is not None:
        yield Entry("examples: ", of_rounds(result.rounds), "dim")
    left_out = not_judged(result)
    if left_out:
        yield Entry("not judged: ", f"{left_out} (--verbose says why)", "dim")
    if result.verdict == "inconclusive" and result.time_over and result.not_run:
        yield Entry("not run: ", ", ".join(result.not_run))
        yield Entry("to run them: ", with_more_time(result), "dim")
    if result.exit_code:
        return
    hint, dtypes = more(result), result.plan.dtypes
    if hint:
        yield Entry("to judge more: ", hint, "dim")
    for dtype in dtypes:
        alone = [check for check in passed if check.dtypes == (dtype,) != dtypes]
        if alone:
            yield Entry(f"in {dtype} only: ", _names(alone), "dim")
    for check in passed:
        if check.message:
            yield Entry(f"{check.name}: ", check.message)


def _table(result: "Report") -> Table:
    table = Table()
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("examples", justify="right")
    table.add_column("worst error / bound", justify="right")
    for check in result.checks:
        table.add_row(
            check.name,
            Text(in_words(check.verdict), style=_STYLES[check.verdict]),
            str(check.examples),
            _ratio(check.worst_ratio),
        )
    return table


def _why_not_judged(result: "Report") -> Iterator[RenderableType]:
    """Yield the reasons, each with the checks that have it."""
    reasons: dict[tuple[str, str], list[CheckResult]] = {}
    for check in result.checks:
        if check.message and (check.verdict == "passed" or not check.applies):
            reasons.setdefault((check.verdict, check.message), []).append(check)
    for (verdict, message), checks in reasons.items():
        remedy = " and ".join(checks[0].remedies)
        words = f"{_names(checks)}: {message}{f' ({remedy})' if remedy else ''}"
        yield Entry(f"{in_words(verdict)} ", words, _STYLES[verdict])


def _count(result: "Report") -> RenderableType:
    so_far = "" if result.complete else "interrupted, so far "
    verdict, colon, count = conclusion(result).partition(":")
    stopped = " (--fail-fast)" if result.stopped else ""
    shown = verdict, _STYLES[result.verdict]
    return Text.assemble(so_far, shown, colon, count, stopped)


def wide_enough(console: Console) -> Console:
    """Give output that is not a terminal room for the tables."""
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console
