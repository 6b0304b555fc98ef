"""Work of one task: a call of the operator on the tokens of a block, or its gradients.

Everything here runs on workers, on the arrays that Dask's blocks hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linkern.array import broadcast_to, ones, zeros
from linkern.autodiff.tape import Traced, cotangents
from linkern.state import AttentionResult, State, mapped
from linkern.typing import Array

__all__ = ["Carried", "Span", "total"]

# Cotangent of the state before a span, and the sums of the gradients of the inputs
# without an axis of tokens over this span and all later ones.
Carried = tuple[State | None, tuple[Array | None, ...]]


@dataclass(frozen=True)
class Span:
    """Calls of one operator that differ in their blocks and in their initial states.

    Parameters
    ----------
    run : callable
        From the arguments of the operator by name to its `AttentionResult`.
    names : tuple of str
        Inputs, in the order of the blocks.
    options : mapping
        Options of the call; all but `initial_state`.
    affine : callable or None
        From the same arguments, without a state, to their affine map of the state; None
        for operators whose spans are no such maps.
    """

    run: Callable[[Mapping[str, Any]], AttentionResult]
    names: tuple[str, ...]
    options: Mapping[str, Any]
    affine: Callable[[Mapping[str, Any]], Any] | None

    def forward(
        self,
        start: int,
        read: Callable[[Sequence[Any]], Sequence[Array]],
        data: Sequence[Any],
        state: State | None,
    ) -> AttentionResult:
        """Return the result of the tokens from `start`, entered with `state`."""
        return self._run(start, read(data), state)

    def map(
        self,
        query: Sequence[int] | None,
        read: Callable[[Sequence[Any]], Sequence[Array | None]],
        data: Sequence[Any],
    ) -> Any:
        """Return the affine map of the state that the tokens are.

        It does not depend on what the queries hold: a block of the shape `query` of
        ones stands for them, if there are any.
        """
        assert self.affine is not None
        blocks = dict(zip(self.names, read(data), strict=True))
        if query is not None:
            like = next(x for x in blocks.values() if x is not None)
            one = ones((1,) * len(query), like=like)
            blocks["query"] = broadcast_to(one, tuple(query))
        return self.affine({**blocks, **self.options})

    def _run(
        self, start: int, blocks: Sequence[Any], state: State | None
    ) -> AttentionResult:
        options = dict(self.options)
        if "position" in options:
            options["position"] += start
        inputs = dict(zip(self.names, blocks, strict=True))
        return self.run({**inputs, **options, "initial_state": state})

    def backward(
        self,
        start: int,
        kept: tuple[Sequence[int], Sequence[int]],
        read: Callable[[Sequence[Any]], Sequence[Array]],
        data: Sequence[Any],
        state: State | None,
        carried: Carried,
    ) -> tuple[Carried, *tuple[Array, ...]]:
        """Return what goes on to the span before, and gradients of this span's inputs.

        `kept` are the positions of the inputs to differentiate by: those without an
        axis of tokens, whose gradients are carried, and those with one. The cotangent
        of the output is read after the inputs.
        """
        *blocks, output_cotangent = read(data)
        constant, varying = kept
        after, sums = carried
        traced = {i: Traced(blocks[i], leaf=True) for i in (*constant, *varying)}
        rows = [traced.get(i, x) for i, x in enumerate(blocks)]
        entered = state and mapped(lambda x: Traced(x, leaf=True), state)
        made = self._run(start, rows, entered)
        of_state = (None, None) if after is None else tuple(after)
        of_leaves = cotangents(
            [made.output, *made.state], [output_cotangent, *of_state]
        )

        def gradient(leaf: Traced) -> Array:
            x = of_leaves.get(leaf.serial)
            return zeros(leaf.shape, like=leaf.value) if x is None else x

        before = entered and mapped(gradient, entered)
        added = (gradient(traced[i]) for i in constant)
        sums = tuple(
            x if old is None else old + x for old, x in zip(sums, added, strict=True)
        )
        return (before, sums), *(gradient(traced[i]) for i in varying)


def total(parts: Sequence[Array]) -> Array:
    """Return the sum of gradients of one block that several heads share."""
    result = parts[0]
    for x in parts[1:]:
        result = result + x
    return result
