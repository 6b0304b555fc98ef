"""Launches as data, and devices that run them: CuPy here, the emulator in the tests.

Planners do not know which device they plan for.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from linkern.array import on_cupy
from linkern.autodiff.tape import raw
from linkern.kernels.cuda.sources import source

__all__ = ["Array", "CuPyDevice", "Device", "Launch", "device_of"]

# An array of CuPy, or of NumPy in the emulator.
Array: TypeAlias = Any

# Bytes of shared memory that a block may have without an opt-in.
_SHARED_WITHOUT_OPT_IN = 48 << 10
_MAX_BLOCKS = (1 << 31) - 1


class Launch(NamedTuple):
    """One launch of a kernel on a grid of one axis.

    Parameters
    ----------
    file : str
        Source file, without ``.cu``.
    kernel : str
        Name, with template arguments.
    blocks, threads : int
        Blocks of the grid, threads of a block.
    shared : int
        Bytes of dynamic shared memory of a block.
    parameters : ndarray of shape ()
        The only argument: a NumPy record with the layout of the struct in C.
    holds : tuple of array
        Arrays that must not be freed before the launch, which has only addresses.
    """

    file: str
    kernel: str
    blocks: int
    threads: int
    shared: int
    parameters: Any
    holds: tuple[Array, ...] = ()


class Device(Protocol):
    """A device that allocates arrays with the interface of NumPy and runs launches.

    Attributes
    ----------
    library : str
        Module whose arrays it takes, as users import it.
    """

    library: str

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors: so many blocks run at once, at least."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a block may have."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array in C order, uninitialised."""

    def address(self, x: Array) -> int:
        """Return the address of the first entry of an array."""

    def launch(self, launch: Launch) -> None:
        """Run a kernel after all earlier launches."""

    def on_host(self, x: Array) -> NDArray[Any]:
        """Return the entries of an array after all earlier launches."""

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record the launches of `work` without running them; return what replays."""


class CuPyDevice:
    """A GPU; launches go to its current stream.

    Parameters
    ----------
    number : int, optional
        Device number of CUDA. Default: that of the current device.
    """

    library = "cupy"

    def __init__(self, number: int | None = None) -> None:
        import cupy  # noqa: PLC0415 -- an optional package

        self._cupy, self._device = cupy, cupy.cuda.Device(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return CuPyDevice, (self._device.id,)

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors: so many blocks run at once, at least."""
        count: int = self._device.attributes["MultiProcessorCount"]
        return count

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a block may have with an opt-in."""
        size: int = self._device.attributes["MaxSharedMemoryPerBlockOptin"]
        return size

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of CuPy."""
        with self._device:
            return self._cupy.empty(shape, dtype)

    def address(self, x: Array) -> int:
        """Return the device pointer of an array."""
        address: int = x.data.ptr
        return address

    def launch(self, launch: Launch) -> None:
        """Run a kernel; the first launch compiles it."""
        if launch.blocks > _MAX_BLOCKS:  # CuPy would reduce them, with a warning
            msg = (
                f"the call needs {launch.blocks} blocks of threads, and a GPU takes "
                f"{_MAX_BLOCKS} at most; split it along its leading axes."
            )
            raise ValueError(msg)
        with self._device:
            function = _compiled(launch.file, launch.kernel)
            if launch.shared > _SHARED_WITHOUT_OPT_IN:
                # Functions of CuPy are per device, so this is set for every launch.
                function.max_dynamic_shared_size_bytes = launch.shared
            function(
                (launch.blocks,),
                (launch.threads,),
                (launch.parameters,),
                shared_mem=launch.shared,
            )

    def on_host(self, x: Array) -> NDArray[Any]:
        """Copy an array to the host, which waits for the current stream."""
        with self._device:
            result: NDArray[Any] = self._cupy.asnumpy(x)
        return result

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record a CUDA graph on a stream of its own; replay on the current stream."""
        with self._device, self._cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            try:
                work()
            finally:  # a stream that is still capturing is unusable
                graph = stream.end_capture()

        def replay() -> None:
            with self._device:
                graph.launch()

        return replay


@cache
def _compiled(file: str, kernel: str) -> Any:
    import cupy  # noqa: PLC0415

    module = cupy.RawModule(
        code=source(file), options=("-std=c++17",), name_expressions=(kernel,)
    )
    return module.get_function(kernel)


def device_of(*arrays: Any) -> Device | None:
    """Return the GPU of CuPy arrays; None if one of them is not of CuPy.

    The arrays may be traced or None, and must be on one device.
    """
    if not on_cupy(*arrays):
        return None
    return CuPyDevice(next(raw(x) for x in arrays if x is not None).device.id)
