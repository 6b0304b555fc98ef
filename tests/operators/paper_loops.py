"""The equations of the family, one token after the other, one head, in float64.

Each function is a transcription of its source, in the variables and the orientation of
that source, and shares nothing with its neighbours: what is wrong in one of them is not
wrong in another. They are slow, and meant to be read next to the paper. Everything else
that computes an operator of the family is compared with them.

A loop takes the arrays of one head by their canonical names, the scale, and a state or
None; an input that is absent or None has its neutral value. It returns the output
``(T, V)`` and the state, a tuple of one or two arrays, memory first, as ``(K, V)``.
"""

import math

import numpy as np

from linkern.adapters.catalogue import function_of


def retention(inputs, scale, state=None, *, log_decay=None, head=0):
    """RetNet: ``S_n = gamma S_{n-1} + K_n^T V_n``, ``gamma = 1 - 2^(-5-head)``."""
    Q, K, V = inputs["query"], inputs["key"], inputs["value"]
    gamma = 1 - 2.0 ** (-5 - head) if log_decay is None else math.exp(log_decay)
    S = np.zeros((K.shape[1], V.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(Q), V.shape[1]))
    for n in range(len(Q)):
        S = gamma * S + np.outer(K[n], V[n])
        output[n] = scale * (Q[n] @ S)
    return output, (S,)


def lightning_attention(inputs, scale, state=None, *, head=0, heads=1, **where):
    """Lightning attention: a fixed decay that is linear in the head and the layer."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    layer, layers = where.get("layer", 0), where.get("layers", 1)
    slope = 8 / heads * (1 - layer / layers) * head
    kv = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = []
    for t in range(len(q)):
        kv = math.exp(-slope) * kv + k[t][:, None] @ v[t][None, :]
        output.append(scale * kv.T @ q[t])
    return np.array(output).reshape(len(q), v.shape[1]), (kv,)


def simple_gla(inputs, scale, state=None):
    """Mamba-2 in its recurrent mode: ``h = a h + B x^T``, ``y = h^T C``."""
    C, B, x = inputs["query"], inputs["key"], inputs["value"]
    log_a = inputs.get("log_decay")
    h = np.zeros((B.shape[1], x.shape[1])) if state is None else np.array(state[0])
    y = np.zeros((len(C), x.shape[1]))
    for t in range(len(C)):
        a = 1.0 if log_a is None else np.exp(log_a[t])
        for n in range(h.shape[0]):
            for p in range(h.shape[1]):
                h[n, p] = a * h[n, p] + B[t, n] * x[t, p]
                y[t, p] += scale * C[t, n] * h[n, p]
    return y, (h,)


def gla(inputs, scale, state=None):
    """Gated linear attention: ``S = (alpha 1^T) * S + k v^T``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g = inputs.get("log_decay")
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        for i in range(k.shape[1]):
            alpha = 1.0 if g is None else np.exp(g[t, i])
            S[i] = alpha * S[i] + k[t, i] * v[t]
            output[t] += scale * q[t, i] * S[i]
    return output, (S,)


def hgrn(inputs, scale=None, state=None):
    """HGRN: ``h_t = f_t * h_{t-1} + x_t``, the input gate already in ``x``."""
    x, log_f = inputs["value"], inputs.get("log_decay")
    h = np.zeros(x.shape[1]) if state is None else np.array(state[0][0])
    output = np.zeros(x.shape)
    for t in range(len(x)):
        f = np.ones(x.shape[1]) if log_f is None else np.exp(log_f[t])
        h = f * h + x[t]
        output[t] = h
    return output, (h[None],)


def rwkv4(inputs, scale=None, state=None):
    """RWKV-4: a numerator and a denominator, read with a bonus before the decay."""
    k, v = inputs["key"], inputs["value"]
    w = inputs.get("log_decay")
    u = inputs.get("bonus")
    w = np.zeros(v.shape[1]) if w is None else w
    u = np.zeros(v.shape[1]) if u is None else u
    num, den = np.zeros(v.shape[1]), np.zeros(v.shape[1])
    if state is not None:
        den = np.exp(state[1])
        num = state[0][0] * den
    output = np.zeros(v.shape)
    for t in range(len(v)):
        output[t] = (num + np.exp(u + k[t]) * v[t]) / (den + np.exp(u + k[t]))
        num = np.exp(w) * num + np.exp(k[t]) * v[t]
        den = np.exp(w) * den + np.exp(k[t])
    mean = np.divide(num, den, out=np.zeros_like(num), where=den > 0)
    with np.errstate(divide="ignore"):
        return output, (mean[None], np.log(den))


def rwkv6(inputs, scale, state=None):
    """RWKV-6 with ``s[i, j]``: value ``j``, key ``i``; the bonus at this token only."""
    r, k, v = inputs["query"], inputs["key"], inputs["value"]
    log_w, u = inputs.get("log_decay"), inputs.get("bonus")
    s = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(r), v.shape[1]))
    for t in range(len(r)):
        for i in range(k.shape[1]):
            bonus = 1.0 if u is None else u[i]
            w = 1.0 if log_w is None else np.exp(log_w[t, i])
            for j in range(v.shape[1]):
                kv = k[t, i] * v[t, j]
                output[t, j] += scale * r[t, i] * (bonus * kv + s[i, j])
                s[i, j] = w * s[i, j] + kv
    return output, (s,)


def rwkv7(inputs, scale, state=None):
    """RWKV-7, values by keys: ``wkv (diag(w) - kappa^T (a kappa)) + v^T k``."""
    r, k, v = inputs["query"], inputs["key"], inputs["value"]
    kappa, a, log_w = inputs["removal_key"], inputs["removal_rate"], inputs["log_decay"]
    wkv = np.zeros((v.shape[1], k.shape[1]))
    if state is not None:
        wkv = np.array(state[0]).T
    output = np.zeros((len(r), v.shape[1]))
    for t in range(len(r)):
        w = np.ones(k.shape[1]) if log_w is None else np.exp(log_w[t])
        rate = np.ones(k.shape[1]) if a is None else a[t]
        G = np.diag(w) - np.outer(kappa[t], rate * kappa[t])
        wkv = wkv @ G + np.outer(v[t], k[t])
        output[t] = scale * (wkv @ r[t])
    return output, (wkv.T,)


def dplr(inputs, scale, state=None):
    """Diagonal plus low rank: ``S_t = (D_t + b_t a_t^T) S_{t-1} + k_t v_t^T``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    a, b, g = inputs["a"], inputs["b"], inputs.get("log_decay")
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        D = np.eye(k.shape[1]) if g is None else np.diag(np.exp(g[t]))
        S = (D + np.outer(b[t], a[t])) @ S + np.outer(k[t], v[t])
        output[t] = scale * (S.T @ q[t])
    return output, (S,)


def iplr(inputs, scale, state=None):
    """Identity plus low rank: what is read along ``a`` comes back along ``b``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    a, b = inputs["a"], inputs["b"]
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        old = S.copy()
        for j in range(v.shape[1]):
            read = sum(a[t, i] * old[i, j] for i in range(k.shape[1]))
            for i in range(k.shape[1]):
                S[i, j] = old[i, j] + b[t, i] * read + k[t, i] * v[t, j]
        output[t] = scale * (q[t] @ S)
    return output, (S,)


def delta_rule(inputs, scale, state=None):
    """DeltaNet, values by keys: ``S_t = S_{t-1} (I - beta k k^T) + beta v k^T``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    beta = inputs.get("beta")
    S = np.zeros((v.shape[1], k.shape[1])) if state is None else np.array(state[0]).T
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        rate = 1.0 if beta is None else beta[t]
        v_old = S @ k[t]
        v_new = rate * v[t] + (1 - rate) * v_old
        S = S - np.outer(v_old, k[t]) + np.outer(v_new, k[t])
        output[t] = scale * (S @ q[t])
    return output, (S.T,)


def gated_delta_rule(inputs, scale, state=None):
    """Gated DeltaNet: ``S_t = S_{t-1} alpha (I - beta k k^T) + beta v k^T``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g, beta = inputs.get("log_decay"), inputs.get("beta")
    S = np.zeros((v.shape[1], k.shape[1])) if state is None else np.array(state[0]).T
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        alpha = 1.0 if g is None else np.exp(g[t])
        rate = 1.0 if beta is None else beta[t]
        erase = np.eye(k.shape[1]) - rate * np.outer(k[t], k[t])
        S = alpha * (S @ erase) + rate * np.outer(v[t], k[t])
        output[t] = scale * (S @ q[t])
    return output, (S.T,)


def kda(inputs, scale, state=None):
    """Kimi delta attention: ``(I - beta k k^T) Diag(alpha) S + beta k v^T``."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g, beta = inputs.get("log_decay"), inputs.get("beta")
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        alpha = np.ones(k.shape[1]) if g is None else np.exp(g[t])
        rate = 1.0 if beta is None else beta[t]
        decayed = np.diag(alpha) @ S
        transition = np.eye(k.shape[1]) - rate * np.outer(k[t], k[t])
        S = transition @ decayed + rate * np.outer(k[t], v[t])
        output[t] = scale * (S.T @ q[t])
    return output, (S,)


def _preconditioned(inputs, scale, state, alpha):
    """Delta rule that writes ``k~ = M k``, ``M`` a squash of ``A``, and erases along k.

    ``alpha(g_t)`` is what token t keeps of the memory, a matrix.
    """
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    names = ("log_decay", "beta", "preconditioner_log_decay", "preconditioner_beta")
    g, beta, g_A, beta_A = (inputs.get(name) for name in names)
    c = -0.2 if inputs.get("center") is None else inputs["center"]
    x = 1.5 if inputs.get("log_range") is None else math.exp(inputs["log_range"])
    d = k.shape[1]
    S, A = np.zeros((d, v.shape[1])), np.zeros(d)
    if state is not None:
        S, A = np.array(state[0]), np.array(state[1])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        kept = 1.0 if g_A is None else math.exp(g_A[t])
        A = kept * A + (1.0 if beta_A is None else beta_A[t]) * k[t] ** 2
        M = np.zeros((d, d))
        for i in range(d):
            r = math.log(A[i] + 1e-6) - c
            M[i, i] = x ** -(r / (1 + abs(r)))
        rate = 1.0 if beta is None else beta[t]
        S = np.eye(d) @ S if g is None else alpha(g[t]) @ S
        S = S + rate * np.outer(M @ k[t], v[t] - S.T @ k[t])
        output[t] = scale * (S.T @ q[t])
    return output, (S, A)


def preconditioned_gated_delta_rule(inputs, scale, state=None):
    """Preconditioned GDN: the memory is kept by one number for each token."""
    d = inputs["key"].shape[1]
    return _preconditioned(inputs, scale, state, lambda g: np.exp(g) * np.eye(d))


def preconditioned_kda(inputs, scale, state=None):
    """Preconditioned KDA: the memory is kept by a number for each channel."""
    return _preconditioned(inputs, scale, state, lambda g: np.diag(np.exp(g)))


def momentum_delta_rule(inputs, scale, state=None):
    """Momentum DeltaNet: a step along ``M``, a decaying sum of gradients ``k w^T``.

    Its ``M`` points up the loss; the memory that is kept, down.
    """
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    names = ("log_decay", "momentum_log_decay", "beta", "momentum_beta")
    log_alpha, log_mu, beta, eta = (inputs.get(name) for name in names)
    d = k.shape[1]
    S, M = np.zeros((d, v.shape[1])), np.zeros((d, v.shape[1]))
    if state is not None:
        S, M = np.array(state[0][:d]), -state[0][d:]
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        alpha = 1.0 if log_alpha is None else math.exp(log_alpha[t])
        mu = 1.0 if log_mu is None else math.exp(log_mu[t])
        p = alpha * k[t]
        w = -(v[t] - p @ S)
        M = mu * M + np.outer(k[t] if eta is None else eta[t] * k[t], w)
        S = alpha * S - (1.0 if beta is None else beta[t]) * M
        output[t] = scale * (q[t] @ S)
    return output, (np.concatenate([S, -M]),)


def gdn2(inputs, scale, state=None):
    """Gated DeltaNet 2: gates of their own for what is erased and what is written."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g = inputs.get("log_decay")
    b, w = inputs.get("erase_gate"), inputs.get("write_gate")
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        if g is not None:
            S = S * np.exp(g[t])[:, None]
        erased = k[t] if b is None else b[t] * k[t]
        written = v[t] if w is None else w[t] * v[t]
        old = (erased[:, None] * S).sum(axis=0)
        S = S + k[t][:, None] * (written - old)[None, :]
        output[t] = scale * (q[t][:, None] * S).sum(axis=0)
    return output, (S,)


def comba(inputs, scale, state=None, *, undecayed=True):
    """Comba: a closed loop whose feedback key ``p`` is not the key that writes.

    `p` reads the memory as it was before this token's decay, a scalar plus low rank, as
    the published kernels do; not `undecayed`, after it, as one published loop does.
    """
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    p, g, beta = inputs["auxiliary_key"], inputs.get("log_decay"), inputs.get("beta")
    S = np.zeros((v.shape[1], k.shape[1])) if state is None else np.array(state[0]).T
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        alpha = 1.0 if g is None else np.exp(g[t])
        rate = 1.0 if beta is None else beta[t]
        erase = rate * np.outer(p[t], k[t])
        if not undecayed:
            erase = alpha * erase
        S = S @ (alpha * np.eye(k.shape[1]) - erase)
        S = S + rate * np.outer(v[t], k[t])
        output[t] = scale * (S @ q[t])
    return output, (S.T,)


def gated_delta_product(inputs, scale, state=None):
    """Gated DeltaProduct: a decay, then some Householder steps, then one read."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g, beta = inputs.get("log_decay"), inputs.get("beta")
    steps = len(k) // len(q) if len(q) else 1
    H = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        A = np.eye(k.shape[1])
        B = np.zeros_like(H)
        for j in range(t * steps, (t + 1) * steps):
            rate = 1.0 if beta is None else beta[j]
            householder = np.eye(k.shape[1]) - rate * np.outer(k[j], k[j])
            A = householder @ A
            B = householder @ B + rate * np.outer(k[j], v[j])
        H = (1.0 if g is None else np.exp(g[t])) * (A @ H) + B
        output[t] = scale * (q[t] @ H)
    return output, (H,)


def oja(inputs, scale, state=None):
    """Gated Oja rule: values decay, and the erase acts from the side of the values."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    gv, beta = inputs.get("log_decay"), inputs.get("beta")
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else np.array(state[0])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        if gv is not None:
            S = S @ np.diag(np.exp(gv[t]))
        rate = 1.0 if beta is None else beta[t]
        S = S + rate * np.outer(k[t] - S @ v[t], v[t])
        output[t] = scale * (q[t] @ S)
    return output, (S,)


def gsa(inputs, scale, state=None):
    """Gated slot attention: softmax over slots between two gated passes."""
    q, k, v, s = (inputs[name] for name in ("query", "key", "value", "slots"))
    g = inputs.get("log_decay")
    K_slots = np.zeros((s.shape[1], k.shape[1]))
    V_slots = np.zeros((s.shape[1], v.shape[1]))
    if state is not None:
        K_slots = np.array(state[0][:, : k.shape[1]])
        V_slots = np.array(state[0][:, k.shape[1] :])
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        scores = np.zeros(s.shape[1])
        for m in range(s.shape[1]):
            alpha = 1.0 if g is None else np.exp(g[t, m])
            K_slots[m] = alpha * K_slots[m] + s[t, m] * k[t]
            V_slots[m] = alpha * V_slots[m] + s[t, m] * v[t]
            scores[m] = scale * (K_slots[m] @ q[t])
        p = np.exp(scores - scores.max())
        p = p / p.sum()
        for m in range(s.shape[1]):
            output[t] += p[m] * V_slots[m]
    return output, (np.concatenate((K_slots, V_slots), axis=1),)


def abc(inputs, scale, state=None):
    """Attention with bounded memory: every slot is an exponential average so far."""
    q, k, v, s = (inputs[name] for name in ("query", "key", "value", "slots"))
    slots, key_dim = s.shape[1], k.shape[1]
    sum_k, sum_v = np.zeros((slots, key_dim)), np.zeros((slots, v.shape[1]))
    sum_exp = np.zeros(slots)
    if state is not None:
        sum_exp = np.exp(state[1])
        sum_k = state[0][:, :key_dim] * sum_exp[:, None]
        sum_v = state[0][:, key_dim:] * sum_exp[:, None]
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        sum_exp = sum_exp + np.exp(s[t])
        sum_k = sum_k + np.exp(s[t])[:, None] * k[t]
        sum_v = sum_v + np.exp(s[t])[:, None] * v[t]
        p = np.exp(scale * (sum_k @ q[t]) / sum_exp)
        output[t] = (p / p.sum()) @ (sum_v / sum_exp[:, None])
    filled = np.where(sum_exp > 0, sum_exp, 1.0)[:, None]
    memory = np.concatenate((sum_k / filled, sum_v / filled), axis=1)
    with np.errstate(divide="ignore"):
        return output, (memory, np.log(sum_exp))


def linear_attention(inputs, scale, state=None):
    """Katharopoulos et al. 2020, equations 16 to 20, with their elu(x) + 1."""
    del scale  # it cancels

    def phi(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    q, k, v = phi(inputs["query"]), phi(inputs["key"]), inputs["value"]
    s, z = (
        (np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]))
        if state is None
        else (np.array(state[0]), np.array(state[1]))
    )
    output = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        s = s + np.outer(k[i], v[i])
        z = z + k[i]
        output[i] = (q[i] @ s) / (q[i] @ z)
    return output, (s, z)


def based(inputs, scale, state=None):
    """Based: the Taylor series of the exponential to second order as the weight."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]

    def phi(x):
        square = [
            x[i] * x[j] / math.sqrt(2) for i in range(len(x)) for j in range(len(x))
        ]
        return np.array([1.0, *x, *square])

    width = 1 + k.shape[1] + k.shape[1] ** 2
    S0, z0 = (
        (np.zeros((width, v.shape[1])), np.zeros(width)) if state is None else state
    )
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        above, below = phi(scale * q[t]) @ S0, phi(scale * q[t]) @ z0
        for j in range(t + 1):
            x = scale * (q[t] @ k[j])
            above = above + (1 + x + x**2 / 2) * v[j]
            below = below + (1 + x + x**2 / 2)
        output[t] = above / below
    memory, normalizer = np.array(S0), np.array(z0)
    for j in range(len(k)):
        memory = memory + np.outer(phi(k[j]), v[j])
        normalizer = normalizer + phi(k[j])
    return output, (memory, normalizer)


def rebased(inputs, scale, state=None):
    """ReBased: the square of the score as the weight."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    width = k.shape[1] ** 2
    S0, z0 = (
        (np.zeros((width, v.shape[1])), np.zeros(width)) if state is None else state
    )
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        pairs = np.outer(scale * q[t], scale * q[t]).ravel()
        above, below = pairs @ S0, pairs @ z0
        for j in range(t + 1):
            weight = (scale * (q[t] @ k[j])) ** 2
            above = above + weight * v[j]
            below = below + weight
        output[t] = above / below
    memory, normalizer = np.array(S0), np.array(z0)
    for j in range(len(k)):
        memory = memory + np.outer(np.outer(k[j], k[j]).ravel(), v[j])
        normalizer = normalizer + np.outer(k[j], k[j]).ravel()
    return output, (memory, normalizer)


def power_retention(inputs, scale, state=None, *, degree=2):
    """Power retention: ``(Q_i . K_j)^p`` times the gates between, over their sum."""
    Q, K, V = inputs["query"], inputs["key"], inputs["value"]
    log_G, d = inputs.get("log_decay"), K.shape[1]

    def phi(x):
        entries = []
        for index in np.ndindex((d,) * degree):
            if list(index) != sorted(index):
                continue
            orders = math.factorial(degree)
            for i in set(index):
                orders //= math.factorial(index.count(i))
            entries.append(math.sqrt(orders) * math.prod(x[i] for i in index))
        return np.array(entries)

    D = math.comb(d + degree - 1, degree)
    S0, s0 = (np.zeros((D, V.shape[1])), np.zeros(D)) if state is None else state
    log_G = np.zeros(len(Q)) if log_G is None else log_G
    Y = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        begun = math.exp(sum(log_G[: i + 1]))
        above, below = begun * phi(scale * Q[i]) @ S0, begun * phi(scale * Q[i]) @ s0
        for j in range(i + 1):
            A = (scale * (Q[i] @ K[j])) ** degree
            A = A * math.exp(sum(log_G[j + 1 : i + 1]))
            above, below = above + A * V[j], below + A
        Y[i] = above / below
    S, s = math.exp(sum(log_G)) * S0, math.exp(sum(log_G)) * s0
    for j in range(len(K)):
        kept = math.exp(sum(log_G[j + 1 :]))
        S, s = S + kept * np.outer(phi(K[j]), V[j]), s + kept * phi(K[j])
    return Y, (S, s)


def mesa(inputs, scale, state=None):
    """MesaNet: ridge regression on the keys so far, solved for the query."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g, beta, ridge = (inputs.get(name) for name in ("log_decay", "beta", "ridge"))
    d = k.shape[1]
    H_kk, H_kv = np.zeros((d, d)), np.zeros((d, v.shape[1]))
    if state is not None:
        H_kk, H_kv = np.array(state[0][:, :d]), np.array(state[0][:, d:])
    Lambda = np.eye(d) if ridge is None else np.diag(ridge)
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        gamma = 1.0 if g is None else np.exp(g[t])
        rate = 1.0 if beta is None else beta[t]
        H_kk = gamma * H_kk + rate * np.outer(k[t], k[t])
        H_kv = gamma * H_kv + rate * np.outer(k[t], v[t])
        q_star = np.linalg.solve(H_kk + Lambda, q[t])
        output[t] = scale * (H_kv.T @ q_star)
    return output, (np.concatenate((H_kk, H_kv), axis=1),)


def mlstm(inputs, scale, state=None):
    """xLSTM: ``C = f C + i v k^T``, ``n = f n + i k``, over the exponential of ``m``.

    Beside its ``C``, ``n`` and ``m``, what the weights add up to: the state here is
    divided by that, and not by ``exp(m)``.
    """
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    i_tilde, log_f = inputs.get("input_gate"), inputs.get("log_decay")
    i_tilde = np.zeros(len(q)) if i_tilde is None else i_tilde
    log_f = np.zeros(len(q)) if log_f is None else log_f
    C, n = np.zeros((v.shape[1], k.shape[1])), np.zeros(k.shape[1])
    m, total = -np.inf, 0.0
    if state is not None and np.isfinite(state[1][0]):
        C, n, m, total = state[0][:, :-1].T, state[0][:, -1], state[1][0], 1.0
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        previous, m = m, max(log_f[t] + m, i_tilde[t])
        f, i = np.exp(log_f[t] + previous - m), np.exp(i_tilde[t] - m)
        C = f * C + i * np.outer(v[t], k[t])
        n = f * n + i * k[t]
        total = f * total + i
        q_t = scale * q[t]
        with np.errstate(over="ignore"):
            output[t] = C @ q_t / max(abs(n @ q_t), np.exp(-m))
    memory = np.concatenate((C, n[None])).T
    if total == 0:
        return output, (memory, np.array([-np.inf]))
    return output, (memory / total, np.array([m + math.log(total)]))


def selective_scan(inputs, scale, state=None):
    """Mamba: ``h = exp(Delta A) h + Delta B x``, ``y = C h + D x``, by channel."""
    C, B, x = inputs["query"], inputs["key"], inputs["value"]
    Delta, A, D = (inputs.get(name) for name in ("dt", "log_decay_rate", "skip"))
    N, channels = B.shape[1], x.shape[1]
    h = np.zeros((channels, N)) if state is None else np.array(state[0]).T
    y = np.zeros(x.shape)
    for t in range(len(x)):
        for d in range(channels):
            delta = 1.0 if Delta is None else Delta[t, d]
            for n in range(N):
                A_bar = 1.0 if A is None else np.exp(delta * A[d, n])
                h[d, n] = A_bar * h[d, n] + delta * B[t, n] * x[t, d]
                y[t, d] += scale * C[t, n] * h[d, n]
            y[t, d] += 0.0 if D is None else D[d] * x[t, d]
    return y, (h.T,)


def mamba3(inputs, scale, state=None):
    """Mamba-3: rotary ``B`` and ``C``, and ``h = alpha h + beta B x + gamma B x``.

    ``beta`` weighs what the token before wrote, ``gamma`` what this one writes.
    """
    C, B, x = inputs["query"], inputs["key"], inputs["value"]
    T, N, P = len(x), B.shape[1], x.shape[1]
    Angles, DT, ADT, Lambda = (
        inputs.get(name) for name in ("angle", "dt", "log_decay", "trapezoid")
    )
    Angles = np.zeros((T, 0)) if Angles is None else Angles
    DT = np.ones(T) if DT is None else DT
    ADT = np.zeros(T) if ADT is None else ADT
    Lambda = np.ones(T) if Lambda is None else Lambda
    S = Angles.shape[1]
    h, rest = (np.zeros((N, P)), np.zeros(S + N + P)) if state is None else state
    theta, B_before, x_before = np.split(np.array(rest), [S, S + N])

    def rope(vector):
        pairs = vector[: 2 * S : 2] + 1j * vector[1 : 2 * S : 2]
        pairs = pairs * np.exp(1j * theta)
        flat = np.stack([pairs.real, pairs.imag], axis=1).reshape(-1)
        return np.concatenate([flat, vector[2 * S :]])

    y = np.zeros((T, P))
    for t in range(T):
        theta = np.mod(theta + np.tanh(Angles[t]) * np.pi * DT[t], 2 * np.pi)
        B_t, C_t = rope(B[t]), rope(C[t])
        alpha, gamma = np.exp(ADT[t]), Lambda[t] * DT[t]
        beta = (1 - Lambda[t]) * DT[t] * alpha
        h = (
            alpha * h
            + beta * np.outer(B_before, x_before)
            + gamma * np.outer(B_t, x[t])
        )
        y[t] = scale * C_t @ h
        B_before, x_before = B_t, x[t]
    return y, (h, np.concatenate([theta, B_before, x_before]))


def mamba3_mimo(inputs, scale, state=None):
    """MIMO: ``h = alpha h + beta B X^T + gamma B X^T`` with ``B (N, R)``, ``X (P, R)``.

    ``Y = C^T h`` has R rows, which ``MIMO_Out`` mixes into one.
    """
    MIMO_V, MIMO_Out = inputs["value_mix"], inputs["output_mix"]
    (R, P), x = MIMO_V.shape, inputs["value"]
    T, N = len(x), inputs["key"].shape[1] // R
    B, C = (inputs[name].reshape(T, R, N) for name in ("key", "query"))
    Angles, DT, ADT, Lambda = (
        inputs.get(name) for name in ("angle", "dt", "log_decay", "trapezoid")
    )
    Angles = np.zeros((T, 0)) if Angles is None else Angles
    DT = np.ones(T) if DT is None else DT
    ADT = np.zeros(T) if ADT is None else ADT
    Lambda = np.ones(T) if Lambda is None else Lambda
    S = Angles.shape[1]
    if state is None:
        state = np.zeros((N, P)), np.zeros(S + R * N + P)
    h, (theta, B_before, x_before) = state[0], np.split(state[1], [S, S + R * N])
    B_before = B_before.reshape(R, N)
    Y = np.zeros((T, R, P))
    for t in range(T):
        theta = np.mod(theta + np.tanh(Angles[t]) * np.pi * DT[t], 2 * np.pi)
        cos, sin = np.cos(theta), np.sin(theta)
        B_t, C_t = B[t].copy(), C[t].copy()
        for before, after in ((B[t], B_t), (C[t], C_t)):
            for i in range(S):
                first, second = before[:, 2 * i], before[:, 2 * i + 1]
                after[:, 2 * i] = cos[i] * first - sin[i] * second
                after[:, 2 * i + 1] = sin[i] * first + cos[i] * second
        alpha = np.exp(ADT[t])
        h = alpha * h
        for r in range(R):
            beta, gamma = (1 - Lambda[t]) * DT[t] * alpha, Lambda[t] * DT[t]
            h = h + beta * np.outer(B_before[r], MIMO_V[r] * x_before)
            h = h + gamma * np.outer(B_t[r], MIMO_V[r] * x[t])
        Y[t] = scale * C_t @ h
        B_before, x_before = B_t, x[t]
    y = np.einsum("trp,rp->tp", Y, MIMO_Out)
    return y, (h, np.concatenate([theta, B_before.ravel(), x_before]))


def level_of(t, j):
    """Level of the bucket of a Fenwick tree in which token `t` finds token `j`."""
    return 0 if t == j else math.floor(math.log2(t ^ j)) + 1


def log_linear_attention(inputs, scale, state=None, *, position=0):
    """Log-linear attention: a level for each power of two of the distance back."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]
    g, scales = inputs.get("log_decay"), inputs.get("level_scales")
    T = len(q)
    if scales is None:
        scales = np.ones((T, (position + T).bit_length() + 1))
    levels = scales.shape[1]
    g = np.zeros(T) if g is None else g
    output = np.zeros((T, v.shape[1]))
    buckets = np.zeros((levels, k.shape[1], v.shape[1]))
    for t in range(T):
        for j in range(t + 1):
            lam = scales[t, level_of(position + t, position + j)]
            decay = np.exp(sum(g[j + 1 : t + 1]))
            output[t] += scale * lam * decay * (q[t] @ k[j]) * v[j]
    for j in range(T):
        decay = np.exp(sum(g[j + 1 : T]))
        level = level_of(position + T, position + j)
        buckets[level] += decay * np.outer(k[j], v[j])
    if state is not None:
        for level, bucket in enumerate(state[0]):
            if not bucket.any():
                continue
            assert level > 0, "no token before this one is at level 0"
            size = 1 << (level - 1)
            # The tokens before `position` that differ from it first in this bit.
            assert position & size, "no token can be in this bucket"
            member = (position ^ size) // size * size
            for t in range(T):
                lam = scales[t, level_of(position + t, member)]
                decay = np.exp(sum(g[: t + 1]))
                output[t] += scale * lam * decay * (q[t] @ bucket)
            buckets[level_of(position + T, member)] += np.exp(sum(g)) * bucket
    return output, (buckets,)


LOOPS = {
    loop.__name__: loop
    for loop in (
        linear_attention,
        retention, lightning_attention, simple_gla, gla, hgrn, rwkv4, rwkv6, rwkv7,
        dplr, iplr, delta_rule, gated_delta_rule, kda, preconditioned_gated_delta_rule,
        preconditioned_kda, momentum_delta_rule, gdn2, comba,
        gated_delta_product, oja, gsa, abc, based, rebased, power_retention,
        mesa, mlstm, selective_scan, mamba3, mamba3_mimo,
        log_linear_attention,
    )
}  # fmt: skip
"""What each operator computes: ``LOOPS[name](inputs, scale, state, **keywords)``."""


def linear_attention(inputs, scale, state=None, *, causal=True):
    """Linear transformers: elu(x) + 1 as the feature map, rows divided by weights."""
    q, k, v = inputs["query"], inputs["key"], inputs["value"]

    def phi(x):
        return np.array([y + 1 if y > 0 else math.exp(y) for y in x])

    S, z = (
        (np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]))
        if state is None
        else state
    )
    states = []
    for j in range(len(k)):
        S, z = S + np.outer(phi(k[j]), v[j]), z + phi(k[j])
        states.append((S, z))
    output = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        S_i, z_i = states[i if causal else -1]
        output[i] = (scale * phi(q[i]) @ S_i) / (scale * phi(q[i]) @ z_i)
    return output, (S, z)


def linear_attention_noncausal(inputs, scale, state=None):
    """The same, of all keys at once."""
    return linear_attention(inputs, scale, state, causal=False)


_OF_THE_ORACLE = {
    loop.__name__: loop for loop in (linear_attention, linear_attention_noncausal)
}


def over_heads(name, inputs, scale, state=None, **keywords):
    """Run a loop on every batch and value head of arrays ``(B, H, T, ...)``.

    Query and key heads serve groups of value heads; what has no tokens (a bonus, a
    ridge) is broadcast against batches and heads.
    """
    name, options = function_of(name)
    keywords |= options
    constant = CONSTANT | ({"log_decay"} if name == "rwkv4" else set())
    B, HV = inputs["value"].shape[:2]
    each = {}
    for key, x in inputs.items():
        if x is None:
            continue
        if key in constant:
            axes = dict.fromkeys(("log_decay_rate", *_MIXES), 2)
            axes = axes.get(key, int(key not in ("center", "log_range")))
            shape = np.shape(x)
            each[key] = np.broadcast_to(x, (B, HV, *shape[len(shape) - axes :]))
        else:
            each[key] = np.repeat(x, HV // x.shape[1], axis=1)
    rates = keywords.pop("log_decay", None)
    results = []
    for b in range(B):
        for h in range(HV):
            here = dict(keywords)
            if name == "retention":
                here |= {"head": h, "log_decay": None if rates is None else rates[h]}
            if name == "lightning_attention":
                here |= {"head": h, "heads": HV}
            one = None if state is None else tuple(x[b, h] for x in state)
            head = {key: x[b, h] for key, x in each.items()}
            results.append({**LOOPS, **_OF_THE_ORACLE}[name](head, scale, one, **here))
    outputs = np.stack([output for output, _ in results])
    states = tuple(np.stack(x) for x in zip(*(s for _, s in results), strict=True))
    return (
        outputs.reshape(B, HV, *outputs.shape[1:]),
        tuple(x.reshape(B, HV, *x.shape[1:]) for x in states),
    )


def random_inputs(
    name, rng, length, key_dim=4, value_dim=3, *, slots=5, steps=2, position=0
):
    """Draw inputs of one head: unit keys where they erase, decays mild and strong."""

    def unit(*shape):
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    def decay(*shape):
        mild = -abs(rng.normal(size=shape)) / 10
        return np.where(rng.random(shape) < 0.3, rng.choice(STRENGTHS, shape), mild)

    T, K, V, rows = length, key_dim, value_dim, length * steps
    draw = {
        "query": lambda: rng.normal(size=(T, K)),
        "key": lambda: unit(T, K) if name in ERASING else rng.normal(size=(T, K)),
        "value": lambda: rng.normal(size=(T, V)),
        "log_decay": lambda: decay(T),
        "beta": lambda: rng.uniform(0.02, 0.98, T),
    }
    sums = {
        "preconditioner_log_decay": lambda: decay(T),
        "preconditioner_beta": lambda: rng.uniform(0.02, 0.98, T),
        "center": rng.normal,
        "log_range": lambda: rng.uniform(0.1, 0.5),
    }
    draw |= {
        "gla": {"log_decay": lambda: decay(T, K)},
        "hgrn": {"log_decay": lambda: decay(T, V)},
        "rwkv4": {
            "key": lambda: rng.normal(size=(T, V)),
            "log_decay": lambda: decay(V),
            "bonus": lambda: rng.normal(size=V),
        },
        "rwkv6": {
            "log_decay": lambda: decay(T, K),
            "bonus": lambda: rng.normal(size=K),
        },
        "rwkv7": {
            "log_decay": lambda: decay(T, K),
            "removal_key": lambda: unit(T, K),
            "removal_rate": lambda: rng.uniform(0.02, 0.98, (T, K)),
        },
        "dplr": {
            "a": lambda: -unit(T, K),
            "b": lambda: rng.uniform(0.02, 0.98, (T, K)) * unit(T, K),
            "log_decay": lambda: decay(T, K),
        },
        "iplr": {
            "a": lambda: -unit(T, K),
            "b": lambda: rng.uniform(0.02, 0.98, (T, K)) * unit(T, K),
        },
        "kda": {"log_decay": lambda: decay(T, K)},
        "preconditioned_gated_delta_rule": sums,
        "preconditioned_kda": {"log_decay": lambda: decay(T, K), **sums},
        "momentum_delta_rule": {
            "momentum_log_decay": lambda: decay(T),
            "momentum_beta": lambda: rng.uniform(0.02, 0.98, T),
        },
        "gdn2": {
            "log_decay": lambda: decay(T, K),
            "erase_gate": lambda: rng.uniform(0.02, 0.98, (T, K)),
            "write_gate": lambda: rng.uniform(0.02, 0.98, (T, V)),
        },
        "comba": {"auxiliary_key": lambda: unit(T, K)},
        "gated_delta_product": {
            "key": lambda: unit(rows, K),
            "value": lambda: rng.normal(size=(rows, V)),
            "beta": lambda: rng.uniform(0.02, 0.98, rows),
        },
        "oja": {"value": lambda: unit(T, V), "log_decay": lambda: decay(T, V)},
        "gsa": {
            "slots": lambda: rng.uniform(0.02, 0.98, (T, slots)),
            "log_decay": lambda: decay(T, slots),
        },
        "abc": {"slots": lambda: rng.normal(size=(T, slots))},
        "mesa": {"ridge": lambda: rng.uniform(0.25, 2, K)},
        "mlstm": {"input_gate": lambda: rng.normal(size=T)},
        "selective_scan": {
            "dt": lambda: rng.uniform(0, 2, (T, V)),
            "log_decay_rate": lambda: decay(V, K),
            "skip": lambda: rng.normal(size=V),
        },
        "mamba3": {
            "angle": lambda: rng.normal(size=(T, K // 2)),
            "dt": lambda: rng.uniform(0, 2, T),
            "trapezoid": lambda: rng.uniform(0, 1, T),
        },
        "mamba3_mimo": {
            **dict.fromkeys(("query", "key"), lambda: rng.normal(size=(T, steps * K))),
            **dict.fromkeys(_MIXES, lambda: rng.normal(size=(steps, V))),
            "angle": lambda: rng.normal(size=(T, K // 2)),
            "dt": lambda: rng.uniform(0, 2, T),
            "trapezoid": lambda: rng.uniform(0, 1, T),
        },
        "log_linear_attention": {
            "level_scales": lambda: rng.uniform(
                0.02, 0.98, (T, (position + T).bit_length() + 1)
            ),
        },
    }.get(name, {})
    return {field: draw[field]() for field in FIELDS[name]}


STRENGTHS = (0.0, -1e-4, -1.0, -5.0, -20.0)
_QKV = ("query", "key", "value")
_MIXES = ("value_mix", "output_mix")
_GATES = ("angle", "dt", "log_decay", "trapezoid")
_PRECONDITIONED = (
    *(*_QKV, "log_decay", "beta", "preconditioner_log_decay", "preconditioner_beta"),
    *("center", "log_range"),
)
FIELDS = {
    "linear_attention": _QKV,
    "retention": _QKV,
    "lightning_attention": _QKV,
    "simple_gla": (*_QKV, "log_decay"),
    "gla": (*_QKV, "log_decay"),
    "hgrn": ("value", "log_decay"),
    "rwkv4": ("key", "value", "log_decay", "bonus"),
    "rwkv6": (*_QKV, "log_decay", "bonus"),
    "rwkv7": (*_QKV, "log_decay", "removal_key", "removal_rate"),
    "dplr": (*_QKV, "a", "b", "log_decay"),
    "iplr": (*_QKV, "a", "b"),
    "delta_rule": (*_QKV, "beta"),
    "gated_delta_rule": (*_QKV, "log_decay", "beta"),
    "kda": (*_QKV, "log_decay", "beta"),
    "preconditioned_gated_delta_rule": _PRECONDITIONED,
    "preconditioned_kda": _PRECONDITIONED,
    "momentum_delta_rule": (
        *(*_QKV, "log_decay", "momentum_log_decay", "beta", "momentum_beta"),
    ),
    "gdn2": (*_QKV, "log_decay", "erase_gate", "write_gate"),
    "comba": (*_QKV, "auxiliary_key", "log_decay", "beta"),
    "gated_delta_product": (*_QKV, "log_decay", "beta"),
    "oja": (*_QKV, "log_decay", "beta"),
    "gsa": (*_QKV, "slots", "log_decay"),
    "abc": (*_QKV, "slots"),
    "based": _QKV,
    "rebased": _QKV,
    "power_retention": (*_QKV, "log_decay"),
    "mesa": (*_QKV, "log_decay", "beta", "ridge"),
    "mlstm": (*_QKV, "input_gate", "log_decay"),
    "selective_scan": (*_QKV, "dt", "log_decay_rate", "skip"),
    "mamba3": (*_QKV, *_GATES),
    "mamba3_mimo": (*_QKV, *_MIXES, *_GATES),
    "log_linear_attention": (*_QKV, "log_decay", "level_scales"),
}
"""The inputs of each operator, in the order of its arguments."""
CONSTANT = {
    *("bonus", "ridge", "log_decay_rate", "skip", "center", "log_range", *_MIXES),
}
"""Inputs that have no tokens."""
ERASING = frozenset(
    {"rwkv7", "dplr", "iplr", "delta_rule", "gated_delta_rule", "kda", "gdn2", "comba"}
) | {"preconditioned_gated_delta_rule", "preconditioned_kda", "momentum_delta_rule"}
