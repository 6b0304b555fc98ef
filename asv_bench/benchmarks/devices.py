"""On a GPU: time by its own clock, and memory by its own books.

The host's clock would time the launches. Without a CUDA device every benchmark here is
skipped, and says so.
"""

import statistics

from .ground import needed, package, skip
from .inputs import inputs_of


class _Torch:
    """PyTorch's events and memory."""

    def __init__(self):
        self.torch = package("torch")
        if not self.torch.cuda.is_available():
            skip("PyTorch finds no CUDA device")

    def array(self, x):
        return self.torch.asarray(x, device="cuda")

    def milliseconds(self, call):
        cuda = self.torch.cuda
        start, stop = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    def peak(self, call):
        cuda = self.torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        call()
        return cuda.max_memory_allocated() - before


class _CuPy:
    """CuPy's events, and how far its pool grows."""

    def __init__(self):
        self.cupy = package("cupy")
        if not self.cupy.cuda.is_available():
            skip("CuPy finds no CUDA device")

    def array(self, x):
        return self.cupy.asarray(x)

    def milliseconds(self, call):
        cuda = self.cupy.cuda
        start, stop = cuda.Event(), cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return cuda.get_elapsed_time(start, stop)

    def peak(self, call):
        pool = self.cupy.get_default_memory_pool()
        pool.free_all_blocks()
        before = pool.total_bytes()
        call()
        self.cupy.cuda.Device().synchronize()
        return pool.total_bytes() - before


class Device:
    """Forward, float32, 8 heads, K = V = 64, T = 16,384."""

    params = (["torch", "cupy"], ["linear_attention", "gla", "gated_delta_rule"])
    param_names = ("backend", "operator")
    timeout = 300
    length = 16384
    dtype = "float32"

    def setup(self, backend, operator):
        self.device = {"torch": _Torch, "cupy": _CuPy}[backend]()
        call = needed(operator)
        inputs = inputs_of(call, self.length)
        arrays = {
            name: self.device.array(x.astype(self.dtype)) for name, x in inputs.items()
        }
        self.call = lambda: call(**arrays)
        self.call()

    def track_gpu_time(self, backend, operator):
        return statistics.median(self.device.milliseconds(self.call) for _ in range(7))

    track_gpu_time.unit = "ms"

    def track_pool(self, backend, operator):
        return self.device.peak(self.call) / 2**20

    track_pool.unit = "MiB"


class Half(Device):
    """The same in float16, for what has kernels on tensor cores."""

    params = (["torch", "cupy"], ["linear_attention", "simple_gla"])
    dtype = "float16"
