"""A chunked kernel in PyTorch, `(batch, time, heads, dim)`, with a bug, and without it.

`docs/quickstart.md` judges both:

    linkern verify examples/torch_simple_gla.py:kernel --op simple_gla
    linkern verify examples/torch_simple_gla.py:mended --op simple_gla
"""

import torch

CHUNK = 16


def kernel(q, k, v, g, initial_state=None):
    """Gated linear attention with one decay for each head and token.

    Parameters
    ----------
    q, k, v : Tensor (batch, time, heads, dim)
        Queries, keys and values.
    g : Tensor (batch, time, heads)
        Natural logarithms of the decays.
    initial_state : Tensor (batch, heads, key dim, value dim), optional
        State that earlier tokens left.

    Returns
    -------
    output : Tensor (batch, time, heads, value dim)
    state : Tensor (batch, heads, key dim, value dim)
    """
    return _chunks(q, k, v, g, initial_state, _since_the_first_token)


def mended(q, k, v, g, initial_state=None):
    """Return the same, with the bug mended."""
    return _chunks(q, k, v, g, initial_state, _since_the_chunk_began)


def _since_the_first_token(between, _g):
    return between[..., 0]  # the bug: the decay of the first token itself is missing


def _since_the_chunk_began(between, g):
    return between[..., 0] * g[..., :1].exp()


def _chunks(q, k, v, g, state, decays_of_state):
    wide = torch.promote_types(q.dtype, torch.float32)
    dtype, scale = q.dtype, q.shape[-1] ** -0.5
    q, k, v, g = (x.to(wide).transpose(1, 2) for x in (q, k, v, g))
    if state is None:
        state = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    outputs = [q.new_zeros(v[:, :, :0].shape)]
    for first in range(0, q.shape[2], CHUNK):
        here = slice(first, first + CHUNK)
        qc, kc, vc, gc = (x[:, :, here] for x in (q, k, v, g))
        between = _decays_between(gc)
        since = decays_of_state(between, gc)
        read = (qc * since[..., None]) @ state
        outputs.append(scale * (read + ((qc @ kc.mT) * between) @ vc))
        state = since[..., -1, None, None] * state
        state = state + (kc * between[..., -1, :, None]).mT @ vc
    return torch.cat(outputs, dim=2).to(dtype).transpose(1, 2), state


def _decays_between(g):
    """Return the decay from each token of a chunk (column) to each later one (row)."""
    length = g.shape[-1]
    past = torch.ones(length, length, dtype=torch.bool, device=g.device).tril()
    # Sums over spans, not differences of sums: `-inf` forgets everything.
    spans = g[..., None].expand(*g.shape, length).masked_fill(~past.tril(-1), 0)
    return spans.cumsum(-2).masked_fill(~past, -torch.inf).exp()
