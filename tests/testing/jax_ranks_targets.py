"""Faulty targets of `jax.shard_map`: the example with one function replaced."""

import functools
import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "ranks"))

import jax
import jax.numpy as jnp
import sharded_jax

entered, span_map = sharded_jax.entered, sharded_jax.span_map


def faulty(name, other, op="gla"):
    """Return the operator of the example in which another function has that name."""
    right = getattr(sharded_jax, op)

    @functools.wraps(right)
    def kernel(*inputs, **options):
        with patch.object(sharded_jax, name, other):
            return right(*inputs, **options)

    return kernel


def of_other_neighbour(maps, state):
    *states, last = entered(maps, state)
    return jnp.stack([*states[1:], states[0], last])


def in_reverse(maps, state):
    return entered(maps[::-1], state)


def without_last(maps, state):
    return entered(maps, state).at[-1].set(entered(maps, state)[-2])


def stopped(maps, state):
    return entered(jax.lax.stop_gradient(maps), state)


def of_initial_stopped(maps, state):
    return entered(maps, jax.lax.stop_gradient(state))


def in_bfloat16(tokens):
    both = span_map(tokens)
    return both.astype(jnp.bfloat16).astype(both.dtype)


wrong_neighbour = faulty("entered", of_other_neighbour)
maps_in_reverse = faulty("entered", in_reverse)
final_state_without_last_rank = faulty("entered", without_last)
gradient_stops_at_the_rank = faulty("entered", stopped)
gradient_of_state_dropped = faulty("entered", of_initial_stopped)
maps_in_bfloat16 = faulty("span_map", in_bfloat16, "gated_delta_rule")


def without_ranks(q, k, v, log_decay):
    """Return what one rank makes of its tokens, as if there were no others."""
    tokens = (k.shape[-1] ** -0.5 * q, k, v, log_decay, None)
    state = jnp.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), v.dtype)
    return sharded_jax.fold(state, tokens)[0]


def whole_output(q, k, v, log_decay, axis_name):
    """Return the outputs of all ranks on each."""
    output, _ = sharded_jax.gla(q, k, v, log_decay, axis_name=axis_name)
    return jax.lax.all_gather(output, axis_name, axis=2, tiled=True)


def in_zigzag(q, k, v, log_decay, initial_state=None, axis=None):
    """Gated linear attention of the whole sequence, of which a rank has two pieces."""
    tokens = (k.shape[-1] ** -0.5 * q, k, v, log_decay, None)
    whole = [x if x is None else in_order(x, axis) for x in tokens]
    state = initial_state
    if state is None:
        state = jnp.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), v.dtype)
    output, final = sharded_jax.fold(state, whole)
    pieces = jnp.stack(jnp.split(output, 2 * jax.lax.psum(1, axis), 2))
    rank = jax.lax.axis_index(axis)
    return jnp.concatenate([pieces[rank], pieces[-1 - rank]], 2), final


def in_order(x, axis):
    """Return the tokens of all ranks in their order."""
    shards = jax.lax.all_gather(x, axis)
    first, second = jnp.split(shards, 2, 3)
    return jnp.concatenate([*first, *second[::-1]], 2)


def packed(q, k, v, log_decay, cu_seqlens=None, axis_name=None):
    """Gated linear attention of packed sequences, by offsets of all tokens."""
    if cu_seqlens is None:
        return sharded_jax.gla(q, k, v, log_decay, axis_name=axis_name)[0]
    first = jax.lax.axis_index(axis_name) * k.shape[2]
    return by_sequence(q, k, v, log_decay, cu_seqlens - first, axis_name)


def by_sequence(q, k, v, log_decay, cu_seqlens, axis_name):
    """Return the output of tokens, of which each forgets all other sequences."""
    which = jnp.searchsorted(cu_seqlens, jnp.arange(k.shape[2]), side="right")
    of_all = jax.lax.all_gather(which, axis_name, tiled=True)
    forgets = jnp.diff(of_all, prepend=0)[:, None] > 0
    tokens = (k.shape[-1] ** -0.5 * q, k, v, log_decay)
    gathered = jax.lax.all_gather(tokens, axis_name, axis=2, tiled=True)
    *whole, decay = gathered
    state = jnp.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), v.dtype)
    decay = jnp.where(forgets, -1e9, decay)
    output, _ = sharded_jax.fold(state, (*whole, decay, None))
    own = jax.lax.axis_index(axis_name) * k.shape[2]
    output = jax.lax.dynamic_slice_in_dim(output, own, k.shape[2], 2)
    return jnp.where((which < cu_seqlens.shape[0])[:, None], output, 0.0)


def by_sequence_of_shard(q, k, v, log_decay, cu_seqlens=None, axis_name=None):
    """Take offsets for those of the shard; right where that is declared."""
    if cu_seqlens is None:
        return sharded_jax.gla(q, k, v, log_decay, axis_name=axis_name)[0]
    return by_sequence(q, k, v, log_decay, cu_seqlens, axis_name)


def with_position(q, k, v, log_decay, position=0):
    """Take the position of the first token."""
    return without_ranks(q, k, v, log_decay)


def with_vjp(q, k, v, log_decay):
    """Have a gradient function beside it."""
    return without_ranks(q, k, v, log_decay)


def gradients(q, k, v, log_decay, output_cotangent):
    """Return something for the gradients."""
    return q, k, v, output_cotangent


with_vjp.vjp = gradients


def state_on_last_rank_alone(q, k, v, log_decay, initial_state=None, axis_name=None):
    """Return zeros for the final state on all ranks but the last."""
    output, state = sharded_jax.gla(q, k, v, log_decay, initial_state, axis_name)
    is_last = jax.lax.axis_index(axis_name) == jax.lax.psum(1, axis_name) - 1
    return output, jnp.where(is_last, state, 0.0)
