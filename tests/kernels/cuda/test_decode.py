"""Decoding in the emulator: steps give the results of the whole sequence."""

import copy
import inspect
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import feature_maps
from linkern.decoding import decoder as decoder_module
from linkern.decoding.cuda import CudaDecoder
from linkern.decoding.numpy import NumpyDecoder
from linkern.kernels.cuda import launch
from linkern.kernels.cuda.plan import decode
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import DTYPES, WAYS, close


class Kind(NamedTuple):
    """Kind of decoder; each is a kernel of its own, compiled once."""

    dtype: str
    map: str
    normalize: bool

    @property
    def options(self):
        scale = None if self.normalize else 0.25
        feature_map = getattr(feature_maps, self.map)
        return {"feature_map": feature_map, "normalize": self.normalize, "scale": scale}

    def tokens(self, seed, length, dims, batch):
        """Draw queries, keys and values (..., T, D) that are exact in the dtype."""
        rng = np.random.default_rng(seed)
        features, values = dims
        return [
            rng.normal(size=(*batch, length, size)).astype(DTYPES[self.dtype])
            for size in (features, features, values)
        ]

    def decoder(self, device, dims, batch, **options):
        sizes = dict(zip(("key_dim", "value_dim"), dims, strict=True))
        options = {**self.options, "batch_shape": batch, **sizes, **options}
        return CudaDecoder(device, dtype=DTYPES[self.dtype], **options)


KINDS = (
    Kind("float32", "elu_plus_one", True),
    Kind("float64", "identity", False),
    Kind("bfloat16", "exp", True),
    Kind("float16", "relu", False),
)
DIMS = ((1, 1), (3, 5), (32, 32), (33, 40), (70, 3), (0, 2), (2, 0), (300, 65))


def at(tokens, t):
    return [x[..., t, :] for x in tokens]


def expected(kind, tokens, **options):
    """Return the outputs and the state of a whole sequence, in float64."""
    wide = [x.astype(np.float64) for x in tokens]
    with np.errstate(invalid="ignore"):
        result = linkern.linear_attention(
            *wide, **kind.options, form="recurrent", **options
        )
    return (result.output, *result.state)


def law_the_whole_sequence(device, kind, seed, length, dims, batch):
    tokens = kind.tokens(seed, length, dims, batch)
    decoder = kind.decoder(device, dims, batch)
    outputs = [decoder.step(*at(tokens, t)) for t in range(length)]
    close((np.stack(outputs, axis=-2), *decoder.state), expected(kind, tokens))


def problem_of(kind, dims=(40, 37)):
    """Steps with padded rows and columns, with heads of one batch."""
    return lambda device: law_the_whole_sequence(device, kind, 1, 3, dims, (1, 2))


PROBLEMS = {kind.dtype: problem_of(kind) for kind in KINDS}
PROBLEMS["two panels"] = problem_of(KINDS[0], (300, 33))


@settings(max_examples=40)
@given(
    st.sampled_from(WAYS),
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.integers(1, 4),
    st.sampled_from(DIMS),
    st.sampled_from([(), (1,), (3,), (2, 2), (2, 1, 3), (0,), (2, 0)]),
)
def test_steps_are_those_of_the_whole_sequence(way, kind, seed, length, dims, batch):
    law_the_whole_sequence(Emulator(way), kind, seed, length, dims, batch)


@pytest.mark.parametrize("features", [32, 64, 128, 256])
def test_every_number_of_rows_of_a_thread(features):
    law_the_whole_sequence(Emulator(), KINDS[0], 0, 2, (features, 32), (2,))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
def test_steps_do_not_depend_on_the_order_of_threads(kind):
    tokens = kind.tokens(0, 2, (40, 36), (3,))
    results = []
    for way in WAYS:
        decoder = kind.decoder(Emulator(way), (40, 36), (3,))
        outputs = [decoder.step(*at(tokens, t)) for t in range(2)]
        results.append([*outputs, *(x for x in decoder.state if x is not None)])
    for arrays in zip(*results, strict=True):
        assert len({x.tobytes() for x in arrays}) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_decay_for_each_head(dtype):
    kind = Kind(dtype, "identity", False)
    tokens = kind.tokens(0, 6, (7, 5), (2, 3))
    log_decay = -np.random.default_rng(1).exponential(size=(2, 3, 6)).astype(dtype)
    log_decay[0, 1, 3] = -np.inf
    device = Emulator()
    state = decode.zeros(device, 6, 7, 5, np.dtype(dtype), normalize=False)
    results = np.empty((2, 3, 6, 5), dtype)
    for t in range(6):
        # Each decay has its own place: heads are a stride apart.
        arrays = (*at(tokens, t), results[..., t, :], log_decay[..., t])
        options = {"feature_map": "IDENTITY", "scale": 0.5}
        device.launch(decode.plan(device, state, *arrays, **options))
    wide = [x.astype(np.float64) for x in (*tokens, log_decay)]
    result = linkern.simple_gla(*wide, scale=0.5)
    memory = state.memory[..., :5].reshape(2, 3, 7, 5)
    close((results, memory), (result.output, result.state.memory))


def test_a_decay_fades_the_normalizer_too():
    device = Emulator()
    state = decode.zeros(device, 1, 3, 2, np.dtype("float64"), normalize=True)
    query, out, half = np.ones(3), np.empty(2), np.full((), np.log(0.5))
    for value in (3.0, 6.0):
        arrays = (query, query, np.full(2, value), out, half)
        options = {"feature_map": "IDENTITY", "scale": None}
        device.launch(decode.plan(device, state, *arrays, **options))
    np.testing.assert_allclose(out, (0.5 * 3 + 6) / 1.5)
    np.testing.assert_allclose(state.normalizer, 1.5)


def test_steps_go_on_from_a_state():
    kind, dims, batch = KINDS[0], (6, 5), (2, 3)
    tokens = kind.tokens(0, 9, dims, batch)
    before = linkern.linear_attention(*(x[..., :6, :] for x in tokens)).state
    kept = [x.copy() for x in before]
    decoder = CudaDecoder(Emulator(), before)
    outputs = [decoder.step(*at(tokens, t)) for t in range(6, 9)]
    output, memory, normalizer = expected(kind, tokens)
    results = (np.stack(outputs, axis=-2), *decoder.state)
    close(results, (output[..., 6:, :], memory, normalizer))
    for x, y in zip(before, kept, strict=True):
        np.testing.assert_array_equal(x, y)


# Allocations and launches of a step.


class Counting(Emulator):
    """A device that counts allocations."""

    allocated = 0

    def empty(self, shape, dtype):
        self.allocated += 1
        return super().empty(shape, dtype)


def test_a_step_with_out_allocates_nothing_and_reuses_its_launch():
    kind, dims = KINDS[0], (4, 4)
    device = Counting()
    decoder = kind.decoder(device, dims, (2,))
    tokens, out = at(kind.tokens(0, 1, dims, (2,)), 0), np.zeros((2, 4), np.float32)
    before = device.allocated
    assert decoder.step(*tokens, out=out) is out
    decoder.step(*tokens, out=out)
    assert device.allocated == before
    first, second = device.launches
    assert first is second
    other = out.copy()
    decoder.step(*tokens, out=other)
    assert device.launches[-1] is not first
    # The same token at every step: the output is its value.
    np.testing.assert_allclose(other, tokens[2], 1e-6)


def test_an_output_may_overwrite_the_value():
    kind, dims = KINDS[0], (4, 70)
    tokens = kind.tokens(0, 2, dims, (2,))
    decoder = kind.decoder(Emulator(), dims, (2,))
    expected_rows = expected(kind, tokens)[0]
    for t in range(2):
        query, key, value = (x.copy() for x in at(tokens, t))
        close(
            (decoder.step(query, key, value, out=value),), (expected_rows[..., t, :],)
        )


@pytest.mark.parametrize("fork", [CudaDecoder.copy, copy.copy])
def test_a_copy_is_independent(fork):
    kind, dims = KINDS[0], (4, 4)
    tokens = kind.tokens(0, 3, dims, (2,))
    decoder = kind.decoder(Emulator(), dims, (2,))
    decoder.step(*at(tokens, 0))
    other, state = fork(decoder), decoder.state
    results = other.step(*at(tokens, 1))
    for x, y in zip(decoder.state, state, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(results, decoder.step(*at(tokens, 1)))
    assert other.nbytes == decoder.nbytes == 2 * (4 * 4 + 4) * 4


def law_replays_use_current_arrays(
    device, kind=KINDS[0], array=np.array, back=np.asarray
):
    dims, batch = (6, 5), (2,)
    tokens = kind.tokens(0, 4, dims, batch)
    decoder = kind.decoder(device, dims, batch)
    arrays = [array(x) for x in at(tokens, 0)]
    out = device.empty((2, 5), arrays[0].dtype)
    replay = decoder.captured(*arrays, out)
    # Recording has not changed the state.
    assert not back(decoder.state.memory).any()
    results = []
    for t in range(4):
        for target, x in zip(arrays, at(tokens, t), strict=True):
            target[...] = array(x)
        replay()
        results.append(back(out).copy())
    state = (back(x) for x in decoder.state)
    close((np.stack(results, axis=-2), *state), expected(kind, tokens))


def test_replays_use_current_arrays():
    law_replays_use_current_arrays(Emulator())


@pytest.mark.gpu
def test_replays_of_a_graph_use_current_arrays(gpu):
    from linkern.kernels.cuda.launch import CuPyDevice

    law_replays_use_current_arrays(CuPyDevice(), KINDS[0], gpu.asarray, gpu.asnumpy)


@pytest.mark.gpu
def test_a_decoder_of_cupy_arrays(gpu):
    kind, dims, batch = KINDS[0], (64, 48), (2, 3)
    tokens = kind.tokens(0, 5, dims, batch)
    sizes = {"batch_shape": batch, "key_dim": 64, "value_dim": 48}
    decoder = linkern.Decoder(**sizes, device="cuda")
    rows = [
        decoder.step(*(gpu.asarray(x) for x in at(tokens, t))).get() for t in range(4)
    ]
    decoder = linkern.Decoder(decoder.state)
    rows.append(decoder.step(*(gpu.asarray(x) for x in at(tokens, 4))).get())
    state = (x.get() for x in decoder.state)
    close((np.stack(rows, axis=-2), *state), expected(kind, tokens))
    with pytest.raises(TypeError, match="`query` must be a CuPy array, got numpy"):
        decoder.step(*at(tokens, 0))


# Construction and errors.


class Elsewhere(Emulator):
    """A device that takes no arrays of NumPy."""

    library = "cupy"


def decoder_on(gpu=Emulator, **options):
    with mock.patch.object(launch, "CuPyDevice", gpu):
        return linkern.Decoder(key_dim=3, value_dim=2, **options)


def test_the_public_name_is_the_same():
    assert isinstance(decoder_on()._engine, NumpyDecoder)
    assert isinstance(decoder_on(device="cpu")._engine, NumpyDecoder)
    decoder = decoder_on(device="cuda")
    assert isinstance(decoder, linkern.Decoder)
    assert isinstance(decoder._engine, CudaDecoder)
    one = np.ones(3, np.float32)
    np.testing.assert_array_equal(decoder.step(one, one, one[:2]), 1)
    parameters = inspect.signature(linkern.Decoder).parameters
    assert {"state", "key_dim", "window", "device"} < parameters.keys()


def test_a_state_on_a_gpu_is_decoded_there():
    state = linkern.State.zeros(3, 2, like=np.zeros(1))
    with (
        mock.patch.object(decoder_module, "on_cupy", return_value=True),
        mock.patch.object(launch, "device_of", return_value=Emulator()),
    ):
        assert isinstance(linkern.Decoder(state)._engine, CudaDecoder)
        on_cpu = linkern.Decoder(state, device="cpu")
        assert isinstance(on_cpu._engine, NumpyDecoder)
        with pytest.raises(TypeError, match="`captured` needs a decoder on a GPU"):
            on_cpu.captured(*state, None, None)


REFUSED = [
    (TypeError, "`query` must be a CuPy array, got numpy", {}),
    (ValueError, "`window` must be left out on a GPU", {"window": 8}),
    (ValueError, "`feature_map` must be one of identity", {"feature_map": np.tanh}),
    (TypeError, "`dtype` must be one of float16, .*bfloat16", {"dtype": "int8"}),
]


@pytest.mark.parametrize(("error", "sentence", "options"), REFUSED)
def test_errors_on_a_gpu(error, sentence, options):
    one = np.ones(3, np.float32)
    with pytest.raises(error, match=sentence):
        decoder_on(Elsewhere, device="cuda", **options).step(one, one, one[:2])


def test_states_and_outputs_of_another_library():
    state = linkern.State.zeros(3, 2, like=np.zeros(1))
    with pytest.raises(TypeError, match=r"`state\.memory` must be a CuPy array"):
        CudaDecoder(Elsewhere(), state)
    decoder = CudaDecoder(Emulator(), state)
    one = np.ones(3)
    with pytest.raises(TypeError, match="`out` must be a NumPy array of float64"):
        decoder.step(one, one, one[:2], out=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match='`device` must be "cpu", "cuda" or None'):
        linkern.Decoder(state, device="tpu")


def test_a_layout_that_would_need_a_copy():
    decoder = KINDS[0].decoder(Emulator(), (3, 2), (2, 2, 2))
    query = np.ones((2, 2, 2, 3), np.float32)
    value = np.ones((2, 2, 2, 2), np.float32)
    apart = np.ones((2, 2, 2, 6), np.float32)[..., ::2]
    many = np.ones((2, 3, 2, 3), np.float32)[:, :2]
    for name, arrays in {"query": (apart, query), "key": (query, many)}.items():
        with pytest.raises(ValueError, match=f"`{name}` must have entries side by"):
            decoder.step(*arrays, value)
    assert not decoder.state.memory.any()
