"""One defect or more of each operator that the other modules leave out."""

from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Inputs,
    RecurrenceBackward,
    Terms,
    forward_substitution,
    lower_triangle,
    recurrence,
    rounded_to,
    wide,
)
from linkern.testing.kernels.correct import (
    decays,
    erasing,
    features,
    levels,
    linear,
    softmax,
    solves,
)
from linkern.testing.kernels.mutants.catalogue import after, before, enter

__all__: list[str] = []

INTEGERS = ("value_on_integers", "value_on_reals")
SPLIT = ("state_split", "decoding")


def _written_before_the_gate(
    value: Array, log_decay: Array | None = None, *, initial_state: Array | None = None
) -> Any:
    """Let the gate of a token decay what the token writes."""
    kept = value
    if log_decay is not None:
        kept = (np.exp(wide(log_decay)) * wide(value)).astype(value.dtype)
    return decays.hgrn_by_tokens(kept, log_decay, initial_state=initial_state)


def _eight_doublings(
    value: Array, log_decay: Array | None = None, *, initial_state: Array | None = None
) -> Any:
    """Scan with a fixed number of doublings: what is 256 tokens back is not seen."""
    parts, state = [np.zeros_like(value[..., :0, :])], initial_state
    for first in range(0, value.shape[-2], 256):
        span = (..., slice(first, first + 256), slice(None))
        g = None if log_decay is None else log_decay[span]
        output, state = decays.hgrn_by_doubling(value[span], g, initial_state=state)
        parts.append(output)
        state = np.zeros_like(state)
    return np.concatenate(parts, axis=-2), state


def _masked_afterwards(
    query: Array, key: Array, value: Array, *, scale: float | None = None
) -> Array:
    """Multiply the powers of future tokens, which overflow, by zero."""
    q, k, v = decays.scaled(query, scale), wide(key), wide(value)
    steps = np.arange(v.shape[-2])
    rates = np.log1p(-(2.0 ** -(5.0 + np.arange(v.shape[-3]))))[:, None, None]
    with np.errstate(all="ignore"):
        powers = np.exp(rates * (steps[:, None] - steps)).astype(np.float32)
        weights = powers * np.tri(len(steps), dtype=np.float32)
        output = (weights.astype(v.dtype) * (q @ k.swapaxes(-1, -2))) @ v
    return output.astype(query.dtype)


def _as_if_full(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Any:
    """Decay the state as if the last chunk of 16 had no tail."""
    output, state = decays.retention_by_tokens(
        query, key, value, scale=scale, initial_state=initial_state
    )
    missing = -value.shape[-2] % 16
    rates = np.log1p(-(2.0 ** -(5.0 + np.arange(value.shape[-3]))))[:, None, None]
    return output, (np.exp(missing * rates) * state).astype(state.dtype)


def _of_large_weights(
    query: Array, key: Array, value: Array, *, scale: float | None = None
) -> Array:
    """Skip tiles of 64 whose largest decay is below 1e-6."""
    q, k, v = decays.scaled(query, scale), wide(key), wide(value)
    rates = np.log1p(-(2.0 ** -(5.0 + np.arange(v.shape[-3]))))[:, None, None]
    steps = np.arange(v.shape[-2])
    apart = steps[:, None] - steps
    nearest = steps[:, None] // 64 * 64 - steps // 64 * 64 - 63
    kept = (apart >= 0) & (rates * nearest > np.log(1e-6))
    weights = np.exp(rates * np.maximum(apart, 0)) * kept
    output = (weights.astype(v.dtype) * (q @ k.swapaxes(-1, -2))) @ v
    return output.astype(query.dtype)


def _slopes_of_another(
    query: Array, key: Array, value: Array, *, scale: float | None = None
) -> Array:
    """Decay by the slopes of ALiBi, ``2^(-8 (h + 1) / H)``."""
    heads = value.shape[-3]
    slopes = -(2.0 ** (-8 * (1 + np.arange(heads)) / max(heads, 1)))
    g = np.broadcast_to(slopes[:, None], value.shape[:-1]).astype(wide(value).dtype)
    output, _ = decays.ssd_by_segment_sums(query, key, value, g, scale=scale)
    return output


def _decayed_before_the_read(
    key: Array,
    value: Array,
    log_decay: Array,
    bonus: Array | None = None,
    *,
    initial_state: Any = None,
) -> Any:
    """Read what is before a token after its decay, not before it."""
    k, v, decay = wide(key), wide(value), wide(log_decay)
    own = -decay if bonus is None else wide(bonus) - decay
    output, state = softmax.rwkv4_by_tokens(
        k, v, decay, own, initial_state=initial_state
    )
    return output.astype(value.dtype), state


def _sum_in_place_of_its_logarithm(output: Array, state: Any) -> Any:
    return output, (state[0], np.exp(np.minimum(state[1], 80)))


def _two_blocks(system: Array, known: Array) -> Array:
    """Solve the halves of a chunk, and leave out what the first does to the second."""
    half = (known.shape[-2] + 1) // 2
    first, second = slice(0, half), slice(half, None)
    parts = [
        forward_substitution(system[..., at, at], known[..., at, :])
        for at in (first, second)
    ]
    return np.concatenate(parts, axis=-2)


def _one_gate_for_both(call: Inputs) -> Inputs:
    """Write through the gate that erases, where their sizes allow it."""
    gate, value = call.get("erase_gate"), call["value"]
    if gate is None:
        return call
    mean = gate.mean(-1, keepdims=True, dtype=wide(gate).dtype)
    return {**call, "write_gate": np.broadcast_to(mean, value.shape)}


def _only_together(call: Inputs) -> Inputs:
    """Leave out the write gate where there is no erase gate."""
    return call if call.get("erase_gate") is not None else {**call, "write_gate": None}


def _key_in_place_of_auxiliary(call: Inputs) -> Inputs:
    """Erase along the key where one token is decoded, and nowhere else."""
    if call["key"].shape[-2] != 1:
        return call
    return {**call, "auxiliary_key": call["key"]}


def _erased_along_keys(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Any:
    """Apply the delta rule where there is no decay."""
    call = (query, key, value)
    if log_decay is not None:
        options = {"scale": scale, "initial_state": initial_state}
        return erasing.oja_by_tokens(*call, log_decay, beta, **options)
    options = {"scale": scale, "initial_state": initial_state, "beta": beta}
    return recurrence("delta_rule")(*call, **options)


def _weights_of_zeros(call: Inputs) -> Inputs:
    """Take what a state holds for as heavy as one token of score zero."""
    state = call.get("initial_state")
    if state is None:
        return call
    return {**call, "initial_state": (state[0], np.zeros_like(state[1]))}


def _normalised_by_chunk(query: Array, key: Array, value: Array) -> Array:
    """Divide by the weights of the own chunk of 16 alone."""
    q, k, v = decays.scaled(query, None), wide(key), wide(value)
    scores = q @ k.swapaxes(-1, -2)
    weights = lower_triangle(1 + scores * (1 + scores / 2))
    chunk = np.arange(v.shape[-2]) // 16
    own = np.where(chunk[:, None] == chunk, weights, 0)
    return ((weights @ v) / own.sum(-1, keepdims=True)).astype(query.dtype)


def _without_half(x: Array) -> Array:
    """Return features of ``1 + x + x^2``."""
    return np.concatenate([np.ones_like(x[..., :1]), x, features.squares(x)], axis=-1)


def _taylor_without_half(query: Array, key: Array, value: Array) -> Array:
    q, k, v = decays.scaled(query, None), wide(key), wide(value)
    scores = _without_half(q) @ _without_half(k).swapaxes(-1, -2)
    weights = lower_triangle(scores)
    return ((weights @ v) / weights.sum(-1, keepdims=True)).astype(query.dtype)


def _plus_epsilon(query: Array, key: Array, value: Array) -> Array:
    """Add 1e-5 to the sum of squares."""
    q, k, v = decays.scaled(query, None), wide(key), wide(value)
    weights = lower_triangle(np.square(q @ k.swapaxes(-1, -2)))
    total = weights.sum(-1, keepdims=True) + np.asarray(1e-5, v.dtype)
    return ((weights @ v) / total).astype(query.dtype)


def _narrow_matrix(call: Inputs) -> Inputs:
    """Keep the matrix of keys in float16: its keys are rounded before they meet."""
    return {**call, "key": rounded_to(11)(wide(call["key"]))}


def _first_ridge(call: Inputs) -> Inputs:
    ridge = call.get("ridge")
    if ridge is None:
        return call
    return {**call, "ridge": np.broadcast_to(ridge[:1], ridge.shape)}


def _scales_of_full_chunks(call: Inputs) -> Inputs:
    """Read the level scales of a tail from the last row of the chunk before."""
    scales = call["level_scales"]
    full = scales.shape[-2] // 16 * 16
    if full in (0, scales.shape[-2]):
        return call
    rows = np.minimum(np.arange(scales.shape[-2]), full - 1)
    return {**call, "level_scales": scales[..., rows, :]}


def _counted_from_zero(call: Inputs) -> Inputs:
    return {**call, "position": 0}


def _by_difference(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    *,
    scale: float | None = None,
) -> Array:
    """Form decays from differences of sums, of which two may be infinite."""
    q, k, v = decays.scaled(query, scale), wide(key), wide(value)
    g = np.zeros(v.shape[:-1], v.dtype) if log_decay is None else wide(log_decay)
    total = np.cumsum(g, axis=-1)
    with np.errstate(all="ignore"):
        between = total[..., :, None] - total[..., None, :]
        mask = np.tri(v.shape[-2], dtype=bool)
        weights = np.exp(np.where(mask, between, -np.inf))
        return ((weights * (q @ k.swapaxes(-1, -2))) @ v).astype(query.dtype)


def _as_many_keys_as_queries(query: Array, key: Array, value: Array) -> Array:
    """Leave out the keys beyond the number of queries."""
    length = max(query.shape[-2], 1)
    return linear.every_key(query, key[..., :length, :], value[..., :length, :])


def _keys_of_full_tiles(query: Array, key: Array, value: Array) -> Array:
    """Pad keys to whole tiles of 16: a padded key is zero, and its feature one."""
    missing = -key.shape[-2] % 16
    pad = [(0, 0)] * (key.ndim - 2) + [(0, missing), (0, 0)]
    return linear.every_key(query, np.pad(key, pad), np.pad(value, pad))


def _gates_of_first_head_in_late_half(terms: Terms) -> Terms:
    """Read the gates of the second half of a chunk of 16 without the head's offset."""
    g = terms.log_decay.copy()
    late = np.arange(g.shape[-2]) % 16 >= 8
    g[..., late, :] = g[:, :1, late, :]
    return replace(terms, log_decay=g)


def _first_rate_for_all(call: Inputs) -> Inputs:
    """Give all keys of a query the rate of the first."""
    beta, steps = call.get("beta"), call["key"].shape[-2]
    each = steps // max(call["query"].shape[-2], 1)
    if beta is None or each < 2:
        return call
    return {**call, "beta": np.repeat(beta[..., ::each], each, axis=-1)}


def _in_the_other_layout(x: Array) -> Array:
    """Take memory that is written value by key for memory that is key by value."""
    turned = x.reshape(*x.shape[:-2], x.shape[-1], x.shape[-2])
    return np.ascontiguousarray(np.swapaxes(turned, -1, -2))


def _rates_rounded(gradients: Inputs, inputs: Inputs) -> Inputs:
    del inputs
    if "beta" not in gradients:
        return gradients
    return {**gradients, "beta": rounded_to(8)(gradients["beta"])}


def _without_future_gates(gradients: Inputs, inputs: Inputs) -> Inputs:
    """Leave out the gradient of the gate in the first token of every chunk of 16."""
    del inputs
    if "log_decay" not in gradients:
        return gradients
    g = gradients["log_decay"].copy()
    g[:, :, ::16] = 0
    return {**gradients, "log_decay": g}


enter(
    "gate_decays_its_own_token",
    _written_before_the_gate,
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    *INTEGERS,
    op="hgrn",
)
enter(
    "scan_of_eight_doublings",
    _eight_doublings,
    "#25: fla 5aea42b7: what is beyond a fixed length is skipped",
    op="hgrn",
)
enter(
    "powers_of_the_future_overflow",
    _masked_afterwards,
    "#32: fla 6cc3736b; naive_retention is NaN from 2,796 tokens on",
    "long_sequences",
    op="retention",
)
enter(
    "tiles_of_small_weights_skipped",
    _of_large_weights,
    "#25: fla 5aea42b7: what is beyond a fixed length is skipped",
    "long_sequences",
    op="retention",
)
enter(
    "state_decayed_past_the_tail",
    _as_if_full,
    "#64: fla 0dc28dcd: the state of RetNet where a chunk is not full",
    "state_value",
    *SPLIT,
    op="retention",
)
enter(
    "slopes_of_alibi",
    _slopes_of_another,
    "#91: fla #351: conventions of decays; LASP build_slope_tensor",
    op="lightning_attention",
)
enter(
    "read_after_the_decay",
    _decayed_before_the_read,
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    op="rwkv4",
)
enter(
    "sum_returned_without_logarithm",
    after(softmax.rwkv4_by_tokens, _sum_in_place_of_its_logarithm),
    "#65: fla ceef5e0f: another structure of the final state",
    *SPLIT,
    op="rwkv4",
)
enter(
    "blocks_of_the_inverse_not_coupled",
    recurrence("iplr", solve=_two_blocks),
    "#16: fla 91d870f8: off-diagonal blocks of the inverse",
    *INTEGERS,
    op="iplr",
)
enter(
    "writes_through_the_erase_gate",
    before(erasing.gdn2_by_tokens, _one_gate_for_both),
    "#98: fla d28b3e1c: a rate for each channel",
    op="gdn2",
)
enter(
    "write_gate_needs_an_erase_gate",
    before(erasing.gdn2_by_tokens, _only_together),
    "#44: fla f636f5a1: a branch that is taken only if there is a gate",
    "option_neutrality",
    op="gdn2",
)
enter(
    "auxiliary_key_left_out_in_decoding",
    before(recurrence("comba"), _key_in_place_of_auxiliary),
    "#90: fla cde25dfd: what one form does to p, and another does not",
    "decoding",
    op="comba",
)
enter(
    "delta_rule_in_place_of_oja",
    _erased_along_keys,
    "#43: fla d1fc1c54: another update rule where there is no gate",
    "option_neutrality",
    op="oja",
)
enter(
    "weights_of_the_state_lost",
    before(softmax.abc_by_tokens, _weights_of_zeros),
    "#93: fla #285: the state of a half is not the state of the whole",
    *SPLIT,
    op="abc",
)
enter(
    "normalised_by_own_chunk",
    _normalised_by_chunk,
    "#14: fla 12e2a700: a sum over an axis of the chunk",
    op="based",
)
enter(
    "second_order_without_half",
    _taylor_without_half,
    "#60: fla 85992884: a factor of the scores",
    op="based",
)
enter(
    "epsilon_of_1e-5",
    _plus_epsilon,
    "#106: performer-pytorch #40; fla rebased adds 1e-5, its reference 1e-6",
    op="rebased",
)
enter(
    "matrix_from_float16_keys",
    before(solves.mesa_by_solving, _narrow_matrix),
    "#84: fla #1187: H_kk in float16",
    op="mesa",
)
enter(
    "ridge_of_first_head",
    before(solves.mesa_by_solving, _first_ridge),
    "#4: fla 40334f1c: strides that forget the heads",
    op="mesa",
)
enter(
    "level_scales_of_a_full_chunk",
    before(levels.levels_by_tokens, _scales_of_full_chunks),
    "#1: fla de09abdf: scales of levels in the tail",
    *INTEGERS,
    op="log_linear_attention",
)
enter(
    "levels_counted_from_the_call",
    before(levels.levels_by_tokens, _counted_from_zero),
    "#112: sglang #31833: a grid that begins at the call, not at the sequence",
    *SPLIT,
    op="log_linear_attention",
)
enter(
    "segment_sums_by_difference",
    _by_difference,
    "#130: mamba #352: NaN from cumulative decays",
    "decay_extremes",
    "value_on_reals",
    op="ssd",
)
enter(
    "keys_beyond_queries_lost",
    _as_many_keys_as_queries,
    "#102: fast-transformers f165966: L is not S",
    *INTEGERS,
    op="linear_attention_noncausal",
)
enter(
    "padded_keys_counted",
    _keys_of_full_tiles,
    "#132: transformers #46773: padding enters the state",
    *INTEGERS,
    op="linear_attention_noncausal",
)
enter(
    "gates_of_first_head_in_late_half",
    recurrence("rwkv7", terms=_gates_of_first_head_in_late_half),
    "#4: fla 40334f1c: an offset in the middle of a chunk",
    "value_on_reals",
    "heads_independent",
    op="rwkv7",
)
enter(
    "rate_of_first_key_for_all",
    recurrence("gated_delta_product", inputs=_first_rate_for_all),
    "#52: fla 59f3f67e: rates that are not repeated",
    op="gated_delta_product",
)
enter(
    "gradient_of_state_transposed",
    recurrence("simple_gla", backward=RecurrenceBackward(initial=_in_the_other_layout)),
    "#55: fla 6d80721f: the layout of a gradient of the state",
    "gradient_of_state",
    op="simple_gla",
)
enter(
    "gradient_of_rate_in_bfloat16",
    recurrence("kda", backward=RecurrenceBackward(gradients=_rates_rounded)),
    "#80: fla #29: a gradient with an error of 8 %",
    "gradient_on_random_reals",
    op="kda",
)
enter(
    "gradient_of_gate_lost_at_edge",
    recurrence(
        "gated_delta_rule", backward=RecurrenceBackward(gradients=_without_future_gates)
    ),
    "#1: fla de09abdf: a part of dg is left on a dead row",
    "gradient_value",
    op="gated_delta_rule",
)
