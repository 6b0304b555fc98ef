"""HTML report: one page that runs no script and asks for nothing from the network.

Style, charts and the report as JSON (the block ``#report``) are part of the file.
Messages of a target stand in a page that people open: the templates escape every text.
"""

import math
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from linkern._version import __version__
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.fingerprint import Fingerprint
from linkern.testing.report.counting import (
    conclusion,
    declaring,
    in_words,
    more,
    not_judged,
)
from linkern.testing.report.html.charts import Edges, curve, heat_map, histogram
from linkern.testing.report.html.influence import influence
from linkern.testing.report.html.marks import ratio_text
from linkern.testing.report.thumbnail import thumbnail
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import RULES
from linkern.testing.runner.snippet import snippet
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import as_text

if TYPE_CHECKING:
    from linkern.testing.report.report import Report

__all__ = ["environment", "frame", "page", "write_html"]

# Each verdict is a word and a symbol, so that it needs no colour.
_SYMBOLS = {
    "passed": "✓",
    "failed": "✗",
    "xfailed": "(✗)",
    "error": "!",
    "inconclusive": "?",
    "skipped": "\N{RIGHTWARDS ARROW}",
    "covered": "=",
    "not_applicable": "\N{EN DASH}",
}
_MEANINGS = {
    "passed": "no input was found that breaks the law",
    "failed": "an input was found that breaks the law",
    "xfailed": "failed, as was expected",
    "error": "the check could not be run to its end",
    "inconclusive": "nothing could be proved, or no input was tried",
    "skipped": "the target, its declarations or the options leave the law out",
    "covered": "another check judges the law",
    "not_applicable": "the law says nothing of this operator",
}
# Verdicts that need more than a row of a table.
_EXPLAINED = ("failed", "xfailed", "error")
_FRAME = (
    '<iframe title="linkern report" sandbox srcdoc="{}" '
    'style="width:100%;height:40em;border:0"></iframe>'
)
# The distance of guessed chunk edges: the chunk size of most kernels.
_USUAL_CHUNK = 64
# Not characters of a page: controls, halves of surrogates, marks that reorder the text
# around them. Controls have pictures, the rest becomes the replacement character.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def page(report: "Report") -> str:
    """Return a report as one self-contained HTML page.

    Parameters
    ----------
    report : Report
        Verdicts, counterexamples and errors.
    """
    plan, verdict = report.plan, report.verdict
    seen = [check.verdict for check in report.checks]
    unfinished = not report.complete and verdict in ("passed", "xfailed")
    verdicts = [name for name in _SYMBOLS if name in seen]
    values = {
        "plan": plan,
        "report": report,
        # The passes of a run cut short prove nothing yet.
        "verdict": "inconclusive" if unfinished else verdict,
        "word": "passed so far" if unfinished else verdict,
        "verdicts": verdicts,
        "conclusion": conclusion(report),
        "not_judged": not_judged(report),
        "more": more(report),
        "options": ", ".join(f"{key}={value!r}" for key, value in plan.options.items()),
        "edges": _edges(report),
    }
    template = environment().get_template("page.html")
    return template.render(values | _fingerprint(plan.contract, report.fingerprint))


def frame(report: "Report") -> str:
    """Return the page in a frame, for a page that has a style of its own."""
    return _FRAME.format(Markup.escape(page(report)))


def write_html(report: "Report", path: Path) -> None:
    """Write a report as HTML; the file appears whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(page(report), encoding="utf-8")
    draft.replace(path)


@cache
def environment() -> Environment:
    """Return the templates, which escape every text that they are given."""
    templates = Environment(
        loader=PackageLoader("linkern.testing.report", "html"),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "ratio": ratio_text,
        "as_text": _described,
        "in_words": in_words,
    }
    templates.globals |= {
        "version": __version__,
        "rules": RULES,
        "symbols": _SYMBOLS,
        "meanings": _MEANINGS,
        "explained": _EXPLAINED,
        "significand_bits": SIGNIFICAND_BITS,
        "command": command,
        "snippet": snippet,
        "declaring": declaring,
        "curve": curve,
        "heat_map": heat_map,
        "histogram": histogram,
        "influence": influence,
        "thumbnail": thumbnail,
    }
    # Block of data: JSON without NaN, in the order of the report.
    templates.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return templates


def _printable(value: object) -> object:
    """Return a text without what is no character of a page; markup is ours."""
    if isinstance(value, Markup):
        return value
    return _UNPRINTABLE.sub(_picture, str(value))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else "\ufffd"


def _described(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return as_text(value)


def _edges(report: "Report") -> Edges:
    if report.fingerprint is not None and report.fingerprint.chunk_size:
        return Edges(report.fingerprint.chunk_size, "measured")
    if report.plan.contract.chunk_size:
        return Edges(report.plan.contract.chunk_size, "declared")
    return Edges(_USUAL_CHUNK)


def _fingerprint(contract: Contract, measured: Fingerprint | None) -> dict[str, Any]:
    """Return the declared dtype of each stage, and the measured epsilon in words."""
    if measured is None:
        return {}
    declared = contract.precisions(measured.dtype)
    operand = declared.operand or measured.dtype
    epsilon = f"none above {ratio_text(measured.eps_resolution)}"
    if measured.eps is not None:
        epsilon = f"{ratio_text(measured.eps)} ({measured.eps_mode})"
    elif not math.isfinite(measured.eps_resolution):
        epsilon = "not measured"
    dtypes = {
        "value": operand,
        "key": operand,
        "query": operand,
        "sum": declared.accumulator,
        "score": declared.score or declared.accumulator,
        "state": declared.state or declared.accumulator,
        "normalizer": declared.normalizer or declared.accumulator,
    }
    return {"declared_dtypes": dtypes, "epsilon": epsilon}
