"""Measure how much error is unavoidable, and write `docs/conditioning.md`.

    python tools/conditioning.py

A condition number of c says that inputs rounded to a precision u change the result by
up to c u of its size, before anybody has computed anything. What a kernel loses beyond
that is its own doing: the page shows both, for gradients of log-decays.
"""

import sys
from pathlib import Path

import numpy as np

import linkern
from linkern.oracle import FAMILY

PAGE = Path(__file__).parents[1] / "docs" / "conditioning.md"
STRENGTHS = (0.0, -1e-4, -0.1, -1.0, -5.0, -20.0)
OPERATORS = ("gla", "gated_delta_rule", "kda", "dplr")
LENGTH, KEY_DIM, VALUE_DIM = 64, 16, 16

TEXT = """# How much error is unavoidable

<!-- Written by tools/conditioning.py; do not edit. -->

The condition number of a result is the largest relative change that a relative change
of the inputs makes, normwise: with inputs in float32 (`u = 2^-24`), no kernel can be
expected to be closer than the condition number times `u`.
`linkern.oracle.FAMILY[op].condition` measures it in float64, from a few random
perturbations, for the output and for each gradient.

The gradient of a log-decay of `g` is of the size of `exp(g)`: what is all but forgotten
does not depend on how fast. That is often called ill-conditioned for any chunked
scheme, and tolerances are relaxed for it. It is not: its condition number is `|g|` and
a little more, since `exp(g)` is a factor of every term. What is ill-conditioned is the
usual formula, the reverse cumulative sum of `q * dq - k * dk`, which takes the
difference of two sums of the size of 1. `linkern.vjp` sums exactly those pairs of
tokens that a log-decay lies between, and subtracts nothing, in chunks too.

Constant log-decays, T = 64, K = V = 16, unit keys, beta = 0.5, chunks of 16. The
condition number is that of the gradient of the log-decays; errors are the largest error
over the largest entry, in units of `u`; "difference" is the formula above, evaluated in
float32 from gradients that are exact but for one rounding.

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

    found = {
        "query": rng.normal(size=keys),
        "key": unit(),
        "value": rng.normal(size=(*tokens, VALUE_DIM)),
    }
    per_channel = name != "gated_delta_rule"
    if name == "dplr":
        found["a"] = -unit()
        found["b"] = -0.5 * found["a"]
    found["log_decay"] = np.full(keys if per_channel else tokens, strength)
    if name in ("gated_delta_rule", "kda"):
        found["beta"] = np.full(tokens, 0.5)
    return {key: x.astype(np.float32) for key, x in found.items()}


def row(name: str, strength: float) -> str:
    """Measure one line of the table."""
    inputs = inputs_of(name, strength)
    wide = {key: x.astype(np.float64) for key, x in inputs.items()}
    operator = getattr(linkern, name)
    result, pullback = linkern.vjp(operator, **inputs, chunk_size=16)
    cotangent = np.random.default_rng(1).normal(size=result.output.shape)
    cotangent = cotangent.astype(np.float32)
    exact = FAMILY[name].gradients(wide, cotangent.astype(np.float64))
    due = exact["log_decay"]
    size, u = abs(due).max(), 2.0**-24
    condition = FAMILY[name].condition(wide, cotangent.astype(np.float64), None)
    ours = abs(pullback(cotangent)["log_decay"] - due).max() / size / u
    difference = ""
    if name == "gla":
        rounded = {
            key: x.astype(np.float32) for key, x in exact.items() if key in inputs
        }
        terms = inputs["query"] * rounded["query"] - inputs["key"] * rounded["key"]
        summed = np.flip(np.cumsum(np.flip(terms, 2), axis=2), 2)
        difference = f"{abs(summed - due).max() / size / u:.1e}"
    cells = (
        f"`{name}`",
        f"{strength:g}",
        f"{size:.1e}",
        f"{condition['log_decay']:.1f}",
        f"{ours:.1f}",
        difference or "does not apply",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Write the page."""
    lines = [row(name, strength) for name in OPERATORS for strength in STRENGTHS]
    PAGE.write_text(TEXT + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
