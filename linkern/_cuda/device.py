"""Where kernels run: a launch as data, and CuPy as the device that takes it.

The emulator of the tests is another device; whoever plans launches does not know which
one it has.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

from linkern._cuda.sources import source
from linkern._typing import Array

__all__ = ["CuPyDevice", "Device", "Launch"]

# What a block may have without asking, and what the largest kernels ask for fits into
# what every GPU since compute capability 8.0 gives: 99 KiB.
_UNASKED = 48 << 10


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
    """

    file: str
    kernel: str
    blocks: int
    threads: int
    shared: int
    parameters: Any


class Device(Protocol):
    """What launches need beside arrays, which behave as NumPy's do.

    Attributes
    ----------
    library : str
        Whose arrays they are, as users import it.
    """

    library: str

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
    """The GPU and the stream that are current in CuPy when something is launched."""

    library = "cupy"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of CuPy."""
        import cupy  # noqa: PLC0415 -- an optional package

        found: Array = cupy.empty(shape, dtype)
        return found

    def address(self, x: Array) -> int:
        """Return the device pointer of an array."""
        found: int = x.data.ptr
        return found

    def launch(self, launch: Launch) -> None:
        """Compile the kernel if this is its first time, and run it."""
        function = _compiled(launch.file, launch.kernel)
        if launch.shared > _UNASKED:
            # Asked for on every device anew, and at every launch, since CuPy keeps
            # one function for each device; it costs about a microsecond.
            function.max_dynamic_shared_size_bytes = launch.shared
        function(
            (launch.blocks,),
            (launch.threads,),
            (launch.parameters,),
            shared_mem=launch.shared,
        )

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record a CUDA graph, on a stream of its own; it goes to the current one."""
        import cupy  # noqa: PLC0415

        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            try:
                work()
            finally:  # a stream that goes on capturing cannot be used for anything
                graph = stream.end_capture()
        return graph.launch  # type: ignore[no-any-return]


@cache
def _compiled(file: str, kernel: str) -> Any:
    import cupy  # noqa: PLC0415

    module = cupy.RawModule(
        code=source(file), options=("-std=c++17",), name_expressions=(kernel,)
    )
    return module.get_function(kernel)
