"""Kernels and passes of a call: one kernel, and no pass over what it reads anyway.

The device records launches and runs none; its arrays count what array code does to
them, as a GPU would run a kernel for each.
"""

from typing import ClassVar

import numpy as np
import pytest

import linkern
from linkern.kernels import dispatch
from linkern.kernels.cuda import backend
from linkern.operators.register import DEFINITIONS
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import DTYPES

LEAD, LENGTH, FEATURES, VALUES = (2, 3), 40, 16, 24


class Counted(np.ndarray):
    """An array that records functions and copies whose results are new arrays."""

    passes: ClassVar[
        list[tuple[str, int]]
    ] = []  # of all arrays: name, bytes of the result

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(x.view(np.ndarray) for x in out)
        return _counted(ufunc.__name__, getattr(ufunc, method)(*plain, **options))

    def __array_function__(self, function, types, arguments, options):
        result = super().__array_function__(function, types, arguments, options)
        if isinstance(result, np.ndarray) and not np.may_share_memory(result, self):
            return _counted(function.__name__, result)
        return result

    def astype(self, *arguments, **options):
        return _counted("astype", super().astype(*arguments, **options))

    def copy(self, *arguments, **options):
        return _counted("copy", super().copy(*arguments, **options))

    def reshape(self, *arguments, **options):
        result = super().reshape(*arguments, **options)
        return result if np.may_share_memory(result, self) else _counted("copy", result)


def _counted(name, result):
    Counted.passes.append((name, np.asarray(result).nbytes))
    return result.view(Counted) if isinstance(result, np.ndarray) else result


class Recorder(Emulator):
    """A device that records launches, and the bytes of arrays that it allocates."""

    def __init__(self, **options):
        super().__init__(**options)
        self.allocated = 0

    def empty(self, shape, dtype):
        array = super().empty(shape, dtype)
        self.allocated += array.nbytes
        return array

    def launch(self, launch):
        self.launches.append(launch)

    def on_host(self, x):
        return np.zeros_like(x)


@pytest.fixture
def device(monkeypatch):
    """A recorder that takes counted arrays for its own."""
    recorder = Recorder()
    monkeypatch.setattr("linkern.kernels.cuda.backend.device_of", lambda *_: recorder)
    for kind in (np.ndarray, Counted):
        monkeypatch.setitem(dispatch.BACKENDS, kind, backend.BACKEND)
    monkeypatch.setattr(Counted, "passes", [])
    return recorder


OPERATORS = (
    *("linear_attention", "simple_gla", "retention", "lightning_attention", "gla"),
    *("delta_rule", "gated_delta_rule", "kda", "comba"),
)
# Their decays are computed from the number of heads.
FROM_HEADS = {"retention", "lightning_attention"}


def inputs_of(name, dtype, gate_dtype):
    """Draw the inputs of an operator; their values do not matter."""
    sizes = {"t": LENGTH, "k": FEATURES, "v": VALUES}
    inputs = {}
    for input_name, letters in DEFINITIONS[name].axes.items():
        if not letters:
            continue
        is_gate = input_name in ("log_decay", "beta")
        shape = (*LEAD, *(sizes[letter] for letter in letters))
        x = np.full(shape, 0.5).astype(gate_dtype if is_gate else dtype)
        inputs[input_name] = (-x if input_name == "log_decay" else x).view(Counted)
    return inputs


def test_operators_are_those_whose_terms_are_their_inputs():
    as_given = {name for name, each in DEFINITIONS.items() if each.as_given}
    assert as_given | {"linear_attention"} == set(OPERATORS)


@pytest.mark.parametrize("gates", ["own", "wide"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_call_is_one_kernel_and_no_pass(device, name, dtype, gates):
    kind = np.dtype(DTYPES[dtype])
    wide = np.float64 if dtype == "float64" else np.float32
    inputs = inputs_of(name, kind, kind if gates == "own" else wide)
    Counted.passes.clear()
    result = getattr(linkern, name)(**inputs)
    (launch,) = device.launches
    # Nothing has been computed but the decays of heads, if these are the operator's.
    largest = max((size for _, size in Counted.passes), default=0)
    assert largest <= (8 * LEAD[-1] if name in FROM_HEADS else 0), Counted.passes
    # Nothing has been allocated but results, and a word for each warp.
    results = [result.output, result.state.memory, result.state.normalizer]
    reports = 4 * launch.blocks * launch.threads // 32
    needed = sum(x.nbytes for x in results if x is not None)
    gated = {"log_decay", "beta"} & {*inputs} or name in FROM_HEADS
    assert device.allocated == needed + (reports if gated else 0)


def test_a_scale_is_not_a_pass(device):
    inputs = inputs_of("gla", np.float32, np.float32)
    Counted.passes.clear()
    linkern.gla(**inputs, scale=0.3)
    assert not Counted.passes
    assert device.launches[0].parameters["scale"] == np.float32(0.3)


def test_kernels_of_packed_sequences_are_not_waited_for(device):
    inputs = inputs_of("gla", np.float32, np.float32)
    linkern.gla(**inputs, cu_seqlens=[0, 10, LENGTH])
    assert [launch.parameters["broken"] for launch in device.launches] == [0, 0]
    device.launches.clear()
    wrong = {**inputs, "log_decay": -inputs["log_decay"]}
    with pytest.raises(ValueError, match="`log_decay` must be"):
        linkern.gla(**wrong, cu_seqlens=[0, 10, LENGTH])
    assert not device.launches


def test_passes_are_counted(device):
    x = inputs_of("gla", np.float32, np.float32)["query"]
    Counted.passes.clear()
    assert type(x[0] * 2) is Counted
    np.concatenate([x, x])
    x.astype(np.float64)
    x.swapaxes(0, 1).reshape(-1)
    np.broadcast_to(x, (5, *x.shape))
    size = x.nbytes
    assert [n for _, n in Counted.passes] == [size // 2, 2 * size, 2 * size, size]
    # Entries of a row that are apart are copied beforehand.
    inputs = inputs_of("gla", np.float32, np.float32)
    apart = np.concatenate([inputs["key"], inputs["key"]], axis=-1)[..., ::2]
    Counted.passes.clear()
    linkern.gla(**inputs | {"key": apart})
    assert Counted.passes


@pytest.mark.parametrize("name", ["gla", "gated_delta_rule"])
def test_keys_that_all_heads_share_are_not_repeated(device, name):
    inputs = inputs_of(name, DTYPES["bfloat16"], np.float32)
    for shared in ("query", "key"):
        inputs[shared] = inputs[shared][:, :1]
    Counted.passes.clear()
    getattr(linkern, name)(**inputs)
    assert not any(size for _, size in Counted.passes)
    assert "<TileShape<bf16" in device.launches[0].kernel
