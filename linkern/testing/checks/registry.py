"""Registry of checks, and the conditions under which a law applies.

A condition takes a `Scope` and returns None if the law applies, else an `Inapplicable`:
the reason why it is not judged, and what would have it judged. Its docstring,
"Require ...", is shown to users by ``linkern explain``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.errors import (
    INAPPLICABLE,
    Inapplicable,
    not_applicable,
    skipped,
)
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import short_lengths
from linkern.testing.target.signatures import STATE_NAMES

__all__ = ["CHECKS", "Check", "Condition", "check"]

Law = Callable[[CheckedTarget, Problem], None]
# A check with a small share of the examples still gets this many.
LEAST_EXAMPLES = 3
Condition = Callable[[Scope], Inapplicable | None]
Kind = Literal["output", "state", "gradient"]


def _always(scope: Scope) -> None:
    del scope


def _any(problem: Problem) -> bool:
    del problem
    return True


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
    unless : callable
        ``unless(scope)``: the reason why the law is not judged, or None.
    judges : callable
        ``judges(problem)``: True if the law can be judged on a problem of its strategy.
        All others are calls like any other, whose outputs nobody looks at.
    share : float
        Its share of the examples of a profile: 1 for all.
    least : int
        The number of examples that it gets however small its share is.
    in_outputs : bool
        True if outputs alone show a violation, without gradients, states or side
        effects.
    kind : {"output", "state", "gradient"}
        The result whose error the law compares with a bound.
    relation : bool
        True if the law relates results of a target to one another, so that an output of
        zeros keeps it; all others compare with exact results.
    shown_by : tuple of str
        For laws of launches, which calls on a CPU do not show: "interpreted" for
        kernels that are interpreted, "cuda" for those on a CUDA device, or both.
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
    unless: Condition
    judges: Callable[[Problem], bool]
    share: float = 1.0
    least: int = LEAST_EXAMPLES
    in_outputs: bool = True
    kind: Kind = "output"
    relation: bool = False
    shown_by: tuple[str, ...] = ()
    reaches: str = ""
    advice: str = ""
    needs: tuple[str, ...] = ()


CHECKS: dict[str, Check] = {}


def check(
    statement: str,
    *,
    problems: Callable[[Scope], st.SearchStrategy[Problem]],
    unless: Condition = _always,
    judges: Callable[[Problem], bool] = _any,
    share: float = 1.0,
    least: int = LEAST_EXAMPLES,
    in_outputs: bool = True,
    over_ranks: bool = True,
    kind: Kind = "output",
    relation: bool = False,
    shown_by: tuple[str, ...] = (),
) -> Callable[[Law], Law]:
    """Register a law under the name of its function.

    One that says nothing of targets `over_ranks` is not judged of them.
    """
    if not over_ranks:
        unless = any_of(unless, not_on_one_rank)

    def register(law: Law) -> Law:
        name = law.__name__
        assert name not in CHECKS, name
        CHECKS[name] = Check(
            name,
            statement,
            law,
            problems,
            unless,
            judges,
            share,
            least,
            in_outputs,
            kind,
            relation,
            shown_by,
            reaches=_paragraph(law, "Reaches:"),
            advice=_paragraph(law, "Fix:"),
            needs=_needs(unless),
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


def _needs(condition: Condition) -> tuple[str, ...]:
    """Return the requirements in the docstring of a condition."""
    sentences = (condition.__doc__ or "").split("Require ")
    needs = (" ".join(sentence.split()).removesuffix(".") for sentence in sentences)
    return tuple(dict.fromkeys(need for need in needs if need))


def any_of(*conditions: Condition) -> Condition:
    """Combine conditions: the reason that weighs most, or all that can be remedied."""

    def unless(scope: Scope) -> Inapplicable | None:
        reasons = [why for condition in conditions if (why := condition(scope))]
        return strongest(reasons) if reasons else None

    unless.__doc__ = " ".join(condition.__doc__ or "" for condition in conditions)
    return unless


def strongest(reasons: Sequence[Inapplicable]) -> Inapplicable:
    """Return the reason that weighs most; those of the same kind are joined."""
    kind = min((why.kind for why in reasons), key=INAPPLICABLE.index)
    alike = [why for why in reasons if why.kind == kind]
    said = dict.fromkeys(why.reason for why in alike)
    remedies = dict.fromkeys(remedy for why in alike for remedy in why.remedies)
    return Inapplicable(kind, "; ".join(said), tuple(remedies))


def not_normalised(scope: Scope) -> Inapplicable | None:
    """Require rows that are averages of the values (`normalize=true`)."""
    if scope.normalised:
        return None
    if not scope.operator.feature_map:
        return not_applicable("rows of the operator are no averages")
    return not_applicable("the contract says normalize=false")


def not_causal(scope: Scope) -> Inapplicable | None:
    """Require a causal operator."""
    if scope.operator.causal:
        return None
    return not_applicable("the operator is not causal")


def not_homogeneous(scope: Scope) -> Inapplicable | None:
    """Require feature maps `identity` or `relu` and no `eps`, or no feature map."""
    if not scope.operator.feature_map:
        if {"query", "key"} & {*scope.linear}:
            return None
        return not_applicable("the output is linear neither in queries nor in keys")
    for feature_map in (scope.query_map, scope.key_map):
        if not feature_map.homogeneous:
            reason = f"the feature map {feature_map.name} is not homogeneous"
            return not_applicable(reason)
    if scope.contract.eps:
        return not_applicable(f"the declared eps={scope.contract.eps:g} breaks it")
    return None


def not_on_one_rank(scope: Scope) -> Inapplicable | None:
    """Require a target on one rank."""
    if not scope.ranks:
        return None
    return not_applicable("it is a law of one process, and the target runs over ranks")


def no_short_lengths(scope: Scope) -> Inapplicable | None:
    """Require a contract that allows sequences of no token or one."""
    if short_lengths(scope):
        return None
    reason = "the contract allows neither no token nor one"
    return skipped(reason, "accept a sequence of one token")


def _no_keyword(scope: Scope, name: str) -> Inapplicable | None:
    """Require a keyword that the run has not fixed."""
    if name in scope.exposes:
        return None
    if name in scope.interface.keywords:
        return skipped(f"the run fixes `{name}`", f"leave out the option `{name}`")
    reason = f"the target has no keyword `{name}`"
    return skipped(reason, f"take a keyword `{name}`")


def no_forms(scope: Scope) -> Inapplicable | None:
    """Require a target with a keyword `form`."""
    return _no_keyword(scope, "form")


def no_chunk_size(scope: Scope) -> Inapplicable | None:
    """Require a target with a keyword `chunk_size`."""
    return _no_keyword(scope, "chunk_size")


def no_heads(scope: Scope) -> Inapplicable | None:
    """Require a layout with heads."""
    layout = scope.contract.layout
    if "h" in layout:
        return None
    return skipped(f"the layout {layout} has no heads", "take arrays with heads")


def no_state(scope: Scope) -> Inapplicable | None:
    """Require a target that takes a state (a parameter `initial_state` or `state`)."""
    if scope.interface.takes_state:
        return None
    if scope.contract.takes_state is False:
        reason = "the contract says takes_state=false"
        return skipped(reason, "leave out takes_state=false")
    reason = f"the target takes no state: no parameter {' or '.join(STATE_NAMES[:2])}"
    return skipped(reason, "take and return a state")


def no_final_state(scope: Scope) -> Inapplicable | None:
    """Require a target that returns its final state, whether it takes one or not."""
    contract = scope.contract
    if scope.interface.takes_state or contract.returns_state:
        return None
    if contract.returns_state is False:
        reason = "the contract says returns_state=false"
        return skipped(reason, "leave out returns_state=false")
    if contract.takes_state is False:
        return no_state(scope)
    reason = "the target takes no state, and returned none of its shape"
    return skipped(reason, "return the final state after the output")


def no_gradients(scope: Scope) -> Inapplicable | None:
    """Require gradients: by autograd of its library, or a function `vjp`."""
    contract = scope.contract
    if contract.gradients == "none":
        reason = "the contract says gradients=none"
        return skipped(reason, "leave out gradients=none")
    if scope.differentiates or scope.interface.differentiable:
        return None
    if contract.gradients == "required":
        return None  # the law itself will say what is missing
    reason = "its library does not differentiate, and it has no attribute `vjp`"
    return skipped(reason, "declare a `vjp`")


def no_gradients_of_state(scope: Scope) -> Inapplicable | None:
    """Require a target whose gradients go through its state."""
    if scope.interface.differentiable and not scope.interface.vjp_takes_state:
        reason = "its `vjp` takes no `initial_state` and `state_cotangent`"
        remedy = "let `vjp` take `initial_state` and `state_cotangent`"
        return skipped(reason, remedy)
    return any_of(no_state, no_gradients)(scope)


def no_tangent(scope: Scope) -> Inapplicable | None:
    """Require features with a direction of scaling, and a quotient that ignores it."""
    if not scope.operator.feature_map:
        return not_applicable("the operator has no feature map")
    for feature_map in (scope.query_map, scope.key_map):
        if feature_map.tangent is None:
            reason = f"no direction scales the features of {feature_map.name}"
            return not_applicable(reason)
    if scope.contract.eps:
        return not_applicable(f"the declared eps={scope.contract.eps:g} breaks it")
    return no_slopes(scope) or not_normalised(scope)


def not_linear_in_values(scope: Scope) -> Inapplicable | None:
    """Require an operator whose weights do not depend on the values."""
    if "value" in scope.linear:
        return None
    return not_applicable("the output is not linear in the values")


def not_mergeable(scope: Scope) -> Inapplicable | None:
    """Require states that are sums over the tokens."""
    if scope.operator.state_is_sum:
        return None
    reason = "what a state becomes depends on later tokens, so states do not add up"
    return not_applicable(reason)


def not_interpreted(scope: Scope) -> Inapplicable | None:
    """Require Triton kernels that are interpreted (`--interpret`)."""
    if scope.interpreted:
        return None
    return not_applicable("only Triton's interpreter shows it, by `--interpret`")


def memory_not_filled(scope: Scope) -> Inapplicable | None:
    """Require interpreted kernels (`--interpret`), or a device (`--device cuda`)."""
    if scope.interpreted or "filled" in scope.on_cuda:
        return None
    reason = (
        "new memory is filled for Triton's interpreter (`--interpret`), and for "
        "PyTorch and CuPy on a device (`--device cuda`)"
    )
    return not_applicable(reason)


def not_configured(scope: Scope) -> Inapplicable | None:
    """Require Triton kernels, interpreted (`--interpret`) or on a device."""
    if scope.interpreted or "configured" in scope.on_cuda:
        return None
    reason = (
        "Triton kernels take a configuration that is chosen interpreted "
        "(`--interpret`), or on tensors of PyTorch on a device (`--device cuda`)"
    )
    return not_applicable(reason)


def no_side_stream(scope: Scope) -> Inapplicable | None:
    """Require arrays of PyTorch or CuPy on a device (`--device cuda`)."""
    if "side_stream" in scope.on_cuda:
        return None
    reason = "only PyTorch and CuPy on a device have streams, by `--device cuda`"
    return not_applicable(reason)


def not_captured(scope: Scope) -> Inapplicable | None:
    """Require calls that can be captured (`cuda_graphs=true`).

    Require tensors of PyTorch on a device (`--device cuda`).
    """
    if "captured" not in scope.on_cuda:
        reason = "only PyTorch on a device captures calls, by `--device cuda`"
        return not_applicable(reason)
    if scope.contract.cuda_graphs:
        return None
    reason = "it does not promise that its calls can be captured"
    return skipped(reason, "declare cuda_graphs=true")


def no_slopes(scope: Scope) -> Inapplicable | None:
    """Require gradients that are slopes: not those over a constant denominator."""
    if scope.contract.constant_denominator:
        return not_applicable("the declared constant_denominator=true breaks it")
    return None


def not_float64(scope: Scope) -> Inapplicable | None:
    """Require inputs of float64, which finite differences need."""
    if scope.dtype == "float64":
        return None
    return skipped(f"it needs float64, not {scope.dtype}", "add the dtype float64")


def no_styles(scope: Scope) -> Inapplicable | None:
    """Require an array library with strides, such as NumPy or PyTorch."""
    if scope.styles:
        return None
    return not_applicable("arrays of its library always lie in memory in one way")


def not_any_strides(scope: Scope) -> Inapplicable | None:
    """Require a library with strides, and no `strides=contiguous`."""
    if scope.contract.strides == "contiguous":
        reason = "the contract says strides=contiguous"
        return skipped(reason, "leave out strides=contiguous")
    return no_styles(scope)


def not_random(scope: Scope) -> Inapplicable | None:
    """Require rounding to the nearest number (not `rounding=truncation`)."""
    if scope.contract.rounding == "truncation":
        reason = "rounding errors of one sign do not cancel: rounding=truncation"
        return not_applicable(reason)
    return None


def not_thread_safe(scope: Scope) -> Inapplicable | None:
    """Require a target that is not declared `thread_safe=false`."""
    if scope.contract.thread_safe:
        return None
    reason = "the contract says thread_safe=false"
    return skipped(reason, "leave out thread_safe=false")


def no_nan_policy(scope: Scope) -> Inapplicable | None:
    """Require a NaN policy (not `nan_policy=any`)."""
    if scope.contract.nan_policy != "any":
        return None
    reason = "the contract says nan_policy=any"
    return skipped(reason, "leave out nan_policy=any")


def not_batch_invariant(scope: Scope) -> Inapplicable | None:
    """Require a batch, and a promise of equal bits (`batch_invariant=rows` or true)."""
    if "b" not in scope.contract.layout:
        reason = f"the layout {scope.contract.layout} has no batch"
        return skipped(reason, "take arrays with a batch")
    if scope.contract.batch_invariant != "false":
        return None
    reason = "it does not promise the same bits in every batch"
    return skipped(reason, "declare batch_invariant=true")


def not_split_invariant(scope: Scope) -> Inapplicable | None:
    """Require a promise of equal bits of the parts (`batch_invariant=true`)."""
    if scope.contract.batch_invariant == "true":
        return None
    reason = "it does not promise the same bits if sequences are cut"
    return skipped(reason, "declare batch_invariant=true")


def not_validating(scope: Scope) -> Inapplicable | None:
    """Require a promise to refuse bad input (`validates=true`)."""
    if scope.contract.validates:
        return None
    reason = "it does not promise to refuse bad input"
    return skipped(reason, "declare validates=true")
