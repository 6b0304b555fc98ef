"""Where kernels run: a launch as data, and CuPy as the device that takes it.

The emulator of the tests is another device; whoever plans launches does not know which
one it has.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from linkern.array import on_cupy
from linkern.autodiff.tape import raw
from linkern.kernels.cuda.sources import source

__all__ = ["Array", "CuPyDevice", "Device", "Launch", "device_of"]

# Of CuPy, or of NumPy in the emulator: what both have in common.
Array: TypeAlias = Any

# Bytes of shared memory that a block may have without asking for more.
_UNASKED = 48 << 10
_MOST_BLOCKS = (1 << 31) - 1


class Launch(NamedTuple):
    """One kernel, all blocks of it along one axis of the grid.

    Parameters
    ----------
    file : str
        Where it is written: ``file.cu``.
    kernel : str
        Its name, with the arguments of its template.
    blocks, threads : int
        How many, and of how many threads each.
    shared : int
        Bytes of shared memory of a block.
    parameters : ndarray of shape ()
        Its only argument: a record of NumPy, laid out as the struct in C.
    holds : tuple of array
        What must not be freed before it runs, though only addresses of it are used.
    """

    file: str
    kernel: str
    blocks: int
    threads: int
    shared: int
    parameters: Any
    holds: tuple[Array, ...] = ()


class Device(Protocol):
    """What launches need beside arrays, which behave as NumPy's do.

    Attributes
    ----------
    library : str
        Whose arrays they are, as users import it.
    """

    library: str

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at once, at least."""

    @property
    def shared(self) -> int:
        """How many bytes of shared memory a block may have."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of it, in C order."""

    def address(self, x: Array) -> int:
        """Return where the first entry of an array lies."""

    def launch(self, launch: Launch) -> None:
        """Run a kernel, after everything that was launched before."""

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Return what launches again all that `work` would launch, and only that.

        Nothing is launched while it is recorded.
        """


class CuPyDevice:
    """A GPU, and whichever stream is current on it when something is launched.

    Parameters
    ----------
    number : int, optional
        Its number among those that CUDA sees. Default: that of the current one.
    """

    library = "cupy"

    def __init__(self, number: int | None = None) -> None:
        import cupy  # noqa: PLC0415 -- an optional package

        self._cupy, self._device = cupy, cupy.cuda.Device(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return CuPyDevice, (self._device.id,)

    @property
    def multiprocessors(self) -> int:
        """How many there are: that many blocks run at once at least."""
        found: int = self._device.attributes["MultiProcessorCount"]
        return found

    @property
    def shared(self) -> int:
        """How many bytes a block may have if it asks for them."""
        found: int = self._device.attributes["MaxSharedMemoryPerBlockOptin"]
        return found

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of CuPy."""
        with self._device:
            return self._cupy.empty(shape, dtype)

    def address(self, x: Array) -> int:
        """Return the device pointer of an array."""
        found: int = x.data.ptr
        return found

    def launch(self, launch: Launch) -> None:
        """Compile the kernel if this is its first time, and run it."""
        if launch.blocks > _MOST_BLOCKS:  # CuPy would launch fewer, with a warning
            msg = (
                f"the call needs {launch.blocks} blocks of threads, and a GPU takes "
                f"{_MOST_BLOCKS} at most; split it along its leading axes."
            )
            raise ValueError(msg)
        with self._device:
            function = _compiled(launch.file, launch.kernel)
            if launch.shared > _UNASKED:
                # CuPy has a function for each device, so this is not done once.
                function.max_dynamic_shared_size_bytes = launch.shared
            function(
                (launch.blocks,),
                (launch.threads,),
                (launch.parameters,),
                shared_mem=launch.shared,
            )

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record a CUDA graph, on a stream of its own; it goes to the current one."""
        with self._device, self._cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            try:
                work()
            finally:  # a stream that goes on capturing cannot be used for anything
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
    """Return the GPU that CuPy arrays are on; None if one is not of CuPy.

    The arrays may be traced or None. That they are on one device has been checked.
    """
    if not on_cupy(*arrays):
        return None
    return CuPyDevice(next(raw(x) for x in arrays if x is not None).device.id)
