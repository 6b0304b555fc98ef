"""What a verdict rests on: counterexamples, errors in pictures, the fingerprint."""

import math

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.fingerprint import Fingerprint
from linkern.testing.report.html.charts import Edges, curve, histogram
from linkern.testing.report.html.drawing import ratio_text
from linkern.testing.report.html.heat_map import heat_map
from linkern.testing.report.html.markup import Element, Node, element
from linkern.testing.report.html.parts import (
    badge,
    code,
    pairs,
    prose,
    section,
    shell,
    table,
)
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult, Counterexample, Report

__all__ = ["EXPLAINED", "accuracy", "anchor", "failures", "fingerprint"]

# Verdicts that need more than a row of a table.
EXPLAINED = ("failed", "xfailed", "error")
# Where lines are drawn if nobody knows the edges: what most kernels take at a time.
_USUAL_CHUNK = 64


def anchor(position: int) -> str:
    """Return where on the page the check at that position is explained."""
    return f"check-{position}"


def failures(plan: Plan, report: Report) -> Element | None:
    """Return all that is known of the checks that failed; None if none did."""
    edges = _edges(plan, report)
    articles = [
        _failure(plan, check, anchor(i), edges)
        for i, check in enumerate(report.checks)
        if check.verdict in EXPLAINED
    ]
    return section("failures", "Failures", *articles) if articles else None


def _failure(plan: Plan, check: CheckResult, identity: str, edges: Edges) -> Element:
    example = check.counterexample
    charts = []
    if example is not None and example.errors and example.errors[0]:
        charts.append(heat_map(f"{identity}-map", example.errors))
    if check.curve:
        charts.append(curve(f"{identity}-curve", check.curve, edges))
    return element(
        "article",
        element("h3", badge(check.verdict), " ", code(check.name)),
        prose(check.message, class_="finding") if check.message else None,
        pairs(
            [
                ("law", check.statement),
                *([] if example is None else _facts(example)),
                ("run it again", shell(command(plan, check.name))),
            ]
        ),
        *charts,
        id=identity,
        aria_label=check.name,
    )


def _facts(example: Counterexample) -> list[tuple[str, Node | None]]:
    def number(value: float | None) -> Node | None:
        return None if value is None else code(repr(float(value)))

    ratio = None if example.ratio is None else ratio_text(example.ratio)
    entry = None if example.index is None else f"{example.index} of (B, H, T, V)"
    return [
        ("input it died on" if example.died else "smallest input", example.input),
        ("first wrong entry", entry),
        ("got", number(example.got)),
        ("exact", number(example.exact)),
        ("bound", number(example.bound)),
        ("error / bound", ratio),
    ]


def _edges(plan: Plan, report: Report) -> Edges:
    if report.fingerprint is not None and report.fingerprint.chunk_size:
        return Edges(report.fingerprint.chunk_size, "measured")
    if plan.contract.chunk_size:
        return Edges(plan.contract.chunk_size, "declared")
    return Edges(_USUAL_CHUNK)


def accuracy(plan: Plan, report: Report) -> Element | None:
    """Return the errors of the checks that passed; None if none was measured."""
    edges = _edges(plan, report)
    folds = [
        _fold(check, f"passed-{i}", edges)
        for i, check in enumerate(report.checks)
        if check.verdict == "passed" and (check.curve or check.ratios)
    ]
    return section("accuracy", "Accuracy where it passed", *folds) if folds else None


def _fold(check: CheckResult, identity: str, edges: Edges) -> Element:
    """Return the charts of one check, folded unless they are the most telling ones."""
    charts: list[Element] = []
    exact = not any((*check.curve, *check.ratios))
    if check.curve and not exact:
        charts.append(curve(f"{identity}-curve", check.curve, edges))
    if check.ratios and not exact:
        charts.append(histogram(f"{identity}-ratios", check.ratios))
    worst = "" if check.worst_ratio is None else ratio_text(check.worst_ratio)
    words = "exact" if exact else f"worst error / bound {worst}"
    return element(
        "details",
        element("summary", code(check.name), " ", element("span", words)),
        *(charts or [element("p", "Every output was exact.")]),
        open="open" if check.name == "value_on_reals" else None,
    )


def fingerprint(plan: Plan, measured: Fingerprint | None) -> Element | None:
    """Return what was measured beside what was declared; None if nothing was."""
    if measured is None:
        return None
    if not measured.bits and measured.reason:
        return section("fingerprint", "Fingerprint", element("p", measured.reason))
    dtypes = _declared_dtypes(plan, measured.dtype)
    rows = []
    for stage, bits in measured.bits.items():
        dtype = dtypes.get(stage, "")
        shown = f"{bits} or more" if stage in measured.capped else str(bits)
        rows.append((stage, shown, str(SIGNIFICAND_BITS.get(dtype, "")), dtype))
    eps = f"none above {ratio_text(measured.eps_resolution)}"
    if measured.eps is not None:
        eps = f"{ratio_text(measured.eps)} ({measured.eps_mode})"
    elif not math.isfinite(measured.eps_resolution):
        eps = "not measured"
    return section(
        "fingerprint",
        "Fingerprint",
        element(
            "p",
            f"What integers measure of the arithmetic, on inputs in {measured.dtype}: "
            "how many bits of a significand survive each stage.",
            class_="quiet",
        ),
        table("fingerprint", ("stage", "measured bits", "declared bits", "as"), rows),
        pairs(
            [
                ("epsilon in the quotient", eps),
                ("chunk size", str(measured.chunk_size or "none that shows")),
            ]
        ),
        _contradictions(measured),
    )


def _declared_dtypes(plan: Plan, dtype: str) -> dict[str, str]:
    declared = plan.contract.precisions(dtype)
    return {
        "value": declared.operand or dtype,
        "key": declared.operand or dtype,
        "score": declared.score or declared.accumulator,
        "state": declared.state or declared.accumulator,
        "normalizer": declared.normalizer or declared.accumulator,
    }


def _contradictions(measured: Fingerprint) -> Element:
    if not measured.contradicted:
        return element("p", "Nothing that was declared is contradicted.")
    heading = element("strong", "The measurement contradicts what was declared.")
    found = [prose(sentence, "li") for sentence in measured.contradicted]
    return element("div", heading, element("ul", *found), class_="callout")
