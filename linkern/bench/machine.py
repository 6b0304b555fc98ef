"""The machine of a run: processor, system, libraries and threads."""

import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from linkern._version import __version__
from linkern.kernels.numpy.threads import cores

__all__ = ["Machine", "this_machine", "versions"]

_LIBRARIES = (
    "numpy",
    "torch",
    "jax",
    "pytorch-fast-transformers",
    "linear-attention-transformer",
    "performer-pytorch",
)
_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "LINKERN_NUM_THREADS",
)
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """Processor, system, libraries and threads."""

    processor: str
    # The cores that this process may use.
    cores: int
    system: str
    python: str
    linkern: str
    # Versions of the array libraries that are installed.
    libraries: dict[str, str]
    # The library with which NumPy multiplies matrices.
    blas: str
    # Variables that set the number of threads; libraries choose without them.
    threads: dict[str, str]
    # Running processes on average over the last minute.
    load: float | None

    def lines(self) -> tuple[str, ...]:
        """Return the same as lines of text."""
        libraries = ", ".join(f"{name} {x}" for name, x in self.libraries.items())
        threads = ", ".join(f"{name}={x}" for name, x in self.threads.items())
        load = "unknown" if self.load is None else f"{self.load:.2f}"
        return (
            f"{self.processor}, {self.cores} cores, {self.system}, load {load}",
            f"Python {self.python}, linkern {self.linkern}, {libraries}, {self.blas}",
            f"threads: {threads or 'as the libraries choose'}",
        )


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    return Machine(
        processor=_processor(),
        cores=cores(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        linkern=__version__,
        libraries=versions(_LIBRARIES),
        blas=_blas(),
        threads=_threads(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed."""
    installed = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _blas() -> str:
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()


def _threads() -> dict[str, str]:
    threads = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    torch = sys.modules.get("torch")  # never imported for this
    if torch is not None:
        threads["torch"] = str(torch.get_num_threads())
    return threads
