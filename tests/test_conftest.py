"""Settings and fixtures that `conftest.py` makes for every test."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# As much of CuPy as is asked whether there is a GPU, by the plugin of Zarr as well.
CUPY = """
class cuda:
    is_available = staticmethod(lambda: True)

    class runtime:
        CUDARuntimeError = RuntimeError
        getDeviceCount = staticmethod(lambda: 1)
"""


@pytest.mark.parametrize("kind", [UserWarning, DeprecationWarning, ResourceWarning])
def test_warnings_are_errors(kind):
    with pytest.raises(kind, match="this one"):
        warnings.warn("this one", kind, stacklevel=1)


@pytest.mark.slow  # it collects tests in a process of its own
def test_tests_of_a_gpu_find_their_fixtures(tmp_path):
    """Without a GPU they are skipped before anything looks for a fixture."""
    (tmp_path / "cupy.py").write_text(CUPY)
    files = [
        str(path)
        for path in TESTS.rglob("test_*.py")
        if "@pytest.mark.gpu" in path.read_text(encoding="utf-8")
    ]
    assert len(files) > 2
    options = ("-q", "-n0", "-pno:cacheprovider", "--setup-plan", "-mgpu")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
