"""Run every kind of call once on a GPU, small: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/gpu_small.py

Shapes are multiples of nothing, so that every edge is met. Results are compared with
those on NumPy, coarsely: a race that harms nobody this time is the sanitizer's to find.
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
SHAPES = ((1, 3, 5), (77, 20, 33), (200, 64, 64), (130, 128, 96))  # T, K, V
OPERATORS = ("linear_attention", "simple_gla", "gla", "delta_rule", "gated_delta_rule")


def calls() -> Iterator[tuple[str, Callable[..., list[Any]], dict[str, Any]]]:
    """Yield a name, what is called, and its inputs of NumPy."""
    for operator in OPERATORS:
        for dtype in TOLERANCE:
            for shape in SHAPES:
                name = f"{operator}, {dtype}, T, K, V = {shape}"
                given = inputs_of(operator, shape, dtype)
                yield name, forward(operator), given
    for operator, dtype, shape in product(OPERATORS[:2], TOLERANCE, SHAPES[1:]):
        name = f"vjp of {operator}, {dtype}, T, K, V = {shape}"
        yield name, backward(operator), inputs_of(operator, shape, dtype)


def inputs_of(operator: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Return inputs of 2 x 3 heads; keys of length one."""
    tokens, features, values = shape
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 2, 3, tokens, features))
    found = {
        "query": query,
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "value": rng.standard_normal((2, 3, tokens, values)),
    }
    if operator not in ("linear_attention", "delta_rule"):
        per_channel = (features,) if operator == "gla" else ()
        decay = rng.standard_normal((2, 3, tokens, *per_channel))
        found["log_decay"] = -abs(decay) / 10
    if "delta" in operator:
        found["beta"] = rng.uniform(size=(2, 3, tokens))
    return {name: x.astype(numpy_dtype(dtype)) for name, x in found.items()}


def forward(operator: str) -> Callable[..., list[Any]]:
    """Return the call of an operator: its output and the memory it leaves."""

    def call(**given: Any) -> list[Any]:
        output, state = getattr(linkern, operator)(**given)
        return [output, state.memory]

    return call


def backward(operator: str) -> Callable[..., list[Any]]:
    """Return the gradients of an operator, with its output as their cotangent."""

    def call(**given: Any) -> list[Any]:
        result, pullback = linkern.vjp(getattr(linkern, operator), **given)
        gradients = pullback(result.output, result.state)
        return [gradients[name] for name in given]

    return call


def error(found: Any, due: Any) -> float:
    """Return the largest difference over the largest number."""
    wide = [np.asarray(x, np.float64) for x in (found, due)]
    return float(np.max(abs(wide[0] - wide[1])) / max(np.max(abs(wide[1])), 1e-30))


def main() -> int:
    """Make all calls; return 1 if one is wrong, 2 without a GPU."""
    try:
        cupy = require_device()
    except UsageError as reason:
        sys.stdout.write(f"{reason}\n")
        return 2
    good = True
    for name, call, given in calls():
        found = call(**{key: cupy.asarray(x) for key, x in given.items()})
        exact = call(**{key: x.astype(np.float64) for key, x in given.items()})
        pairs = zip(found, exact, strict=True)
        worst = max(error(cupy.asnumpy(x), y) for x, y in pairs)
        well = worst <= TOLERANCE[given["query"].dtype.name]
        good = good and well
        sys.stdout.write(f"{'well' if well else 'WRONG'}: {name}: {worst:.0e}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
