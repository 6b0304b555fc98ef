"""One call of an operator on a tape: its results, its gradients, bounds of both."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball
from linkern.oracle.bounds import Bounded
from linkern.oracle.tape import Node, Tape

__all__ = ["ExactResult", "Recording"]

Real = NDArray[np.float64]
State = tuple[Real, ...]


@dataclass(frozen=True)
class ExactResult:
    """The exact result of one call.

    Parameters
    ----------
    output : array (B, HV, T, V)
        The output.
    state : tuple of array
        The memory, and the normalizer where there is one.
    """

    output: Real
    state: State


@dataclass(frozen=True)
class Recording:
    """One call of an operator on a tape: its nodes, bounds and gradients."""

    tape: Tape
    inputs: dict[str, Node]
    output: Node
    states: tuple[Node, ...]

    def bounded_output(self) -> Bounded:
        """Return the output with its bound."""
        with np.errstate(all="ignore"):
            return self.output.ball.bounded()

    def bounded_states(self) -> tuple[Bounded, ...]:
        """Return memory, and normalizer where there is one, with their bounds."""
        with np.errstate(all="ignore"):
            return tuple(node.ball.bounded() for node in self.states)

    def bounded_gradients(
        self, cotangent: Real, state_cotangent: State | None = None
    ) -> dict[str, Bounded]:
        """Return the gradients with their bounds, by name of the input."""
        with np.errstate(all="ignore"):
            gradients = self.gradients(cotangent, state_cotangent)
            return {name: ball.bounded() for name, ball in gradients.items()}

    def gradients(
        self,
        cotangent: Real,
        state_cotangent: State | None = None,
        without: str = "",
    ) -> dict[str, Ball]:
        """Return the gradients as balls, by name of the input.

        One part of them may be left out: what comes back to one operand of recurrences,
        as their ``key`` or ``erase``.
        """
        cotangents = [(self.output, Ball(np.asarray(cotangent, dtype=np.float64)))]
        for node, x in zip(self.states, state_cotangent or (), strict=False):
            cotangents.append((node, Ball(np.asarray(x, dtype=np.float64))))
        sources = list(self.inputs.values())
        gradients = self.tape.gradients(cotangents, sources, without)
        return dict(zip(self.inputs, gradients, strict=True))
