"""Call every kernel once at the sizes of the goals, for a profiler to watch.

    ncu --kernel-name 'regex:chunk_|recurrent' python tools/gpu_calls.py

B = 8, H = 16, and 4096 tokens (2048 token by token). Nothing is timed here.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import linkern
from linkern.bench.cuda.machine import require_device
from linkern.testing import UsageError
from linkern.testing.target.frameworks import numpy_dtype

BATCH, HEADS = 8, 16
# Operator, dtype, tokens, K = V, and if gradients are called too.
CALLS = (
    ("linear_attention", "bfloat16", 4096, 64, True),
    ("linear_attention", "bfloat16", 4096, 128, True),
    ("linear_attention", "float16", 4096, 64, False),
    ("linear_attention", "float32", 4096, 64, True),
    ("simple_gla", "bfloat16", 4096, 64, False),
    ("gla", "float32", 2048, 64, False),
    ("gla", "bfloat16", 2048, 128, False),
    ("kda", "float32", 2048, 64, False),
    ("kda", "bfloat16", 2048, 64, False),
    ("kda", "bfloat16", 2048, 128, False),
    ("gated_delta_rule", "float32", 2048, 64, False),
    ("gated_delta_rule", "bfloat16", 2048, 64, True),
    ("gated_delta_rule", "bfloat16", 2048, 128, True),
)


def inputs_of(xp: Any, operator: str, dtype: str, tokens: int, dim: int) -> Any:
    """Return the inputs of a call: few heads drawn, and repeated on the device."""
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    rows = rng.standard_normal((3, tokens, dim))
    rows[1] /= np.linalg.norm(rows[1], axis=-1, keepdims=True)
    inputs = dict(zip(("query", "key", "value"), rows, strict=True))
    if operator != "linear_attention":
        by_channel = (dim,) if operator in ("gla", "kda") else ()
        inputs["log_decay"] = -abs(rng.standard_normal((tokens, *by_channel))) / 10
    if operator in ("kda", "gated_delta_rule"):
        inputs["beta"] = rng.uniform(size=tokens)
    lead = (BATCH, HEADS)
    return {
        name: xp.ascontiguousarray(
            xp.broadcast_to(xp.asarray(x.astype(kind)), (*lead, *x.shape))
        )
        for name, x in inputs.items()
    }


def calls(xp: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each call, and the call."""
    for operator, dtype, tokens, dim, gradients in CALLS:
        op, name = getattr(linkern, operator), f"{operator}, {dtype}, K = V = {dim}"
        inputs = inputs_of(xp, operator, dtype, tokens, dim)
        if not gradients:
            yield name, lambda op=op, inputs=inputs: op(**inputs)
            continue

        def with_gradients(op: Any = op, inputs: Any = inputs) -> object:
            result, pullback = linkern.vjp(op, *inputs.values())
            return pullback(xp.ones_like(result.output))

        yield f"{name}, and its gradients", with_gradients


def main() -> int:
    """Make all calls; return 2 without a GPU."""
    try:
        cupy = require_device()
    except UsageError as reason:
        sys.stdout.write(f"{reason}\n")
        return 2
    for name, call in calls(cupy):
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        call()
        cupy.cuda.Device().synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
