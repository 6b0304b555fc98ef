"""Terms of a recurrence: what each step reads, decays, erases and writes.

A step turns the state S, of K rows and V columns, into ``e^g S + b (a^T S') + k v^T``,
where S' is the state before or after its decay, and reads ``q^T S`` before or after
that. The delta rules are this with ``a = -k`` and ``b = beta k``; operators that only
add have neither. A gated delta product takes several steps per token.
"""

from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.kernels.assembly.parts import Array, Inputs, wide

__all__ = ["Terms", "input_gradients", "terms_of"]

DELTA = ("delta_rule", "gated_delta_rule", "kda", "gated_delta_product")
EARLY_ERASE = ("comba", "rwkv7", "dplr", "iplr")


@dataclass(frozen=True)
class Terms:
    """The terms of a recurrence, one row of each ``(..., T, .)`` for each step.

    Parameters
    ----------
    query, key, value : array
        Read with the query; the outer product of key and value is written.
    log_decay : array (..., T, K) or (..., T, 1)
        Logarithm of the decay.
    erase, rate : array or None
        The vectors a and b.
    bonus : array or None
        Weight of the present token's key where the read comes before the write.
    scale : float
        Factor of the output.
    early_erase : bool
        True if the erase looks up the state before the decay.
    early_read : bool
        True if a token reads before it writes.
    steps : int
        Steps of each token; only the last reads, only the first decays.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array
    erase: Array = None
    rate: Array = None
    bonus: Array = None
    scale: float = 1.0
    early_erase: bool = False
    early_read: bool = False
    steps: int = 1


def terms_of(op: str, inputs: Inputs, scale: float) -> Terms:
    """Return the terms of an operator for these inputs."""
    call = {name: wide(x) for name, x in inputs.items()}
    value = call["value"]
    groups = value.shape[-3] // max(call["key"].shape[-3], 1)
    for name in ("query", "key", "auxiliary_key"):
        if groups != 1 and name in call:
            call[name] = np.repeat(call[name], groups, axis=-3)
    query, key = call["query"], call["key"]
    steps = max(key.shape[-2] // max(query.shape[-2], 1), 1)
    if steps > 1:
        query = _spread(query, steps - 1, steps)
    terms = Terms(
        query,
        key,
        value,
        _decays(call.get("log_decay"), value, steps),
        scale=scale,
        early_erase=op in EARLY_ERASE,
        early_read=op == "rwkv6",
        steps=steps,
    )
    return _with_erase(op, call, terms)


def _with_erase(op: str, call: Inputs, terms: Terms) -> Terms:
    """Add the erase and the bonus of an operator."""
    key, beta = terms.key, call.get("beta")
    if op in DELTA or op == "comba":
        written = key if beta is None else beta[..., None] * key
        erase = call["auxiliary_key"] if op == "comba" else key
        return replace(terms, erase=-erase, rate=written, key=written)
    if op == "rwkv7":
        removal, rate = call["removal_key"], call["removal_rate"]
        return replace(terms, erase=-removal, rate=rate * removal)
    if op in ("dplr", "iplr"):
        return replace(terms, erase=call["a"], rate=call["b"])
    if op == "rwkv6":
        bonus = call.get("bonus")
        bonus = np.zeros(key.shape[-1], key.dtype) if bonus is None else bonus
        return replace(terms, bonus=bonus[..., None, :])
    return terms


def _decays(log_decay: Array, value: Array, steps: int) -> Array:
    if log_decay is None:
        return np.zeros((*value.shape[:-1], 1), value.dtype)
    if log_decay.ndim < value.ndim:
        log_decay = log_decay[..., None]
    return _spread(log_decay, 0, steps) if steps > 1 else log_decay


def _spread(x: Array, step: int, steps: int) -> Array:
    """Move the row of each token to one of its steps; zeros elsewhere."""
    spread = np.zeros((*x.shape[:-2], x.shape[-2] * steps, x.shape[-1]), x.dtype)
    spread[..., step::steps, :] = x
    return spread


def input_gradients(op: str, inputs: Inputs, d_terms: Inputs) -> Inputs:
    """Return the gradients of inputs, by name.

    Parameters
    ----------
    op : str
        The operator: one of simple_gla, gla, rwkv6, delta_rule, gated_delta_rule, kda.
    inputs : dict of str to array
        Its inputs.
    d_terms : dict of str to array
        Gradients of the terms, by their names in `Terms`.
    """
    call = {name: wide(x) for name, x in inputs.items()}
    gradients = {name: d_terms[name] for name in ("query", "key", "value")}
    if "log_decay" in inputs:
        decays = d_terms["log_decay"]
        scalar = call["log_decay"].ndim < call["value"].ndim
        gradients["log_decay"] = decays.sum(-1) if scalar else decays
    if op in DELTA:
        written, beta = d_terms["key"] + d_terms["rate"], call.get("beta")
        gradients["key"] = written - d_terms["erase"]
        if beta is not None:
            gradients["key"] = beta[..., None] * written - d_terms["erase"]
            gradients["beta"] = (call["key"] * written).sum(-1)
    elif op == "rwkv6":
        bonus = d_terms["bonus"].sum(-2)
        leading = tuple(range(bonus.ndim - call["bonus"].ndim))
        gradients["bonus"] = bonus.sum(leading)
    return {name: gradients[name].astype(x.dtype) for name, x in inputs.items()}
