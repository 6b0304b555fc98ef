"""What importing costs: nothing until a name is used, then NumPy and its shim alone."""

import subprocess
import sys

import pytest

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


def third_party_of(statement, before="pass"):
    loaded = modules_after(f"{before}\n{statement}") - modules_after(before)
    return loaded - set(sys.stdlib_module_names)


def test_using_linkern_is_light():
    third_party = third_party_of("from linkern import *")
    assert third_party == {"linkern", "numpy", "array_api_compat"}


@pytest.mark.parametrize("name", ["linkern", "linkern.testing"])
def test_importing_a_package_costs_nothing(name):
    assert third_party_of(f"import {name}") == {"linkern"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_of_the_command_imports_no_command(option):
    help_ = f"from linkern.cli import main; main([{option!r}], standalone_mode=False)"
    loaded = modules_after(f"{help_}\nprint()")
    assert not loaded & ({*HEAVY, "numpy"} - {"click"})
    assert "hypothesis" in modules_after("from linkern.cli import verdicts")


def test_every_run_of_pytest_can_afford_the_plugin():
    plugin = "import linkern.testing.pytest.plugin"
    assert third_party_of(plugin, before="import pytest") == {"linkern"}


def test_the_process_of_a_target_knows_no_hypothesis():
    assert not modules_after("import linkern.testing.target.worker") & {
        "hypothesis",
        "jinja2",
        "rich",
    }


def test_a_report_page_is_rendered_only_on_request():
    api = "from linkern.testing import Report, verify"
    assert "jinja2" not in modules_after(api)
    assert "jinja2" in modules_after("from linkern.testing.report.html import page")


def test_these_tests_can_fail():
    assert "hypothesis" in modules_after("from linkern.testing import verify")


def test_a_call_on_numpy_loads_no_cuda_code():
    code = (
        "import sys, numpy as np, linkern\n"
        "x = np.ones((2, 3))\n"
        "linkern.gla(x, x, x), linkern.linear_attention(x, x, x), linkern.Decoder(\n"
        "    key_dim=3, value_dim=3\n"
        ")\n"
        "print(*(m for m in sys.modules if m.startswith('linkern.kernels.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "linkern.kernels.numpy.backend" in loaded
    assert not [name for name in loaded if name.startswith("linkern.kernels.cuda")]
