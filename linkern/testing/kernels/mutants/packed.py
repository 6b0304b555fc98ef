"""Defects of packed sequences: where they begin, whose state is whose, gradients."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Inputs,
    Kernel,
    Parts,
    RecurrenceBackward,
    Span,
    State,
    mapped,
    one_state,
    packed,
    recurrence,
    stacked,
    stateful,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

OUTPUTS, STATES, GRADIENTS = (
    "packed_equals_separate",
    "packed_states",
    "packed_gradients",
)


def _packed(op: str, **parts: Any) -> Kernel:
    """Return a kernel with gradients that takes packed sequences."""
    return packed(recurrence(op, backward=RecurrenceBackward()), op, **parts)


# -- where a sequence begins


def _from_the_first(edges: list[int]) -> list[Span]:
    """Reset the state at the first sequence only."""
    return [(a, b, None if n else 0) for n, (a, b) in enumerate(pairwise(edges))]


def _after_an_empty_one(edges: list[int]) -> list[Span]:
    """Skip the reset after an empty sequence."""
    spans = list(pairwise(edges))
    empty = [False, *(a == b for a, b in spans[:-1])]
    return [
        (a, b, None if a and before else n)
        for n, ((a, b), before) in enumerate(zip(spans, empty, strict=True))
        if a < b
    ]


def _on_the_grid(edges: list[int]) -> list[Span]:
    """Reset the state where a chunk of 16 begins, not where a sequence does."""
    starts = sorted({(edge + 15) // 16 * 16 for edge in edges[:-1]})
    inner = [edge for edge in starts if edges[0] < edge < edges[-1]]
    spans = pairwise([edges[0], *inner, edges[-1]])
    return [(a, b, n) for n, (a, b) in enumerate(spans)]


enter(
    "packed_starts_from_the_one_before",
    _packed("simple_gla", spans=_from_the_first),
    "#129: ik_llama.cpp #1933",
    OUTPUTS,
    op="simple_gla",
)
enter(
    "packed_reset_on_chunk_grid",
    _packed("gated_delta_rule", spans=_on_the_grid),
    "#112: sglang #31833",
    OUTPUTS,
    op="gated_delta_rule",
)
enter(
    "packed_kept_past_an_empty_one",
    _packed("gla", spans=_after_an_empty_one),
    "#123: FlashKDA #32: empty sequences",
    OUTPUTS,
    op="gla",
)
enter(
    "packed_slack_not_written",
    packed(recurrence("kda"), "kda", empty=lambda x: np.full_like(x, np.nan)),
    "#87: fla #892",
    OUTPUTS,
    op="kda",
)


# -- whose state is whose


def _of_the_last(states: list[State], *others: Any) -> State:
    return stacked([states[-1]] * len(states), *others)


def _in_reverse(states: list[State], *others: Any) -> State:
    return stacked(states[::-1], *others)


def _of_the_first(states: State, n: int, edges: list[int], *later: State) -> State:
    del n
    return one_state(states, 0, edges, *later)


def _on_a_chunk_only(states: State, n: int, edges: list[int]) -> State:
    """Use the state of a sequence that begins at a multiple of 16."""
    return None if edges[n] % 16 else one_state(states, n, edges)


def _normalizer_of_the_first(states: State, n: int, edges: list[int]) -> State:
    if states is None:
        return None
    return states[0][n : n + 1], _of_the_first(states[1], n, edges)


def _where(
    chosen: Callable[[int], bool], change: Callable[[Array, State], Array]
) -> Callable[[list[State], list[State], list[int]], State]:
    """Return the final states, changed for sequences of some lengths.

    A changed state is made of the right one and the initial one.
    """

    def final(states: list[State], initial: list[State], edges: list[int]) -> State:
        lengths = (b - a for a, b in pairwise(edges))
        triples = zip(states, initial, lengths, strict=True)
        made = [change(s, i) if chosen(n) else s for s, i, n in triples]
        return stacked(made, initial, edges)

    return final


def _initial(state: Array, before: State) -> Array:
    return np.zeros_like(state) if before is None else before


enter(
    "packed_final_state_of_the_last",
    _packed("gated_delta_rule", final=_of_the_last),
    "#129: ik_llama.cpp #1933",
    STATES,
    op="gated_delta_rule",
)
enter(
    "packed_final_states_in_reverse",
    _packed("simple_gla", final=_in_reverse),
    "#111: vllm #40766: updates of wrong state slots",
    STATES,
    op="simple_gla",
)
enter(
    "packed_initial_state_of_the_first",
    _packed("rwkv6", initial=_of_the_first),
    "#94: fla 990f885c: indexing of packed sequences",
    STATES,
    op="rwkv6",
)
enter(
    "packed_initial_state_on_chunks_only",
    _packed("kda", initial=_on_a_chunk_only),
    "#112: sglang #33450: requests that do not start on a chunk",
    STATES,
    op="kda",
)
enter(
    "packed_normalizer_of_the_first",
    packed(stateful(Parts()), initial=_normalizer_of_the_first),
    "vllm #40766: states read from wrong slots",
    STATES,
)
enter(
    "packed_empty_one_resets_its_state",
    _packed("gated_delta_rule", final=_where(lambda n: n == 0, lambda s, _: 0 * s)),
    "#123: FlashKDA #32: empty sequences",
    STATES,
    op="gated_delta_rule",
)
enter(
    "packed_state_of_an_empty_one_not_written",
    _packed("gla", final=_where(lambda n: n == 0, lambda s, _: np.full_like(s, 7.0))),
    "#123: FlashKDA #32; fla #103: empty sequences",
    STATES,
    op="gla",
)
enter(
    "packed_token_of_one_not_stored",
    _packed("delta_rule", final=_where(lambda n: n == 1, _initial)),
    "#56: fla #1141: states after one or two tokens",
    STATES,
    op="delta_rule",
)


# -- gradients


def _from_the_next(
    d_final: State, n: int, edges: list[int], later: State = None
) -> State:
    """Go on backwards from the sequence behind it."""
    own = one_state(d_final, n, edges)
    return own if later is None else later


def _grid_of_chunks(edges: list[int]) -> list[Span]:
    """Count the chunks of a sequence from its start, and place them on one grid."""
    spans: list[Span] = []
    for n, (a, b) in enumerate(pairwise(edges)):
        chunks = -(-(b - a) // 16)
        spans.append((a, min(b, max(a, a // 16 * 16 + 16 * chunks)), n))
    return spans


def _decay_of_the_next(gradients: Inputs, edges: list[int]) -> Inputs:
    """Take the gradient of each last decay from the token behind it."""
    d_decay = gradients["log_decay"].copy()
    for edge in edges[1:-1]:
        if 0 < edge < d_decay.shape[2]:
            d_decay[:, :, edge - 1] = gradients["log_decay"][:, :, edge]
    return {**gradients, "log_decay": d_decay}


def _slack_not_written(gradients: Inputs, edges: list[int]) -> Inputs:
    for name in ("query", "key", "value"):
        gradients[name][..., edges[-1] :, :] = np.nan
    return gradients


def _summed(states: State) -> State:
    return mapped(lambda x: np.zeros_like(x) + x.sum(0, keepdims=True), states)


enter(
    "packed_gradients_of_states_summed",
    _packed("gated_delta_rule", of_initial=_summed),
    "#37: fla 31293264: sums over sequences and heads",
    GRADIENTS,
    op="gated_delta_rule",
)
enter(
    "packed_gradient_crosses_the_edge",
    _packed("kda", cotangent=_from_the_next),
    "#85: fla e2a67879; torchtitan #3892",
    GRADIENTS,
    op="kda",
)
enter(
    "packed_state_cotangent_of_the_first",
    _packed("gla", cotangent=_of_the_first),
    "#17: fla #1115: offsets of sequences left out",
    GRADIENTS,
    op="gla",
)
enter(
    "packed_backward_on_one_grid",
    _packed("simple_gla", spans_back=_grid_of_chunks),
    "#41: fla 0dfd7f5f; fla #837",
    GRADIENTS,
    op="simple_gla",
)
enter(
    "packed_decay_gradient_of_the_next",
    _packed("gated_delta_rule", gradients=_decay_of_the_next),
    "#86: fla ff76ca0d: reverse sums of packed sequences",
    GRADIENTS,
    op="gated_delta_rule",
)
enter(
    "packed_gradient_slack_not_written",
    _packed("delta_rule", gradients=_slack_not_written),
    "#87: fla #892",
    GRADIENTS,
    op="delta_rule",
)
