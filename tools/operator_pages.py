"""Pages of the operators: equation, conventions, call, example, cost, implementations.

Nothing is typed in for one operator. The text comes from its docstring, its record in
the referee, `linkern.cost` and the catalogue of published implementations.
"""

import inspect
import re
from collections.abc import Iterable, Iterator

import rst
from cost_table import DIM, LENGTH, sizes_of
from cost_table import operator as cost_row

import linkern
from linkern.adapters.catalogue import PUBLISHED, function_of
from linkern.adapters.entry import Entry
from linkern.cost import operator_cost
from linkern.operators.register import DEFINITIONS
from linkern.oracle import Reduction
from linkern.testing import OPERATORS
from linkern.testing.spec.operators import Operator

__all__ = ["NAMES", "SECTIONS", "index", "pages", "sections_of"]

SECTIONS = (
    "Equation",
    "Conventions",
    "Call",
    "Example",
    "Cost",
    "Published implementations",
)
RECORDS = {record.name: record for record in OPERATORS.values()}
NAMES = tuple(name for name in RECORDS if name in DEFINITIONS)

STEP = """\
Inputs have no axis of tokens: ``query (batch, heads, K)``, ``value (batch, heads, V)``,
and a gate of each token ``(batch, heads)``. Scale, decays and state are those of the
operator."""
STEP_KERNELS = """\
Kernels that decode are judged through their state, token by token:
:doc:`/generated/checks/decoding`, :doc:`/generated/checks/state_split`."""
AXES = {
    "b": "batch",
    "h": "heads",
    "g": "heads",
    "t": "T",
    "s": "keys",
    "k": "K",
    "v": "V",
    "m": "slots",
    "l": "levels",
    "p": "pairs",
    "r": "ranks",
}
DECAYS = {
    "": "head",
    "t": "token and head",
    "k": "head and key channel",
    "v": "head and value channel",
    "tk": "token and key channel",
    "tv": "token and value channel",
    "tm": "token and slot",
}
STATE_SIZES = {"features": "1 + K + K^2", "squares": "K^2", "k+v": "K + V"}


def pages() -> dict[str, str]:
    """Return the page of each operator by its name, and that of the step."""
    return {**{name: operator_page(name) for name in NAMES}, "step": step_page()}


def index() -> str:
    """Return the page that lists the operators."""
    rows = [
        (f":doc:`{name} <operators/{name}>`", f"``{RECORDS[name].summary}``")
        for name in NAMES
    ]
    text = (
        "Each page has the equation, the conventions, an example, exact costs and the "
        "published implementations that were judged. :doc:`/operators` compares what "
        "they can do; :doc:`operators/step` runs any of them token by token."
    )
    names = [f"operators/{name}" for name in (*NAMES, "step")]
    table = rst.table(("operator", "equation"), rows)
    return rst.page("All operators", text, table, rst.hidden_toctree(names))


def sections_of(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by name; the text before them is ``""``."""
    first, *parts = re.split(r"^(.+)\n-{3,}\n", inspect.cleandoc(doc), flags=re.M)
    return {"": first.strip(), **dict(zip(parts[::2], parts[1::2], strict=True))}


def operator_page(name: str) -> str:
    """Return the page of one operator."""
    doc = sections_of(getattr(linkern, name).__doc__)
    lead, _, time = doc[""].partition("\n\n")
    records = [one for one in RECORDS.values() if function_of(one.name)[0] == name]
    bodies = (
        [doc["Notes"], *map(equation, records)],
        [time, *conventions(records[0])],
        [f".. autofunction:: linkern.{name}"],
        [doc["Examples"]],
        cost(name),
        published([record.name for record in records]),
    )
    return _page(name, lead, bodies)


def _page(title: str, lead: str, bodies: Iterable[Iterable[str]]) -> str:
    parts = [
        rst.section(name, *body) for name, body in zip(SECTIONS, bodies, strict=True)
    ]
    return rst.page(title, ".. currentmodule:: linkern", lead, *parts)


# -- equation and conventions


def equation(record: Operator) -> str:
    """Return the equation of a record in one line, and the operators inside it."""
    text = f"In one line, as ``--op {record.name}``: ``{record.summary}``."
    inside = [
        f":doc:`{one.to}` where {', '.join(conditions(one))}"
        for one in record.reductions
        if not one.without_values
    ]
    return f"{text}\n\nIt is {'; '.join(inside)}." if inside else text


def conditions(reduction: Reduction) -> Iterator[str]:
    """Yield the inputs under which an operator is another, in words."""
    for name, number in reduction.constants.items():
        yield f"``{name}`` is {number:g}"
    for name, first in reduction.spread.items():
        if name == first:
            yield f"the channels of ``{name}`` are equal"
        else:
            yield f"``{name}`` is ``{first}``"
    for name, other in reduction.copies.items():
        yield f"``{name}`` is ``{other}``"


def conventions(record: Operator) -> Iterator[str]:
    """Yield the inputs of an operator, its scale, decays and state."""
    rows = [
        (
            f"``{one.name}``",
            f"``({', '.join(AXES[letter] for letter in one.axes)})``",
            ", ".join(f"``{alias}``" for alias in one.aliases),
            "optional" if one.optional else "required",
        )
        for one in record.inputs
    ]
    yield rst.table(("input", "shape", "names in the field", "for the referee"), rows)
    yield rst.bullets(rules(record))


def rules(record: Operator) -> Iterator[str]:
    """Yield what else a kernel must know to be this operator."""
    axes = DEFINITIONS[record.name].axes
    if record.has_scale:
        scale = "``K^-0.5``" if record.scale == "K^-0.5" else "1"
        yield f"**Scale**: a factor on the query, {scale} by default."
    if "log_decay" in axes:
        yield (
            "**Decay**: ``log_decay`` is a *natural* logarithm in ``[-inf, 0]``, one "
            f"for each {DECAYS[axes['log_decay']]}; 0 keeps everything."
        )
    shapes = [
        ", ".join(STATE_SIZES.get(letter, letter.upper()) for letter in part)
        for part in record.state
    ]
    parts = [
        f"a {kind} ``(..., {shape})``"
        for kind, shape in zip(("memory", "normalizer"), shapes, strict=False)
    ]
    yield f"**State**: {' and '.join(parts)}, in float32 or wider."
    if record.erases:
        yield f"**Erase**: on the {record.erase_along} side of the memory."
    if record.normalised:
        yield "**Rows** are averages: equal values come back unchanged."


# -- cost


def cost(name: str) -> Iterator[str]:
    """Yield the exact counts of one operator."""
    *counts, state, intensity, gradient = cost_row(name)[1:]
    sizes = ", ".join(f"{size}={n}" for size, n in sizes_of(name).items())
    yield (
        f"For each token and head, at {LENGTH} tokens with ``{sizes}``. *With "
        "gradient* is how many times the multiply-adds of the result that result and "
        "gradient take together. :doc:`/cost` defines the columns."
    )
    head = (
        "form",
        "multiply-adds",
        "elementwise",
        "exponentials",
        "operations per byte",
        "with gradient",
    )
    rows = [
        ("recurrent", *counts[:3], "", ""),
        ("chunkwise", *counts[3:], intensity, gradient),
    ]
    yield rst.table(head, rows)
    yield f"The state after these tokens is {state} numbers for each head."
    call = f'operator_cost("{name}", {LENGTH}, {sizes}).state'
    numbers = operator_cost(name, LENGTH, **sizes_of(name)).state
    example = f">>> from linkern.cost import operator_cost\n>>> {call}\n{numbers}"
    yield rst.code(example, "pycon")


# -- published implementations


def published(names: list[str]) -> Iterator[str]:
    """Yield the implementations that were judged, and how each differs."""
    entries = [entry for entry in PUBLISHED if entry.op in names]
    if entries:
        yield (
            "Judged with what is declared beside each. :doc:`/findings` and "
            ":doc:`/findings-triton` have versions and details."
        )
        yield rst.bullets(map(finding, entries))
    else:
        yield "No published implementation of this operator has been judged."


def finding(entry: Entry) -> str:
    """Return what was seen in one implementation, and the command that shows it."""
    checks_of: dict[str, list[str]] = {}
    for check, reason in entry.expect_failure.items():
        link = f":doc:`{check} </generated/checks/{check}>`"
        checks_of.setdefault(reason, []).append(link)
    verdict = "passes every check that applies to it."
    if entry.interpret:
        verdict = "passes what runs in its time by Triton's interpreter."
    if checks_of:
        parts = (f"it {why} ({', '.join(names)})" for why, names in checks_of.items())
        verdict = f"fails: {'; '.join(parts)}."
    return f"``{entry.name}`` {verdict}\n\n{rst.code(command(entry), 'console')}\n"


def command(entry: Entry) -> str:
    """Return the command that judges an implementation."""
    flags = [("--op", entry.op), ("--framework", entry.framework)]
    flags += [("--declare", f"{x}={y}") for x, y in entry.declare.items()]
    flags += [("--option", f"{x}={y}") for x, y in entry.options.items()]
    if entry.dtypes != ("float32", "float64"):
        flags += [("--dtype", dtype) for dtype in entry.dtypes]
    if entry.interpret:
        flags += [("--interpret --seconds", f"{entry.seconds:g}")]
        flags += [("--check", name) for name in entry.checks]
    return " ".join(["linkern verify", entry.target, *(f"{x} {y}" for x, y in flags)])


# -- one token


def step_page() -> str:
    """Return the page of one token at a time."""
    doc, linear = (
        sections_of(one.__doc__ or "")
        for one in (linkern.step, linkern.linear_attention_step)
    )
    bodies = (
        [doc["Notes"], linear["Notes"]],
        [STEP],
        [
            ".. autofunction:: linkern.step",
            ".. autofunction:: linkern.linear_attention_step",
        ],
        [doc["Examples"], linear["Examples"]],
        step_cost(),
        [STEP_KERNELS],
    )
    return _page("step", doc[""], bodies)


def step_cost() -> Iterator[str]:
    """Yield the exact counts of one token for every operator."""
    yield (
        f"For one token and head, with dimensions of {DIM}. The work does not depend "
        "on the tokens before."
    )
    rows = []
    for name in NAMES:
        one = operator_cost(name, 1, form="recurrent", **sizes_of(name))
        counts = one.multiply_adds, one.elementwise, one.exponentials, one.state
        rows.append((f":doc:`{name}`", *(f"{count:,}" for count in counts)))
    head = ("operator", "multiply-adds", "elementwise", "exponentials", "state")
    yield rst.table(head, rows)
