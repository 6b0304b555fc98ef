"""Attention between the heads' inputs and outputs: one interface to every operator.

All operators are called in one way. They differ in what they keep: a state of
fixed size for recurrences, all keys and values for softmax attention, nothing for LSH
and sparse attention, which recompute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from linkern import feature_maps, operators, validate
from linkern.array import astype, concat, zeros
from linkern.attention import lsh_attention, softmax_attention, sparse_attention
from linkern.state import State, mapped
from linkern.transformer.cache import Cache
from linkern.typing import Array

__all__ = ["CROSSWISE", "FEATURE_MAPS", "Call", "Mixed", "Mixer", "mix", "read"]

# Those that need no more than their input.
FEATURE_MAPS = ("elu_plus_one", "exp", "hedgehog", "relu", "squared_relu", "taylor")

# Those whose queries can come from another sequence than their keys.
CROSSWISE = ("linear_attention", "softmax_attention")

Inputs = Mapping[str, Array]


class Mixed(NamedTuple):
    """Output ``(..., H, T, V)`` of attention, and the state to continue from."""

    output: Array
    state: Any


@dataclass(frozen=True)
class Mixer:
    """An operator and its options.

    Parameters
    ----------
    operator : str
        Its name.
    feature_map : str
        Of `linear_attention`.
    options : mapping
        Of the quadratic ones, besides their inputs.
    """

    operator: str
    feature_map: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """Options of one attention call.

    Parameters
    ----------
    causal : bool
        Whether a query sees nothing after itself.
    state : State, Cache or None
        What earlier tokens left behind.
    visible : array (N, S) of bool, or None
        Which keys are there, in a batch of different lengths; not causal only.
    form : str
        Order of the sums, for recurrences.
    position : array (N,) of int, or None
        How many tokens came before, for each sequence.
    """

    causal: bool = True
    state: Any = None
    visible: Array | None = None
    form: str = "auto"
    position: Array | None = None


def mix(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    """Return the attention of the heads, and the state after it."""
    _fits(mixer, call)
    return _MIXING.get(mixer.operator, _recurrence)(mixer, inputs, call)


def read(mixer: Mixer, query: Array, state: Any) -> Array:
    """Return the output of queries that read a state without writing to it."""
    if isinstance(state, Cache):
        return softmax_attention(
            query, state.key, state.value, causal=False, mask=state.mask
        )
    validate.instance("state", state, State)
    nothing = zeros((*query.shape[:-2], 0, query.shape[-1]), like=query)
    values = zeros((*nothing.shape[:-1], state.memory.shape[-1]), like=query)
    read_out: Array = operators.linear_attention(
        query,
        nothing,
        values,
        causal=False,
        feature_map=_map(mixer),
        initial_state=state,
    ).output
    return read_out


def _fits(mixer: Mixer, call: Call) -> None:
    """Check that an operator supports the options of the call."""
    name = mixer.operator
    if not call.causal and name not in _BOTH_WAYS:
        msg = (
            f"`operator` must be one of {', '.join(_BOTH_WAYS)} where attention "
            f"is not causal, got {name!r}, which only looks back."
        )
        raise ValueError(msg)
    if name in _STATELESS and call.state is not None:
        msg = (
            f"`operator` must keep a state to decode with, got {name!r}, which keeps "
            "none; run the model on the whole sequence again."
        )
        raise ValueError(msg)
    expected = Cache if name == "softmax_attention" else State
    if call.state is not None and not isinstance(call.state, expected):
        msg = (
            f"`state` must be a {expected.__name__} for {name!r}, got "
            f"{type(call.state).__name__}; it belongs to another model."
        )
        raise TypeError(msg)


def _map(mixer: Mixer) -> Callable[[Any], Any]:
    feature_map: Callable[[Any], Any] = getattr(feature_maps, mixer.feature_map)
    return feature_map


def _linear(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    feature_map = _map(mixer)
    if call.visible is not None:
        # A key that is not there has no features: it adds nothing to any sum.
        wide = feature_map(validate.widened("key", key))
        there = astype(call.visible, wide.dtype)[:, None, :, None]
        key = astype(wide * there, key.dtype)
        query = astype(feature_map(validate.widened("query", query)), query.dtype)
        feature_map = feature_maps.identity
    return Mixed(
        *operators.linear_attention(
            query,
            key,
            value,
            causal=call.causal,
            feature_map=feature_map,
            initial_state=call.state,
            form=call.form,
        )
    )


def _recurrence(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    op = getattr(operators, mixer.operator)
    return Mixed(*op(**inputs, initial_state=call.state, form=call.form))


def _log_linear(_: Mixer, inputs: Inputs, call: Call) -> Mixed:
    """Run `log_linear_attention`, each sequence from its own position."""
    op: Callable[..., Any] = operators.log_linear_attention
    places = _places(call.position)
    if len(set(places)) <= 1:
        position = places[0] if places else 0
        return Mixed(
            *op(**inputs, initial_state=call.state, form=call.form, position=position)
        )
    results = []
    for n, position in enumerate(places):
        one = {name: x[n : n + 1, ...] for name, x in inputs.items()}
        state = call.state
        if state is not None:
            state = mapped(itemgetter((slice(n, n + 1), ...)), state)
        results.append(
            op(**one, initial_state=state, form=call.form, position=position)
        )
    memory = concat([result.state.memory for result in results], axis=0)
    output = concat([result.output for result in results], axis=0)
    return Mixed(output, State(memory, None))


def _places(position: Array | None) -> list[int]:
    """Return positions as Python integers."""
    if position is None:
        return []
    return [int(position[n]) for n in range(position.shape[0])]


def _softmax(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    key, value = inputs["key"], inputs["value"]
    if call.state is None:
        cache = Cache.of(key, value, call.visible)
    else:
        cache = call.state.appended(key, value)
    output = softmax_attention(
        inputs["query"],
        cache.key,
        cache.value,
        causal=call.causal,
        mask=cache.mask,
        **mixer.options,
    )
    return Mixed(output, cache)


def _lsh(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    output = lsh_attention(
        inputs["query"], inputs["value"], causal=call.causal, **mixer.options
    )
    return Mixed(output, None)


def _sparse(mixer: Mixer, inputs: Inputs, call: Call) -> Mixed:
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    output = sparse_attention(query, key, value, causal=call.causal, **mixer.options)
    return Mixed(output, None)


_BOTH_WAYS = (
    "linear_attention",
    "lsh_attention",
    "softmax_attention",
    "sparse_attention",
)
_STATELESS = ("lsh_attention", "sparse_attention")
_MIXING: dict[str, Callable[[Mixer, Inputs, Call], Mixed]] = {
    "linear_attention": _linear,
    "log_linear_attention": _log_linear,
    "softmax_attention": _softmax,
    "lsh_attention": _lsh,
    "sparse_attention": _sparse,
}
