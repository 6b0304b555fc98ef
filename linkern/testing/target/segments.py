"""Calling a target on one span of tokens after the other, and back again.

The state is handed over as the target returned it, whatever it is made of. This side of
the fence looks into it only to see whether a call has changed it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.frameworks import Framework, Undifferentiable
from linkern.testing.target.loading import Loaded
from linkern.testing.target.protocol import Call, Environment

__all__ = ["ABSENT", "Natives", "Spans", "factor_of", "leaves"]

# No state: not even None was returned.
ABSENT = object()
Natives = dict[str, Any]


@dataclass(frozen=True)
class _Step:
    """One span: which it is, the state before, the output, the state after."""

    span: Any
    before: Any
    output: Any
    after: Any


class Spans:
    """How a loaded target is called, in its own interface and with its own names.

    Parameters
    ----------
    loaded : Loaded
        The target.
    environment : Environment
        How it is to be called.
    framework : Framework
        With which arrays.
    """

    def __init__(
        self, loaded: Loaded, environment: Environment, framework: Framework
    ) -> None:
        self._loaded = loaded
        self._environment = environment
        self._framework = framework
        self._axis = environment.layout.index("t")
        self.operator = OPERATORS[environment.op]
        self.changed_state = False

    def _once(
        self, inputs: Natives, state: Any, call: Call, first: int = 0
    ) -> tuple[Any, Any]:
        """Call the target on the span from a token on; return its output and state."""
        interface = self._loaded.interface
        states = {interface.state, interface.final_state}
        options: dict[str, Any] = dict.fromkeys(interface.needed & states)
        options |= self._known_besides(call, first)
        if (call.wants_state or call.cuts) and interface.final_state:
            options[interface.final_state] = True
        if interface.state is not None and state is not ABSENT:
            options[interface.state] = state
        options |= {**self._environment.options, **call.options}
        given = [inputs.get(name) for name in self.operator.names]
        if interface.inputs:
            # What is not given is left to the target's own default.
            named = zip(interface.inputs, given, strict=True)
            options |= {name: x for name, x in named if x is not None}
            returned = self._loaded.function(**options)
        else:
            returned = self._loaded.function(*given, **options)
        if isinstance(returned, tuple | list) and returned:
            rest = returned[1:]
            return returned[0], rest[0] if len(rest) == 1 else tuple(rest) or ABSENT
        return returned, ABSENT

    def _known_besides(self, call: Call, first: int) -> dict[str, Any]:
        """Return what a target that asks for it is told besides its inputs."""
        interface, options = self._loaded.interface, dict[str, Any]()
        sizes = self.operator.sizes(call.inputs)
        if interface.scale and self.operator.has_scale:
            options[interface.scale] = factor_of(self._environment, call)
        if interface.position and first:
            options[interface.position] = first
        if interface.micro_steps:
            options[interface.micro_steps] = sizes["s"] // max(sizes["t"], 1) or 1
        if interface.cu_seqlens and call.segments:
            edges = np.asarray(call.segments, dtype=np.int64)
            device = self._environment.device
            options[interface.cu_seqlens] = self._framework.to_native(edges, device)
        return options

    def _pieces(self, length: int, cuts: tuple[int, ...]) -> Iterator[Any]:
        """Yield what selects the tokens of each span along the time axis."""
        if self._environment.interface == "step":
            yield from range(length)
        else:
            yield from (slice(*span) for span in pairwise((0, *cuts, length)))

    def length(self, call: Call) -> int:
        """Return the number of tokens of a call."""
        return self.operator.sizes(call.inputs)["t"]

    def _select(self, span: Any) -> tuple[Any, ...]:
        return (*(slice(None),) * self._axis, span, ...)

    def _part(self, natives: Natives, span: Any, call: Call) -> Natives:
        """Return the inputs of one span; what is not of tokens belongs to all."""
        sizes = self.operator.sizes(call.inputs)
        each = sizes["s"] // max(sizes["t"], 1)
        return {
            name: x[self._select(_widened(span, each if "s" in of.axes else 1))]
            if (of := self.operator.input(name)).per_token
            else x
            for name, x in natives.items()
        }

    def run(self, natives: Natives, call: Call) -> tuple[list[Any], Any]:
        """Call the target on one span after the other, handing over the state."""
        whole = not call.cuts and self._environment.interface == "sequence"
        if whole:
            output, state = self._once(natives, ABSENT, call)
            return [output], state
        steps = list(self._walk(natives, call))
        return [step.output for step in steps], steps[-1].after if steps else ABSENT

    def _walk(self, natives: Natives, call: Call) -> Iterator["_Step"]:
        """Call the target on one span after the other, and yield what it did."""
        state: Any = ABSENT
        for span in self._pieces(self.length(call), call.cuts):
            held = self._leaves(state)
            part = self._part(natives, span, call)
            first = span.start if isinstance(span, slice) else span
            output, after = self._once(part, state, call, first)
            self._note_changes(held)
            yield _Step(span, state, output, after)
            state = after

    def _leaves(self, state: Any) -> list[tuple[Any, NDArray[Any]]]:
        """Return the arrays inside a state, each with a copy of its numbers."""
        if state is ABSENT or self._grad_tracking(state):
            return []
        return [(x, self._framework.to_numpy(x)) for x in self.arrays_in(state)]

    def _grad_tracking(self, state: Any) -> bool:
        return any(
            getattr(x, "requires_grad", False) or type(x).__name__.endswith("Tracer")
            for x in leaves(state)
        )

    def arrays_in(self, state: Any) -> list[Any]:
        """Return the arrays of the target's library inside a state."""
        return [x for x in leaves(state) if self._framework.is_native(x)]

    def _note_changes(self, held: list[tuple[Any, NDArray[Any]]]) -> None:
        for array, before in held:
            after = self._framework.to_numpy(array)
            if not np.array_equal(after, before, equal_nan=True):
                self.changed_state = True

    def gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of the spans, and the gradients of the inputs.

        Raises `Undifferentiable` if the target has none.
        """
        if self._loaded.vjp is not None:
            return self._declared_gradients(natives, cotangent, call)
        if self._framework.gradients is None:
            msg = f"{self._framework.name} does not differentiate, and it has no `vjp`"
            raise Undifferentiable(msg)
        cotangents = [
            cotangent[self._select(span)]
            for span in self._pieces(self.length(call), call.cuts)
        ]

        def function(*inputs: Any) -> list[Any]:
            return self.run(dict(zip(natives, inputs, strict=True)), call)[0]

        return self._framework.gradients(function, [*natives.values()], cotangents)

    def _declared_gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Call the function of its gradients, span by span in reverse."""
        backwards = self._loaded.vjp
        assert backwards is not None
        fixed = {**self._environment.options, **call.options}
        if not call.cuts and self._environment.interface == "sequence":
            pieces, _ = self.run(natives, call)
            options = {**self._known_besides(call, 0), **fixed}
            return pieces, backwards(natives, cotangent, options)[0]
        if not backwards.takes_state:
            msg = "its `vjp` takes no state and no cotangent of one"
            raise Undifferentiable(msg)
        steps = list(self._walk(natives, call))
        found: list[list[Any]] = [[] for _ in natives]
        of_state = None
        for step in reversed(steps):
            before = None if step.before is ABSENT else step.before
            first = step.span.start if isinstance(step.span, slice) else step.span
            options = {**self._known_besides(call, first), **fixed}
            of_inputs, of_state = backwards(
                self._part(natives, step.span, call),
                cotangent[self._select(step.span)],
                options,
                (before, of_state),
            )
            for kept, x in zip(found, of_inputs, strict=True):
                kept.insert(0, self._framework.to_numpy(x))
        device, native = self._environment.device, []
        for name, pieces in zip(natives, found, strict=True):
            if self.operator.input(name).per_token:
                whole = self.joined(pieces)
            else:
                whole = np.asarray(np.sum(pieces, axis=0, dtype=np.float64))
            stored = whole.astype(call.inputs[name].dtype)
            native.append(self._framework.to_native(stored, device))
        return [step.output for step in steps], native

    def joined(self, pieces: list[NDArray[Any]]) -> NDArray[Any]:
        """Put the spans together again; if they do not fit, the first will show it."""
        if len({x.ndim for x in pieces}) > 1:
            return pieces[0]
        if self._environment.interface == "step":
            same = len({x.shape for x in pieces}) == 1
            axis = min(self._axis, pieces[0].ndim)
            return np.stack(pieces, axis=axis) if same else pieces[0]
        around = {(*x.shape[: self._axis], *x.shape[self._axis + 1 :]) for x in pieces}
        fit = len(around) == 1 and pieces[0].ndim > self._axis
        return np.concatenate(pieces, axis=self._axis) if fit else pieces[0]


def factor_of(environment: Environment, call: Call) -> float:
    """Return the factor on the scores that a target is told."""
    operator = OPERATORS[environment.op]
    declared = environment.scale
    scale = operator.scale if declared is None else declared
    if isinstance(scale, str):
        return float(operator.sizes(call.inputs)["k"] ** -0.5)
    return scale


def _widened(span: Any, each: int) -> Any:
    """Return what selects the keys of a span of queries."""
    if each == 1:
        return span
    if isinstance(span, slice):
        return slice(span.start * each, span.stop * each)
    return slice(span * each, (span + 1) * each)


def leaves(state: Any) -> list[Any]:
    """Return what a state is made of."""
    if isinstance(state, dict):
        return [leaf for item in state.values() for leaf in leaves(item)]
    if isinstance(state, tuple | list):
        return [leaf for item in state for leaf in leaves(item)]
    if hasattr(state, "memory") and hasattr(state, "normalizer"):
        return [state.memory, state.normalizer]
    return [state]
