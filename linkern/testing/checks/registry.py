"""Registry of checks, and the conditions under which a law applies.

A condition takes a `Scope` and returns None if the law applies, else the reason why it
does not. Its docstring, "Require ...", is shown to users by ``linkern explain``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import short_lengths
from linkern.testing.target.signatures import STATE_NAMES

__all__ = ["CHECKS", "Check", "check"]

Law = Callable[[CheckedTarget, Problem], None]


def _always(scope: Scope) -> str | None:
    del scope
    return None


@dataclass(frozen=True)
class Check:
    """A law, its inputs and the condition under which it applies.

    Parameters
    ----------
    name : str
        Public name.
    statement : str
        The law in one line.
    law : callable
        ``law(target, problem)``; raises `Violation`.
    problems : callable
        ``problems(scope)``: a Hypothesis strategy.
    unsupported : callable
        ``unsupported(scope)``: the reason why the law does not apply, or None.
    share : float
        Its share of the examples of a profile: 1 for all.
    in_outputs : bool
        True if outputs alone show a violation, without gradients, states or side
        effects.
    reaches, advice : str
        The defects that the law reaches, and what to look at in a kernel that breaks
        it: the paragraphs "Reaches:" and "Fix:" in the docstring of the law.
    needs : tuple of str
        The conditions under which the law applies, from their docstrings.
    """

    name: str
    statement: str
    law: Law
    problems: Callable[[Scope], st.SearchStrategy[Problem]]
    unsupported: Callable[[Scope], str | None]
    share: float = 1.0
    in_outputs: bool = True
    reaches: str = ""
    advice: str = ""
    needs: tuple[str, ...] = ()


CHECKS: dict[str, Check] = {}


def check(
    statement: str,
    *,
    problems: Callable[[Scope], st.SearchStrategy[Problem]],
    unsupported: Callable[[Scope], str | None] = _always,
    share: float = 1.0,
    in_outputs: bool = True,
) -> Callable[[Law], Law]:
    """Register a law under the name of its function."""

    def register(law: Law) -> Law:
        name = law.__name__
        assert name not in CHECKS, name
        CHECKS[name] = Check(
            name,
            statement,
            law,
            problems,
            unsupported,
            share,
            in_outputs,
            reaches=_paragraph(law, "Reaches:"),
            advice=_paragraph(law, "Fix:"),
            needs=_needs(unsupported),
        )
        return law

    return register


def _paragraph(law: Law, label: str) -> str:
    """Return the paragraph of a docstring behind its label, on one line."""
    for paragraph in (law.__doc__ or "").split("\n\n"):  # none under `python -OO`
        line = " ".join(paragraph.split())
        if line.startswith(label):
            return line.removeprefix(label).strip()
    return ""


def _needs(condition: Callable[[Scope], str | None]) -> tuple[str, ...]:
    """Return the requirements in the docstring of a condition."""
    sentences = (condition.__doc__ or "").split("Require ")
    needs = (" ".join(sentence.split()).removesuffix(".") for sentence in sentences)
    return tuple(dict.fromkeys(need for need in needs if need))


def first_of(
    *reasons: Callable[[Scope], str | None],
) -> Callable[[Scope], str | None]:
    """Combine several conditions: return the reason of the first that fails."""

    def unsupported(scope: Scope) -> str | None:
        return next((why for reason in reasons if (why := reason(scope))), None)

    unsupported.__doc__ = " ".join(reason.__doc__ or "" for reason in reasons)
    return unsupported


def not_normalised(scope: Scope) -> str | None:
    """Require rows that are averages of the values (`normalize=true`)."""
    if scope.normalised:
        return None
    if not scope.operator.feature_map:
        return "rows of the operator are no averages"
    return "the contract says normalize=false"


def not_causal(scope: Scope) -> str | None:
    """Require a causal operator."""
    return None if scope.operator.causal else "the operator is not causal"


def not_homogeneous(scope: Scope) -> str | None:
    """Require feature maps `identity` or `relu` and no `eps`, or no feature map."""
    if not scope.operator.feature_map:
        if {"query", "key"} & {*scope.linear}:
            return None
        return "the output is linear neither in queries nor in keys"
    for feature_map in (scope.query_map, scope.key_map):
        if not feature_map.homogeneous:
            return f"the feature map {feature_map.name} is not homogeneous"
    if scope.contract.eps:
        return f"the declared eps={scope.contract.eps:g} breaks it"
    return None


def no_short_lengths(scope: Scope) -> str | None:
    """Require a contract that allows sequences of no token or one."""
    if short_lengths(scope):
        return None
    return "the contract allows neither no token nor one"


def no_forms(scope: Scope) -> str | None:
    """Require a target with a keyword `form`."""
    return None if "form" in scope.exposes else "the target has no keyword `form`"


def no_chunk_size(scope: Scope) -> str | None:
    """Require a target with a keyword `chunk_size`."""
    if "chunk_size" in scope.exposes:
        return None
    return "the target has no keyword `chunk_size`"


def no_heads(scope: Scope) -> str | None:
    """Require a layout with heads."""
    if "h" in scope.contract.layout:
        return None
    return f"the layout {scope.contract.layout} has no heads"


def no_state(scope: Scope) -> str | None:
    """Require a target that takes a state (a parameter `initial_state` or `state`)."""
    if scope.interface.takes_state:
        return None
    return f"the target takes no state: no parameter {' or '.join(STATE_NAMES[:2])}"


def no_gradients(scope: Scope) -> str | None:
    """Require gradients: by autograd of its library, or a function `vjp`."""
    contract = scope.contract
    if contract.gradients == "none":
        return "the contract says gradients=none"
    if scope.differentiates or scope.interface.differentiable:
        return None
    if contract.gradients == "required":
        return None  # the law itself will say what is missing
    return "its library does not differentiate, and it has no attribute `vjp`"


def no_gradients_of_state(scope: Scope) -> str | None:
    """Require a target whose gradients go through its state."""
    if scope.interface.differentiable and not scope.interface.vjp_takes_state:
        return "its `vjp` takes no `initial_state` and `state_cotangent`"
    return first_of(no_state, no_gradients)(scope)


def no_tangent(scope: Scope) -> str | None:
    """Require features with a direction of scaling, and a quotient that ignores it."""
    if not scope.operator.feature_map:
        return "the operator has no feature map"
    for feature_map in (scope.query_map, scope.key_map):
        if feature_map.tangent is None:
            return f"no direction scales the features of {feature_map.name}"
    if scope.contract.eps:
        return f"the declared eps={scope.contract.eps:g} breaks it"
    return not_normalised(scope)


def not_linear_in_values(scope: Scope) -> str | None:
    """Require an operator whose weights do not depend on the values."""
    if "value" in scope.linear:
        return None
    return "the output is not linear in the values"


def not_mergeable(scope: Scope) -> str | None:
    """Require states that are sums over the tokens."""
    if scope.operator.state_is_sum:
        return None
    return "what a state becomes depends on later tokens, so states do not add up"


def no_long_sequences(scope: Scope) -> str | None:
    """Require an operator with error bounds for long sequences."""
    if scope.operator.longest is not None:
        return "no error bound is proved for the operator on sequences that long"
    return None


def not_float64(scope: Scope) -> str | None:
    """Require inputs of float64, which finite differences need."""
    return None if scope.dtype == "float64" else f"it needs float64, not {scope.dtype}"


def no_styles(scope: Scope) -> str | None:
    """Require an array library with strides, such as NumPy or PyTorch."""
    if not scope.styles:
        return "arrays of its library always lie in memory in one way"
    return None


def not_any_strides(scope: Scope) -> str | None:
    """Require a library with strides, and no `strides=contiguous`."""
    if scope.contract.strides == "contiguous":
        return "the contract says strides=contiguous"
    return no_styles(scope)


def not_random(scope: Scope) -> str | None:
    """Require rounding to the nearest number (not `rounding=truncation`)."""
    if scope.contract.rounding == "truncation":
        return "rounding errors of one sign do not cancel: rounding=truncation"
    return None


def not_thread_safe(scope: Scope) -> str | None:
    """Require a target that is not declared `thread_safe=false`."""
    return None if scope.contract.thread_safe else "the contract says thread_safe=false"


def no_nan_policy(scope: Scope) -> str | None:
    """Require a NaN policy (not `nan_policy=any`)."""
    return (
        "the contract says nan_policy=any"
        if scope.contract.nan_policy == "any"
        else None
    )


def not_validating(scope: Scope) -> str | None:
    """Require a promise to refuse bad input (`validates=true`)."""
    if scope.contract.validates:
        return None
    return "it does not promise to refuse bad input: declare validates=true"
