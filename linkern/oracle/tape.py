"""An operator as a tape of operations: its values, and its gradients by reading back.

Each operation leaves a node behind that knows how a cotangent of its result becomes
cotangents of what it was made from. Values and cotangents are balls, so that the bounds
of outputs and of gradients come from the same lines as their exact values do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import (
    Ball,
    Rounding,
    added,
    contracted,
    quotient,
    summed_to,
)

__all__ = ["Node", "Tape"]

Real = NDArray[np.float64]
Pullback = Callable[[list[Ball | None]], Sequence[Ball | None]]


@dataclass(eq=False)
class Node:
    """A value on the tape, or what computes it when it is asked for."""

    source: Ball | Callable[[], Ball]

    @cached_property
    def ball(self) -> Ball:
        """The exact value with its radius."""
        return self.source if isinstance(self.source, Ball) else self.source()

    @property
    def value(self) -> Real:
        """The exact value."""
        return self.ball.value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.ball.value.shape


class _Step(NamedTuple):
    """One operation: its results, what they were made from, and what that was to it."""

    results: list[Node]
    parents: list[Node]
    pullback: Pullback
    roles: Sequence[str]


@dataclass
class Tape:
    """Operations in the order in which they were done.

    Parameters
    ----------
    rounding : Rounding or None
        The arithmetic whose errors are followed; None for exact values alone.
    other : callable, optional
        Takes the name of a part of an equation and its node, and returns what takes its
        place. Default: nothing does.
    adjoint_reads : mapping of str to str, optional
        The memory that the gradients of some operands of a recurrence are formed with,
        in place of the right one: that ``before`` the row, the same ``decayed``, that
        ``after`` the row, or that after the last row of the ``token``.
    """

    rounding: Rounding | None = None
    other: Callable[[str, Node], Node] | None = None
    adjoint_reads: Mapping[str, str] = field(default_factory=dict)
    _steps: list[_Step] = field(default_factory=list)

    def constant(self, value: Real | float) -> Node:
        """Put an exact array on the tape."""
        return Node(Ball(np.asarray(value, dtype=np.float64)))

    def part(self, name: str, node: Node) -> Node:
        """Name a part of an equation; return it, or what is in its place."""
        return node if self.other is None else self.other(name, node)

    def record(
        self,
        results: Sequence[Ball | Callable[[], Ball]],
        parents: Sequence[Node],
        pullback: Pullback,
        roles: Sequence[str] = (),
    ) -> list[Node]:
        """Put results on the tape, with their adjoint and what each parent is in it."""
        nodes = [Node(result) for result in results]
        self._steps.append(_Step(nodes, list(parents), pullback, roles))
        return nodes

    def forget(self) -> None:
        """Forget the operations, which refer to the tape: no gradients are left.

        What they hold is freed at once, and not when cycles are looked for.
        """
        self._steps.clear()

    def gradients(
        self,
        cotangents: Sequence[tuple[Node, Ball]],
        sources: Sequence[Node],
        without: str = "",
    ) -> list[Ball]:
        """Return the cotangents of `sources` for cotangents of other nodes.

        What comes back to parents that are `without` in an operation is left out.
        """
        known: dict[int, Ball] = {}

        def collect(node: Node, ball: Ball) -> None:
            earlier = known.get(id(node))
            total = ball if earlier is None else added(earlier, ball, self.rounding)
            known[id(node)] = total

        for node, cotangent in cotangents:
            collect(node, cotangent)
        for step in reversed(self._steps):
            of_results = [known.get(id(node)) for node in step.results]
            if all(ball is None for ball in of_results):
                continue
            roles = step.roles or ("",) * len(step.parents)
            pulled = zip(roles, step.parents, step.pullback(of_results), strict=True)
            for role, parent, ball in pulled:
                if ball is not None and not (role and role == without):
                    collect(parent, summed_to(ball, parent.shape, self.rounding))
        return [known.get(id(node), Ball(np.zeros(node.shape))) for node in sources]

    def linear(
        self,
        x: Node,
        forward: Callable[[Real], Real],
        backward: Callable[[Real], Real],
    ) -> Node:
        """Move entries about, without arithmetic: the same for values and radii."""
        ball = x.ball

        def pullback(cotangents: list[Ball | None]) -> list[Ball]:
            (g,) = cotangents
            assert g is not None
            return [_mapped(g, backward)]

        return self.record([_mapped(ball, forward)], [x], pullback)[0]

    def product(self, *factors: Node | None, coefficient: float = 1.0) -> Node:
        """Multiply what is not None: a preparation, whose rounding its users count."""
        present = [x for x in factors if x is not None]
        total = present[0]
        for x in present[1:]:
            total = self.contract("...,...->...", total, x, prepared=True)
        if coefficient == 1:
            return total
        constant = self.constant(coefficient)
        return self.contract("...,...->...", total, constant, prepared=True)

    def contract(
        self,
        spec: str,
        x: Node,
        y: Node,
        *,
        prepared: bool = False,
        roles: Sequence[str] = (),
    ) -> Node:
        """Sum products as `numpy.einsum` does; ellipses broadcast."""
        inputs, output = spec.split("->")
        left, right = inputs.split(",")

        def pullback(cotangents: list[Ball | None]) -> list[Ball]:
            (g,) = cotangents
            assert g is not None
            to_left = f"{output},{right}->{_reachable(left)}"
            to_right = f"{output},{left}->{_reachable(right)}"
            return [
                contracted(to_left, g, y.ball, self.rounding),
                contracted(to_right, g, x.ball, self.rounding),
            ]

        ball = contracted(spec, x.ball, y.ball, self.rounding, prepared=prepared)
        return self.record([ball], [x, y], pullback, roles)[0]

    def add(self, x: Node, y: Node) -> Node:
        """Add two, broadcasting."""

        def pullback(cotangents: list[Ball | None]) -> list[Ball | None]:
            return [cotangents[0], cotangents[0]]

        return self.record([added(x.ball, y.ball, self.rounding)], [x, y], pullback)[0]

    def overlay(self, x: Node, y: Node) -> Node:
        """Add two whose entries never meet: one of each pair is zero, none rounds."""
        error = None
        if x.ball.error is not None or y.ball.error is not None:
            error = x.ball.radius + y.ball.radius
        ball = Ball(x.value + y.value, error)
        return self.record([ball], [x, y], lambda both: [both[0], both[0]])[0]

    def divide(self, x: Node, y: Node) -> Node:
        """Divide two, broadcasting."""
        result = quotient(x.ball, y.ball, self.rounding)

        def pullback(cotangents: list[Ball | None]) -> list[Ball]:
            (g,) = cotangents
            assert g is not None
            to_x = quotient(g, y.ball, self.rounding)
            away = Ball(-result.value, result.error)
            return [to_x, contracted("...,...->...", to_x, away, self.rounding)]

        return self.record([result], [x, y], pullback)[0]


def _mapped(ball: Ball, move: Callable[[Real], Real]) -> Ball:
    error = None if ball.error is None else move(ball.error)
    return Ball(move(ball.value), error)


def _reachable(labels: str) -> str:
    return labels if "..." in labels else "..." + labels
