"""The record of an operator: inputs, state, laws, program, exact values and bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Rounding
from linkern.oracle.bounds import Bounded, Precisions
from linkern.oracle.calls import Call, Options, Program
from linkern.oracle.inputs import Input, Reduction
from linkern.oracle.recording import ExactResult, Recording
from linkern.oracle.tape import Tape

__all__ = ["INVERSE_ROOT_KEY_DIM", "STATE_NAMES", "Operator"]

Real = NDArray[np.float64]
Inputs = Mapping[str, Real | None]
State = tuple[Real, ...]

INVERSE_ROOT_KEY_DIM = "K^-0.5"
STATE_NAMES = ("initial_state", "initial_normalizer")


@dataclass(frozen=True)
class Operator:
    """One operator, called with its inputs in their order.

    Parameters
    ----------
    name : str
        Its name on the command line, after ``--op``.
    inputs : tuple of Input
        The inputs of a call.
    summary : str
        Its equation in one line.
    program : callable
        The computation on a tape.
    causal : bool
        Whether row i sums over keys 0..i only.
    scale : float or "K^-0.5"
        Factor on the scores where nothing is declared.
    state : tuple of tuple of str
        The axes of its memory in one head, and of its normalizer if it has one: letters
        of axes, ``1``, ``2k``, ``k/r``, ``k+v``, ``v+1``, ``p+k+v``, or ``features``
        and ``squares`` for the monomials of the key up to degree 2 and of degree 2,
        ``degree 2`` and ``degree 4`` for each of them once.
    log_normalizer : bool
        Whether the normalizer is the logarithm of a sum, so -inf without tokens.
    feature_map : bool
        Whether it applies the declared feature maps and epsilon.
    normalised : bool
        Whether its rows are averages of the values.
    floored : bool
        Whether its rows are divided by the size of a normaliser, by at least 1.
    linear : tuple of str
        Inputs in each of which the output is linear.
    erases : bool
        Whether it takes back earlier writes, so that an error can grow over time.
    erase_along : str
        The input along which it erases, ``key`` or ``value``.
    early_erase : bool
        Whether an erase reads the memory before its decay, so that a rate above one
        lets a memory grow that decays.
    scales_keys : bool
        Whether it erases along a key and writes it times a factor that rounds.
    state_is_sum : bool
        Whether states add up: what a token adds does not depend on other tokens.
    reversal : int or None
        By how many tokens decays move in the gradient of the values, which is the
        operator in reversed time; None for operators of which this is not so.
    unit_writes : mapping from str to float, or None
        Inputs under which unit keys write their values and neither erase nor forget;
        None where no such tokens are known.
    neutral : mapping from str to float, or None
        Inputs under which a token leaves the memory as it is; besides, keys without
        features where there is a feature map. None where no such tokens are known.
    inexact : str
        Reason why no inputs make all sums exact; empty if integers do.
    reductions : tuple of Reduction
        Inputs under which it is another operator.
    largest_key_dim : int or None
        Limit of the key dimension: beyond it the exact result takes too long, or
        nothing is proved of it.
    defaults : mapping from str to callable
        Inputs that are made from the others, of operators whose calls do not take them.
    """

    name: str
    inputs: tuple[Input, ...]
    summary: str
    program: Program
    causal: bool = True
    scale: float | str = INVERSE_ROOT_KEY_DIM
    state: tuple[tuple[str, ...], ...] = (("k", "v"),)
    log_normalizer: bool = False
    feature_map: bool = False
    normalised: bool = False
    floored: bool = False
    linear: tuple[str, ...] = ("query", "value")
    erases: bool = False
    erase_along: str = "key"
    early_erase: bool = False
    scales_keys: bool = False
    state_is_sum: bool = False
    reversal: int | None = None
    unit_writes: Mapping[str, float] | None = field(default=None, hash=False)
    neutral: Mapping[str, float] | None = field(default=None, hash=False)
    inexact: str = ""
    reductions: tuple[Reduction, ...] = field(default=(), hash=False)
    largest_key_dim: int | None = None
    defaults: Mapping[str, Callable[[Inputs], Real]] = field(
        default_factory=dict, hash=False
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs of a call."""
        return tuple(one.name for one in self.inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs of its program: those of a call, then defaults."""
        return (*self.names, *(x for x in self.defaults if x not in self.names))

    @property
    def has_scale(self) -> bool:
        """True if there are scores that a scale could multiply."""
        return "query" in self.names

    @property
    def micro_steps(self) -> bool:
        """True if every query follows several keys."""
        return self.causal and not self.feature_map and "s" in self._letters

    @property
    def affine(self) -> bool:
        """True if a span of tokens is a matrix on the memory, and an increment."""
        by_entry = any({"k", "v"} <= {*one.axes} for one in self.inputs)
        levels = any("l" in axes for axes in self.state)
        # What is written depends on sums beside the memory.
        sums = self.erases and len(self.state) > 1
        return not (self.log_normalizer or levels or by_entry or sums or self.pairs)

    @property
    def pairs(self) -> bool:
        """True if channels of queries and keys belong together, two and two."""
        return "p" in self._letters

    @property
    def ranks(self) -> bool:
        """True if a query, like a key, is several side by side, as many as its rank."""
        return "r" in self._letters

    @property
    def keeps_keys(self) -> bool:
        """True if the memory has columns of keys before those of values."""
        return self.state[0][-1] == "k+v"

    @property
    def rows_per_token(self) -> int:
        """The rows of the recurrence that a token takes, or a micro-step."""
        return 2 if {"a", "removal_key"} & {*self.names} else 1

    @property
    def _letters(self) -> set[str]:
        return {axis for one in self.inputs for axis in one.axes}

    def input(self, name: str) -> Input:
        """Return the input of that name."""
        return next(one for one in self.inputs if one.name == name)

    def sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the size of each axis by its letter; 1 for those that no input has."""
        sizes = dict.fromkeys("bhgtskvmlpr", 1)
        for one in reversed(self.inputs):
            x = inputs.get(one.name)
            if x is not None:
                # From the last axis on: batch and heads may be left out.
                sizes |= zip(one.axes[::-1], x.shape[::-1], strict=False)
        present = self._letters
        for absent, like in (("t", "s"), ("s", "t"), ("h", "g"), ("g", "h")):
            if absent not in present:
                sizes[absent] = sizes[like]
        return {name: int(size) for name, size in sizes.items()}

    def state_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of memory and normalizer in one head."""
        key_dim, value_dim = sizes["k"], sizes["v"]
        known = {
            **sizes,
            "1": 1,
            "2k": 2 * key_dim,
            "k/r": key_dim // sizes["r"],
            "k+v": key_dim + value_dim,
            "v+1": value_dim + 1,
            "p+k+v": sizes["p"] + key_dim + value_dim,
            "features": 1 + key_dim + key_dim**2,
            "squares": key_dim**2,
            "degree 2": comb(key_dim + 1, 2),
            "degree 4": comb(key_dim + 3, 4),
        }
        return [tuple(known[axis] for axis in axes) for axes in self.state]

    def empty_state(self, inputs: Inputs) -> State:
        """Return the state before the first token."""
        value = inputs.get("value")
        if value is None:
            msg = "`value` must be an array, got None."
            raise ValueError(msg)
        lead = value.shape[:-2]
        memory, *normalizer = self.state_shapes(self.sizes(inputs))
        first = -np.inf if self.log_normalizer else 0.0
        return (
            np.zeros((*lead, *memory)),
            *(np.full((*lead, *shape), first) for shape in normalizer),
        )

    def default_scale(self, inputs: Inputs) -> float:
        """Return the scale of a call that names none."""
        query = inputs.get("query")
        if isinstance(self.scale, str):
            return 1.0 if query is None else float(query.shape[-1] ** -0.5)
        return self.scale

    def evaluate(
        self,
        inputs: Inputs,
        scale: float | None = None,
        state: State | None = None,
        position: int = 0,
        options: Options | None = None,
    ) -> ExactResult:
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
        ExactResult
            Output and state.
        """
        with np.errstate(all="ignore"):
            recording = self._recorded(None, inputs, scale, state, position, options)
            states = tuple(x.value for x in recording.states)
            return ExactResult(recording.output.value, states)

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
        recording = self.recorded(
            inputs,
            scale,
            precisions,
            state=state,
            chunk_size=chunk_size,
            confidence=confidence,
            position=position,
            options=options,
        )
        return recording.bounded_output(), recording.bounded_states()

    def recorded(
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
    ) -> Recording:
        """Return the operator on a tape, to be asked for results and gradients.

        Parameters
        ----------
        inputs, scale, precisions, state, chunk_size, confidence, position, options
            As for `bounded`.
        """
        rounding = Rounding(precisions, chunk_size, confidence)
        with np.errstate(all="ignore"):
            return self._recorded(rounding, inputs, scale, state, position, options)

    def gradients(
        self,
        inputs: Inputs,
        cotangent: Real,
        scale: float | None = None,
        state: State | None = None,
        state_cotangent: State | None = None,
        position: int = 0,
        options: Options | None = None,
        without: str = "",
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
        without : str
            Operand of the recurrence of which what comes back is left out: ``query``,
            ``key``, ``value``, ``log_decay`` or ``erase``. Default: nothing is.

        Returns
        -------
        dict of str to array
            By name of the input; under ``"initial_state"`` a tuple of arrays. A
            log-decay of -inf has the gradient 0.
        """
        with np.errstate(all="ignore"):
            recording = self._recorded(None, inputs, scale, state, position, options)
            balls = recording.gradients(cotangent, state_cotangent, without)
        gradients: dict[str, Real | State] = {
            name: ball.value for name, ball in balls.items() if name in inputs
        }
        initial = tuple(balls[x].value for x in STATE_NAMES if x in balls)
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
        recording = self.recorded(
            inputs,
            scale,
            precisions,
            state=state,
            chunk_size=chunk_size,
            confidence=confidence,
            position=position,
            options=options,
        )
        return recording.bounded_gradients(cotangent, state_cotangent)

    def _recorded(
        self,
        rounding: Rounding | None,
        inputs: Inputs,
        scale: float | None,
        state: State | None,
        position: int,
        options: Options | None,
    ) -> Recording:
        present = {name: x for name, x in inputs.items() if x is not None}
        unknown = set(present) - set(self.input_names)
        if unknown:
            msg = f"`inputs` of {self.name} are {self.input_names}, got {unknown}."
            raise ValueError(msg)
        tape = Tape(rounding)
        nodes = {name: tape.constant(x) for name, x in present.items()}
        for name, default in self.defaults.items():
            if name not in nodes:
                nodes[name] = tape.constant(default(inputs))
        initial = tuple(tape.constant(x) for x in state or self.empty_state(inputs))
        scale = self.default_scale(inputs) if scale is None else scale
        options = options or Options()
        call = Call(
            tape,
            nodes,
            scale,
            initial,
            position,
            self.causal,
            options,
            self.early_erase,
        )
        output, states = self.program(call)
        named = {name: nodes[name] for name in present}
        named.update(zip(STATE_NAMES, initial, strict=False))
        return Recording(tape, named, output, states)
