"""What importing costs: NumPy and array_api_compat, nothing else."""

import subprocess
import sys

HEAVY = (
    "hypothesis",
    "click",
    "rich",
    "torch",
    "cupy",
    "scipy",
    "jax",
    "dask",
    "ml_dtypes",
)


def modules_after(statement):
    code = (
        f"import sys\n{statement}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_linkern_is_light():
    loaded = modules_after("import linkern")
    assert not loaded & set(HEAVY)
    third_party = loaded - set(sys.stdlib_module_names) - modules_after("pass")
    assert third_party == {"linkern", "numpy", "array_api_compat"}


def test_this_test_can_fail():
    assert "hypothesis" in modules_after("import linkern.testing")
