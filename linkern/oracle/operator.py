"""An operator as the judge knows it: exact values, exact gradients, bounds of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding
from linkern.oracle.bounds import Bounded, Precisions
from linkern.oracle.calls import Call, Options, Program
from linkern.oracle.tape import Node, Tape

__all__ = ["FamilyEvaluation", "FamilyOperator", "Played"]

Real = NDArray[np.float64]
Inputs = Mapping[str, Real | None]
State = tuple[Real, ...]

STATE_NAMES = ("initial_state", "initial_normalizer")


@dataclass(frozen=True)
class FamilyEvaluation:
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
class FamilyOperator:
    """One operator of the family, in float64, with what rounding may do to it.

    Parameters
    ----------
    name : str
        Its name.
    input_names : tuple of str
        Names of its inputs in their order.
    program : callable
        What it does, on a tape.
    empty_state : callable
        Return the state of no tokens for given inputs.
    defaults : mapping from str to callable
        Inputs that are made from the others where they are not given.
    scaled : bool
        Whether the scale is ``K ** -0.5`` unless given, and not 1.
    causal : bool
        Whether query i sees keys 0..i only.
    """

    name: str
    input_names: tuple[str, ...]
    program: Program
    empty_state: Callable[[Inputs], State]
    defaults: Mapping[str, Callable[[Inputs], Real]]
    scaled: bool = True
    causal: bool = True

    def default_scale(self, inputs: Inputs) -> float:
        """Return the scale of a call that names none."""
        query = inputs.get("query")
        if not self.scaled or query is None:
            return 1.0
        return float(query.shape[-1] ** -0.5)

    def evaluate(
        self,
        inputs: Inputs,
        scale: float | None = None,
        state: State | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> FamilyEvaluation:
        """Evaluate the operator, one token after the other.

        Parameters
        ----------
        inputs : mapping from str to array or None
            Float64 arrays ``(B, H, T, .)``; None for neutral ones.
        scale : float, optional
            Factor on the scores; the operator's default if not given.
        state : tuple of array, optional
            Memory, and normalizer where there is one; None for no earlier tokens.
        position : int
            Absolute position of the first token.
        options : Options, optional
            Declared properties of the call; the operator's defaults if not given.

        Returns
        -------
        FamilyEvaluation
            Output and state.
        """
        with np.errstate(all="ignore"):
            played = self._played(None, inputs, scale, state, position, options)
            states = tuple(x.value for x in played.states)
            return FamilyEvaluation(played.output.value, states)

    def bounded(
        self,
        inputs: Inputs,
        scale: float | None,
        precisions: Precisions,
        *,
        state: State | None = None,
        chunk_size: int | None = None,
        confidence: float | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> tuple[Bounded, tuple[Bounded, ...]]:
        """Return output and state with their any-order bounds.

        Parameters
        ----------
        inputs, scale, state, position, options
            As for `evaluate`.
        precisions : Precisions
            The arithmetic of the kernels that are judged.
        chunk_size : int, optional
            Their chunk size, if they declared one.
        confidence : float, optional
            The lambda of the probabilistic tier; None for the proved one.

        Returns
        -------
        Bounded, tuple of Bounded
            Output; memory, and normalizer where there is one.
        """
        played = self.played(
            inputs,
            scale,
            precisions,
            state=state,
            chunk_size=chunk_size,
            confidence=confidence,
            position=position,
            options=options,
        )
        return played.bounded_output(), played.bounded_states()

    def played(
        self,
        inputs: Inputs,
        scale: float | None,
        precisions: Precisions,
        *,
        state: State | None = None,
        chunk_size: int | None = None,
        confidence: float | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> "Played":
        """Return the operator on a tape, to be asked for results and gradients.

        Parameters
        ----------
        inputs, scale, precisions, state, chunk_size, confidence, position, options
            As for `bounded`.
        """
        rounding = Rounding(precisions, chunk_size, confidence)
        with np.errstate(all="ignore"):
            return self._played(rounding, inputs, scale, state, position, options)

    def gradients(
        self,
        inputs: Inputs,
        cotangent: Real,
        scale: float | None = None,
        state: State | None = None,
        state_cotangent: State | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> dict[str, Real | State]:
        """Return the exact gradients of the inputs that were given, and of the state.

        Parameters
        ----------
        inputs, scale, state, position, options
            As for `evaluate`.
        cotangent : array (B, HV, T, V)
            Cotangent of the output.
        state_cotangent : tuple of array, optional
            Cotangents of the new state.

        Returns
        -------
        dict of str to array
            By name of the input; under ``"initial_state"`` a tuple of arrays. A
            log-decay of -inf has the gradient 0.
        """
        with np.errstate(all="ignore"):
            played = self._played(None, inputs, scale, state, position, options)
            found = played.gradients(cotangent, state_cotangent)
        gradients: dict[str, Real | State] = {
            name: ball.value for name, ball in found.items() if name in inputs
        }
        initial = tuple(found[x].value for x in STATE_NAMES if x in found)
        return {**gradients, "initial_state": initial}

    def bounded_gradients(
        self,
        inputs: Inputs,
        cotangent: Real,
        scale: float | None,
        precisions: Precisions,
        *,
        state: State | None = None,
        state_cotangent: State | None = None,
        chunk_size: int | None = None,
        confidence: float | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> dict[str, Bounded]:
        """Return the gradients with their any-order bounds.

        Parameters
        ----------
        inputs, cotangent, scale, precisions, state, state_cotangent, chunk_size, \
confidence, position, options
            As for `gradients` and `bounded`.

        Returns
        -------
        dict of str to Bounded
            By name of the input; besides ``"initial_state"`` for the memory and
            ``"initial_normalizer"`` where there is one.
        """
        played = self.played(
            inputs,
            scale,
            precisions,
            state=state,
            chunk_size=chunk_size,
            confidence=confidence,
            position=position,
            options=options,
        )
        return played.bounded_gradients(cotangent, state_cotangent)

    def condition(
        self,
        inputs: Inputs,
        cotangent: Real,
        scale: float | None = None,
        state: State | None = None,
        *,
        draws: int = 3,
        seed: int = 0,
    ) -> dict[str, float]:
        """Measure by how much relative changes of the inputs are enlarged.

        Every entry of every input is changed by a relative 1e-7, up or down at random;
        the largest change of a result, relative to its largest entry and to 1e-7, is
        the number. A kernel in float32 loses about this factor of its digits, however
        it is written.

        Parameters
        ----------
        inputs, cotangent, scale, state
            As for `gradients`.
        draws : int
            How many random signs are tried.
        seed : int
            Where their draws begin.

        Returns
        -------
        dict of str to float
            Under ``"output"``, and under the names of the inputs for their gradients.
        """
        rng = np.random.default_rng(seed)
        step = 1e-7

        def results(at: Inputs) -> dict[str, Real]:
            found = self.gradients(at, cotangent, scale, state)
            named = {name: x for name, x in found.items() if not isinstance(x, tuple)}
            return {"output": self.evaluate(at, scale, state).output, **named}

        exact = results(inputs)
        largest = dict.fromkeys(exact, 0.0)
        for _ in range(draws):
            moved = {
                name: None
                if x is None
                else x * (1 + step * rng.choice([-1.0, 1.0], x.shape))
                for name, x in inputs.items()
            }
            for name, x in results(moved).items():
                size = abs(exact[name]).max(initial=0.0)
                change = abs(x - exact[name]).max(initial=0.0)
                if size > 0:
                    largest[name] = max(largest[name], float(change / (step * size)))
        return largest

    def _played(
        self,
        rounding: Rounding | None,
        inputs: Inputs,
        scale: float | None,
        state: State | None,
        position: int,
        options: Options | None,
    ) -> "Played":
        given = {name: x for name, x in inputs.items() if x is not None}
        unknown = set(given) - set(self.input_names)
        if unknown:
            msg = f"`inputs` of {self.name} are {self.input_names}, got {unknown}."
            raise ValueError(msg)
        tape = Tape(rounding)
        nodes = {name: tape.constant(x) for name, x in given.items()}
        for name, default in self.defaults.items():
            if name not in nodes:
                nodes[name] = tape.constant(default(inputs))
        initial = tuple(tape.constant(x) for x in state or self.empty_state(inputs))
        scale = self.default_scale(inputs) if scale is None else scale
        options = options or Options()
        call = Call(tape, nodes, scale, initial, position, self.causal, options)
        output, states = self.program(call)
        named = {name: nodes[name] for name in given}
        named.update(zip(STATE_NAMES, initial, strict=False))
        return Played(tape, named, output, states)


@dataclass(frozen=True)
class Played:
    """One call of an operator on a tape, with what can be asked of it."""

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
            found = self.gradients(cotangent, state_cotangent)
            return {name: ball.bounded() for name, ball in found.items()}

    def gradients(
        self, cotangent: Real, state_cotangent: State | None
    ) -> dict[str, Ball]:
        """Return the gradients as balls, by name of the input."""
        given = [(self.output, Ball(np.asarray(cotangent, dtype=np.float64)))]
        for node, x in zip(self.states, state_cotangent or (), strict=False):
            given.append((node, Ball(np.asarray(x, dtype=np.float64))))
        found = self.tape.gradients(given, list(self.inputs.values()))
        return dict(zip(self.inputs, found, strict=True))
