"""KDA as it is shipped: chunks of 64 tokens, sub-chunks of 16, exponentials to base 2.

The order of sums is that of flash-linear-attention's `chunk_kda`. Sums of log-decays go
from the start of the chunk on; between two sub-chunks they are taken from the first
token of the later one, so no exponent is positive; inside of one from its middle token,
so that exponents stay below 8 times the bound of a gate.
"""

from functools import partial, wraps

import numpy as np

from tests.testing import dialect_targets

CHUNK, SUB_CHUNK = 64, 16
LOG2E = float(np.log2(np.e))
# Exponents of natural logarithms, from the start of the chunk alone, and without the
# last token before a sub-chunk.
FAULTS = ("natural", "from_start", "edge")


def scores(rows, columns, sums, fault=""):
    """Return ``rows_i Diag(2^(sums_i - sums_j)) columns_j`` of one chunk, j <= i."""
    length = rows.shape[-2]
    result = np.zeros((*rows.shape[:-1], length), rows.dtype)
    parts = [slice(i, min(i + SUB_CHUNK, length)) for i in range(0, length, SUB_CHUNK)]
    for i, late in enumerate(parts):
        for early in parts[: i + 1]:
            middle = (late.start + late.stop) // 2 if late == early else late.start
            anchor = sums[..., middle : middle + 1, :]
            if fault == "from_start":
                anchor = np.zeros_like(anchor)
            left = rows[..., late, :] * np.exp2(sums[..., late, :] - anchor)
            right = columns[..., early, :] * np.exp2(anchor - sums[..., early, :])
            result[..., late, early] = left @ right.swapaxes(-1, -2)
        if fault == "edge" and i:
            result[..., late, late.start - 1] = 0
    return np.tril(result)


def delta(q, k, v, g, beta, scale, state, v_first, fault="", chunk=CHUNK):
    """Return outputs and the last memory, as `dialect_targets.delta` does."""
    groups = v.shape[2] // q.shape[2]
    q, k = (np.repeat(x, groups, axis=2) for x in (q, k))
    q, k, v, g, beta = (np.moveaxis(x, 1, 2) for x in (q, k, v, g, beta))
    memory = np.zeros((*v.shape[:2], k.shape[3], v.shape[3]), v.dtype)
    if state is not None:
        memory = state.swapaxes(-1, -2) if v_first else state
    outputs, base = np.zeros_like(v), 1.0 if fault == "natural" else LOG2E
    for first in range(0, v.shape[2], chunk):
        at = (slice(None), slice(None), slice(first, first + chunk))
        sums = np.cumsum(g[at] * g.dtype.type(base), axis=2)
        keys, rate, since = k[at], beta[at][..., None], np.exp2(sums)
        system = rate * np.tril(scores(keys, keys, sums, fault), -1)
        system += np.eye(system.shape[-1], dtype=system.dtype)
        written = np.linalg.solve(system, rate * (v[at] - (keys * since) @ memory))
        query = q[at] * v.dtype.type(scale)
        outputs[at] = scores(query, keys, sums, fault) @ written
        outputs[at] += (query * since) @ memory
        left = keys * np.exp2(sums[:, :, -1:] - sums)
        memory = since[:, :, -1, :, None] * memory + left.swapaxes(-1, -2) @ written
    memory = memory.swapaxes(-1, -2).copy() if v_first else memory
    return np.moveaxis(outputs, 2, 1), memory


@wraps(dialect_targets.chunk_kda)
def chunk_kda(*args, fault="", **named):
    """`dialect_targets.chunk_kda` by sub-chunks."""
    rule = partial(delta, fault=fault)
    return dialect_targets.chunk_kda(*args, fault=fault, rule=rule, **named)
