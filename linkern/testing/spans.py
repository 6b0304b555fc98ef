"""Calling a target on one span of tokens after the other, and back again.

The state is handed over as the target returned it, whatever it is made of. This side of
the fence looks into it only to see whether a call has changed it.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.frameworks import Framework, Undifferentiable
from linkern.testing.loading import STATE_COTANGENT_NAMES, STATE_NAMES, Loaded
from linkern.testing.messages import Call, Environment

__all__ = ["ABSENT", "Natives", "Spans", "leaves"]

# No state: not even None was returned.
ABSENT = object()
Natives = list[Any]


@dataclass(frozen=True)
class _Step:
    """One span: what selects it, the state before, the output, the state after."""

    select: tuple[Any, ...]
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
        self.changed_state = False

    def _once(self, inputs: Natives, state: Any, call: Call) -> tuple[Any, Any]:
        """Call the target on one span, and tell its output from its state."""
        interface = self._loaded.interface
        states = {interface.state, interface.final_state}
        options: dict[str, Any] = dict.fromkeys(interface.needed & states)
        if interface.scale:
            options[interface.scale] = self._scale(call)
        if (call.wants_state or call.cuts) and interface.final_state:
            options[interface.final_state] = True
        if interface.state is not None and state is not ABSENT:
            options[interface.state] = state
        options |= {**self._environment.options, **call.options}
        if interface.inputs:
            options |= dict(zip(interface.inputs, inputs, strict=True))
            returned = self._loaded.function(**options)
        else:
            returned = self._loaded.function(*inputs, **options)
        if isinstance(returned, tuple | list) and returned:
            rest = returned[1:]
            return returned[0], rest[0] if len(rest) == 1 else tuple(rest) or ABSENT
        return returned, ABSENT

    def _scale(self, call: Call) -> float:
        scale = self._environment.scale
        return call.query.shape[-1] ** -0.5 if isinstance(scale, str) else scale

    def _pieces(self, length: int, cuts: tuple[int, ...]) -> Iterator[Any]:
        """Yield what selects the tokens of each span along the time axis."""
        if self._environment.interface == "step":
            yield from range(length)
        else:
            yield from (slice(*span) for span in pairwise((0, *cuts, length)))

    def _select(self, span: Any) -> tuple[Any, ...]:
        return (*(slice(None),) * self._axis, span, ...)

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
        for span in self._pieces(call.query.shape[-2], call.cuts):
            select = self._select(span)
            held = self._leaves(state)
            output, after = self._once([x[select] for x in natives], state, call)
            self._note_changes(held)
            yield _Step(select, state, output, after)
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
            for span in self._pieces(call.query.shape[-2], call.cuts)
        ]
        return self._framework.gradients(
            lambda *inputs: self.run(list(inputs), call)[0], natives, cotangents
        )

    def _declared_gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Call the target's own backward function, span by span in reverse."""
        vjp = self._loaded.vjp
        assert vjp is not None
        if not call.cuts and self._environment.interface == "sequence":
            pieces, _ = self.run(natives, call)
            return pieces, _gradients_of(vjp(*natives, cotangent), 3)[:3]
        names = inspect.signature(vjp).parameters
        given = next((n for n in STATE_NAMES if n in names), None)
        of_final = next((n for n in STATE_COTANGENT_NAMES if n in names), None)
        if given is None or of_final is None:
            msg = "its `vjp` takes no state and no cotangent of one"
            raise Undifferentiable(msg)
        steps = list(self._walk(natives, call))
        found: list[list[Any]] = [[], [], []]
        of_state = None
        for step in reversed(steps):
            before = None if step.before is ABSENT else step.before
            inputs = (x[step.select] for x in natives)
            options = {given: before, of_final: of_state}
            returned = vjp(*inputs, cotangent[step.select], **options)
            *of_inputs, of_state = _gradients_of(returned, 4)[:4]
            for kept, x in zip(found, of_inputs, strict=True):
                kept.insert(0, self._framework.to_numpy(x))
        joined = (self.joined(x).astype(call.query.dtype) for x in found)
        device = self._environment.device
        native = [self._framework.to_native(x, device) for x in joined]
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


def _gradients_of(returned: Any, due: int) -> list[Any]:
    """Return what a `vjp` returned, if there is enough of it."""
    if not isinstance(returned, tuple | list) or len(returned) < due:
        msg = "its `vjp` must return the gradients of the query, the key and the value"
        if due > 3:
            msg += ", and that of the state"
        raise TypeError(msg)
    return list(returned)


def leaves(state: Any) -> list[Any]:
    """Return what a state is made of."""
    if isinstance(state, dict):
        return [leaf for item in state.values() for leaf in leaves(item)]
    if isinstance(state, tuple | list):
        return [leaf for item in state for leaf in leaves(item)]
    if hasattr(state, "memory") and hasattr(state, "normalizer"):
        return [state.memory, state.normalizer]
    return [state]
