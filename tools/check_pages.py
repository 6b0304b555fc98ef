"""Pages of the checks: law, defects, a kernel that breaks it, how to fix yours.

The text comes from the record of each check, from the kernels that break its law, and
from the kill matrix.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module

import kill_matrix
import rst
from truth import Expected, expectations

from linkern.testing import CHECKS, Check
from linkern.testing.kernels.mutants import MUTANTS, Mutant
from linkern.testing.kernels.sources import kernels_that_break, source_of
from linkern.testing.report.explanation import alone

__all__ = ["SECTIONS", "index", "pages"]

ONLY_TRITON = "Only kernels in Triton can break it, judged by ``--interpret``."
SECTIONS = ("Law", "Defects it reaches", "A kernel that breaks it", "How to fix yours")


def pages() -> dict[str, str]:
    """Return the page of each check by its name."""
    claims = kill_matrix.claimed(kill_matrix.PAGE.read_text(encoding="utf-8"))
    return {name: page(check, claims) for name, check in CHECKS.items()}


def page(check: Check, claims: kill_matrix.Caught) -> str:
    """Return the page of one check; `claims` are the rows of the kill matrix."""
    kernels = kernels_that_break(check.name)
    bodies = (
        [sentence(check.statement), *conditions(check)],
        [sentence(check.reaches), *mutants_caught(check.name, claims)],
        list(broken(kernels[0])) if kernels else [ONLY_TRITON],
        [sentence(check.advice), *run_alone(check.name)],
    )
    parts = [
        rst.section(title, *body) for title, body in zip(SECTIONS, bodies, strict=True)
    ]
    return rst.page(check.name, *parts)


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def conditions(check: Check) -> Iterator[str]:
    """Yield the conditions under which a law applies."""
    if check.needs:
        yield "It is judged where there is:"
        yield rst.bullets(check.needs)


def mutants_caught(check: str, claims: kill_matrix.Caught) -> Iterator[str]:
    """Yield the mutants that the kill matrix says a check catches."""
    names = [f"``{name}``" for name, checks in claims.items() if check in checks]
    if names:
        yield f"Mutants that it catches (:doc:`/kill-matrix`): {', '.join(names)}."


def broken(kernel: Mutant) -> Iterator[str]:
    """Yield a kernel that breaks a law, as its source is written."""
    yield f"``{kernel.name}`` claims to be :func:`linkern.{kernel.op}`."
    if kernel.name in MUTANTS:
        yield f"Seen in the field: {kernel.precedent}."
        yield from what_is_wrong(expectations()[kernel.name])
    yield rst.code(source_of(kernel))


def what_is_wrong(expected: Expected) -> Iterator[str]:
    """Yield the place and the factor of a defect, where it has them."""
    if expected.where:
        yield f"Wrong in its results: {expected.where[0]}."
    if expected.by[:1] not in ((), ("none",)):
        yield f"Its factor: ``{expected.by[0]}``."


def run_alone(check: str) -> Iterator[str]:
    """Yield the command that runs one check."""
    yield "To run this check alone:"
    words = f"linkern verify FILE.py:FUNCTION --op NAME {alone(check)}"
    yield rst.code(words, "console")


def index() -> str:
    """Return the page that lists the checks, by the module of their laws."""
    modules: dict[str, list[Check]] = {}
    for check in CHECKS.values():
        modules.setdefault(check.law.__module__, []).append(check)
    parts = [
        rst.section(
            title_of(module),
            rst.table(
                ("check", "law"),
                [
                    (f":doc:`{one.name} <checks/{one.name}>`", sentence(one.statement))
                    for one in checks
                ],
            ),
        )
        for module, checks in modules.items()
    ]
    text = (
        "Each page has the law, the defects that it reaches, a kernel that breaks it "
        "and how to mend yours. :doc:`/referee` says how a verdict is reached."
    )
    names = [f"checks/{name}" for name in CHECKS]
    return rst.page("All checks", text, *parts, rst.hidden_toctree(names))


def title_of(module: str) -> str:
    """Return the subject of a module of laws, from its docstring."""
    doc = inspect.getdoc(import_module(module)) or ""
    return (
        doc.splitlines()[0]
        .split(":")[0]
        .rstrip(".")
        .removeprefix("Laws of ")
        .capitalize()
    )
