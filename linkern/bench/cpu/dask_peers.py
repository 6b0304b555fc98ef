"""Peers on Dask: linkern from a Zarr store to a Zarr store, in chunks of tokens.

The inputs of a stream repeat, so that their stores fit on a disk: files of equal chunks
are links to one file. Each chunk is read and written as if all were different.
"""

import gc
import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

import linkern
from linkern.bench.clocks import HostCall, Peak, Turn, timed
from linkern.bench.cpu import numpy_peers
from linkern.bench.memory import peak_by_growth, peak_by_tracing
from linkern.bench.tasks import Inputs, Task

__all__ = [
    "RepeatedCall",
    "StoreCall",
    "StreamCall",
    "copied",
    "gradient",
    "in_memory",
    "stream",
]

Real = NDArray[Any]

_NAMES = ("query", "key", "value")
# Seconds of a call that needs no other one to warm up.
_LONG = 60.0


@dataclass(frozen=True)
class _Stores:
    """Arrays ``(B, H, T, dim)`` of one shape in a folder, in chunks of tokens.

    The last chunk may be shorter; all heads are in one.
    """

    folder: Path
    shape: tuple[int, ...]
    chunk: int

    def make(self, name: str, dtype: Any) -> Any:
        """Return an array without numbers.

        They will not be compressed, and not compared with those of an empty chunk.
        """
        chunks = (*self.shape[:2], self.chunk, self.shape[3])
        options: dict[str, Any] = {"compressors": None, "overwrite": True}
        options |= {"shape": self.shape, "chunks": chunks, "dtype": dtype}
        options["config"] = {"write_empty_chunks": True}
        return import_module("zarr").create_array(str(self.folder / name), **options)

    def read(self, name: str) -> Any:
        """Return an array of Zarr, to read."""
        return import_module("zarr").open_array(self.folder / name, mode="r")

    def mapped(self, name: str) -> Any:
        """Return a Dask array whose blocks are files that are mapped to memory."""
        module = import_module("linkern.kernels.dask.mapped_zarr")
        return module.from_zarr(self.folder / name)

    def repeat(self, name: str, x: Real) -> None:
        """Make an array of as many repetitions of some tokens as fill its shape."""
        store, (length, period) = self.make(name, x.dtype), (self.shape[2], x.shape[2])
        store[:, :, :period] = x
        if period == length:
            return
        number, rest = divmod(period, self.chunk)
        if rest:
            msg = f"`period` must be a multiple of {self.chunk}, got {period}."
            raise ValueError(msg)
        for n in range(number, -(-length // self.chunk)):
            path = self._file(name, n)
            path.parent.mkdir()
            os.link(self._file(name, n % number), path)

    def drop(self, name: str) -> None:
        """Delete an array, if it is there."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _file(self, name: str, n: int) -> Path:
        return self.folder / name / "c" / "0" / "0" / str(n) / "0"


def _stores(shape: tuple[int, ...], chunk: int) -> _Stores:
    folder = Path(mkdtemp(prefix="linkern-out-of-core-"))
    return _Stores(folder, shape, min(chunk, shape[2]))


@dataclass(frozen=True)
class StoreCall:
    """A call whose inputs and outputs are stores in a folder of its own."""

    call: Callable[[], None]
    # Opens an array of the folder.
    read: Callable[[str], Any]
    names: tuple[str, ...]

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once and return some tokens of all outputs, in float64."""
        self.call()
        arrays = map(self.read, self.names)
        return [np.asarray(x.oindex[:, :, rows], "float64") for x in arrays]

    def turn(self, window: float) -> Turn:
        """Repeat the call for some seconds."""
        gc.collect()
        return timed(self.call, window)

    def peak(self, *, traced: bool) -> Peak:
        """Return the most memory of one more call: it holds no inputs and outputs."""
        return Peak((peak_by_tracing if traced else peak_by_growth)(self.call))


@dataclass(frozen=True)
class StreamCall:
    """A call that takes minutes, whose output is deleted as soon as it was read."""

    stores: _Stores
    call: Callable[[], None]
    # False if the output is no answer: the call is not made for it.
    judged: bool = True
    # Time of the call that was judged, until it counts as a turn.
    first: list[Turn] = field(default_factory=list)
    # Growth of the process in the last call.
    growth: list[int | None] = field(default_factory=list)

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once and return some tokens of the output, in float64."""
        if not self.judged:
            return []
        self.first[:] = [self._once()]
        output = np.asarray(self.stores.read("output").oindex[:, :, rows], "float64")
        self.stores.drop("output")
        return [output]

    def turn(self, window: float) -> Turn:
        """Call once, unless the call that was judged took long: then return its time.

        The memory that it took is noted.
        """
        del window
        if self.first and (first := self.first.pop()).seconds >= _LONG:
            return first
        turn = self._once()
        self.stores.drop("output")
        return turn

    def _once(self) -> Turn:
        turns: list[Turn] = []
        self.growth[:] = [peak_by_growth(lambda: turns.append(timed(self.call, 0.0)))]
        return turns[0]

    def peak(self, *, traced: bool) -> Peak:
        """Return the growth of the process in the last call: another takes minutes."""
        assert not traced
        return Peak(self.growth[0])


@dataclass(frozen=True)
class RepeatedCall:
    """A call on one period of a stream, in place of as many as it has."""

    period: HostCall
    times: float

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once; what it returns is compared in another task."""
        del rows
        self.period.call()
        return []

    def turn(self, window: float) -> Turn:
        """Repeat the call, and return its time for all periods."""
        turn = self.period.turn(window)
        return replace(turn, seconds=turn.seconds * self.times)

    def peak(self, *, traced: bool) -> Peak:
        """Return the memory of one more call, on one period."""
        return self.period.peak(traced=traced)


def gradient(inputs: Inputs, task: Task, *, chunk: int) -> StoreCall:
    """Write the inputs to stores, and return a call with its gradients.

    The stores go with the call.
    """
    del task
    da = import_module("dask.array")
    stores = _stores(inputs.value.shape, chunk)
    for name in (*_NAMES, "cotangent"):
        stores.repeat(name, getattr(inputs, name))
    kind = inputs.value.dtype

    def call() -> None:
        arrays = {name: stores.mapped(name) for name in _NAMES}
        result, pullback = linkern.vjp(linkern.linear_attention, **arrays)
        gradients = pullback(stores.mapped("cotangent"))
        targets = {"output": result.output, **gradients}
        made = [stores.make(_output(name), kind) for name in targets]
        da.store([*targets.values()], made, lock=False)

    outputs = tuple(map(_output, ("output", *_NAMES)))
    prepared = StoreCall(call, stores.read, outputs)
    weakref.finalize(prepared, shutil.rmtree, stores.folder, ignore_errors=True)
    return prepared


def _output(name: str) -> str:
    """Return the name of the store of a result."""
    return f"{name}-of-call"


def stream(inputs: Inputs, task: Task, *, length: int, chunk: int) -> StreamCall:
    """Write repetitions of the inputs to stores, and return a causal call on these.

    The stores go with the call.
    """

    def output(arrays: dict[str, Any]) -> Any:
        return linkern.linear_attention(**arrays).output

    return _streamed(output, _repeated(inputs, task, length, chunk))


def copied(inputs: Inputs, task: Task, *, length: int, chunk: int) -> StreamCall:
    """Return a call that reads the same stores, and writes the values to the output."""

    def output(arrays: dict[str, Any]) -> Any:
        da = import_module("dask.array")
        return da.map_blocks(_value, *arrays.values(), dtype=arrays["value"].dtype)

    return _streamed(output, _repeated(inputs, task, length, chunk), judged=False)


def _value(query: Real, key: Real, value: Real) -> Real:
    del query, key
    return value


def _repeated(inputs: Inputs, task: Task, length: int, chunk: int) -> _Stores:
    shape = (task.batch, task.heads, length, task.dim)
    stores = _stores(shape, chunk)
    for name in _NAMES:
        stores.repeat(name, getattr(inputs, name))
    return stores


def _streamed(
    output: Callable[[dict[str, Any]], Any], stores: _Stores, *, judged: bool = True
) -> StreamCall:
    """Return the call that stores a function of the inputs; the stores go with it."""
    da = import_module("dask.array")
    kind = stores.read(_NAMES[0]).dtype

    def call() -> None:
        arrays = {name: stores.mapped(name) for name in _NAMES}
        da.store([output(arrays)], [stores.make("output", kind)], lock=False)

    prepared = StreamCall(stores, call, judged)
    weakref.finalize(prepared, shutil.rmtree, stores.folder, ignore_errors=True)
    return prepared


def in_memory(inputs: Inputs, task: Task, *, length: int) -> RepeatedCall:
    """Return the call of linkern on one period, for all of a stream."""
    call = numpy_peers.prepare(inputs, replace(task, kind="causal"))
    return RepeatedCall(call, length / inputs.value.shape[2])
