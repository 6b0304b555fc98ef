"""Problems for the oracle, and kernels in any precision to judge."""

import importlib

import numpy as np

from linkern.oracle import OPERATORS

STRENGTHS = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0, -1e4, -np.inf)
BATCH = 2
_PER_KEY = {"gla", "rwkv6", "rwkv7", "dplr", "kda", "preconditioned_kda", "gdn2"}
_PER_VALUE = {"hgrn", "oja"}
_PER_HEAD = {"retention", "lightning_attention"}
ONE_HEAD_COUNT = {"hgrn", "rwkv4"}
NAMES = sorted({operator.name for operator in OPERATORS.values()})


def log_decays(kind, rng, shape):
    """Draw log-decays of a kind: mild, typical, strong, extreme or none."""
    normal = abs(rng.normal(size=shape))
    if kind == "strong":
        return rng.choice(STRENGTHS[:6], shape)
    if kind == "extreme":
        return rng.choice(STRENGTHS, shape)
    return -normal * {"mild": 0.1, "typical": 1.0, "none": 0.0}[kind]


SCORED = ("query", "key")


def problem(
    name,
    rng,
    length=9,
    key_dim=4,
    value_dim=3,
    *,
    decays="typical",
    heads=2,
    groups=1,
    unit=True,
    largest_beta=1.0,
    steps=2,
    slots=5,
    levels=8,
):
    """Draw float32 inputs of an operator, widened: ``(B, H, T, .)``."""
    tokens = length
    if name == "gated_delta_product":
        length = steps * tokens
    wide, b = heads * groups, BATCH

    def key(*shape):
        x = rng.normal(size=shape)
        size = np.linalg.norm(x, axis=-1, keepdims=True) if unit else shape[-1] ** 0.5
        return x / size

    def share(*shape):
        return rng.uniform(0.02, 0.98, shape)

    decay_shape = (b, wide, tokens)
    if name in _PER_KEY:
        decay_shape = (*decay_shape, key_dim)
    if name in _PER_VALUE:
        decay_shape = (*decay_shape, value_dim)
    if name == "gsa":
        decay_shape = (*decay_shape, slots)
    if name in _PER_HEAD:
        decay_shape = (wide,)
    if name == "rwkv4":
        decay_shape = (wide, value_dim)
    draws = {
        "query": lambda: key(b, heads, tokens, key_dim),
        "key": lambda: key(b, heads, length, key_dim),
        "value": lambda: rng.normal(size=(b, wide, length, value_dim)),
        "log_decay": lambda: log_decays(decays, rng, decay_shape),
        "beta": lambda: rng.uniform(0, largest_beta, (b, wide, length)),
        "preconditioner_log_decay": lambda: log_decays(decays, rng, (b, wide, length)),
        "preconditioner_beta": lambda: share(b, wide, length),
        "momentum_log_decay": lambda: log_decays(decays, rng, (b, wide, length)),
        "momentum_beta": lambda: share(b, wide, length),
        "center": lambda: rng.normal(size=wide),
        "log_range": lambda: rng.uniform(0.1, 0.5, wide),
        "bonus": lambda: rng.normal(size=(wide, key_dim)),
        "removal_key": lambda: key(b, heads, tokens, key_dim),
        "removal_rate": lambda: share(b, wide, tokens, key_dim),
        "a": lambda: -key(b, heads, tokens, key_dim),
        "b": lambda: share(b, heads, tokens, key_dim) * key_dim**-0.5,
        "erase_gate": lambda: share(b, wide, tokens, key_dim),
        "write_gate": lambda: share(b, wide, tokens, value_dim),
        "auxiliary_key": lambda: key(b, heads, tokens, key_dim),
        "slots": lambda: rng.normal(size=(b, wide, tokens, slots)),
        "ridge": lambda: rng.uniform(0.25, 2, (wide, key_dim)),
        "dt": lambda: rng.uniform(0, 2, (b, wide, tokens, value_dim)),
        "log_decay_rate": lambda: log_decays(decays, rng, (wide, value_dim, key_dim)),
        "input_gate": lambda: rng.normal(size=(b, wide, tokens)),
        "skip": lambda: rng.normal(size=(wide, value_dim)),
        "angle": lambda: rng.normal(size=(b, wide, tokens, key_dim // 2)),
        "trapezoid": lambda: share(b, wide, tokens),
        "value_mix": lambda: rng.normal(size=(wide, steps, value_dim)),
        "output_mix": lambda: rng.normal(size=(wide, steps, value_dim)),
        "level_scales": lambda: share(b, wide, tokens, levels),
    }
    if name == "mamba3_mimo":
        pair = (b, heads, tokens, steps * key_dim)
        draws |= {x: lambda: key(*pair) for x in ("query", "key")}
    if name.startswith("mamba3"):
        draws["dt"] = lambda: rng.uniform(0, 2, (b, wide, tokens))
    if name == "rwkv4":
        draws["key"] = lambda: rng.normal(size=(b, wide, tokens, value_dim))
        draws["bonus"] = lambda: rng.normal(size=(wide, value_dim))
    if name == "oja":
        draws["value"] = lambda: key(b, wide, tokens, value_dim)
    if name == "power_retention_4":  # a score that cancels has no fourth power to tell
        draws |= {x: lambda: abs(key(b, heads, tokens, key_dim)) for x in SCORED}
    names = OPERATORS[name].input_names
    return {x: draws[x]().astype(np.float32).astype(np.float64) for x in names}


def heads_of(name):
    """Return how many value heads serve a query head in tests of this operator."""
    return 1 if name in ONE_HEAD_COUNT else 2


def earlier_state(name, rng, **sizes):
    """Return a state that earlier tokens have left; eight of them."""
    inputs = problem(name, rng, 8, decays="mild", **sizes)
    return OPERATORS[name].evaluate(inputs).state


def delta_terms(name, x, scale):
    """Return ``q, w, a, v, g`` of an operator of the delta rule, of any arrays.

    An erase that reads the memory before its decay comes as a pair, with True.
    """
    key, value = x["key"], x["value"]
    g = x.get("log_decay")
    if g is not None and g.ndim < key.ndim:
        g = g[..., None]
    if name in {"gla", "simple_gla"}:
        return scale * x["query"], key, None, value, g
    if name == "gdn2":
        erase, value = x["erase_gate"] * key, x["write_gate"] * value
        return scale * x["query"], key, erase, value, g
    if name.startswith("preconditioned"):
        written = x["beta"][..., None] * preconditioned(x)
        return scale * x["query"], written, key, value, g
    erase = (x["auxiliary_key"], True) if name == "comba" else key
    return scale * x["query"], x["beta"][..., None] * key, erase, value, g


def preconditioned(x):
    """Return keys times a squash of the sums of their squares, in any dtype."""
    sums, written = 0.0, []
    for t in range(x["key"].shape[-2]):
        key = x["key"][..., t, :]
        kept = x["preconditioner_log_decay"][..., t, None].exp()
        sums = kept * sums + x["preconditioner_beta"][..., t, None] * key * key
        r = (sums + 1e-6).log() - x["center"][:, None]
        written.append(key * (-x["log_range"][:, None] * r / (1 + abs(r))).exp())
    return importlib.import_module("torch").stack(written, dim=-2)


def sequential(torch, q, w, a, v, g, *, skipped=None):
    """One token after the other; `skipped` is a token whose erase is left out."""
    memory = torch.zeros((*w.shape[:-2], w.shape[-1], v.shape[-1]), dtype=w.dtype)
    a, undecayed = a if isinstance(a, tuple) else (a, False)
    output = []
    for t in range(w.shape[-2]):
        before = memory
        if g is not None:
            memory = memory * torch.exp(g[..., t, :])[..., None]
        u = v[..., t, :]
        if a is not None and t != skipped:
            source = before if undecayed else memory
            u = u - torch.einsum("...k,...kv->...v", a[..., t, :], source)
        memory = memory + w[..., t, :, None] * u[..., None, :]
        output.append(torch.einsum("...k,...kv->...v", q[..., t, :], memory))
    return torch.stack(output, -2), memory


def chunked(torch, q, w, a, v, g, *, chunk, everywhere=False, broken=False):
    """Chunk by chunk with an explicit inverse and cumulative log-decays.

    With `everywhere`, log-decays are summed over the whole sequence; `broken` leaves
    the first decay of the second chunk out of what comes from the first.
    """
    memory = torch.zeros((*w.shape[:-2], w.shape[-1], v.shape[-1]), dtype=w.dtype)
    a, undecayed = a if isinstance(a, tuple) else (a, False)
    g = torch.zeros_like(w[..., :1]) if g is None else torch.clamp(g, min=-2e4)
    g = torch.where(g < -1e4, torch.full_like(g, -104.0), g)
    summed, output = torch.cumsum(g, -2), []
    for first in range(0, w.shape[-2], chunk):
        span = slice(first, first + chunk)
        q_, w_, v_, g_ = (x[..., span, :] for x in (q, w, v, g))
        inner = summed[..., span, :] if everywhere else torch.cumsum(g_, -2)
        base = torch.zeros_like(inner[..., :1, :])
        if everywhere and first:
            base = summed[..., first - 1 : first, :]
        size = w_.shape[-2]
        seen = torch.tril(torch.ones((size, size), dtype=torch.bool))[..., None]
        apart = inner[..., :, None, :] - inner[..., None, :, :]
        factor = torch.exp(torch.where(seen, apart, torch.zeros_like(apart))) * seen
        factor = factor.expand((*factor.shape[:-1], w.shape[-1]))
        start = torch.exp(inner - base)
        if broken and first == chunk:
            start = torch.exp(inner - base - g_[..., :1, :])
        u = v_
        if a is not None:
            a_ = a[..., span, :]
            reach, begun = factor, start
            if undecayed:
                reach = before_decay(torch, apart, g_, w.shape[-1])
                begun = torch.exp(inner - base - g_)
            pairs = torch.einsum("...tk,...tsk,...sk->...ts", a_, reach, w_)
            eye = torch.eye(size, dtype=w.dtype)
            lower = eye + torch.tril(pairs, -1)
            inverse = torch.linalg.solve_triangular(
                lower, eye.expand(lower.shape), upper=False
            )
            u = inverse @ v_ - (inverse @ (a_ * begun)) @ memory
        scores = torch.einsum("...tk,...tsk,...sk->...ts", q_, factor, w_)
        output.append(scores @ u + (q_ * start) @ memory)
        to_end = w_ * torch.exp(inner[..., -1:, :] - inner)
        kept = torch.exp(inner[..., -1, :] - base[..., 0, :])[..., None]
        memory = kept * memory + to_end.transpose(-1, -2) @ u
    return torch.cat(output, -2), memory


def before_decay(torch, apart, g, channels):
    """Return the weights with which row t reads row s before its own decay."""
    size = g.shape[-2]
    earlier = torch.tril(torch.ones((size, size), dtype=torch.bool), -1)[..., None]
    apart = apart - g[..., :, None, :]
    factor = torch.exp(torch.where(earlier, apart, torch.zeros_like(apart))) * earlier
    return factor.expand((*factor.shape[:-1], channels))
