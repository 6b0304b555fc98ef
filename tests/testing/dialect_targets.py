"""Delta rules with the signatures of published kernels, right and with a fault.

`chunk_kda` and `fused_recurrent_gated_delta_rule` have those of flash-linear-attention,
`fused_sigmoid_gating_delta_rule_update` that of SGLang: NumPy, one token at a time.
"""

import numpy as np

FAULTS = (
    "threshold",
    "bias",
    "rate",
    "bound",
    "unbounded",
    "mirrored",
    "logits",
    "twice",
    "epsilon",
    "transposed",
)


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def softplus(x, threshold=20.0):
    with np.errstate(over="ignore"):
        return np.where(x > threshold, x, np.log1p(np.exp(x)))


def decays(g, A_log, dt_bias, lower_bound, fault):
    """Return log-decays of raw gates, (batch, time, heads, ...)."""
    if A_log is None:
        rate = g.dtype.type(np.exp(1 / 8) if fault == "head" else 1)
    else:
        rate = A_log if fault == "rate" else np.exp(A_log)
        rate = rate.reshape(rate.shape + (1,) * (g.ndim - 3)).astype(g.dtype)
    left_out = dt_bias is None or fault == "bias"
    z = g if left_out else g + dt_bias.astype(g.dtype)
    if lower_bound is None:
        return -rate * softplus(z, 2.0 if fault == "threshold" else 20.0)
    bound = -1.0 if fault == "unbounded" else lower_bound
    bound *= 1.01 if fault == "bound" else 1
    return g.dtype.type(bound) * sigmoid(-rate * z if fault == "mirrored" else rate * z)


def delta(q, k, v, g, beta, scale, state, v_first):
    """Return outputs and the last memory of the delta rule, token by token."""
    heads = v.shape[2] // q.shape[2]
    q, k = (np.repeat(x, heads, axis=2) for x in (q, k))
    memory = np.zeros((*v.shape[::2], q.shape[3], v.shape[3]), v.dtype)
    memory = memory.transpose(0, 1, 2, 3) if state is None else state
    if state is not None and v_first:
        memory = state.swapaxes(-1, -2)
    outputs = np.zeros_like(v)
    for t in range(v.shape[1]):
        decay = np.exp(g[:, t])
        memory = memory * (decay[..., None] if g.ndim == 4 else decay[..., None, None])
        read = (k[:, t, :, None] @ memory)[..., 0, :]
        update = beta[:, t, :, None] * (v[:, t] - read)
        memory = memory + k[:, t, :, :, None] * update[..., None, :]
        outputs[:, t] = (v.dtype.type(scale) * q[:, t, :, None] @ memory)[..., 0, :]
    return outputs, memory.swapaxes(-1, -2).copy() if v_first else memory


def _judged(*rows, scale, state, last, switches, gates, fault, rule=delta):
    dtype = rows[2].dtype
    wide = np.result_type(dtype, np.float32)
    q, k, v, g, beta = (x.astype(wide) for x in rows)
    normalised, raw, logits, twice, v_first = switches
    if normalised:
        epsilon = wide.type(1e-12 if fault == "epsilon" else 1e-6)
        q, k = (
            x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + epsilon) for x in (q, k)
        )
    if raw:
        g = decays(g, *gates, fault)
    if logits and fault != "logits":
        beta = sigmoid(beta) * (2 if twice and fault != "twice" else 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    v_first = v_first and fault != "transposed"
    outputs, memory = rule(q, k, v, g, beta, scale, state, v_first)
    return outputs.astype(dtype), memory if last else None


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    lower_bound=None,
    state_v_first=False,
    fault="",
    rule=delta,
    **kwargs,
):
    del safe_gate
    gates = kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound
    switches = (
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
    )
    return _judged(
        *(q, k, v, g, beta),
        scale=scale,
        state=initial_state,
        last=output_final_state,
        switches=switches,
        gates=gates,
        fault=fault,
        rule=rule,
    )


def fused_sigmoid_gating_delta_rule_update(
    A_log,
    a,
    dt_bias,
    softplus_beta,
    softplus_threshold,
    q,
    k,
    v,
    b,
    initial_state_source,
    initial_state_indices,
    scale=None,
    use_qk_l2norm_in_kernel=False,
    fault="",
):
    assert (softplus_beta, softplus_threshold) == (1.0, 20.0)
    assert initial_state_source is initial_state_indices is None
    outputs, _ = _judged(
        *(q, k, v, a, b),
        scale=scale,
        state=None,
        last=False,
        switches=(use_qk_l2norm_in_kernel, True, True, False, False),
        gates=(A_log, dt_bias, None),
        fault=fault,
    )
    return outputs


def flash_kda(
    q,
    k,
    v,
    g,
    beta,
    scale,
    out,
    A_log,
    dt_bias,
    lower_bound,
    initial_state=None,
    final_state=None,
    fault="",
):
    """Write output and last state, as the forward pass of FlashKDA does."""
    outputs, last = _judged(
        *(q, k, v, g, beta),
        scale=scale,
        state=initial_state,
        last=True,
        switches=(False, True, True, False, True),
        gates=(A_log, dt_bias, lower_bound),
        fault=fault,
    )
    out[...] = outputs
    if final_state is not None and fault != "unwritten":
        final_state[...] = last
