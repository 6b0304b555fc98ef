"""The snippet of a failure: it runs, it fails for the kernel and for no correct one."""

import subprocess
import sys
from dataclasses import replace

import pytest

from linkern.testing import verify
from linkern.testing.runner.snippet import MOST_LINES, snippet

KERNELS = """
import numpy as np

def right(query, key, value):
    maps = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)]
    scores = np.tril(maps[0] @ maps[1].swapaxes(-1, -2))
    return (scores @ value) / scores.sum(-1, keepdims=True)

def doubled(query, key, value):
    return 2 * right(query, key, value), None

def turned(query, key, value):
    return 2 * right(*(x.swapaxes(1, 2) for x in (query, key, value))).swapaxes(1, 2)

def renamed(k, v, q):
    return 2 * right(q, k, v)

class Layer:
    def forward(self, query, key, value, scale=2):
        return scale * right(query, key, value)

layer = Layer()

def forgets(query, key, value, g=None, scale=None):
    scale = key.shape[-1] ** -0.5 if scale is None else scale
    decayed = np.zeros((*key.shape[:2], key.shape[3], value.shape[3]), key.dtype)
    rows = []
    for t in range(query.shape[2]):
        decayed = decayed + key[:, :, t, :, None] * value[:, :, t, None]
        rows.append((query[:, :, t, None] @ decayed) * scale)
    return np.concatenate(rows, axis=2).astype(query.dtype)
"""


def failed(path, attribute, op="linear_attention", seed=2, **options):
    """The plan and the failed check of a kernel in a file."""
    report = verify(
        f"{path}:{attribute}",
        op=op,
        profile="quick",
        checks=["value_on_integers"],
        dtypes=("float32",),
        in_process=True,
        seed=seed,
        **options,
    )
    (result,) = report.failures
    return report.plan, result


def run(program, folder):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return file


@pytest.mark.parametrize(
    ("attribute", "options"),
    [
        ("doubled", {}),
        ("turned", {"contract": {"layout": "bthd"}}),
        ("renamed", {}),
        ("layer.forward", {"options": {"scale": 3}}),
        ("forgets", {"op": "simple_gla", "seed": 12}),
    ],
)
def test_it_fails_where_the_kernel_is_wrong(path, attribute, options):
    plan, result = failed(path, attribute, **options)
    program = snippet(plan, result)
    assert len(program.splitlines()) <= MOST_LINES
    ran = run(program, path.parent)
    assert ran.returncode == 1
    said = f"AssertionError: {result.counterexample.got!r}"
    assert said in ran.stderr


def test_it_passes_for_a_correct_kernel(path):
    program = snippet(*failed(path, "doubled"))
    mended = program.replace("import doubled", "import right as doubled")
    assert mended != program
    ran = run(mended, path.parent)
    assert ran.returncode == 0, ran.stderr


def test_torch(torch, tmp_path):
    (tmp_path / "torches.py").write_text(
        "import torch\n\ndef zeros(query, key, value):\n"
        "    return torch.zeros_like(value)\n"
    )
    plan, result = failed(tmp_path / "torches.py", "zeros", framework="torch")
    program = snippet(plan, result)
    assert "torch.tensor([" in program
    assert "AssertionError: 0.0" in run(program, tmp_path).stderr


def test_what_is_large_or_not_in_one_call_has_none(path):
    plan, result = failed(path, "doubled")
    example = result.counterexample
    call = example.calls[-1]
    for changed in (
        replace(call, cuts=(1,)),
        replace(call, threads=2),
        replace(call, memory="offset"),
        replace(call, inputs={n: x.repeat(99, -1) for n, x in call.inputs.items()}),
    ):
        other = replace(example, calls=(changed,))
        assert snippet(plan, replace(result, counterexample=other)) is None
    assert snippet(plan, replace(result, counterexample=None)) is None
    lost = replace(example, allowed=None)
    assert snippet(plan, replace(result, counterexample=lost)) is None
