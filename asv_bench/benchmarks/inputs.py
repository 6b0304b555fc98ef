"""Inputs of every operator, by the names of its parameters."""

import inspect

import numpy as np

from .ground import DIM, HEADS

OPERATORS = [
    *("abc", "based", "comba", "delta_rule", "dplr", "gated_delta_product"),
    *("gated_delta_rule", "gdn2", "gla", "gsa", "hgrn", "iplr", "kda"),
    *("lightning_attention", "log_linear_attention", "mamba3", "mamba3_mimo"),
    *("mesa", "mlstm", "momentum_delta_rule", "oja", "power_retention"),
    "preconditioned_gated_delta_rule",
    *("preconditioned_kda", "rebased", "retention", "rwkv4", "rwkv6", "rwkv7"),
    *("selective_scan", "simple_gla"),
]
# One of each kind of decay and update, for what is slow to measure.
KINDS = ["retention", "simple_gla", "gla", "delta_rule", "gated_delta_rule", "kda"]
# Those whose log-decays are one for each channel.
BY_CHANNEL = (
    *("gla", "rwkv6", "rwkv7", "dplr", "kda", "preconditioned_kda", "gdn2", "gsa"),
    *("hgrn", "oja"),
)
FEW_KEYS = ("based", "power_retention", "rebased", "selective_scan")


def inputs_of(function, length, seed=0):
    """Return float32 inputs with mild decays, 8 heads, K = V = 64.

    K is 16 where features have K^2 channels, or each channel a state of K numbers. What
    an operator is called with is read from its signature: an old commit may lack some
    of it.
    """
    name = function.__name__
    rng = np.random.default_rng(seed)
    key_dim = 16 if name in FEW_KEYS else DIM
    token = (HEADS, length)
    keys, values = (*token, key_dim), (*token, DIM)

    def unit(shape=keys):
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    decays = {"rwkv4": (HEADS, DIM), **dict.fromkeys(BY_CHANNEL, values)}
    wide = {
        "query": rng.normal(size=keys),
        "key": unit(),
        "value": unit(values) if name == "oja" else rng.normal(size=values),
        "beta": rng.uniform(size=token),
        "log_decay": -abs(rng.normal(size=decays.get(name, token))) / 10,
        "auxiliary_key": unit(),
        "a": -unit(),
        "b": 0.5 * unit(),
        "removal_key": unit(),
        "removal_rate": rng.uniform(size=keys),
        "erase_gate": rng.uniform(size=keys),
        "write_gate": rng.uniform(size=values),
        "slots": rng.uniform(size=values),
        "bonus": rng.normal(size=(HEADS, DIM)),
        "input_gate": rng.normal(size=token),
        "dt": rng.uniform(0, 0.1, size=values),
        "log_decay_rate": -rng.uniform(1, 16, size=(HEADS, DIM, key_dim)),
        "preconditioner_log_decay": -abs(rng.normal(size=token)) / 10,
        "preconditioner_beta": rng.uniform(size=token),
        "momentum_log_decay": -abs(rng.normal(size=token)),
        "momentum_beta": rng.uniform(size=token) / 2,
        "center": np.full(HEADS, -0.2),
        "log_range": np.full(HEADS, np.log(1.5)),
        "skip": rng.normal(size=(HEADS, DIM)),
        "ridge": rng.uniform(0.5, 1.5, size=(HEADS, DIM)),
        "level_scales": rng.uniform(size=(*token, length.bit_length() + 1)),
        "angle": rng.normal(size=(*token, DIM // 2)),
        "trapezoid": rng.uniform(size=token),
        "value_mix": rng.normal(size=(HEADS, 2, DIM)),
        "output_mix": rng.normal(size=(HEADS, 2, DIM)),
    }
    if name.startswith("mamba3"):
        wide["dt"] = wide["dt"][..., 0]
    if name == "mamba3_mimo":
        wide["angle"] = wide["angle"][..., : DIM // 4]
    if name == "gated_delta_product":
        for one in ("key", "value", "beta"):
            wide[one] = np.repeat(wide[one], 2, 1)
    if name == "retention":
        del wide["log_decay"]  # it has some of its own
    names = [one for one in inspect.signature(function).parameters if one in wide]
    return {one: wide[one].astype("float32") for one in names}
