"""Run small calls of every kind on a GPU, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/gpu_small.py

Shapes are odd, so that every boundary is reached. Results are compared with NumPy
coarsely: finding races that do not change results is left to the sanitizer.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

import linkern
from linkern.bench.cuda.machine import require_device
from linkern.testing import UsageError
from linkern.testing.target.frameworks import numpy_dtype

TOLERANCE = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}
# T, K, V; the last has a shape of its own on cards that the planner knows.
SHAPES = ((1, 3, 5), (77, 20, 33), (200, 64, 64), (130, 128, 96), (70, 128, 128))
OPERATORS = ("linear_attention", "simple_gla", "gla", "delta_rule", "gated_delta_rule")
# Others with a decay for each channel: shapes that go chunk by chunk.
FURTHER = ("kda", "rwkv6")
PER_CHANNEL = ("gla", *FURTHER)
# Dtypes that go chunk by chunk where tokens erase or channels decay.
BY_CHUNKS = ("bfloat16", "float16", "float32")


def calls() -> Iterator[tuple[str, Callable[..., list[Any]], dict[str, Any]]]:
    """Yield a name, a function to call, and its inputs as NumPy arrays."""
    for operator, dtype, shape in (
        *product(OPERATORS, TOLERANCE, SHAPES),
        *product(FURTHER, BY_CHUNKS, SHAPES[2:]),
    ):
        name = f"{operator}, {dtype}, T, K, V = {shape}"
        yield name, forward(operator), inputs_of(operator, shape, dtype)
    for operator, dtype, shape in (
        *product(OPERATORS[:2], TOLERANCE, SHAPES[1:]),
        *product(OPERATORS[3:], BY_CHUNKS, SHAPES[2:]),
    ):
        name = f"vjp of {operator}, {dtype}, T, K, V = {shape}"
        yield name, backward(operator), inputs_of(operator, shape, dtype)


def inputs_of(operator: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Return inputs with 2 x 3 heads and keys of norm one."""
    tokens, features, values = shape
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 2, 3, tokens, features))
    inputs = {
        "query": query,
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "value": rng.standard_normal((2, 3, tokens, values)),
    }
    if operator not in ("linear_attention", "delta_rule"):
        per_channel = (features,) if operator in PER_CHANNEL else ()
        decay = rng.standard_normal((2, 3, tokens, *per_channel))
        inputs["log_decay"] = -abs(decay) / 10
    if operator in ("delta_rule", "gated_delta_rule", "kda"):
        inputs["beta"] = rng.uniform(size=(2, 3, tokens))
    return {name: x.astype(numpy_dtype(dtype)) for name, x in inputs.items()}


def forward(operator: str) -> Callable[..., list[Any]]:
    """Return a function that returns the output and the last memory of an operator."""

    def call(**inputs: Any) -> list[Any]:
        output, state = getattr(linkern, operator)(**inputs)
        return [output, state.memory]

    return call


def backward(operator: str) -> Callable[..., list[Any]]:
    """Return a function that pulls the output of an operator back to its inputs."""

    def call(**inputs: Any) -> list[Any]:
        result, pullback = linkern.vjp(getattr(linkern, operator), **inputs)
        gradients = pullback(result.output, result.state)
        return [gradients[name] for name in inputs]

    return call


def error(result: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected entry."""
    x, y = (np.asarray(x, np.float64) for x in (result, expected))
    return float(np.max(abs(x - y)) / max(np.max(abs(y)), 1e-30))


def main() -> int:
    """Run all calls; return 1 if a result is wrong, 2 without a GPU."""
    try:
        cupy = require_device()
    except UsageError as reason:
        sys.stdout.write(f"{reason}\n")
        return 2
    good = True
    for name, call, inputs in calls():
        results = call(**{key: cupy.asarray(x) for key, x in inputs.items()})
        expected = call(**{key: x.astype(np.float64) for key, x in inputs.items()})
        pairs = zip(results, expected, strict=True)
        worst = max(error(cupy.asnumpy(x), y) for x, y in pairs)
        well = worst <= TOLERANCE[inputs["query"].dtype.name]
        good = good and well
        sys.stdout.write(f"{'well' if well else 'WRONG'}: {name}: {worst:.0e}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
