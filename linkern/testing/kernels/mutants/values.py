"""Defects that show at some numbers only: large logarithms, parallel keys, large K."""

import inspect
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Change,
    Kernel,
    Terms,
    recurrence,
    rounded_to,
    slot_attention,
    wide,
)
from linkern.testing.kernels.correct import (
    decays,
    erasing,
    features,
    levels,
    softmax,
    solves,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []


def _changed(kernel: Kernel, **changes: Change) -> Kernel:
    """Return a kernel some inputs of which are changed on the way."""
    signature = inspect.signature(kernel)

    @wraps(kernel)
    def changed(*positional: Any, **named: Any) -> Any:
        call = signature.bind(*positional, **named).arguments
        for name, change in changes.items():
            if call.get(name) is not None:
                call[name] = change(call[name])
        return kernel(**call)

    return changed


def _between(low: float, high: float) -> Change:
    return lambda x: np.clip(x, x.dtype.type(low), x.dtype.type(high))


def _at_least(low: float) -> Change:
    return lambda x: np.maximum(x, x.dtype.type(low))


# -- exponentials


def _without_maximum(scores: Array) -> Array:
    with np.errstate(all="ignore"):
        weights = np.exp(scores)
        return weights / weights.sum(-1, keepdims=True)


def _rwkv4(
    key: Array, value: Array, log_decay: Array, bonus: Array = None, *, shift: Array
) -> Array:
    """Sum exponentials, less a shift that stays."""
    k, v, decay = wide(key), wide(value), wide(log_decay)
    u = np.zeros_like(decay) if bonus is None else wide(bonus)
    output = np.zeros_like(v)
    total, weight = np.zeros_like(v[..., 0, :]), np.zeros_like(v[..., 0, :])
    with np.errstate(all="ignore"):
        for t in range(v.shape[-2]):
            now = np.exp(u + k[..., t, :] - shift)
            output[..., t, :] = (total + now * v[..., t, :]) / (weight + now)
            added = np.exp(k[..., t, :] - shift)
            total = np.exp(decay) * total + added * v[..., t, :]
            weight = np.exp(decay) * weight + added
    return output.astype(value.dtype)


def _exponentials(
    key: Array, value: Array, log_decay: Array, bonus: Array = None
) -> Array:
    """Take exponentials as they are."""
    return _rwkv4(key, value, log_decay, bonus, shift=0 * wide(value[..., :1, 0, :]))


def _first_maximum(
    key: Array, value: Array, log_decay: Array, bonus: Array = None
) -> Array:
    """Keep the maximum of the first token for all others."""
    first = wide(key[..., 0, :]) if key.shape[-2] else 0.0
    return _rwkv4(key, value, log_decay, bonus, shift=first)


# -- triangular systems and solves


def _terms_of_the_series(count: int) -> Any:
    """Return a solver that cuts the series of the inverse after some terms."""

    def solve(system: Array, known: Array) -> Array:
        solution = term = known
        for _ in range(count - 1):
            term = system @ term
            solution = solution + term
        return solution

    return solve


def _ten_steps(matrix: Array, right: Array) -> Array:
    """Take ten steps of conjugate gradients."""
    x, residual = np.zeros_like(right), right
    direction, size = residual, (residual * residual).sum(-2, keepdims=True)
    for _ in range(10):
        image = matrix @ direction
        along = (direction * image).sum(-2, keepdims=True)
        step = np.where(along > 0, size / np.where(along > 0, along, 1), 0)
        x, residual = x + step * direction, residual - step * image
        after = (residual * residual).sum(-2, keepdims=True)
        back = np.where(size > 0, after / np.where(size > 0, size, 1), 0)
        direction, size = residual + back * direction, after
    return x


# -- gates, rates and channels


def _anchored(g: Array) -> tuple[Array, Array]:
    """Divide the decays of a chunk by the one at its middle, and multiply by it."""
    total = np.cumsum(g, axis=-2)
    middle = total[..., g.shape[-2] // 2, None, :]
    with np.errstate(all="ignore"):
        left, right = np.exp(total - middle), np.exp(middle - total)
        between = left[..., :, None, :] * right[..., None, :, :]
    mask = np.tri(g.shape[-2], dtype=bool)[..., None]
    return np.where(mask, between, 0), np.exp(total)


def _floor_is_padding(g: Array) -> Array:
    """Take a gate at the floor for one that was never written."""
    return np.where(g == -5, g.dtype.type(0), g)


def _of_unit_keys(terms: Terms) -> Terms:
    """Erase as if all keys had a length of one, which rows of zeros have not."""
    square = (terms.erase * terms.erase).sum(-1, keepdims=True)
    return replace(terms, erase=terms.erase / np.where(square == 0, 1, square))


def _with_epsilon(terms: Terms) -> Terms:
    """Divide what is erased by a squared length to which an epsilon is added."""
    square = (terms.erase * terms.erase).sum(-1, keepdims=True)
    return replace(terms, rate=terms.rate * (square / (square + np.float32(1e-6))))


def _whole_tiles(x: Array) -> Array:
    """Leave out the channels behind the last full tile of 16."""
    kept = x.shape[-1] // 16 * 16 or x.shape[-1]
    return np.where(np.arange(x.shape[-1]) < kept, x, x.dtype.type(0))


def _first_tiles(x: Array) -> Array:
    """Leave out the channels behind the second tile of 8."""
    return np.where(np.arange(x.shape[-1]) < 16, x, x.dtype.type(0))


enter(
    "rwkv4_without_maximum",
    _exponentials,
    "#104: fast-transformers b886c6a: exponentials that overflow",
    op="rwkv4",
)
enter(
    "rwkv4_maximum_of_first_token",
    _first_maximum,
    "#104: fast-transformers b886c6a; #30: fla 458c0186",
    op="rwkv4",
)
enter(
    "rwkv4_keys_clamped",
    _changed(softmax.rwkv4_by_tokens, key=_between(-60, 60)),
    "#114: sglang #30860: clamped gates",
    op="rwkv4",
)
enter(
    "slots_without_maximum",
    slot_attention(softmax=_without_maximum),
    "#26: fla 3a904f02: scales before a narrow cast; #104: fast-transformers b886c6a",
    op="gsa",
)
enter(
    "scores_of_slots_clamped",
    slot_attention(softmax=lambda x: _without_maximum(np.clip(x, -50, 50))),
    "#114: sglang #30860",
    op="gsa",
)
enter(
    "logits_of_slots_clamped",
    _changed(softmax.abc_by_tokens, slots=_between(-88, 88)),
    "#114: sglang #30860",
    op="abc",
)
enter(
    "solver_stops_after_ten_steps",
    solves.by_tokens(_ten_steps),
    "#84: fla #1187: conjugate gradients of mesa",
    op="mesa",
    # Ten steps are as good as an inverse in float32 may be.
    harmless_in=("float32",),
)
enter(
    "inverse_of_four_terms",
    recurrence("kda", solve=_terms_of_the_series(4)),
    "#16: fla 91d870f8; KernelBench-Hard 02_kda: the inverse after L^3",
    op="kda",
)
enter(
    "inverse_of_eight_terms",
    recurrence("gated_delta_rule", solve=_terms_of_the_series(8)),
    "#120: cudnn-frontend #1017, #1051: correlated keys",
    op="gated_delta_rule",
)
enter(
    "anchor_in_the_middle",
    recurrence("kda", decays=_anchored),
    "#33: fla 7d808a33; fla #1240: a prefix that depends on later gates",
    op="kda",
)
enter(
    "floor_taken_for_padding",
    _changed(recurrence("gla"), log_decay=_floor_is_padding),
    "#120: cudnn-frontend #1017: a gate bound of -5",
    op="gla",
)
enter(
    "gates_of_scan_clamped",
    _changed(decays.hgrn_by_doubling, log_decay=_at_least(-5)),
    "#120: cudnn-frontend #1017",
    op="hgrn",
)
enter(
    "gates_of_segments_clamped",
    _changed(decays.ssd_by_segment_sums, log_decay=_at_least(-10)),
    "#130: mamba #352: decays of chunks that leave their range",
    op="ssd",
)
enter(
    "gates_of_eleven_bits",
    _changed(recurrence("rwkv6"), log_decay=rounded_to(11)),
    "#81: fla 998de589: narrow sums of gates",
    op="rwkv6",
)
enter(
    "erase_gates_clipped",
    _changed(erasing.gdn2_by_tokens, erase_gate=_between(0, 1)),
    "#114: sglang #30860",
    op="gdn2",
)
enter(
    "rates_of_values_clipped",
    _changed(erasing.oja_transposed, beta=_between(0, 1)),
    "#114: sglang #30860",
    op="oja",
)
enter(
    "removal_rates_clipped",
    _changed(recurrence("rwkv7"), removal_rate=_between(0, 1)),
    "#114: sglang #30860; #91: fla #351",
    op="rwkv7",
)
enter(
    "keys_taken_for_unit",
    recurrence("delta_rule", terms=_of_unit_keys),
    "#90: fla cde25dfd: a norm that one path left out",
    op="delta_rule",
)
enter(
    "squared_lengths_with_epsilon",
    recurrence("kda", terms=_with_epsilon),
    "#90: fla cde25dfd",
    op="kda",
    harmless_in=("float32",),  # a rate is 2 at most, so it is lost among roundings
)
enter(
    "channels_behind_last_tile",
    _changed(decays.lightning_by_chunks, query=_whole_tiles),
    "#10: fla 5659576e: splits of channels; #3: fla b67113b4: K no power of two",
    op="lightning_attention",
)
enter(
    "monomials_of_two_tiles",
    _changed(features.by_chunks(features.taylor, 16), key=_first_tiles),
    "#10: fla 5659576e",
    op="based",
)
enter(
    "squares_of_whole_tiles",
    _changed(features.by_chunks(features.squares, 32), key=_whole_tiles),
    "#10: fla 5659576e; #3: fla b67113b4",
    op="rebased",
)
enter(
    "values_saturate",
    _changed(levels.levels_by_pairs, value=_between(-448, 448)),
    "#105: fast-transformers #32: sums in a narrow format",
    op="log_linear_attention",
)
