"""The report as one page to send to anybody: HTML that runs and asks for nothing.

It has no script, no request and no font of its own; every picture is part of the file,
and so is the report as JSON, in the block ``#report``.
"""

from importlib import resources
from pathlib import Path

from linkern._version import __version__
from linkern.testing.report.html.drawing import ratio_text
from linkern.testing.report.html.exhibits import (
    EXPLAINED,
    accuracy,
    anchor,
    failures,
    fingerprint,
)
from linkern.testing.report.html.markup import (
    Element,
    Node,
    data_block,
    element,
    render,
)
from linkern.testing.report.html.parts import (
    MEANINGS,
    SYMBOLS,
    badge,
    code,
    pairs,
    prose,
    section,
    shell,
)
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import RULES, CheckResult, Report
from linkern.testing.spec.declarations import as_text

__all__ = ["page", "write_html"]

# Whatever might slip into the page can neither run nor send anything.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def page(plan: Plan, report: Report) -> str:
    """Return a report as one self-contained HTML page.

    Parameters
    ----------
    plan : Plan
        What was run.
    report : Report
        What was found.
    """
    body = element(
        "body",
        _summary(plan, report),
        element(
            "main",
            _checks(report),
            failures(plan, report),
            accuracy(plan, report),
            fingerprint(plan, report.fingerprint),
            _again(plan, report),
        ),
        data_block(report.to_json(), "report"),
    )
    return f"<!doctype html>\n{render(element('html', _head(report), body, lang='en'))}"


def write_html(plan: Plan, report: Report, path: Path) -> None:
    """Write a report as HTML; the file appears whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(page(plan, report), encoding="utf-8")
    draft.replace(path)


def _head(report: Report) -> Element:
    symbol, word = SYMBOLS[_verdict(report)], _word(report)
    style = resources.files("linkern.testing.report.html").joinpath("page.css")
    return element(
        "head",
        element("meta", charset="utf-8"),
        _meta("http-equiv", "Content-Security-Policy", _POLICY),
        _meta("name", "viewport", "width=device-width, initial-scale=1"),
        _meta("name", "color-scheme", "light dark"),
        _meta("name", "referrer", "no-referrer"),
        _meta("name", "generator", f"linkern {__version__}"),
        element("link", rel="icon", href="data:,"),  # or browsers ask the server
        element("title", f"{symbol} {word}: {report.target}"),
        element("style", style.read_text(encoding="utf-8")),
    )


def _meta(key: str, name: str, content: str) -> Element:
    return element("meta", **{key: name}, content=content)


def _verdict(report: Report) -> str:
    """Return the verdict; the passes of a run cut short prove nothing yet."""
    if not report.complete and report.verdict in ("passed", "xfailed"):
        return "inconclusive"
    return report.verdict


def _word(report: Report) -> str:
    verdict = _verdict(report)
    return verdict if verdict == report.verdict else "passed so far"


def _summary(plan: Plan, report: Report) -> Element:
    """Return what a reader must know who reads no further."""
    verdicts = [check.verdict for check in report.checks]
    counts = [f"{verdicts.count(v)} {v}" for v in SYMBOLS if v in verdicts]
    declared = [
        element("li", code(f"{key}={as_text(value)}"))
        for key, value in report.contract.items()
    ]
    options = ", ".join(f"{key}={value!r}" for key, value in plan.options.items())
    relaxed: Node = "nothing: the strictest contract"
    if declared:
        relaxed = element("ul", *declared, class_="declared")
    return element(
        "header",
        element("p", "linkern: the report of the referee", class_="quiet"),
        element("h1", badge(_verdict(report), _word(report)), " ", code(report.target)),
        _incomplete(plan, report),
        _diagnosis(report),
        pairs(
            [
                ("judged as", code(report.op)),
                ("fed", f"{plan.framework} on {plan.device}: {', '.join(plan.dtypes)}"),
                ("called with", code(options) if options else None),
                ("checks", ", ".join(counts) or "none was run"),
                ("declared", relaxed),
            ]
        ),
    )


def _incomplete(plan: Plan, report: Report) -> Element | None:
    if report.complete:
        return None
    ran = {check.name for check in report.checks}
    missing = [check.name for check in plan.chosen() if check.name not in ran]
    words = f" Not run: {', '.join(missing)}." if missing else ""
    heading = element("strong", "This run did not come to its end.")
    return element("p", heading, words, class_="callout")


def _diagnosis(report: Report) -> Element | None:
    if report.diagnosis is None:
        return None
    heading = element("strong", "Likely cause: ")
    sentence = prose(report.diagnosis.sentence, "span")
    return element("p", heading, sentence, class_="callout")


def _checks(report: Report) -> Element:
    if not report.checks:
        return section("checks", "Checks", element("p", "No check was run."))
    names = ("verdict", "law", "examples", "worst error / bound", "seconds")
    header = [element("th", name, scope="col", role="columnheader") for name in names]
    rows = [_row(i, check) for i, check in enumerate(report.checks)]
    seen = [v for v in SYMBOLS if any(check.verdict == v for check in report.checks)]
    return section(
        "checks",
        "Checks",
        element(
            "p",
            "An error is measured as a multiple of its bound: the most that rounding "
            "can explain at the declared precision, whatever the order of summation. "
            "0 is exact; above 1 no correct kernel can be.",
            class_="quiet",
        ),
        # Narrow screens lay rows out as blocks, which would cost the table its roles.
        element(
            "table",
            element("thead", element("tr", *header, role="row"), role="rowgroup"),
            element("tbody", *rows, role="rowgroup"),
            role="table",
            aria_labelledby="checks",
            class_="checks",
        ),
        element("div", pairs([(v, MEANINGS[v]) for v in seen]), class_="quiet"),
    )


def _row(position: int, check: CheckResult) -> Element:
    def number(text: str, label: str) -> Element:
        attributes = {"class": "number", "data-label": label}
        return element("td", text, role="cell", **attributes)

    name: Node = code(check.name)
    if check.verdict in EXPLAINED:
        name = element("a", name, href=f"#{anchor(position)}")
    ratio = "" if check.worst_ratio is None else ratio_text(check.worst_ratio)
    return element(
        "tr",
        element("td", badge(check.verdict), role="cell"),
        element(
            "th",
            name,
            element("span", check.statement, class_="statement"),
            prose(check.message, "span", class_="message") if check.message else None,
            scope="row",
            role="rowheader",
        ),
        number(str(check.examples), "examples"),
        number(ratio, "error / bound"),
        number(f"{check.seconds:.2f}", "seconds"),
        role="row",
    )


def _again(plan: Plan, report: Report) -> Element:
    """Return what one needs to see the same again."""
    described = [
        (name, _described(value)) for name, value in report.environment.items() if value
    ]
    return section(
        "again",
        "How to see this again",
        element(
            "p",
            "The same seed, profile and versions give the same inputs and the same "
            "verdict.",
        ),
        shell(command(plan, *plan.checks)),
        pairs(
            [
                ("seed", str(plan.seed)),
                ("profile", plan.profile),
                ("linkern", __version__),
                ("rules", f"version {RULES}"),
                *(row for row in described if row[0] not in ("seed", "profile")),
            ]
        ),
        element(
            "p",
            "The report as JSON is part of this file, in the block ",
            code("#report"),
            ".",
            class_="quiet",
        ),
    )


def _described(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return as_text(value)
