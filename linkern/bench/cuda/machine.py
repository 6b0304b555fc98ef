"""The GPU of a run, or an error that says why there is none."""

import platform
import subprocess
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from linkern._version import __version__
from linkern.bench.machine import versions
from linkern.kernels.cuda.launch import CuPyDevice
from linkern.testing import UsageError

__all__ = ["Accelerator", "multiprocessors_here", "require_device", "this_device"]

_LIBRARIES = (
    "numpy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-cuda-nvrtc",
    "torch",
    "triton",
    "fla-core",
    "flash-linear-attention",
)


@dataclass(frozen=True)
class Accelerator:
    """A GPU, its driver, and the libraries beside it."""

    name: str
    driver: str
    # Version of CUDA that CuPy uses, as CUDA writes it.
    runtime: int
    # Multiprocessors; bytes of memory and of the L2 cache.
    processors: int
    memory: int
    cache: int
    system: str
    python: str
    linkern: str
    # Versions of those that are installed.
    libraries: dict[str, str]

    def lines(self) -> tuple[str, ...]:
        """Return the same as lines of text."""
        libraries = ", ".join(f"{name} {x}" for name, x in self.libraries.items())
        sizes = f"{self.memory / 2**30:.0f} GiB, cache {self.cache / 2**20:.0f} MiB"
        software = f"driver {self.driver or 'unknown'}, CUDA {self.runtime}"
        return (
            f"{self.name}, {self.processors} multiprocessors, {sizes}, {software}",
            f"{self.system}, Python {self.python}, linkern {self.linkern}, {libraries}",
        )


def require_device() -> Any:
    """Return CuPy; raise `UsageError` if there is none, or no GPU that it finds."""
    if find_spec("cupy") is None:
        msg = (
            "this needs CuPy; run `python -m pip install 'linkern[cuda13]'`, or "
            "'linkern[cuda12]'."
        )
        raise UsageError(msg)
    cupy = import_module("cupy")
    if not cupy.cuda.is_available():
        msg = "this needs a GPU of NVIDIA, and CuPy finds none."
        raise UsageError(msg)
    return cupy


def this_device() -> Accelerator:
    """Return the current device of CuPy; raise `UsageError` if there is none."""
    cuda = require_device().cuda
    properties = cuda.runtime.getDeviceProperties(cuda.Device().id)
    return Accelerator(
        name=properties["name"].decode(),
        driver=_driver(),
        runtime=int(cuda.runtime.runtimeGetVersion()),
        processors=int(properties["multiProcessorCount"]),
        memory=int(properties["totalGlobalMem"]),
        cache=int(properties["l2CacheSize"]),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        linkern=__version__,
        libraries=versions(_LIBRARIES),
    )


def multiprocessors_here() -> tuple[str, int, int] | None:
    """Return the name, the multiprocessors and the shared memory of a block of a GPU.

    None if there is none.
    """
    try:
        here = this_device()
    except UsageError:
        return None
    device = CuPyDevice()
    return here.name, device.multiprocessors, device.shared


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()
