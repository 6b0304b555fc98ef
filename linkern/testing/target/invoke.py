"""Call a target in its own layout, library and interface, and report what happened.

This runs in the process of the target. It compares nothing with exact numbers.
"""

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.target import configurations, side_effects
from linkern.testing.target.framework import Undifferentiable
from linkern.testing.target.frameworks import dtype_name
from linkern.testing.target.memory_layout import Placed, place, with_room
from linkern.testing.target.on_device import DeviceCalls
from linkern.testing.target.protocol import (
    Call,
    Reply,
    from_layout,
    to_layout,
)
from linkern.testing.target.segments import (
    ABSENT,
    Natives,
    SegmentRunner,
    output_shape,
    state_parts,
)

if TYPE_CHECKING:
    from linkern.testing.target.interpreted.accesses import Accesses

__all__ = ["Caller"]

# Calls of each thread while the others call too.
THREADED_CALLS = 10
# How many times as many it makes at most, to wait for the others.
PATIENCE = 8
# Calls whose results are kept, and the most numbers of all but the last call.
_KEPT_CALLS, _KEPT_NUMBERS = 4, 2**18
# Entries of an output that costs little to write several times.
_SMALL_OUTPUT = 2**16


# A result: its name, the array of the target, and the numbers that it had.
_Result = tuple[str, Any, NDArray[Any]]


class Caller:
    """A loaded target and the buffers of its inputs.

    Inputs of the same shape come at the same addresses, call after call, as they do in
    a training loop: what a kernel that remembers results by address gets wrong.

    Parameters
    ----------
    segments : SegmentRunner
        The target, in its own interface.
    accesses : Accesses, optional
        Records the memory that the kernels of an interpreted target access.
    """

    def __init__(
        self, segments: SegmentRunner, accesses: "Accesses | None" = None
    ) -> None:
        self._segments = segments
        self._accesses = accesses
        self._config = segments.config
        self._framework = segments.framework
        self._operator = segments.operator
        self._device = DeviceCalls(segments)
        self._buffers: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._returned: deque[list[_Result]] = deque(maxlen=_KEPT_CALLS)

    def __call__(self, call: Call) -> Reply:
        """Call the target once and report; undo what it did to the process."""
        with side_effects.restored(), self._device.current():
            configurations.begin(call.configuration, call.tuned)
            if self._accesses is not None:
                self._accesses.begin(call.fill)
            reply = replace(
                self._report(call),
                configurations=configurations.taken(),
                variants=configurations.variants(),
                refused=configurations.refused(),
            )
            if self._accesses is None:
                return reply
            return replace(
                reply,
                out_of_bounds=self._accesses.out_of_bounds,
                unwritten=self._accesses.unwritten,
            )

    def _report(self, call: Call) -> Reply:
        layout = self._config.layout
        axes = {name: self._operator.input(name).axes for name in call.inputs}
        inputs = {n: to_layout(x, layout, axes[n]) for n, x in call.inputs.items()}
        placed = {} if call.memory == "contiguous" else self._place(inputs, call.memory)
        natives, refreshes = self._natives(inputs, placed)
        expected = self._expected(call)
        self._segments.begin()
        before = side_effects.snapshot()
        # Last of all, so that no allocation of the referee takes the freed memory.
        self._poison_free_memory(expected, inputs["value"].dtype)
        others: list[NDArray[Any]] = []
        gradients: dict[str, Any] = {}
        with self._device.filled(call.fill):
            if call.cotangent is None:
                if call.threads > 1:
                    others = self._from_threads(natives, call)
                pieces, state = self._device.run(natives, inputs, call)
            else:
                try:
                    pieces, gradients = self._with_gradients(natives, call)
                except Undifferentiable as reason:
                    pieces, _ = self._segments.run(natives, call)
                    gradients = {"not_differentiable": str(reason)}
                state = ABSENT
        left = side_effects.difference(before, side_effects.look())

        for refresh in refreshes:
            refresh()
        changed = self._changed(inputs, natives, placed)
        foreign = [p for p in pieces if not self._framework.is_native(p)]
        if foreign:
            return Reply(None, "", _type_name(foreign[0]), (), expected, changed)
        output, overwritten = self._joined(pieces), self._overwritten()
        self._keep(pieces[-1], state, natives)
        return Reply(
            output=from_layout(output, layout),
            dtype=dtype_name(pieces[-1]),
            kind=_type_name(pieces[-1]),
            shape=tuple(output.shape),
            expected_shape=expected,
            changed=changed,
            aliased=tuple(
                name
                for name, x in natives.items()
                if any(_share(piece, x) for piece in pieces[-1:])
            ),
            overwritten=overwritten,
            traces=left,
            states=self._state_arrays(state, call),
            state_kind="" if state is ABSENT or state is None else _type_name(state),
            other_outputs=tuple(from_layout(x, layout) for x in others),
            collective=self._segments.met,
            **gradients,
        )

    # -- feeding

    def _expected(self, call: Call) -> tuple[int, ...]:
        """Return the required shape of the output, in the layout of the target."""
        sizes = self._operator.sizes(call.inputs)
        return output_shape(sizes, self._config.layout, sizes["t"])

    def _place(self, inputs: dict[str, NDArray[Any]], style: str) -> dict[str, Placed]:
        return {name: place(x, style) for name, x in inputs.items()}

    def _natives(
        self, inputs: dict[str, NDArray[Any]], placed: dict[str, Placed]
    ) -> tuple[Natives, list[Callable[[], object]]]:
        """Return the inputs as the target gets them.

        The functions update the arrays that hold placed inputs from the device.
        """
        wrap, device = self._framework.wrap, self._config.device
        if not (placed and wrap):
            return {name: self._buffer(name, x) for name, x in inputs.items()}, []
        made = {n: wrap(p.view, p.base, device) for n, p in placed.items()}
        refreshes = [refresh for _, refresh in made.values()]
        return {name: native for name, (native, _) in made.items()}, refreshes

    def _buffer(self, name: str, x: NDArray[Any]) -> Any:
        signature = (x.shape, x.dtype)
        to_native, device = self._framework.to_native, self._config.device
        kept = self._buffers.get(name)
        if self._framework.mutable and kept is not None and kept[0] == signature:
            self._framework.overwrite(kept[1], to_native(x, device))
            return kept[1]
        wrap = self._framework.wrap
        fresh = wrap(*with_room(x), device)[0] if wrap else to_native(x, device)
        self._buffers[name] = (signature, fresh)
        return fresh

    def _poison_free_memory(self, shape: tuple[int, ...], dtype: Any) -> None:
        """Leave NaN where the allocator will look first for an output."""
        if self._framework.mutable:
            # There may be several places of that size, and seven small ones are put
            # aside: with more than those, none is left as it was.
            count = 8 if math.prod(shape) <= _SMALL_OUTPUT else 3
            held = [np.full(shape, np.nan, dtype) for _ in range(count)]
            native = [self._framework.to_native(x, self._config.device) for x in held]
            del held, native

    def _from_threads(self, natives: Natives, call: Call) -> list[NDArray[Any]]:
        """Call the target from several threads at once, one with the inputs at hand."""
        other = {**natives, "value": natives["value"] * -2}
        outputs: list[NDArray[Any]] = []
        failures: list[BaseException] = []
        start = threading.Barrier(call.threads)
        made = [0] * call.threads

        def work(position: int) -> None:
            inputs = other if position else natives
            start.wait()
            try:
                with self._device.current():  # each thread has a current one of its own
                    # Until all have made their calls, so that they do meet: a thread
                    # may be done before another one has begun.
                    while min(made) < THREADED_CALLS > made[position] // PATIENCE:
                        pieces, _ = self._segments.run(inputs, call)
                        made[position] += 1
                        if position == 0:
                            outputs.append(self._joined(pieces))
            except Exception as error:
                failures.append(error)
                made[position] = PATIENCE * THREADED_CALLS

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            threads = [
                threading.Thread(target=work, args=(i,)) for i in range(call.threads)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        if failures:
            raise failures[0]
        return outputs

    # -- gradients

    def _with_gradients(
        self, natives: Natives, call: Call
    ) -> tuple[list[Any], dict[str, Any]]:
        layout = self._config.layout
        assert call.cotangent is not None
        cotangent = self._framework.to_native(
            to_layout(call.cotangent, layout), self._config.device
        )
        pieces, gradients = self._segments.gradients(natives, cotangent, call)
        arrays = [x if self._framework.is_native(x) else None for x in gradients]
        return pieces, {
            "gradients": tuple(
                np.zeros(())
                if x is None
                else from_layout(
                    self._framework.to_numpy(x), layout, self._operator.input(n).axes
                )
                for n, x in zip(natives, arrays, strict=True)
            ),
            "gradient_dtypes": tuple(
                "" if x is None else dtype_name(x) for x in arrays
            ),
        }

    # -- observing

    def _joined(self, pieces: list[Any]) -> NDArray[Any]:
        return self._segments.joined([self._framework.to_numpy(x) for x in pieces])

    def _overwritten(self) -> str:
        """Return the name of a result that is no longer what an earlier call left."""
        for name, native, before in chain.from_iterable(self._returned):
            if not _same(self._framework.to_numpy(native), before):
                return name
        return ""

    def _keep(self, output: Any, state: Any, natives: Natives) -> None:
        """Keep the results of a call, to see if a later one changes them.

        Inputs are written by the referee, so a state in their memory is not kept.
        """
        results = [("output", output)]
        if state is not ABSENT:
            results += [("final state", x) for x in self._segments.arrays_in(state)]
        self._returned.append(
            [
                (name, x, self._framework.to_numpy(x))
                for name, x in results
                if name == "output" or not any(_share(x, y) for y in natives.values())
            ]
        )
        while len(self._returned) > 1 and _numbers(self._returned) > _KEPT_NUMBERS:
            self._returned.popleft()

    def _changed(
        self,
        inputs: dict[str, NDArray[Any]],
        natives: Natives,
        placed: dict[str, Placed],
    ) -> tuple[str, ...]:
        changed = [
            name
            for name, x in inputs.items()
            if not _same(self._framework.to_numpy(natives[name]), _wide(x))
        ]
        around = [
            f"the memory around {name}"
            for name, p in placed.items()
            if p.disturbed and name not in changed
        ]
        state = ["initial_state"] if self._segments.changed_state else []
        return (*changed, *around, *state)

    def _state_arrays(self, state: Any, call: Call) -> tuple[NDArray[Any], ...] | None:
        """Return memory and normalizer in the axes of the operator, if they fit."""
        if state is ABSENT:
            return None
        sizes = self._operator.sizes(call.inputs)
        arrays = [self._framework.to_numpy(x) for x in self._segments.arrays_in(state)]
        forms = [arrays]
        if call.segments:  # the sequences are the batch, or an axis before that of one
            sizes |= {"b": call.sequences}
            # Tried first: of one head and one value, a normalizer with that axis has
            # the shape of a memory without it.
            forms.insert(0, [x[:, 0] for x in arrays if x.shape[1:2] == (1,)])
        layouts = self._config.layout, self._config.state_layout
        parts = (state_parts(x, self._operator, sizes, *layouts) for x in forms)
        return next((states for states in parts if states is not None), None)


def _numbers(calls: Iterable[list[_Result]]) -> int:
    return sum(before.size for _, _, before in chain.from_iterable(calls))


def _wide(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return True for equal arrays; most are equal and hold no NaN."""
    if one.shape == other.shape and (one == other).all():
        return True
    return np.array_equal(one, other, equal_nan=True)


def _type_name(x: Any) -> str:
    if x is None:
        return "None"
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def _share(output: Any, x: Any) -> bool:
    if isinstance(output, np.ndarray) and isinstance(x, np.ndarray):
        return np.shares_memory(output, x)
    if hasattr(output, "data") and hasattr(output.data, "mem"):  # CuPy
        return bool(output.data.mem.ptr == x.data.mem.ptr and output.size)
    if hasattr(output, "untyped_storage"):
        same = output.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return bool(same and output.numel() > 0)
    return False
