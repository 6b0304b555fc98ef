"""Defects that begin at a length: edges of 256, the fifth chunk, indices that wrap."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Counts,
    Inputs,
    Kernel,
    Parts,
    RecurrenceBackward,
    Terms,
    all_tokens,
    recurrence,
    slot_attention,
    stateful,
)
from linkern.testing.kernels.mutants.catalogue import enter
from linkern.testing.spec.operators import OPERATORS

__all__: list[str] = []

LONG, LONGEST = "long_sequences", "very_long_sequences"


def _without_last_of(period: int) -> Counts:
    """Lose the last token of a chunk that ends where a period does."""

    def counted(first: int, length: int, chunk: int) -> Array:
        weights = all_tokens(first, length, chunk)
        if (first + length) % period == 0:
            weights[-1] = 0
        return weights

    return counted


def _from_chunk(lost: int) -> Counts:
    """Write nothing to the state from one chunk on."""

    def counted(first: int, length: int, chunk: int) -> Array:
        return all_tokens(first, length, chunk) * (first < lost * chunk)

    return counted


def _beyond(limit: int, kernel: Kernel, change: Any) -> Kernel:
    """Change the output of a kernel where it has more tokens than a limit."""

    def limited(*inputs: Array, **named: Any) -> Any:
        output, state = kernel(*inputs, **named)
        if output.shape[-2] > limit:
            output = change(output)
        return output, state

    limited.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    return limited


def _tail_of_64(output: Array) -> Array:
    """Return the tail as if its last row were the one before it."""
    if output.shape[-2] % 64:
        output[..., -1, :] = output[..., -2, :]
    return output


def _indices_wrapped(
    query: Array, key: Array, value: Array, initial_state: Any = None
) -> Any:
    """Count tokens in 16 bits."""
    index = np.arange(key.shape[-2]).astype(np.uint16)
    fast = stateful(Parts(chunk=128))
    return fast(query, key[..., index, :], value[..., index, :], initial_state)


def _rows_of_signed_16(output: Array) -> Array:
    """Leave what lies past a signed index of 16 bits as zeros."""
    output[..., 2**15 :, :] = 0
    return output


def _forgets_all(period: int) -> Any:
    """Start again from nothing, once in a period."""

    def terms(of_call: Terms) -> Terms:
        g = np.broadcast_to(of_call.log_decay, of_call.key.shape).copy()
        g[..., period::period, :] = -np.inf
        return replace(of_call, log_decay=g)

    return terms


def _restarted_sums(terms: Terms) -> Terms:
    """Leave out the decay of the token with which a sum over 256 begins."""
    g = terms.log_decay.copy()
    g[..., 256::256, :] = 0
    return replace(terms, log_decay=g)


def _third_chunk_lost(gradients: Inputs, inputs: Inputs) -> Inputs:
    """Sum the gradient of the keys over two chunks of 64 and what follows the third."""
    del inputs
    gradients["key"][..., 128:192, :] = 0
    return gradients


def _prompt_without_tail(op: str) -> Kernel:
    """Hand over the state after the last full chunk of a long prompt."""
    right, operator = recurrence(op, chunk=64), OPERATORS[op]
    signature = inspect.signature(right)

    def kernel(*inputs: Array, **named: Any) -> Any:
        output, state = right(*inputs, **named)
        full = output.shape[-2] // 64 * 64
        if 1024 < output.shape[-2] != full:
            call = dict(signature.bind(*inputs, **named).arguments)
            for name in operator.names:
                axis = operator.input(name).token_axis
                if axis is not None and call.get(name) is not None:
                    call[name] = np.take(call[name], np.arange(full), axis)
            _, state = right(**call)
        return output, state

    kernel.__signature__ = signature  # type: ignore[attr-defined]
    return kernel


def _loop_of_512(output: Array) -> Array:
    """Read no slot past the 512th token."""
    output[..., 512:, :] = output[..., 511:512, :]
    return output


enter(
    "key_lost_at_edges_of_256",
    recurrence("gated_delta_rule", counted=_without_last_of(256)),
    "#51: fla #876: a tile size that one kernel takes for another's",
    LONG,
    op="gated_delta_rule",
)
enter(
    "tail_of_long_sequences",
    _beyond(512, recurrence("kda", chunk=64), _tail_of_64),
    "#48: fla #673; fla #1142: tails of a last block",
    LONG,
    op="kda",
)
enter(
    "state_lost_from_fifth_chunk",
    recurrence("dplr", chunk=64, counted=_from_chunk(5)),
    "#20: fla #733: the chunk index overflows",
    LONG,
    op="dplr",
)
enter(
    "key_lost_at_64_of_products",
    recurrence("gated_delta_product", counted=_without_last_of(128)),
    "#51: fla #876",
    LONG,
    op="gated_delta_product",
)
enter(
    "indices_of_16_bits",
    _indices_wrapped,
    "#25: fla #906: more than 65,536 tokens",
    LONGEST,
)
enter(
    "rows_of_signed_16_bits",
    _beyond(2**15, stateful(Parts(chunk=128)), _rows_of_signed_16),
    "#25: fla #906: the tail is skipped beyond 65,536 tokens",
    LONGEST,
)
enter(
    "history_of_4096",
    recurrence("gla", terms=_forgets_all(4096)),
    "#25: KernelBench-Hard, KDA: old recurrent state is cut off",
    LONGEST,
    op="gla",
)
enter(
    "decays_start_again_at_256",
    recurrence("simple_gla", terms=_restarted_sums),
    "#110: vllm #23279: decays measured from the start of a chunk",
    LONGEST,
    op="simple_gla",
)
enter(
    "gradient_of_third_chunk_lost",
    recurrence("delta_rule", backward=RecurrenceBackward(gradients=_third_chunk_lost)),
    "#22: fla #769: offsets of blocks in the backward pass",
    "gradient_value",
    op="delta_rule",
)
enter(
    "prompt_without_tail",
    _prompt_without_tail("gated_delta_rule"),
    "#63: fla b63addd7: the final state of a last chunk that is not full",
    "long_prefill",
    op="gated_delta_rule",
)
enter(
    "slots_of_512_tokens",
    _beyond(512, slot_attention(), _loop_of_512),
    "#27: fla #527: a return too early",
    LONG,
    op="gsa",
)
