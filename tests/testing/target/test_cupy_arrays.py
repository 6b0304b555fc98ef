"""Targets that take arrays of CuPy, without a GPU and on one."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import linkern
from linkern.testing import UsageError, verify
from linkern.testing.checks import ON_CUDA
from linkern.testing.target import frameworks

PLAYED = Path(__file__).parents[1] / "played_cupy"


@pytest.fixture
def cupy(monkeypatch):
    """CuPy, played by NumPy."""
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(str(PLAYED))
    frameworks.framework_named.cache_clear()
    module = import_module("cupy")
    yield module
    frameworks.framework_named.cache_clear()
    sys.modules.pop("cupy")


def judged(function, **options):
    return verify(
        function,
        op="linear_attention",
        framework="cupy",
        **{"device": "cuda", "profile": "smoke", "dtypes": ("float32",), **options},
    )


def attention(cupy, *, rows=None):
    """Return linear attention that leaves the rows after `rows` unwritten."""

    def feature_map(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    def run(query, key, value):
        wide = [np.asarray(x).astype(np.float32) for x in (query, key, value)]
        weights = np.tril(
            feature_map(wide[0]) @ np.swapaxes(feature_map(wide[1]), 2, 3)
        )
        result = weights @ wide[2] / weights.sum(-1, keepdims=True)
        out = cupy.empty(value.shape, value.dtype)
        out[..., :rows, :] = result[..., :rows, :]
        return out

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_laws_hold_of_a_right_kernel(cupy, dtype):
    pytest.importorskip("ml_dtypes")
    report = judged(attention(cupy), dtypes=(dtype,), checks=("causality", *ON_CUDA))
    assert report.exit_code == 0, str(report)
    ran = {check.name for check in report.checks if check.applies}
    assert ran == {"causality", "no_uninitialised_memory", "current_stream"}
    start = cupy.events.index("stream, non_blocking=True")
    assert cupy.events[start - 1 : start + 2][::2] == ["synchronized", "spin"]


@pytest.mark.slow  # it looks for the cause
def test_memory_that_nothing_wrote_is_found(cupy):
    report = judged(attention(cupy, rows=-1), checks=ON_CUDA)
    assert "no_uninitialised_memory" in {check.name for check in report.failures}


def computing_in(cupy, dtype):
    """Return linear attention that computes in a dtype; None for that of the inputs."""

    def run(*inputs):
        plain = (np.asarray(x).astype(dtype or x.dtype) for x in inputs)
        output = linkern.linear_attention(*plain).output
        return output.astype(inputs[-1].dtype).view(cupy.ndarray)

    return run


@pytest.mark.parametrize(
    ("computed", "named", "judged_in", "verdict"),
    [
        ("float32", (), ("float32",), "passed"),
        ("float32", ("float64",), ("float64",), "failed"),
        (None, (), ("float32", "float64"), "passed"),
    ],
)
def test_float64_in_float32_is_judged_if_it_is_named(
    cupy, computed, named, judged_in, verdict
):
    kernel = computing_in(cupy, computed)
    report = judged(kernel, dtypes=named, checks=("value_on_reals",))
    assert (report.plan.dtypes, report.verdict) == (judged_in, verdict)
    told = "float64 is not judged: the target computed it in float32"
    left_out = judged_in == ("float32",)
    assert any(note.startswith(told) for note in report.notes) == left_out


def test_an_input_lies_in_a_copy_of_the_memory_around_it(cupy):
    framework = frameworks.framework_named("cupy")
    base = np.full(9, np.nan, np.float32)
    view, refresh = framework.wrap(base[2:5], base, "cuda")
    view[...] = 1
    assert np.isnan(base).all()
    refresh()
    assert np.isnan(base).sum() == 6
    assert base[2:5].tolist() == [1, 1, 1]
    assert view.strides == base.strides


def test_another_device_is_the_current_one(cupy):
    judged(attention(cupy), device="cuda:1", checks=("causality",))
    assert {x for x in cupy.events if x.startswith("device")} == {"device 1"}


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "gpu"])
def test_a_device_that_it_does_not_have_is_refused(cupy, device):
    with pytest.raises(UsageError, match=f'cupy has no device "{device}" .its devices'):
        judged(attention(cupy), device=device)


def test_bfloat16_needs_a_new_version(cupy, monkeypatch):
    monkeypatch.setattr(cupy, "__version__", "13.6.0")
    with pytest.raises(UsageError, match='unknown dtype for cupy "bfloat16"'):
        judged(attention(cupy), dtypes=("bfloat16",))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_kernels_on_a_gpu(gpu, dtype):
    """CuPy is there: `linkern` runs its own kernels on its arrays."""
    declared = {"operand_dtype": "bfloat16"} if dtype == "bfloat16" else {}
    report = judged(linkern.linear_attention, dtypes=(dtype,), contract=declared)
    assert report.exit_code == 0, str(report)
