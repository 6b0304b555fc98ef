"""A check, and an operator, explained to the author of a kernel: labelled texts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from linkern.testing.checks import CHECKS, INTERPRETED, ON_CUDA, Check
from linkern.testing.errors import UsageError
from linkern.testing.kernels.sources import kernels_that_break, source_of
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import DECLARATIONS
from linkern.testing.spec.operators import OPERATORS, Input, Operator
from linkern.testing.target.accelerators import WAYS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.signatures import Interface

__all__ = [
    "Explanation",
    "alone",
    "axes_of",
    "explain",
    "explain_check",
    "explain_operator",
    "inapplicable",
    "operators_of",
]

# Kernels that are named where a law is broken by many.
MOST = 7
# Declarations that make a law apply which does not apply without one.
_DECLARED: tuple[dict[str, object], ...] = (
    {},
    {"validates": True},
    {"feature_map": "identity"},
    {"batch_invariant": "true"},
    {"cuda_graphs": True},
)
_LETTERS = {
    **dict.fromkeys(("features", "squares"), "F"),
    "g": "H",
    "2k": "2 K",
    "k+v": "K + V",
    "k/r": "K / R",
    "p+k+v": "P + K + V",
}


@dataclass(frozen=True)
class Explanation:
    """A check or an operator in labelled texts.

    Parameters
    ----------
    name : str
        Its name on the command line.
    rows : tuple of (str, str)
        Label and text; texts have no line breaks.
    source : str
        Source of a kernel that breaks the law of a check; empty for an operator.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    source: str = ""


def explain(name: str) -> Explanation:
    """Explain a check or an operator.

    Raises
    ------
    UsageError
        If there is neither a check nor an operator of that name.

    Examples
    --------
    >>> dict(explain("causality").rows)["needs"]
    'a causal operator'
    """
    if name in CHECKS:
        return explain_check(CHECKS[name])
    if name in OPERATORS:
        return explain_operator(name)
    close = get_close_matches(name, (*CHECKS, *OPERATORS), n=1)
    if name in DECLARATIONS:
        hint = "it is a declaration: `linkern list declarations` explains it."
    elif close:
        hint = f'did you mean "{close[0]}"?'
    else:
        hint = "`linkern list` shows all names."
    msg = f'unknown check or operator "{name}"; {hint}'
    raise UsageError(msg)


def explain_check(check: Check) -> Explanation:
    """Return the law of a check, when it applies, and how a broken kernel is mended."""
    kernels = kernels_that_break(check.name)
    if not kernels:
        return _explain_launches(check)
    shown = kernels[0]
    others = ", ".join(one.name for one in kernels[1:MOST])
    if len(kernels) > MOST:
        others += f" and {len(kernels) - MOST} more (docs/kill-matrix.md)"
    rows = [
        ("law", check.statement),
        ("reaches", check.reaches),
        ("needs", "; ".join(check.needs) or "nothing: it applies to every kernel"),
        ("operators", _listed(operators_of(check))),
        ("fix", check.advice),
        ("alone", f"linkern verify TARGET --op {shown.op} --check {check.name}"),
        ("broken by", f"{shown.name}, a kernel of {shown.op} ({shown.precedent})"),
        ("and by", others),
    ]
    known = tuple((label, text) for label, text in rows if text)
    return Explanation(check.name, known, source_of(shown))


def alone(check: str) -> str:
    """Return the options by which a check runs alone.

    Examples
    --------
    >>> alone("graph_replay")
    '--device cuda --check graph_replay'
    """
    if check in INTERPRETED:
        return f"--interpret --check {check}"
    return f"--device cuda --check {check}" if check in ON_CUDA else f"--check {check}"


def _explain_launches(check: Check) -> Explanation:
    """Explain a law of launches, for which linkern has no kernel."""
    rows = [
        ("law", check.statement),
        ("reaches", check.reaches),
        ("needs", "; ".join(check.needs)),
        ("operators", _listed(operators_of(check))),
        ("fix", check.advice),
        ("alone", f"linkern verify TARGET --op NAME {alone(check.name)}"),
    ]
    return Explanation(check.name, tuple(rows))


def explain_operator(name: str) -> Explanation:
    """Return the equation of an operator, its inputs and state, and its laws."""
    operator = OPERATORS[name]
    known = f", the same as {operator.name}" if operator.name != name else ""
    rows = [
        ("equation", operator.summary + known),
        *(_input(operator, one) for one in operator.inputs),
        ("output", f"({', '.join(axes_of(operator, 'bgtv'))}), dtype of the query"),
        ("state", _state(operator)),
        ("scale", str(operator.scale) if operator.has_scale else ""),
        ("contains", ", ".join(one.to for one in operator.reductions)),
        ("laws", _laws(operator)),
        ("reference", f"linkern.{_function(operator)}"),
        ("verify", f"linkern verify TARGET --op {name}"),
    ]
    return Explanation(name, tuple((label, text) for label, text in rows if text))


def axes_of(operator: Operator, letters: str) -> tuple[str, ...]:
    """Return the axes of an array of an operator as documents write them."""
    keys = "S" if not operator.causal else "n T" if operator.micro_steps else "T"
    named = {**_LETTERS, "s": keys}
    return tuple(named.get(letter, letter.upper()) for letter in letters)


def operators_of(check: Check) -> tuple[str, ...]:
    """Return the operators to which a law applies, if a kernel offers all it needs."""
    return tuple(n for n, one in _by_name().items() if not _reason(check, one))


def inapplicable(operator: Operator) -> dict[str, str]:
    """Return the checks that apply to no kernel of an operator, with the reasons."""
    reasons = ((name, _reason(check, operator)) for name, check in CHECKS.items())
    return {name: reason for name, reason in reasons if reason}


def _by_name() -> dict[str, Operator]:
    return {operator.name: operator for operator in OPERATORS.values()}


def _listed(names: tuple[str, ...]) -> str:
    """Return the names, or those that are missing if they are fewer."""
    missing = [name for name in _by_name() if name not in names]
    if not missing:
        return f"all {len(names)}"
    if len(missing) < len(names):
        return f"all but {', '.join(missing)}"
    return ", ".join(names)


@cache
def _reason(check: Check, operator: Operator) -> str | None:
    """Return why a law applies to no kernel of an operator; None if it can."""
    reasons = [check.unless(scope) for scope in _scopes(operator)]
    return None if None in reasons or reasons[0] is None else reasons[0].reason


def _scopes(operator: Operator) -> Iterator[Scope]:
    """Yield scopes of kernels that offer everything a law may need."""
    interface = Interface(
        keywords=frozenset({"form", "chunk_size", *operator.names}),
        takes_state=True,
        differentiable=True,
        vjp_takes_state=True,
        vjp_takes_packed=True,
        inputs=operator.names,
        cu_seqlens="cu_seqlens",
    )
    plain = Scope(
        operator,
        Contract(),
        "float64",
        interface,
        styles=tuple(STYLES),
        interpreted=True,
        on_cuda=WAYS,
    )
    for declared in _DECLARED:
        if operator.feature_map or "feature_map" not in declared:
            yield replace(plain, contract=Contract.from_mapping(declared))


def _input(operator: Operator, one: Input) -> tuple[str, str]:
    aliases = [f"`{alias}`" for alias in one.aliases]
    text = f"({', '.join(axes_of(operator, one.axes))})"
    if aliases:
        text += f", or a parameter {' '.join(aliases)}"
        text += f" (unless there is a `{one.unless}`)" if one.unless else ""
    return one.name, text + ("; optional" if one.optional else "")


def _state(operator: Operator) -> str:
    named = ("memory", "normalizer")
    shapes = (
        f"{name} ({', '.join(['B', 'H', *(_LETTERS.get(a, a.upper()) for a in axes)])})"
        for name, axes in zip(named, operator.state, strict=False)
    )
    return " and ".join(shapes)


def _laws(operator: Operator) -> str:
    """Return how many laws can apply, and for which reasons the others cannot."""
    reasons = inapplicable(operator)
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    others = "; ".join(f"{', '.join(n)} ({reason})" for reason, n in names.items())
    return f"{len(CHECKS) - len(reasons)} of {len(CHECKS)}; not {others}"


def _function(operator: Operator) -> str:
    if not operator.causal:
        return "linear_attention(query, key, value, causal=False)"
    arguments = (
        f"{one.name}=None" if one.optional else one.name for one in operator.inputs
    )
    return f"{operator.name}({', '.join(arguments)})"
