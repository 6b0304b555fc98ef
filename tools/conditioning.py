"""Measure condition numbers of gradients, and write `docs/conditioning.md`.

    python tools/conditioning.py
    python tools/conditioning.py --check

With a condition number c, rounding the inputs to a precision u changes the result by up
to c u of its size. Any further error is that of the kernel: the page shows both, for
gradients of log-decays.
"""

import sys
from pathlib import Path

import numpy as np
from pages import write_or_compare

import linkern
from linkern.oracle import OPERATORS, condition

PAGE = Path(__file__).parents[1] / "docs" / "conditioning.md"
STRENGTHS = (0.0, -1e-4, -0.1, -1.0, -5.0, -20.0)
NAMES = ("gla", "gated_delta_rule", "kda", "dplr")
LENGTH, KEY_DIM, VALUE_DIM = 64, 16, 16

TEXT = """# How much error is unavoidable

<!-- Written by tools/conditioning.py; do not edit. -->

The condition number of a result is the largest ratio of its relative change to the
relative change of the inputs that causes it, normwise: with inputs in float32
(`u = 2^-24`), no kernel can be expected to have an error below the condition number
times `u`.
`linkern.oracle.condition` measures it in float64, from a few random
perturbations, for the output and for each gradient.

The gradient of a log-decay `g` is proportional to `exp(g)`, so it is tiny for strong
decays. It is often called ill-conditioned for any chunked scheme, and tolerances are
relaxed for it. It is not: its condition number is slightly above `|g|`, since `exp(g)`
is a factor of every term. The usual formula is ill-conditioned: the reverse cumulative
sum of `q * dq - k * dk` is the difference of two sums of size 1. `linkern.vjp` sums
exactly the pairs of tokens that a log-decay separates, and subtracts nothing, also in
chunks.

The table has constant log-decays, T = 64, K = V = 16, unit keys, beta = 0.5 and chunks
of 16. The column "largest" is the largest entry of the gradient of the log-decays, and
"condition" its condition number. Errors are the largest error divided by the largest
entry, in units of `u`. The column "difference" is the usual formula, evaluated in
float32 from gradients that are rounded once.

| operator | log-decay | largest | condition | `linkern.vjp` | difference |
|---|---|---|---|---|---|
"""


def inputs_of(name: str, strength: float) -> dict[str, np.ndarray]:
    """Draw float32 inputs of an operator, one head."""
    rng = np.random.default_rng(0)
    tokens, keys = (1, 1, LENGTH), (1, 1, LENGTH, KEY_DIM)

    def unit() -> np.ndarray:
        x = rng.normal(size=keys)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    inputs = {
        "query": rng.normal(size=keys),
        "key": unit(),
        "value": rng.normal(size=(*tokens, VALUE_DIM)),
    }
    per_channel = name != "gated_delta_rule"
    if name == "dplr":
        inputs["a"] = -unit()
        inputs["b"] = -0.5 * inputs["a"]
    inputs["log_decay"] = np.full(keys if per_channel else tokens, strength)
    if name in ("gated_delta_rule", "kda"):
        inputs["beta"] = np.full(tokens, 0.5)
    return {key: x.astype(np.float32) for key, x in inputs.items()}


def row(name: str, strength: float) -> str:
    """Measure one line of the table."""
    inputs = inputs_of(name, strength)
    wide = {key: x.astype(np.float64) for key, x in inputs.items()}
    operator = getattr(linkern, name)
    result, pullback = linkern.vjp(operator, **inputs, chunk_size=16)
    cotangent = np.random.default_rng(1).normal(size=result.output.shape)
    cotangent = cotangent.astype(np.float32)
    exact = OPERATORS[name].gradients(wide, cotangent.astype(np.float64))
    expected = exact["log_decay"]
    size, u = abs(expected).max(), 2.0**-24
    growth = condition(OPERATORS[name], wide, cotangent.astype(np.float64), None)
    ours = abs(pullback(cotangent)["log_decay"] - expected).max() / size / u
    difference = ""
    if name == "gla":
        rounded = {
            key: x.astype(np.float32) for key, x in exact.items() if key in inputs
        }
        terms = inputs["query"] * rounded["query"] - inputs["key"] * rounded["key"]
        summed = np.flip(np.cumsum(np.flip(terms, 2), axis=2), 2)
        difference = f"{abs(summed - expected).max() / size / u:.1e}"
    cells = (
        f"`{name}`",
        f"{strength:g}",
        f"{size:.1e}",
        f"{growth['log_decay']:.1f}",
        f"{ours:.1f}",
        difference or "does not apply",
    )
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the page."""
    lines = [row(name, strength) for name in NAMES for strength in STRENGTHS]
    return TEXT + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
