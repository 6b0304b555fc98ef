r"""Chunkwise backward of additive attention: no decay, or one per token.

With the scores ``P`` of a chunk (decays ``Gamma`` and causal mask included), the state
``S, z`` before it, ``e``, ``l`` and ``w`` the decays from the start of the chunk to a
query, from a key to its end, and over all of it, ``R, r`` the cotangents of the state
after it, ``D`` that of the output before normalization and ``d`` that of the
denominator,

    A  = Gamma * (D V^T + d 1^T)            lower triangular, as P
    dQ = A F + e (D S^T + d z^T)            dF = A^T Q + l (V R^T + 1 r^T)
    dV = P^T D + l F R                      dS = w R + (e Q)^T D

for the features ``Q`` and ``F``. The output is not recomputed: only
``d = -(P * D V^T + e Q * D S^T) 1 / denominator`` depends on it, through products that
are needed anyway. A chunk takes ten large products, and one in the first pass, for its
state.
"""

import numpy as np

from linkern.kernels.numpy.bwd_workspace import BackwardWorkspace
from linkern.kernels.numpy.causal import all_finite, lower_product, upper_product
from linkern.kernels.numpy.chunk_linear import as_blas_operand
from linkern.kernels.numpy.types import Arrays, Real

__all__ = [
    "chunk_state",
    "grad_state_passing",
    "key_value_grad",
    "load_keys",
    "query_grad",
    "state_passing",
]


def load_keys(
    workspace: BackwardWorkspace, tokens: Arrays, *, has_features: bool
) -> None:
    """Load keys, log-decays and values.

    Until the gradient of the keys is written, its array holds their features;
    `has_features` is True if they are already there.
    """
    ws, split = workspace, workspace.shape.split_chunks
    target = ws.target(split(tokens["d_key"]), ws.key_buffer)
    if has_features and target is not ws.key_buffer and ws.feature_map is not None:
        ws.key = target
    else:
        ws.key = ws.map_features(split(tokens["key"]), target)
    ws.decayed_key = ws.key
    if ws.decay is not None:
        ws.decay.load(split(tokens["log_decay"])[..., 0])
        decay_to_end = ws.decay.decay_to_end.swapaxes(-1, -2)
        ws.decayed_key = np.multiply(ws.key, decay_to_end, out=ws.decayed_key_buffer)
    ws.value = as_blas_operand(split(tokens["value"]), ws.value_buffer)


def chunk_state(workspace: BackwardWorkspace) -> None:
    """Compute what each chunk alone adds to the state, transposed."""
    ws, values = workspace, workspace.value.shape[-1]
    value_t = ws.value.swapaxes(-1, -2)
    np.matmul(value_t, ws.decayed_key, out=ws.state_t_after[:, :, :values])
    if ws.normalize:
        ones = ws.ones[: ws.shape.size].swapaxes(-1, -2)
        np.matmul(ones, ws.decayed_key, out=ws.state_t_after[:, :, values:])


def state_passing(workspace: BackwardWorkspace) -> None:
    """Compute the state after each chunk, from `initial_state` to `final_state`."""
    for i, before, after in workspace.state_steps:
        np.add(after, _decay_over_chunk(workspace, i, before), out=after)


def grad_state_passing(workspace: BackwardWorkspace) -> None:
    """Compute the cotangents of the states, from the final to the initial one."""
    for i, after, before in workspace.grad_state_steps:
        np.add(before, _decay_over_chunk(workspace, i, after), out=before)


def _decay_over_chunk(workspace: BackwardWorkspace, chunk: int, state: Real) -> Real:
    """Return a state, or its cotangent, times the decay over a chunk."""
    if workspace.decay is None:
        return state
    chunk_decay = workspace.decay.decay_from_start[:, chunk, -1]
    np.multiply(state, chunk_decay, out=workspace.decayed_state)
    return workspace.decayed_state


def query_grad(workspace: BackwardWorkspace, tokens: Arrays) -> None:
    """Write dQ, and what the output of each chunk alone adds to dS before it."""
    ws, split = workspace, workspace.shape.split_chunks
    output = split(tokens["d_query"])
    grad_memory, grad_normalizer = ws.grad_state_before
    if "output" not in tokens:
        output[...] = grad_memory[...] = grad_normalizer[...] = 0
        return
    values = ws.shape.values
    memory_t = ws.state_t_before[:, :, :values]
    normalizer_t = ws.state_t_before[:, :, values:]
    query = ws.query = ws.map_features(split(tokens["query"]), ws.query_buffer)
    if ws.decay is not None:
        query = np.multiply(query, ws.decay.decay_from_start, out=ws.decayed_query)
    if ws.causal:
        _scores(ws)
    ws.grad_read = _grad_read(ws, tokens["output"], query, normalizer_t)
    query_t = query.swapaxes(-1, -2)
    np.matmul(query_t, ws.grad_read, out=grad_memory)
    grad = np.matmul(ws.grad_read, memory_t, out=ws.grad_features)
    if ws.causal:
        np.copyto(ws.value_t, ws.value.swapaxes(-1, -2))
        np.matmul(ws.grad_read, ws.value_t, out=ws.grad_scores)
    if ws.normalize:
        _grad_denominator(ws, query, grad)
        np.matmul(query_t, ws.grad_denominator, out=grad_normalizer)
        np.multiply(ws.grad_denominator, normalizer_t, out=ws.scratch)
        np.add(grad, ws.scratch, out=grad)
    if ws.decay is not None and ws.decay_grad is not None:
        np.multiply(grad, ws.decay.decay_from_start, out=grad)
        np.multiply(grad, ws.query, out=ws.scratch)
        ws.row_sums(ws.scratch, ws.decay_grad.state_reads)
    if ws.causal:
        _grad_scores(ws)
        finite = all_finite(ws.final_state)
        lower_product(ws.grad_scores, ws.key, out=ws.key_scratch, finite=finite)
        np.add(grad, ws.key_scratch, out=grad)
    ws.write_input_grad(grad, ws.query, output)


def _scores(ws: BackwardWorkspace) -> None:
    """Compute the scores, with decay and causal mask."""
    np.copyto(ws.key_t, ws.key.swapaxes(-1, -2))
    np.matmul(ws.query, ws.key_t, out=ws.scores)
    if ws.decay is not None:
        np.multiply(ws.scores, ws.decay.pair_decay, out=ws.scores)
    ws.mask(ws.scores)


def _grad_read(
    ws: BackwardWorkspace, grad_output: Real, query: Real, normalizer_t: Real
) -> Real:
    """Return the cotangent of the output before it was normalized or scaled."""
    grad = as_blas_operand(ws.shape.split_chunks(grad_output), ws.grad_read_buffer)
    if ws.normalize:
        np.matmul(query, normalizer_t.swapaxes(-1, -2), out=ws.denominator)
        if ws.causal:
            ws.row_sums(ws.scores, ws.sums)
            np.add(ws.denominator, ws.sums, out=ws.denominator)
        return np.divide(grad, ws.denominator, out=ws.grad_read_buffer)
    if ws.scale is not None:
        return np.multiply(grad, ws.scale, out=ws.grad_read_buffer)
    return grad


def _grad_denominator(ws: BackwardWorkspace, query: Real, grad_query: Real) -> None:
    """Compute the cotangent of the denominator: ``-(D . output) / denominator``."""
    grad = ws.grad_denominator
    np.multiply(query, grad_query, out=ws.scratch)
    ws.row_sums(ws.scratch, grad)
    if ws.causal:
        np.multiply(ws.scores, ws.grad_scores, out=ws.score_products)
        ws.mask(ws.score_products)
        ws.row_sums(ws.score_products, ws.sums)
        np.add(grad, ws.sums, out=grad)
    np.divide(grad, ws.denominator, out=grad)
    np.negative(grad, out=grad)


def _grad_scores(ws: BackwardWorkspace) -> None:
    """Turn ``D V^T`` in `grad_scores` into ``A``; keep its products with the scores."""
    grad = ws.grad_scores
    if ws.normalize:
        np.add(grad, ws.grad_denominator, out=grad)
    if ws.decay is not None and ws.decay_grad is not None:
        np.multiply(ws.scores, grad, out=ws.decay_grad.score_products)
        np.multiply(grad, ws.decay.pair_decay, out=grad)
    ws.mask(grad)


def key_value_grad(workspace: BackwardWorkspace, tokens: Arrays) -> None:
    """Write dK and dV, and the gradients of log-decays."""
    ws, values = workspace, workspace.shape.values
    has_scores = ws.causal and "output" in tokens
    grad_memory, grad_normalizer = ws.grad_state_after
    grad_memory_t = ws.grad_state_t[:, :, :values]
    _value_grad(ws, grad_memory, tokens["d_value"], has_scores=has_scores)
    np.copyto(grad_memory_t, grad_memory.swapaxes(-1, -2))
    grad = np.matmul(ws.value, grad_memory_t, out=ws.grad_features)
    if ws.normalize:
        np.copyto(ws.grad_state_t[:, :, values:], grad_normalizer.swapaxes(-1, -2))
        np.add(grad, ws.grad_state_t[:, :, values:], out=grad)
    if ws.decay is not None:
        np.multiply(grad, ws.decay.decay_to_end.swapaxes(-1, -2), out=grad)
        _log_decay_grad(ws, tokens["d_log_decay"], has_scores=has_scores)
    if has_scores:
        scores_t, finite = ws.grad_scores.swapaxes(-1, -2), _finite_reads(ws)
        upper_product(scores_t, ws.query, out=ws.key_scratch, finite=finite)
        np.add(grad, ws.key_scratch, out=grad)
    ws.write_input_grad(grad, ws.key, ws.shape.split_chunks(tokens["d_key"]))


def _finite_reads(ws: BackwardWorkspace) -> bool:
    """Return True if all queries and cotangents of the output are finite.

    What is not is found in the cotangent of the state before the block.
    """
    return all_finite(ws.grad_initial_state)


def _value_grad(
    ws: BackwardWorkspace, grad_memory: Real, output: Real, *, has_scores: bool
) -> None:
    """Write dV: the part through the state after the chunk, and that of the scores."""
    output = ws.shape.split_chunks(output)
    grad = ws.target(output, ws.grad_value_buffer)
    np.matmul(ws.decayed_key, grad_memory, out=grad)
    if has_scores:
        scores_t, finite = ws.scores.swapaxes(-1, -2), _finite_reads(ws)
        upper_product(scores_t, ws.grad_read, out=ws.value_scratch, finite=finite)
        np.add(grad, ws.value_scratch, out=grad)
    if grad is not output:
        np.copyto(output, grad, casting="unsafe")


def _log_decay_grad(ws: BackwardWorkspace, output: Real, *, has_scores: bool) -> None:
    """Write the gradients of log-decays, from the products stored in `decay_grad`."""
    assert ws.decay is not None
    assert ws.decay_grad is not None
    products = ws.decay_grad
    if not has_scores:
        products.score_products[...] = products.state_reads[...] = 0
    np.multiply(ws.key, ws.grad_features, out=ws.scratch)
    ws.row_sums(ws.scratch, products.state_writes[..., None])
    np.multiply(ws.state_t_before, ws.grad_state_t, out=ws.state_products)
    heads, chunks = ws.shape[:2]
    width = ws.initial_state.shape[-1]
    rows = ws.state_products.reshape(heads, chunks, 1, width)
    ws.row_sums(rows, products.state_carried[..., None, None])
    chunk_decay = ws.decay.decay_from_start[:, :, -1, 0]
    np.multiply(products.state_carried, chunk_decay, out=products.state_carried)
    products.write(ws.shape.split_chunks(output))
