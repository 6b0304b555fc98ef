"""Defects of the call: what it returns, remembers, touches, and takes for granted."""

import itertools
import threading
import time
from typing import Any

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.kernels.assembly import (
    Array,
    Change,
    Kernel,
    Parts,
    assemble,
    elu_plus_one,
)
from linkern.testing.kernels.correct.linear import featured, quadratic
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []


def _overwrites_key(query: Array, key: Array, value: Array) -> Array:
    output = quadratic(query, key, value)
    key[...] = elu_plus_one(key)
    return output


def _then(change: Change) -> Kernel:
    """Return a correct kernel whose output is passed through `change`."""
    return lambda query, key, value: change(quadratic(query, key, value))


# A counter, not a clock: two calls in a row then differ for certain.
_jitters = itertools.count()


def _jittered(output: Array) -> Array:
    eps = 2.0 ** (1 - SIGNIFICAND_BITS[output.dtype.name])
    return output * output.dtype.type(1 + next(_jitters) % 3 * eps)


_replay: dict[Any, Array] = {}


def _replays_by_address(query: Array, key: Array, value: Array) -> Array:
    where = (value.__array_interface__["data"][0], value.shape, float(query.sum()))
    if where not in _replay:
        _replay.clear()
        _replay[where] = quadratic(query, key, value)
    return _replay[where].copy()


_features: dict[Any, Array] = {}


def _keeps_features_by_address(query: Array, key: Array, value: Array) -> Array:
    """Keep the features of a key whose address and first token are the same."""
    first = key[..., :1, :].tobytes() if key.size else b""
    where = (key.__array_interface__["data"][0], key.shape, str(key.dtype), first)
    if where not in _features:
        _features.clear()
        _features[where] = key.copy()
    return quadratic(query, _features[where], value)


_tails: dict[Any, tuple[Array, Array]] = {}


def _keeps_state_between_calls(query: Array, key: Array, value: Array) -> Array:
    """Start from the last token of the previous call of the same shape."""
    q, k, v = featured(query, key, value)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    numerator, denominator = scores @ v, scores.sum(-1, keepdims=True)
    shape = (key.shape, value.shape, str(key.dtype))
    if shape in _tails:
        old_key, old_value = _tails[shape]
        weight = (q * old_key).sum(-1, keepdims=True)
        numerator, denominator = numerator + weight * old_value, denominator + weight
    _tails.clear()
    _tails[shape] = (k[..., -1:, :].copy(), v[..., -1:, :].copy())
    return (numerator / denominator).astype(query.dtype)


_outputs: dict[Any, Any] = {}


def _returns_one_buffer(query: Array, key: Array, value: Array) -> Array:
    """Write every result of one shape into the same memory."""
    result = quadratic(query, key, value)
    buffer: Any = _outputs.setdefault((result.shape, str(result.dtype)), result)
    buffer[...] = result
    return buffer


_scratch: dict[Any, Array] = {}
_writers: dict[Any, int] = {}
_callers: dict[int, threading.Thread] = {}
# A thread waits this long for another to write where it has written.
_RACE_SECONDS = 0.05


def _shares_scratch(query: Array, key: Array, value: Array) -> Array:
    """Copy the values into memory that other threads write to as well."""
    where = (value.shape, str(value.dtype))
    values = _scratch.setdefault(where, np.empty_like(value))
    values[...] = value
    _lose_the_race(where)
    return quadratic(query, key, values)


def _lose_the_race(where: Any) -> None:
    """Return when another thread has written, if there is one that calls."""
    me = threading.get_ident()
    _writers[where], _callers[me] = me, threading.current_thread()
    patience = time.monotonic() + _RACE_SECONDS
    while _writers[where] == me and time.monotonic() < patience:
        if not any(x.ident != me and x.is_alive() for x in list(_callers.values())):
            break
        time.sleep(1e-4)


def _seeds(query: Array, key: Array, value: Array) -> Array:
    np.random.seed(0)  # noqa: NPY002
    return quadratic(query, key, value)


def _as_if_contiguous(x: Array) -> Array:
    """Read an array from its first entry on, whatever its strides are."""
    base = x
    while isinstance(base.base, np.ndarray):
        base = base.base
    flat = np.frombuffer(base.tobytes("A"), x.dtype)
    start = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    first = start // x.itemsize
    if x.flags.c_contiguous or first + x.size > flat.size:
        return x
    return flat[first : first + x.size].reshape(x.shape)


def _assumes_contiguous(query: Array, key: Array, value: Array) -> Array:
    return quadratic(*(_as_if_contiguous(x) for x in (query, key, value)))


def _reads_past_the_end(query: Array, key: Array, value: Array) -> Array:
    """Load whole tiles of values, and multiply what is past the end by zero."""
    output = quadratic(query, key, value)
    base, length = value.base, value.shape[-2]
    if base is None or base.ndim != 1 or not value.size or length % 16 == 0:
        return output
    start = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    end = start // value.itemsize + value.size
    beyond = base[end : end + value.shape[-1]].astype(output.dtype)
    if beyond.size == value.shape[-1]:
        output[..., -1:, :] += beyond * output.dtype.type(0)
    return output


def _writes_past_the_end(query: Array, key: Array, value: Array) -> Array:
    """Clear one entry more than there is."""
    output = quadratic(query, key, value)
    base: Any = key.base
    if base is not None and base.ndim == 1 and key.size:
        start = key.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        end = start // key.itemsize + key.size
        base[end : end + 1] = 0
    return output


enter(
    "overwrites_key",
    _overwrites_key,
    "feature maps applied in place",
    "inputs_untouched",
    by_chance=True,
)
enter(
    "returns_zeros",
    _then(np.zeros_like),
    "a kernel that never ran",
    "row_normalisation",
    hack=True,
)
enter(
    "returns_float64",
    _then(lambda output: output.astype(np.float64)),
    "promotion by a scalar",
    "shape_and_dtype",
    harmless_in=("float64",),
)
enter(
    "returns_list",
    _then(lambda output: output.tolist()),
    "not an array of the library",
    "shape_and_dtype",
)
enter(
    "transposes_output",
    _then(lambda output: np.swapaxes(output, -1, -2)),
    "fla #547",
    "shape_and_dtype",
)
enter(
    "jitters",
    _then(_jittered),
    "fla #945: other bits at every call",
    "determinism",
    by_chance=True,
)
enter(
    "replays_by_address",
    _replays_by_address,
    "gpu-mode e9984e4: replayed outputs",
    "determinism",
    by_chance=True,
)
enter(
    "keeps_features_by_address",
    _keeps_features_by_address,
    "caches keyed by pointer",
    "freshness",
    by_chance=True,
)
enter(
    "keeps_state_between_calls",
    _keeps_state_between_calls,
    "flashserve NPU #281",
    "determinism",
    by_chance=True,
)
enter(
    "returns_one_buffer",
    _returns_one_buffer,
    "static outputs of captured graphs",
    "freshness",
    by_chance=True,
)
enter(
    "shares_scratch",
    _shares_scratch,
    "a workspace allocated once",
    "thread_safety",
    by_chance=True,
)
enter(
    "seeds_generator",
    _seeds,
    "reproducible features at everyone's cost",
    "leaves_no_trace",
)
enter(
    "assumes_contiguous",
    _assumes_contiguous,
    "fla #627, #871",
    "strides",
)
enter(
    "reads_past_the_end",
    _reads_past_the_end,
    "fla #1142: masked by multiplication",
    "nothing_leaks_from_padding",
)
enter(
    "writes_past_the_end",
    _writes_past_the_end,
    "fla #1103",
    "nothing_leaks_from_padding",
)
enter(
    "swallows_nan",
    assemble(Parts(values=np.nan_to_num)),
    "nan_to_num against bad batches",
    "nan_policy",
)
