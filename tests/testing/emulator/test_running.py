"""CUDA C++ of others runs as on a GPU, and the faults of its threads are found."""

import re
from pathlib import Path

import numpy as np
import pytest

from linkern.testing.emulator.arguments import binding
from linkern.testing.emulator.calls import Call, prepared
from linkern.testing.emulator.running import run
from linkern.testing.emulator.ways import several
from linkern.testing.errors import UsageError
from tests.kernels.cuda.emulator.build import require_compiler
from tests.marks import slow_unless

HERE = Path(__file__).parent
N = 64


@pytest.fixture(autouse=True)
def compiler():
    require_compiler()


def stored(x):
    return {"dtype": "F32", "shape": list(x.shape), "data": x.tobytes()}


def ready(file, entry, tensors, **options):
    bound = {
        name: [binding(f"--{name}", text) for text in options.pop(name, ())]
        for name in ("reads", "writes", "zeros")
    }
    call = Call(HERE / file, entry, **bound, **options)
    return prepared(call, {name: stored(x) for name, x in tensors.items()})


def array(outcome, name):
    assert outcome.faults == ()
    tensor = outcome.tensors[name]
    return np.frombuffer(tensor["data"], np.float32).reshape(tensor["shape"])


def dialect_of(x):
    """Return what the kernels of dialect.cu compute, in their order."""
    ahead = np.roll(x, -1)
    neighbours = 3 * ahead + ahead.astype(np.float16)
    sums = np.repeat(x.reshape(2, 32).sum(1), 32) + 1000 * np.repeat(
        x.reshape(8, 8).sum(1), 8
    )
    large = (x >= 3).reshape(2, 32)
    counts = large.sum(1) + 100 * large.any(1) + 1000 * large.all(1)
    before = np.where(np.arange(N) % 32 == 0, x, np.roll(x, 1))
    early = np.where(np.arange(N) < 40, x + before, np.nan)
    bins = [*np.bincount(x.astype(int) % 4, minlength=4), x.max()]
    return np.concatenate(
        [
            *(neighbours, x[::-1], sums, np.repeat(counts, 32), early),
            np.resize(np.array(bins, float), N),
        ]
    )


@pytest.fixture
def x():
    return np.random.default_rng(0).integers(0, 9, N).astype(np.float32)


def test_each_part_of_the_dialect_is_what_a_gpu_does(x):
    call = ready("dialect.cu", "parts::dialect", {"x": x}, writes=[f"out=out[{6 * N}]"])
    for way in several(4):
        out = array(run(call, way, "plain", 60), "out")
        np.testing.assert_array_equal(out, dialect_of(x).astype(np.float32))


def test_a_function_on_tensors_of_torch_is_called_with_them():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    call = ready(
        "dialect.cu", "half_of", {"x": x}, numbers=[("by", "1/2")], returns=["y"]
    )
    out = array(run(call, several(1)[0], "plain", 60), "y")
    np.testing.assert_array_equal(out, x.T / 2)


FAULTS = {
    "unsynchronised": ("thread", "data race: .*faults.cu:6 and .*faults.cu:8"),
    "between_blocks": ("thread", "data race: .*faults.cu:12 and .*faults.cu:12"),
    "beyond_array": ("address", "faults.cu:15: write of 4 bytes outside of an array"),
    "beyond_shared": ("address", "faults.cu:20: write of 4 bytes outside of the `__sh"),
    "misaligned": ("address", "faults.cu:25: .*misaligned address"),
    "different_lanes": (
        "plain",
        "lanes of a warp are at different.* line 30",
    ),
}


@pytest.mark.parametrize(
    ("number", "mode", "says"),
    slow_unless(
        lambda number, mode, says: mode == "plain",
        [(number, *case) for number, case in enumerate(FAULTS.values())],
    ),
)
def test_a_fault_is_named_with_its_line(number, mode, says):
    def faults(right):
        numbers = [("number", str(number)), ("right", str(int(right)))]
        call = ready(
            "faults.cu", "fault", {}, numbers=numbers, writes=[f"out=out[{N}]"]
        )
        return run(call, several(1)[0], mode, 60).faults

    assert faults(True) == ()
    assert any(re.search(says, fault) for fault in faults(False)), faults(False)


def test_a_missing_barrier_shows_in_another_order_of_threads():
    call = ready(
        "faults.cu",
        "fault",
        {},
        numbers=[("number", "0"), ("right", "0")],
        writes=[f"out=out[{N}]"],
    )
    results = {run(call, way, "plain", 60).tensors["out"]["data"] for way in several(4)}
    assert len(results) > 1


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("a.cu", "void f(float* x) { y = 1; }", "a.cu:1` cannot be compiled.*y"),
        ("a.cu", 'void f(float* x) { asm("exit;" : "=f"(y)); }', "uses inline PTX"),
        ("a.cu", "#include <cub/cub.cuh>\nvoid f(float* x) {}", "cub/cub.cuh: No such"),
        ("a.cu", "struct S {}; void f(S x) {}", "arrays and numbers: call a host"),
        ("a.cu", "void f(double* x) {}", "`x` is an array of F64, but .* F32"),
        ("a.cu", "void f(float x) {}", "`x` is a number; give it as one"),
    ],
)
def test_a_source_that_cannot_be_run_is_refused(tmp_path, file, text, says):
    (tmp_path / file).write_text(text, encoding="utf-8")
    call = ready(tmp_path / file, "f", {"x": np.zeros(3, np.float32)})
    with pytest.raises(UsageError, match=says):
        run(call, several(1)[0], "plain", 60)


def test_a_launch_that_does_not_end_is_a_fault(tmp_path):
    text = "__global__ void f(volatile float* x) { while (x[0] == 0) {} }"
    (tmp_path / "a.cu").write_text(text, encoding="utf-8")
    call = ready(
        tmp_path / "a.cu", "f", {"x": np.zeros(3, np.float32)}, grid="1", block="1"
    )
    (fault,) = run(call, several(1)[0], "plain", 0.5).faults
    assert "did not end within 0.5 s" in fault
