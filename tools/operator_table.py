"""Measure what each operator can do, and write the table in `docs/operators.md`.

    python tools/operator_table.py            # write the page
    python tools/operator_table.py --check    # measure, and only compare with it

No cell is typed in. The forms of an operator are those that agree with its recurrent
form on a problem of the referee's; its gradient is there if every input gets one that
is a slope; packed sequences work if they equal separate calls bit by bit.
"""

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pages import write_or_compare

import linkern
from linkern.adapters.catalogue import function_of, judged
from linkern.testing import OPERATORS
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.strategies import no_integers
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Operator

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"
FORMS = ("recurrent", "chunkwise", "parallel")
# What a step of central differences in float64 can be trusted to.
NEAR = 2.0**-18
STEP = 2.0**-17

INTRODUCTION = """# What each operator can do

<!-- Written by tools/operator_table.py; do not edit. -->

Every operator is data for one recurrence over a memory $S$ of shape $K \\times V$ for
each head,

$$\\tilde S = \\mathrm{Diag}(e^{g_t})\\, S_{t-1}, \\qquad
u_t = v_t - \\tilde S^T a_t, \\qquad
S_t = \\tilde S + k_t u_t^T, \\qquad
o_t = scale\\; q_t^T S_t,$$

with natural logarithms $g_t \\le 0$ of the decays. Three switches cover the conventions
in use: what is erased may be read before the decay, the query may read before the
update, or along the values. Operators named after each other reduce to each other:
`kda`, `gated_delta_rule`, `delta_rule` and `iplr`; `rwkv7`, `dplr` and `iplr`; `gdn2`
and `kda`; `gla`, `simple_gla` and `retention`; `abc` and `gsa`.

The columns: **forms** that agree; **gradient** of every input through `linkern.vjp`;
**packed** sequences by `cu_seqlens`, equal to separate calls bit by bit; **integers**
on which the referee knows every bit, or why there are none; how many **published**
implementations were judged (see [findings](findings.md)).
"""


def problem(operator: Operator, length: int = 9) -> dict[str, np.ndarray]:
    """Draw inputs of an operator, as its function is called with them."""
    scope = Scope(operator, Contract(scale=operator.scale), "float64")
    keys = length * (2 if operator.micro_steps else 1)
    several = {"slots": 5, "levels": length.bit_length() + 1}
    shape = Shape(1, 2, length, keys, 4, 3, **several, rank=1 + operator.ranks)
    rng = np.random.default_rng(0)
    kind = "normal" if operator.feature_map else "typical"
    return dict(real_problem(scope, shape, kind, "normal", rng).inputs)


def function(operator: Operator) -> Any:
    """Return the function of an operator."""
    name, options = function_of(operator.name)
    plain = getattr(linkern, name)
    return partial(plain, **options) if options else plain


def forms(operator: Operator) -> list[str]:
    """Return the forms that agree with the recurrent one."""
    inputs, call = problem(operator), function(operator)
    expected = call(**inputs, form="recurrent").output
    return [
        form
        for form in FORMS
        if np.allclose(
            call(**inputs, form=form).output, expected, rtol=1e-9, atol=1e-12
        )
    ]


def has_gradient(operator: Operator) -> bool:
    """Return True if the gradient of every input is a slope of the output."""
    inputs, call = problem(operator), function(operator)
    result, pullback = linkern.vjp(call, **inputs)
    rng = np.random.default_rng(1)
    cotangent = rng.normal(size=result.output.shape)
    gradients = pullback(cotangent)
    for name, x in inputs.items():
        # Towards zero, so that a log-decay stays one.
        direction = np.sign(x) * rng.uniform(0, 1, x.shape) * np.minimum(abs(x), 1)
        up, down = (
            (
                call(**{**inputs, name: x + s * STEP * direction}).output * cotangent
            ).sum()
            for s in (1, -1)
        )
        slope, along = (up - down) / (2 * STEP), (gradients[name] * direction).sum()
        if abs(slope - along) > NEAR * (1 + abs(slope)):
            return False
    return True


def is_packed(operator: Operator) -> bool:
    """Return True if packed sequences equal separate calls bit by bit."""
    if not operator.causal:
        return False
    inputs, call = problem(operator), function(operator)
    ends = (0, 3, 3, 4, 9)
    packed = call(**inputs, cu_seqlens=ends).output
    for start, stop in pairwise(ends):
        part = {}
        for one in operator.inputs:
            x = inputs[one.name]
            rows = x.shape[2] // 9 if one.per_token else 0
            part[one.name] = x[:, :, start * rows : stop * rows] if rows else x
        if not np.array_equal(call(**part).output, packed[:, :, start:stop]):
            return False
    return True


def integers(operator: Operator) -> str:
    """Return on which integers its results are exact in any order, or why on none."""
    reason = no_integers(Scope(operator, Contract(scale=operator.scale), "float32"))
    if reason is None:
        return "keys that erase exactly" if operator.erases else "yes"
    return reason.removeprefix("no input makes it exact: ")


def row(operator: Operator) -> str:
    """Return one row of the table."""
    documented, _ = function_of(operator.name)
    cells = [
        f"[`{operator.name}`](reference.md#linkern.{documented})",
        operator.summary.replace("|", "\\|"),
        ", ".join(forms(operator)),
        "yes" if has_gradient(operator) else "no",
        "yes" if is_packed(operator) else "no",
        integers(operator),
        str(len(judged(operator.name))),
    ]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the page."""
    named = {operator.name: operator for operator in OPERATORS.values()}
    lines = [
        "| operator | equation | forms | gradient | packed | integers | published |",
        "|---|---|---|---|---|---|---|",
        *(row(operator) for operator in named.values()),
    ]
    return INTRODUCTION + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
