"""Call a target segment by segment, forwards and, for gradients, backwards.

The state is handed over as the target returned it, whatever it is made of. It is read
only to see whether a call has changed it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.spec.operators import OPERATORS, Operator
from linkern.testing.target.arguments import (
    gate_arrays,
    output_buffer,
    state_axes,
    state_buffer,
)
from linkern.testing.target.framework import Framework, Undifferentiable
from linkern.testing.target.loading import Loaded
from linkern.testing.target.protocol import SCALES, Call, TargetConfig
from linkern.testing.target.ranks.sharding import Sharding

__all__ = [
    "ABSENT",
    "Natives",
    "SegmentRunner",
    "leaves",
    "output_shape",
    "per_query",
    "scale_of",
    "state_parts",
]

# No state: not even None was returned.
ABSENT = object()
Natives = dict[str, Any]


@dataclass(frozen=True)
class _Segment:
    """One segment: its tokens, the state before, the output, the state after."""

    span: Any
    before: Any
    output: Any
    after: Any

    @property
    def first(self) -> int:
        """The position of its first token."""
        return int(self.span.start if isinstance(self.span, slice) else self.span)


# From a segment, its index and the cotangents of its output and of the state after it,
# to the gradients of its inputs and of the state before it.
_Pull = Callable[[_Segment, int, Any, Any], tuple[list[Any], Any]]


class SegmentRunner:
    """Call a loaded target in its own interface and with its own names.

    Parameters
    ----------
    loaded : Loaded
        The target.
    config : TargetConfig
        Layout, interface and options of the calls.
    framework : Framework
        Array library of the inputs.
    """

    def __init__(
        self, loaded: Loaded, config: TargetConfig, framework: Framework
    ) -> None:
        self._loaded = loaded
        self.config = config
        self.framework = framework
        self._axis = config.layout.index("t")
        self.operator = OPERATORS[config.op]
        self.changed_state = False
        self._held: dict[str, Any] | None = None

    def begin(self) -> None:
        """Begin a call, of which nothing is observed yet."""
        self.changed_state = False

    @property
    def met(self) -> bool:
        """True unless the target runs on a rank, and called no collective there."""
        return True

    @contextmanager
    def holding_arguments(self) -> Iterator[None]:
        """Pass all calls the same arrays beside the inputs: no copy can be captured.

        The calls must be alike.
        """
        self._held = {}
        try:
            yield
        finally:
            self._held = None

    def _native(self, name: str, x: NDArray[Any]) -> Any:
        """Return an argument beside the inputs as an array of the library."""
        held = {} if self._held is None else self._held
        if name not in held:
            held[name] = self.framework.to_native(x, self.config.device)
        return held[name]

    def _once(
        self, inputs: Natives, state: Any, call: Call, first: int = 0, index: int = 0
    ) -> tuple[Any, Any]:
        """Call the target on one segment; return its output and state."""
        interface = self._loaded.interface
        states = {*interface.state, interface.final_state}
        options: dict[str, Any] = dict.fromkeys(interface.needed & states)
        options |= self._other_arguments(call, first, index)
        if (call.wants_state or call.cuts) and interface.final_state:
            options[interface.final_state] = True
        if state is not ABSENT:
            options |= self._of_state(state)
        buffers = self._buffers(inputs, call)
        options |= {**buffers, **self.config.options, **call.options}
        inputs_in_order = [inputs.get(name) for name in self.operator.names]
        returned = self._returned(inputs_in_order, options, call.sharding)
        if returned is None and buffers:
            returned = tuple(buffers.values())
        if isinstance(returned, tuple | list) and returned:
            rest = returned[1:]
            return returned[0], rest[0] if len(rest) == 1 else tuple(rest) or ABSENT
        return returned, ABSENT

    def _returned(
        self, inputs: list[Any], options: dict[str, Any], sharding: Sharding | None
    ) -> Any:
        """Return what the target returns for inputs in the order of the operator."""
        del sharding
        names = self._loaded.interface.inputs
        if not names:
            return self._loaded.function(*inputs, **options)
        # A missing input is left to the default of the target.
        named = zip(names, inputs, strict=True)
        options = options | {name: x for name, x in named if x is not None}
        return self._loaded.function(**options)

    def _of_state(self, state: Any) -> dict[str, Any]:
        """Return the arguments by which a state is passed: whole, or its parts."""
        names = self._loaded.interface.state
        if len(names) <= 1:
            return dict.fromkeys(names, state)
        if not isinstance(state, tuple | list) or len(state) != len(names):
            parts = len(state) if isinstance(state, tuple | list) else 1
            msg = f"it takes a state as {', '.join(names)}, and returned {parts} of it"
            raise TypeError(msg)
        return dict(zip(names, state, strict=True))

    def _other_arguments(self, call: Call, first: int, index: int) -> dict[str, Any]:
        """Return scale, position, micro steps, `cu_seqlens`: those that it takes."""
        interface, options = self._loaded.interface, dict[str, Any]()
        sizes = self.operator.sizes(call.inputs)
        scaled = self.operator.has_scale and call.scale != "omitted"
        if interface.scale and scaled:
            options[interface.scale] = scale_of(self.config, call)
        if interface.position and first:
            options[interface.position] = first
        if interface.micro_steps:
            options[interface.micro_steps] = per_query(sizes) or 1
        if interface.cu_seqlens and call.segments:
            edges = np.asarray(call.segments[index], self.config.cu_seqlens_dtype)
            options[interface.cu_seqlens] = self._native(interface.cu_seqlens, edges)
        for name, x in gate_arrays(self.config, call).items():
            options[name] = self._native(name, x)
        return options

    def _buffers(self, inputs: Natives, call: Call) -> Natives:
        """Return arrays to be written, by the names of their parameters."""
        interface, buffers = self._loaded.interface, dict[str, NDArray[Any]]()
        if interface.output is None:
            return {}
        shape = [*inputs["value"].shape]
        if self.config.interface == "sequence":
            shape[self._axis] //= per_query(self.operator.sizes(call.inputs)) or 1
        buffers[interface.output] = output_buffer(call, tuple(shape))
        if interface.output_state and (call.wants_state or call.cuts):
            buffers[interface.output_state] = state_buffer(self.config, call)
        return {name: self._native(name, x) for name, x in buffers.items()}

    def _pieces(self, length: int, cuts: tuple[int, ...]) -> Iterator[Any]:
        """Yield the index of each segment on the time axis."""
        if self.config.interface == "step":
            yield from range(length)
        else:
            yield from (slice(*span) for span in pairwise((0, *cuts, length)))

    def length(self, call: Call) -> int:
        """Return the number of tokens of a call."""
        return self.operator.sizes(call.inputs)["t"]

    def _select(self, span: Any) -> tuple[Any, ...]:
        return (*(slice(None),) * self._axis, span, ...)

    def _part(self, natives: Natives, span: Any, call: Call) -> Natives:
        """Return the inputs of one segment; inputs without a time axis are whole."""
        each = per_query(self.operator.sizes(call.inputs))
        part = {}
        for name, x in natives.items():
            declared = self.operator.input(name)
            keys = _widened(span, each if "s" in declared.axes else 1)
            part[name] = x[self._select(keys)] if declared.per_token else x
        return part

    def run(self, natives: Natives, call: Call) -> tuple[list[Any], Any]:
        """Call the target on each segment in turn, handing over the state."""
        whole = not call.cuts and self.config.interface == "sequence"
        if whole:
            output, state = self._once(natives, ABSENT, call)
            return [output], state
        segments = list(self._walk(natives, call))
        state = segments[-1].after if segments else ABSENT
        return [segment.output for segment in segments], state

    def _walk(self, natives: Natives, call: Call) -> Iterator[_Segment]:
        """Call the target on each segment in turn; yield inputs and results."""
        state: Any = ABSENT
        spans = self._pieces(self.length(call), call.cuts)
        for index, span in enumerate(spans):
            held = self._leaves(state)
            part = self._part(natives, span, call)
            first = span.start if isinstance(span, slice) else span
            output, after = self._once(part, state, call, first, index)
            self._note_changes(held)
            yield _Segment(span, state, output, after)
            state = self._passed_on(after)

    def _passed_on(self, after: Any) -> Any:
        """Return the state before the next segment, from the one after this one."""
        return after

    def _passed_back(self, gradient: Any) -> Any:
        """Return the cotangent of the state before this segment, from its gradient."""
        return gradient

    def _leaves(self, state: Any) -> list[tuple[Any, NDArray[Any]]]:
        """Return the arrays inside a state, each with a copy of its numbers."""
        if state is ABSENT or self._grad_tracking(state):
            return []
        return [(x, self.framework.to_numpy(x)) for x in self.arrays_in(state)]

    def _grad_tracking(self, state: Any) -> bool:
        return any(
            getattr(x, "requires_grad", False) or type(x).__name__.endswith("Tracer")
            for x in leaves(state)
        )

    def arrays_in(self, state: Any) -> list[Any]:
        """Return the arrays of the target's library inside a state."""
        return [x for x in leaves(state) if self.framework.is_native(x)]

    def _note_changes(self, held: list[tuple[Any, NDArray[Any]]]) -> None:
        for array, before in held:
            after = self.framework.to_numpy(array)
            if not np.array_equal(after, before, equal_nan=True):
                self.changed_state = True

    def gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of the segments, and the gradients of the inputs.

        Raises `Undifferentiable` if the target has none.
        """
        if self._loaded.vjp is not None:
            return self._declared_gradients(natives, cotangent, call)
        if self.framework.gradients is None:
            msg = f"{self.framework.name} does not differentiate, and it has no `vjp`"
            raise Undifferentiable(msg)
        cotangents = [
            cotangent[self._select(span)]
            for span in self._pieces(self.length(call), call.cuts)
        ]

        def function(*inputs: Any) -> list[Any]:
            return self.run(dict(zip(natives, inputs, strict=True)), call)[0]

        return self.framework.gradients(function, [*natives.values()], cotangents)

    def _declared_gradients(
        self, natives: Natives, cotangent: Any, call: Call
    ) -> tuple[list[Any], list[Any]]:
        """Call the declared gradient function: once, or for each segment."""
        backwards = self._loaded.vjp
        assert backwards is not None
        fixed = {**self.config.options, **call.options}
        if not call.cuts and self.config.interface == "sequence":
            pieces, _ = self.run(natives, call)
            options = {**self._other_arguments(call, 0, 0), **fixed}
            return pieces, backwards(natives, cotangent, options)[0]
        if not backwards.takes_state:
            msg = "its `vjp` takes no state and no cotangent of one"
            raise Undifferentiable(msg)

        def pull(
            segment: _Segment, index: int, cotangent: Any, state_cotangent: Any
        ) -> tuple[list[Any], Any]:
            before = None if segment.before is ABSENT else segment.before
            options = {**self._other_arguments(call, segment.first, index), **fixed}
            part = self._part(natives, segment.span, call)
            return backwards(part, cotangent, options, (before, state_cotangent))

        return self._in_reverse(natives, cotangent, call, pull)

    def _in_reverse(
        self, natives: Natives, cotangent: Any, call: Call, pull: _Pull
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of the segments, and the gradients of the inputs.

        `pull(segment, index, cotangent, state_cotangent)` returns the gradients of the
        inputs of a segment, None for those that it does not reach, and of its state.
        """
        segments = list(self._walk(natives, call))
        pieces_of_inputs: list[list[Any]] = [[] for _ in natives]
        reached, state_cotangent = set[str](), None
        for index, segment in reversed([*enumerate(segments)]):
            part = self._part(natives, segment.span, call)
            of_output = cotangent[self._select(segment.span)]
            gradients, of_state = pull(segment, index, of_output, state_cotangent)
            state_cotangent = self._passed_back(of_state)
            reached |= {
                n for n, x in zip(part, gradients, strict=True) if x is not None
            }
            for earlier, x, same in zip(
                pieces_of_inputs, gradients, part.values(), strict=True
            ):
                earlier.insert(0, self.framework.to_numpy(same * 0 if x is None else x))
        device, native = self.config.device, list[Any]()
        for name, pieces in zip(natives, pieces_of_inputs, strict=True):
            if name not in reached:
                native.append(None)
                continue
            if self.operator.input(name).per_token:
                whole = self.joined(pieces)
            else:
                whole = np.asarray(np.sum(pieces, axis=0, dtype=np.float64))
            stored = whole.astype(call.inputs[name].dtype)
            native.append(self.framework.to_native(stored, device))
        return [segment.output for segment in segments], native

    def joined(self, pieces: list[NDArray[Any]]) -> NDArray[Any]:
        """Concatenate the outputs; the first alone if their shapes do not fit."""
        if len({x.ndim for x in pieces}) > 1:
            return pieces[0]
        if self.config.interface == "step":
            same = len({x.shape for x in pieces}) == 1
            axis = min(self._axis, pieces[0].ndim)
            return np.stack(pieces, axis=axis) if same else pieces[0]
        around = {(*x.shape[: self._axis], *x.shape[self._axis + 1 :]) for x in pieces}
        fit = len(around) == 1 and pieces[0].ndim > self._axis
        return np.concatenate(pieces, axis=self._axis) if fit else pieces[0]


def output_shape(sizes: dict[str, int], layout: str, tokens: int) -> tuple[int, ...]:
    """Return the shape of an output of so many tokens, in the layout of a target."""
    lengths = {"b": sizes["b"], "h": sizes["g"], "t": tokens, "d": sizes["v"]}
    return tuple(lengths[axis] for axis in layout)


def state_parts(
    arrays: Sequence[NDArray[Any]],
    operator: Operator,
    sizes: dict[str, int],
    layout: str,
    state_layout: str,
) -> tuple[NDArray[Any], ...] | None:
    """Return memory and normalizer in the axes of the operator; None if none fits."""
    lead = state_axes(sizes, layout)
    memory, *others = operator.state_shapes(sizes)
    transposed = state_layout == "vk"
    expected = (*lead, *(memory[:-2] + memory[:-3:-1] if transposed else memory))
    arrays = _with_last_column(arrays, expected, -2 if transposed else -1)
    # The memory comes first.
    arrays = sorted(arrays, key=lambda x: x.shape != expected)
    if not arrays or arrays[0].shape != expected:
        return None
    states = [np.swapaxes(arrays[0], -1, -2) if transposed else arrays[0]]
    for normalizer, x in zip(others, arrays[1:], strict=False):
        # Kernels keep the normalizer with an axis of one, here or there.
        if x.size != int(np.prod((*lead, *normalizer))):
            return None
        states.append(x.reshape((*lead, *normalizer)))
    missing = (None,) * (2 - len(lead))
    return tuple(x[missing] for x in states)


def _with_last_column(
    arrays: Sequence[NDArray[Any]], expected: tuple[int, ...], axis: int
) -> Sequence[NDArray[Any]]:
    """Return a state with a memory whose last column was an array of its own.

    It is the normaliser of the rows, of operators that have one in the memory.
    """
    if len(arrays) < 2 or arrays[0].ndim != len(expected):
        return arrays
    memory, column, *rest = arrays
    if column.size * memory.shape[axis] != memory.size:
        return arrays
    column = column.reshape(np.delete(memory.shape, axis))
    joined = np.concatenate([memory, np.expand_dims(column, axis)], axis)
    return [joined, *rest] if joined.shape == expected else arrays


def per_query(sizes: dict[str, int]) -> int:
    """Return the number of keys of each query."""
    return sizes["s"] // max(sizes["t"], 1)


def scale_of(config: TargetConfig, call: Call) -> float:
    """Return the scale of the scores that is passed to a target."""
    operator = OPERATORS[config.op]
    declared = config.scale
    scale = operator.scale if declared is None else declared
    if isinstance(scale, str):
        scale = float(operator.sizes(call.inputs)["k"] ** -0.5)
    return scale * SCALES[call.scale]


def _widened(span: Any, each: int) -> Any:
    """Return the index of the keys of a segment of queries."""
    if each == 1:
        return span
    if isinstance(span, slice):
        return slice(span.start * each, span.stop * each)
    return slice(span * each, (span + 1) * each)


def leaves(state: Any) -> list[Any]:
    """Return the arrays and other objects inside a state, flattened."""
    if isinstance(state, dict):
        return [leaf for item in state.values() for leaf in leaves(item)]
    if isinstance(state, tuple | list):
        return [leaf for item in state for leaf in leaves(item)]
    if hasattr(state, "memory") and hasattr(state, "normalizer"):
        return [state.memory, state.normalizer]
    return [state]
