"""Ways of calling that a CUDA device has, by PyTorch, CuPy and JAX.

A device can be the current one, its new memory can be filled with marks, work can wait
on a stream of its own, and a call can be captured as a graph. What a library has no
function for is None.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from linkern.testing.target import configurations
from linkern.testing.target.interpreted import allocations

__all__ = [
    "BYTES",
    "WAYS",
    "Accelerator",
    "cuda_index",
    "cupy_cuda",
    "jax_cuda",
    "jax_device",
    "torch_cuda",
]

# The ways of calling that laws ask for: fields of `Accelerator`.
WAYS = ("filled", "side_stream", "captured", "configured")
# A byte that is repeated: NaN or a large number in every floating dtype, and a negative
# one in every integer, so that a loop up to it ends at once.
BYTES = {"nan": 0xFF, "large": 0xFA}
# Bytes of the blocks that are filled and freed: those of every list of an allocator.
_BLOCKS = tuple(2**n for n in range(9, 26))
# Clock cycles for which a stream is kept busy: 50 ms, longer than a call takes to
# launch all of its kernels.
_PAUSE = 10**8
# Calls before a capture, as PyTorch asks for.
_WARM_UP = 3

_SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""


@dataclass(frozen=True)
class Accelerator:
    """Ways of calling with the arrays of one library on a CUDA device.

    Parameters
    ----------
    current : callable
        ``current(device)``: a context in which the device is the current one.
    filled : callable or None
        ``filled(device, fill)``: a context in which memory that is allocated holds one
        of `BYTES`, or of the marks of `allocations.FILLS`.
    side_stream : callable or None
        ``side_stream(device)``: a context in which work is queued on a stream of its
        own, behind a pause. At its end all of it has run.
    captured : callable or None
        ``captured(device, call)``: the results of a call that is captured as a graph,
        and a function that replays it.
    configured : callable or None
        ``configured()``: autotuned Triton kernels take the configuration of
        `configurations.begin` from now on.
    """

    current: Callable[[str], AbstractContextManager[Any]]
    filled: Callable[[str, str], AbstractContextManager[Any]] | None = None
    side_stream: Callable[[str], AbstractContextManager[Any]] | None = None
    captured: (
        Callable[[str, Callable[[], Any]], tuple[Any, Callable[[], None]]] | None
    ) = None
    configured: Callable[[], None] | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of its `WAYS`."""
        return tuple(name for name in WAYS if getattr(self, name) is not None)


def cuda_index(device: str) -> int:
    """Return the number of a CUDA device.

    Examples
    --------
    >>> cuda_index("cuda"), cuda_index("cuda:1")
    (0, 1)
    """
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        msg = "its devices are cuda, cuda:0, cuda:1 and so on"
        raise ValueError(msg)
    return int(index or 0)


def torch_cuda(torch: Any) -> Accelerator:
    """Return the ways of calling with tensors of PyTorch."""

    @contextmanager
    def filled(device: str, fill: str) -> Iterator[None]:
        # What extensions allocate is no call of Python: it comes from freed blocks.
        blocks = [
            torch.full((size,), BYTES[fill], dtype=torch.uint8, device=device)
            for size in _BLOCKS
        ]
        del blocks
        with allocations.marking(fill):
            yield

    @contextmanager
    def side_stream(device: str) -> Iterator[None]:
        torch.cuda.synchronize(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            torch.cuda._sleep(_PAUSE)
            yield
        torch.cuda.synchronize(device)

    def captured(
        device: str, call: Callable[[], Any]
    ) -> tuple[Any, Callable[[], None]]:
        torch.cuda.synchronize(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for _ in range(_WARM_UP):
                call()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = call()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize(device)

        return results, replay

    return Accelerator(
        torch.cuda.device, filled, side_stream, captured, configurations.watch
    )


def cupy_cuda(cupy: Any) -> Accelerator:
    """Return the ways of calling with arrays of CuPy."""
    cuda = cupy.cuda

    def current(device: str) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = cuda.Device(cuda_index(device))
        return context

    @contextmanager
    def filled(_device: str, fill: str) -> Iterator[None]:
        usual = cuda.get_allocator()

        def allocate(size: int) -> Any:
            memory = usual(size)
            if size:
                memory.memset_async(BYTES[fill], size)
            return memory

        with cuda.using_allocator(allocate):
            yield

    @contextmanager
    def side_stream(device: str) -> Iterator[None]:
        here = cuda.Device(cuda_index(device))
        here.synchronize()
        spin = cupy.RawKernel(_SPIN, "spin")
        with cuda.Stream(non_blocking=True):
            spin((1,), (1,), (cupy.int64(_PAUSE),))
            yield
        here.synchronize()

    return Accelerator(current, filled, side_stream)


def jax_device(jax: Any, device: str) -> Any:
    """Return a device of JAX by its name, such as ``cpu``, ``cuda`` or ``cuda:1``."""
    kind, _, index = device.partition(":")
    return jax.devices(kind)[int(index or 0)]


def jax_cuda(jax: Any) -> Accelerator:
    """Return the way of calling with arrays of JAX."""
    return Accelerator(lambda device: jax.default_device(jax_device(jax, device)))
