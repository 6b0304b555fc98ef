"""Calls on a device: which is the current one, new memory, streams and graphs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.target.accelerators import Accelerator
from linkern.testing.target.protocol import Call, to_layout
from linkern.testing.target.segments import Natives, SegmentRunner

__all__ = ["DeviceCalls"]


class DeviceCalls:
    """Calls of a target on the device of its inputs.

    Parameters
    ----------
    segments : SegmentRunner
        The target, in its own interface.
    """

    def __init__(self, segments: SegmentRunner) -> None:
        self._segments = segments
        self._config, self._framework = segments.config, segments.framework

    def _accelerator(self) -> Accelerator | None:
        on_cuda = self._config.device.startswith("cuda")
        return self._framework.accelerator if on_cuda else None

    def current(self) -> AbstractContextManager[Any]:
        """Return the context in which the device of the inputs is the current one."""
        device = self._accelerator()
        if device is None:
            return nullcontext()
        if device.configured is not None:
            device.configured()
        return device.current(self._config.device)

    def filled(self, fill: str) -> AbstractContextManager[Any]:
        """Return the context in which new memory of the device holds marks."""
        device = self._accelerator()
        if device is None or device.filled is None:
            return nullcontext()
        return device.filled(self._config.device, fill)

    def run(
        self, natives: Natives, inputs: dict[str, NDArray[Any]], call: Call
    ) -> tuple[list[Any], Any]:
        """Call the target once: at once, on a side stream, or as a captured graph."""
        if call.side_stream:
            return self._on_side_stream(natives, inputs, call)
        if call.captured is not None:
            return self._replayed(natives, inputs, call.captured, call)
        return self._segments.run(natives, call)

    def _on_side_stream(
        self, natives: Natives, inputs: dict[str, NDArray[Any]], call: Call
    ) -> tuple[list[Any], Any]:
        """Have a stream make the inputs, behind a pause, and call the target on it."""
        accelerator = self._accelerator()
        assert accelerator is not None
        assert accelerator.side_stream is not None
        contents = self._moved(inputs)
        nothing = {name: np.full_like(x, np.nan) for name, x in inputs.items()}
        self._rewrite(natives, self._moved(nothing))
        with accelerator.side_stream(self._config.device):
            self._rewrite(natives, contents)
            return self._segments.run(natives, call)

    def _replayed(
        self,
        natives: Natives,
        inputs: dict[str, NDArray[Any]],
        captured: Mapping[str, NDArray[Any]],
        call: Call,
    ) -> tuple[list[Any], Any]:
        """Capture a call on other inputs, and replay it on these."""
        accelerator = self._accelerator()
        assert accelerator is not None
        assert accelerator.captured is not None
        contents = self._moved(inputs)
        layout, axes = self._config.layout, self._segments.operator.input
        earlier = {n: to_layout(x, layout, axes(n).axes) for n, x in captured.items()}
        self._rewrite(natives, self._moved(earlier))
        with self._segments.holding_arguments():
            results, replay = accelerator.captured(
                self._config.device, lambda: self._segments.run(natives, call)
            )
        self._rewrite(natives, contents)
        replay()
        pieces, state = results
        return pieces, state

    def _moved(self, arrays: dict[str, NDArray[Any]]) -> Natives:
        to_native, device = self._framework.to_native, self._config.device
        return {name: to_native(x, device) for name, x in arrays.items()}

    def _rewrite(self, natives: Natives, contents: Natives) -> None:
        for name, x in natives.items():
            self._framework.overwrite(x, contents[name])
