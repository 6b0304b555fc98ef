"""Inputs of an operator from token features: one projection for each.

An operator says which inputs it has, and of what shape (`Definition.axes`). So a layer
around it follows: each input is an affine map of the token, or a parameter of the head
if it has no token axis, brought into the range in which the operator is meant to be
used: logarithms of decays below 0, gates between 0 and 1, directions of unit length.
"""

from collections.abc import Callable, Mapping
from math import log
from typing import Any, cast

import linkern.operators  # noqa: F401 -- fills DEFINITIONS
from linkern.array import namespace, reshape
from linkern.core.logspace import sigmoid
from linkern.operators.definition import QKV, Definition
from linkern.operators.register import DEFINITIONS
from linkern.transformer.layers import Affine, affine, apart
from linkern.transformer.parameters import Source
from linkern.typing import Array

__all__ = [
    "axes_of",
    "definition_named",
    "initial_inputs",
    "inputs_of",
    "known_operators",
]

Sizes = Mapping[str, int]

# Quadratic attention.
_AXES = {
    "softmax_attention": QKV,
    "sparse_attention": QKV,
    "lsh_attention": {"query": "tk", "value": "tv"},
}

# Biases of the projections: decays begin near 1, steps are small, gates half open.
_BIAS = {
    **dict.fromkeys(("log_decay", "preconditioner_log_decay"), 3.0),
    "momentum_log_decay": 1.0,
    "dt": -3.0,
}
# Initial parameters of inputs that have no token axis.
_CONSTANT = {
    "log_decay": 1.0,
    "bonus": 0.0,
    "ridge": 1.0,
    "log_decay_rate": 0.0,
    "skip": 1.0,
    **dict.fromkeys(("value_mix", "output_mix"), 0.5),
    "center": -0.2,
    "log_range": log(1.5),
}


def known_operators() -> tuple[str, ...]:
    """Return the names of all operators that can stand in a layer."""
    return tuple(sorted([*_AXES, *DEFINITIONS]))


def definition_named(operator: str) -> Definition | None:
    """Return the record of an operator; None for quadratic attention."""
    return DEFINITIONS.get(operator)


def axes_of(operator: str) -> Mapping[str, str]:
    """Return the inputs of an operator and the letters of their last axes."""
    if operator in _AXES:
        return _AXES[operator]
    if operator not in DEFINITIONS:
        msg = (
            f"`operator` must be one of {', '.join(known_operators())}, got "
            f"{operator!r}."
        )
        raise ValueError(msg)
    axes = dict(DEFINITIONS[operator].axes)
    if operator in ("retention", "lightning_attention"):
        del axes["log_decay"]  # theirs is fixed, one for each head
    for derived in _DERIVED.get(operator, {}).keys() & _FROM_OTHERS:
        axes.pop(derived, None)
    return axes


def initial_inputs(
    operator: str, width: int, heads: int, sizes: Sizes, source: Source
) -> dict[str, Any]:
    """Return a projection, or an array, for each input of an operator."""
    parameters: dict[str, Any] = {}
    for name, letters in axes_of(operator).items():
        if letters[:1] in ("t", "s"):
            each = sizes["n"] if letters[0] == "s" else 1
            dim = sizes[letters[1]] if len(letters) > 1 else 1
            parameters[name] = Affine.create(
                width,
                heads * each * dim,
                bias=_BIAS.get(name, 0.0),
                rng=source.generator,
                like=source.like,
            )
        else:
            shape = (heads, *(sizes[letter] for letter in letters))
            parameters[name] = source.constant(shape, _CONSTANT[name])
    return parameters


def inputs_of(
    operator: str, projections: Mapping[str, Any], x: Array, heads: int, sizes: Sizes
) -> dict[str, Array]:
    """Return the inputs of an operator for tokens ``x (..., T, width)``.

    Heads come before tokens: ``(..., H, T, K)``, ``(..., H, T)``, ``(H, K)``.
    """
    axes = axes_of(operator)
    inputs: dict[str, Array] = {}
    for name, projection in projections.items():
        letters = axes[name]
        raw = projection
        if letters[:1] in ("t", "s"):
            raw = apart(affine(projection, x), heads)
            if letters[0] == "s":  # several steps for each token
                *lead, length, _ = raw.shape
                steps = sizes["n"] * length
                raw = reshape(raw, (*lead, steps, -1))
            if len(letters) == 1:
                raw = raw[..., 0]
        inputs[name] = _RANGES.get(name, _same)(raw)
    for name, derive in _DERIVED.get(operator, {}).items():
        inputs[name] = derive(inputs)
    return inputs


def _same(x: Array) -> Array:
    return x


def _softplus(x: Array) -> Array:
    xp = namespace(x)
    return cast(Array, xp.logaddexp(xp.zeros_like(x), x))


def _log_sigmoid(x: Array) -> Array:
    return -_softplus(-x)


def _rates(x: Array) -> Array:
    """Return ``-exp(x) n`` for channel ``n = 1, 2, ...`` of the state, as Mamba."""
    xp = namespace(x)
    channels = xp.ones_like(x)
    return cast(Array, -xp.exp(x) * xp.cumulative_sum(channels, axis=-1))


def _unit(x: Array) -> Array:
    """Return directions: the erase of a token must not amplify what it erases from."""
    xp = namespace(x)
    squares = xp.sum(x * x, axis=-1, keepdims=True)
    # The smallest normal number keeps a zero vector zero, and adds nothing to others.
    return cast(Array, x / xp.sqrt(squares + xp.finfo(x.dtype).smallest_normal))


_RANGES: dict[str, Callable[[Array], Array]] = {
    "log_decay": _log_sigmoid,
    "beta": sigmoid,
    **dict.fromkeys(("preconditioner_log_decay", "momentum_log_decay"), _log_sigmoid),
    **dict.fromkeys(("preconditioner_beta", "momentum_beta"), sigmoid),
    "erase_gate": sigmoid,
    "write_gate": sigmoid,
    "removal_rate": sigmoid,
    "trapezoid": sigmoid,
    "removal_key": _unit,
    "auxiliary_key": _unit,
    "level_scales": _softplus,
    "ridge": _softplus,
    "dt": _softplus,
    "log_decay_rate": _rates,
}


def _unit_key(found: Mapping[str, Array]) -> Array:
    return _unit(found["key"])


def _forgotten(found: Mapping[str, Array]) -> Array:
    """Return what a decay makes room for, accurate where that is little."""
    return -cast(Array, namespace(found["log_decay"]).expm1(found["log_decay"]))


# Inputs that follow from others, in order; the rest of them have weights of their own.
_FROM_OTHERS = frozenset({"slots"})
_DERIVED: dict[str, dict[str, Callable[[Mapping[str, Array]], Array]]] = {
    "delta_rule": {"key": _unit_key},
    "gated_delta_rule": {"key": _unit_key},
    "kda": {"key": _unit_key},
    "preconditioned_gated_delta_rule": {"key": _unit_key},
    "preconditioned_kda": {"key": _unit_key},
    "momentum_delta_rule": {"key": _unit_key},
    "gdn2": {"key": _unit_key},
    "comba": {"key": _unit_key},
    "mesa": {"key": _unit_key},
    "gated_delta_product": {"key": _unit_key},
    "oja": {"value": lambda found: _unit(found["value"])},
    "dplr": {
        "a": lambda found: -_unit(found["a"]),
        "b": lambda found: -sigmoid(found["b"]) * found["a"],
    },
    "iplr": {
        "a": lambda found: -_unit(found["a"]),
        "b": lambda found: -sigmoid(found["b"]) * found["a"],
    },
    "gsa": {"slots": _forgotten},
    # The gate of a GRU, of the input alone: what is forgotten makes room.
    "hgrn": {"value": lambda found: _forgotten(found) * found["value"]},
}
