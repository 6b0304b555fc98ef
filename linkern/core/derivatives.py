"""Derivative rules of our own, for each library that differentiates the array code.

Libraries know the derivative of a matrix product. For a product of a triangular matrix
that derivative is wrong where numbers are not finite: it adds ``0 * inf`` to tokens
that nothing should reach. So each of the functions that hold this back
(`linkern.core.causal`, `linkern.core.triangular.inverse`) comes as a `Rule`, and is
called by `ruled`, which hands the rule to the library that is recording: the tape of
`linkern.autodiff`, JAX or PyTorch.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple, cast

from linkern.array import (
    broadcast_shapes,
    broadcast_to,
    is_compiled,
    is_traced,
    namespace,
    on_torch,
    plain_numpy,
    staged_by_jax,
)
from linkern.typing import Array

__all__ = ["Rule", "ruled"]


class Rule(NamedTuple):
    """A function of arrays, and its derivatives.

    Parameters
    ----------
    name : str
        Name of the function on the tape of `linkern.autodiff`.
    value : callable
        ``value(*operands, **options)``.
    pulls : tuple of callable
        For each operand, ``pull(cotangent, result, *operands, **options)`` returns its
        cotangent.
    plain : callable
        What the tangent of the result is if numbers are finite, in terms that JAX can
        transpose; called as `tangent` is, or as `value` without one.
    tangent : callable, optional
        ``tangent(x, result, operand, **options)`` returns the tangent of the result for
        a tangent of its only operand. Default: the function is linear in each operand.
    """

    name: str
    value: Callable[..., Array]
    pulls: tuple[Callable[..., Array], ...]
    plain: Callable[..., Array]
    tangent: Callable[..., Array] | None = None

    def moved(
        self,
        i: int,
        x: Array,
        result: Array,
        operands: Sequence[Array],
        *,
        plainly: bool = False,
    ) -> Callable[..., Array]:
        """Return the tangent for one of operand `i`, as a function of the options."""
        function = self.plain if plainly else self.tangent or self.value
        if self.tangent is not None:
            return partial(function, x, result, *operands)
        return partial(function, *operands[:i], x, *operands[i + 1 :])


def ruled(rule: Rule, *operands: Array, **options: bool) -> Array:
    """Return ``rule.value(*operands, **options)``, differentiated by the rule."""
    if plain_numpy(*operands):
        return rule.value(*operands, **options)
    if is_traced(*operands):
        traced = getattr(namespace(*operands), rule.name)
        return cast(Array, traced(*operands, **options))
    if staged_by_jax(*operands):
        call = _of_jax(rule, tuple(options.items()))
        return cast(Array, call(*_of_same_lead(*operands)))
    # The compiler of PyTorch cannot look into what is made here: it has its own rules.
    if on_torch(operands[0]) and not is_compiled(operands[0]):
        function = _of_torch()
        return cast(Array, function.apply(rule, options, *_of_same_lead(*operands)))
    return rule.value(*operands, **options)


def _of_same_lead(*operands: Array) -> list[Array]:
    """Repeat operands along leading axes: libraries sum over what they repeated."""
    lead = broadcast_shapes(*(tuple(x.shape[:-2]) for x in operands))
    return [broadcast_to(x, (*lead, *x.shape[-2:])) for x in operands]


@cache
def _of_jax(rule: Rule, items: tuple[tuple[str, bool], ...]) -> Callable[..., Any]:
    """Return a function that JAX differentiates by a rule, forwards and backwards."""
    jax = import_module("jax")
    nothing = import_module("jax.custom_derivatives").SymbolicZero
    options = dict(items)
    value = partial(rule.value, **options)
    call = jax.custom_jvp(value)

    def derived(operands: Any, tangents: Any) -> tuple[Array, Array]:
        result = call(*operands)
        parts = [
            _linear(rule, i, tangent, result, operands, options)
            for i, tangent in enumerate(tangents)
            if not isinstance(tangent, nothing)
        ]
        return result, sum(parts[1:], parts[0])

    call.defjvp(derived, symbolic_zeros=True)
    return cast(Callable[..., Any], jax.jit(call))


def _linear(
    rule: Rule,
    i: int,
    tangent: Array,
    result: Array,
    operands: Any,
    options: dict[str, bool],
) -> Array:
    """Return the tangent of the result for one of operand `i`, with our transpose.

    JAX takes no transpose for a function, but one for the solution of a linear system.
    For a function ``y = A x`` it is the first part of the solution of

        [ I  -A ] [ y ]   [ 0 ]
        [ 0   I ] [ x ] = [ x ],

    whose transpose takes ``(c, 0)`` to ``(c, A^T c)``.
    """
    numpy, lax = map(import_module, ("jax.numpy", "jax.lax"))

    def moved(x: Array, *, plainly: bool) -> Array:
        function = rule.moved(i, x, result, operands, plainly=plainly)
        return function(**options)

    def system(parts: Any) -> Any:
        return parts[0] - moved(parts[1], plainly=True), parts[1]

    def solution(_: Any, parts: Any) -> Any:
        return parts[0] + moved(parts[1], plainly=False), parts[1]

    def transposed(_: Any, parts: Any) -> Any:
        pulled = rule.pulls[i](parts[0], result, *operands, **options)
        return parts[0], parts[1] + pulled

    # Zeros that are linear in the tangent, for JAX wants the right-hand side to be.
    margins = [(0, 0)] * (tangent.ndim - 2) + [(0, n) for n in result.shape[-2:]]
    right = numpy.pad(tangent[..., :0, :0], margins), tangent
    solved = lax.custom_linear_solve(system, right, solution, transposed)
    return cast(Array, solved[0])


@cache
def _of_torch() -> Any:
    """Return the function by which PyTorch differentiates all rules."""
    torch = import_module("torch")

    class Ruled(torch.autograd.Function):  # type: ignore[misc, name-defined]
        generate_vmap_rule = True

        @staticmethod
        def forward(rule: Rule, options: dict[str, bool], *operands: Any) -> Any:
            return rule.value(*operands, **options)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.rule, ctx.options, *operands = inputs
            ctx.save_for_backward(output, *operands)
            ctx.save_for_forward(output, *operands)

        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
            result, *operands = ctx.saved_tensors
            needed = ctx.needs_input_grad[2:]
            pulled = (
                pull(cotangent, result, *operands, **ctx.options) if need else None
                for pull, need in zip(ctx.rule.pulls, needed, strict=True)
            )
            return None, None, *pulled

        @staticmethod
        def jvp(ctx: Any, _rule: None, _options: None, *tangents: Any) -> Any:
            result, *operands = ctx.saved_tensors
            parts = [
                ctx.rule.moved(i, x, result, operands)(**ctx.options)
                for i, x in enumerate(tangents)
                if x is not None
            ]
            return sum(parts[1:], parts[0])

    return Ruled
