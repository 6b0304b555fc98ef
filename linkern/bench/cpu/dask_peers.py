"""The peer on Dask: linkern from a Zarr store to a Zarr store, in chunks of tokens."""

import gc
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

import linkern
from linkern.bench.clocks import Peak, Turn, timed
from linkern.bench.memory import peak_by_growth, peak_by_tracing
from linkern.bench.tasks import Inputs, Task

__all__ = ["StoreCall", "zarr_to_zarr"]

Real = NDArray[Any]


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


def zarr_to_zarr(inputs: Inputs, task: Task, *, chunk: int) -> StoreCall:
    """Write the inputs to stores in chunks of tokens, and return the call of the task.

    The last chunk may be shorter; all heads are in one. The stores go with the call.
    """
    da, zarr = import_module("dask.array"), import_module("zarr")
    folder = mkdtemp(prefix="linkern-out-of-core-")
    shape = inputs.value.shape
    chunks = (*shape[:2], min(chunk, shape[2]), shape[3])

    def store(name: str, dtype: Any) -> Any:
        path = str(Path(folder) / name)
        options = {"shape": shape, "chunks": chunks, "dtype": dtype}
        return zarr.create_array(path, compressors=None, overwrite=True, **options)

    def read(name: str) -> Any:
        return zarr.open_array(str(Path(folder) / name), mode="r")

    names = ["query", "key", "value"]
    gradient = task.kind == "gradient"
    for name in [*names, "cotangent"] if gradient else names:
        x = getattr(inputs, name)
        store(name, x.dtype)[...] = x
    kind = inputs.value.dtype

    def call() -> None:
        arrays = {name: da.from_zarr(read(name)) for name in names}
        targets: dict[str, Any] = {}
        if gradient:
            result, pullback = linkern.vjp(linkern.linear_attention, **arrays)
            targets = pullback(da.from_zarr(read("cotangent")))
        else:
            result = linkern.linear_attention(**arrays)
        targets = {"output": result.output, **targets}
        stores = [store(_output(name), kind) for name in targets]
        da.store([*targets.values()], stores, lock=False)

    outputs = ("output", *names) if gradient else ("output",)
    made = StoreCall(call, read, tuple(map(_output, outputs)))
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


def _output(name: str) -> str:
    """Return the name of the store of a result."""
    return f"{name}-of-call"
