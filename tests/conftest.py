"""Fixtures: the array libraries that everything is tested on."""

import gc
import os
import pkgutil
import shutil
import subprocess
import sys

# Tests run in as many processes as there are cores; threads of BLAS and of PyTorch
# beside them would only wait for each other.
for library_of_threads in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library_of_threads}_NUM_THREADS", "1")

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],  # that is the machine's, not ours
)
settings.load_profile("tests")

# CI lists here what must not be skipped, so that a missing library is a failure.
REQUIRED = os.environ.get("LINKERN_REQUIRE", "").split()


# Pieces of memory that may be mapped before programs that JAX compiled are freed.
MOST_PIECES = 16_000

# Beyond the extra `test`; CI runs what needs one of them in a step of its own.
LIBRARIES = (
    "torch",
    "triton",
    "fla",
    "jax",
    "dask",
    "distributed",
    "zarr",
    "matplotlib",
    "sklearn",
)
# All fixtures that skip what needs more than that extra installs.
OPTIONAL = {*LIBRARIES, "nvrtc", "chromium", "playwright", "site", "bwrap"}


def pytest_configure():
    """Draw the seed 0 where a run draws one of its own, so that examples repeat."""
    import_module("linkern.testing.runner.plan").randbits = lambda _bits: 0


def pytest_sessionstart(session):
    """Make errors of warnings, but of those of other plugins: they have begun by now.

    With pytest-xdist, tests run in workers; what the controller warns of is not ours.
    """
    if session.config.getoption("dist", "no") == "no":
        session.config.addinivalue_line("filterwarnings", "error")
        # OpenBLAS raises this flag on finite operands now and then: its vector kernels
        # load lanes beyond an array (numpy/numpy#24067). Tests compare the values.
        session.config.addinivalue_line(
            "filterwarnings", "ignore:invalid value encountered in matmul"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let ``-m library`` select what needs one, and ``-k nvrtc`` what uses a fixture.

    A test needs a library if it uses its fixture, or if a parameter names it.
    """
    for item in items:
        used = OPTIONAL.intersection(getattr(item, "fixturenames", ()))
        item.extra_keyword_matches.update(used)
        parameters = getattr(getattr(item, "callspec", None), "id", "").lower()
        if any(name in used or name in parameters for name in LIBRARIES):
            item.add_marker("library")


def pytest_collection_finish():
    """Leave what was collected out of garbage collections, which timed code asks for.

    A million objects of tests and modules take a second to traverse, each time.
    Hypothesis registers its generator before: it asks for what refers to it.
    """
    given(none())(lambda _: None)()
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown():
    """Free what JAX has compiled, before there are more pieces than Linux maps.

    A program is several pieces of memory, and all are kept. The compiler crashes where
    there are 65,530 (`vm.max_map_count`).
    """
    pieces = Path("/proc/self/maps")
    if "jax" not in sys.modules or not pieces.exists():
        return
    if pieces.read_bytes().count(b"\n") > MOST_PIECES:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Refuse to skip for want of a library what ``-m library`` would not select."""
    report = yield
    if report.skipped and not item.get_closest_marker("library"):
        reason = str(report.longrepr).lower()
        if any(f"{name} is not installed" in reason for name in LIBRARIES) or any(
            f"'{name}" in reason for name in LIBRARIES
        ):
            report.outcome = "failed"
            report.longrepr = (
                f"no fixture or parameter tells of what it needs: {reason}"
            )
    return report


# What a module for a library, or for the harness of others, imports besides.
NEEDED = (
    {
        f"linkern.kernels.torch.{module}": "torch"
        for module in ("autograd", "bridge", "call", "opaque")
    }
    | {
        f"linkern.testing.integrations.{module}": package
        for module, package in (
            ("flashinfer_bench", "flashinfer_bench"),
            ("flashinfer_workloads", "flashinfer_bench"),
            ("kernelbench", "torch"),
            ("openenv", "openenv"),
            ("verifiers", "verifiers"),
        )
    }
    | {
        f"linkern.kernels.dask.{module}": "dask"
        for module in ("backward", "calls", "checks", "forward", "reading")
    }
    | {"linkern.kernels.dask.mapped_zarr": "zarr"}
)


@cache
def without_gpu():
    """Return why nothing can run on a GPU here; None if it can."""
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    if not import_module("cupy").cuda.is_available():
        return "CuPy finds no CUDA device"
    return None


def pytest_runtest_setup(item):
    """Skip what needs a GPU where there is none, or fail if there must be one."""
    if item.get_closest_marker("gpu") and (reason := without_gpu()):
        (pytest.fail if "gpu" in REQUIRED else pytest.skip)(reason)


class Library:
    """One array library: how to make its arrays, and how to read them."""

    def __init__(self, name):
        self.name = name
        self.module = import_module("jax.numpy" if name == "jax" else name)

    def array(self, x):
        if self.name == "torch":
            return self.module.asarray(np.array(x))
        return self.module.asarray(x)

    def numpy(self, x):
        return x.numpy(force=True) if self.name == "torch" else np.array(x)

    @property
    def examples(self):
        """Number of examples to run: fewer where our code is the same as for NumPy.

        JAX compiles every operation for every shape.
        """
        return settings(max_examples={"numpy": 60, "jax": 5}.get(self.name, 20))


def not_installed(name):
    if name in REQUIRED:
        pytest.fail(f"{name} is required here and not installed")
    pytest.skip(f"{name} is not installed")


def need_for_module(*names):
    """Skip a test module for want of a package, or fail if CI requires it."""
    for name in names:
        if find_spec(name) is None:
            if name in REQUIRED:
                msg = f"{name} is required here and not installed"
                raise ModuleNotFoundError(msg)
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def modules():
    """Return the names of all modules of the package that can be imported here."""
    walked = pkgutil.walk_packages(import_module("linkern").__path__, "linkern.")
    return [
        module.name
        for module in walked
        if find_spec(NEEDED.get(module.name, "linkern")) is not None
    ]


def library(name):
    if find_spec(name) is None:
        not_installed(name)
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    return Library(name)


@pytest.fixture(params=["numpy", "array_api_strict", "torch", "jax"], scope="session")
def lib(request):
    """Each array library in turn."""
    return library(request.param)


@pytest.fixture(params=["numpy", "array_api_strict", "torch"], scope="session")
def eager_lib(request):
    """Each array library that does not compile: for sweeps over many operators."""
    return library(request.param)


@pytest.fixture(scope="session")
def gpu():
    """CuPy; tests that use it are marked `gpu`, and skipped where there is none."""
    return import_module("cupy")


@pytest.fixture(scope="session")
def torch():
    return library("torch").module


@pytest.fixture(scope="session")
def triton():
    """Triton, which a process of its own imports, to interpret kernels."""
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            not_installed(name)


@pytest.fixture(scope="session")
def fla(triton):
    """flash-linear-attention, which warns where there is no GPU: a test imports it."""
    if find_spec("fla") is None:
        not_installed("fla")


@pytest.fixture(scope="session")
def dask():
    return library("dask").module


@pytest.fixture(scope="session")
def distributed():
    return library("distributed").module


@pytest.fixture(scope="session")
def zarr():
    return library("zarr").module


@pytest.fixture(scope="session")
def matplotlib():
    return library("matplotlib").module


@pytest.fixture(scope="session")
def sklearn():
    return library("sklearn").module


@pytest.fixture(scope="session")
def jax():
    library("jax")
    return import_module("jax")


@pytest.fixture(scope="session")
def nvrtc():
    """NVIDIA's compiler, as `tools/nvrtc.py` finds it."""
    try:
        import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc")
    except (ImportError, RuntimeError):
        not_installed("nvrtc")


@pytest.fixture(scope="session")
def chromium():
    """The browser, and what drives it."""
    if find_spec("playwright") is None:
        not_installed("playwright")
    return shutil.which("chromium") or not_installed("chromium")


@pytest.fixture(scope="session")
def bwrap():
    """Bubblewrap, where it may start a process: a container can forbid that."""
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    if shutil.which("bwrap") is None or subprocess.run(words, check=False).returncode:
        not_installed("bwrap")


@pytest.fixture(scope="session")
def site():
    """The folder of the built documentation: building it takes half a minute."""
    folder = os.environ.get("LINKERN_SITE")
    if folder is None:
        reason = "LINKERN_SITE names no folder with the built documentation"
        (pytest.fail if "site" in REQUIRED else pytest.skip)(reason)
    return Path(folder)


@pytest.fixture
def no_kept_buffers():
    """Buffers that the engine keeps between calls are those of the test alone."""
    from linkern.kernels.numpy import workspace

    workspace.clear()
    yield
    workspace.clear()
