r"""Count what every operator costs, and write the tables in `docs/cost.md`.

    python tools/cost_table.py            # write the page
    python tools/cost_table.py --check    # count, and only compare with it

No number is typed in: all come from `linkern.cost`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from pages import write_or_compare

from linkern.cost import crossover, gradient_cost, operator_cost
from linkern.cost.work import WORK

PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
LENGTH, DIM = 4096, 64
DIMS = (32, 64, 128)

INTRODUCTION = r"""# What attention costs

<!-- Written by tools/cost_table.py; do not edit. -->

`linkern.cost` has exact counts of what the algorithms of this package do. The tests run
the code on arrays that count their own arithmetic, for every operator, form, chunk size
and dtype, and compare number by number. A *multiply-add* is one product in a matrix
product; *elementwise* operations are additions, subtractions, multiplications,
divisions and changes of sign outside of these; *exponentials* are values of
exponential, logarithmic and trigonometric functions. Moving, comparing and selecting
numbers is not counted.

## The paper's bounds as numbers

For $N$ tokens, keys of $D$ and values of $M$ numbers, "Transformers are RNNs" has
$O(N^2 \max(D, M))$ for softmax attention, and $O(N C M)$ for linear attention with $C$
features. The products of softmax attention are its scores and its weighted sums,

$$N^2 \max(D, M) \;<\; N^2 (D + M) \;\le\; 2 N^2 \max(D, M),$$

and the recurrence writes and reads a memory of $C \times (M + 1)$, the normalizer
included, at each token:

$$2 N C M \;<\; 2 N C (M + 1) \;\le\; 4 N C M.$$

Chunks of $B$ tokens add $N B (C + M + 1)$: more arithmetic, in larger products.

```python
>>> from linkern.cost import linear_factor, softmax_factor
>>> softmax_factor(64, 64)                    # before N^2 max(D, M)
Fraction(2, 1)
>>> linear_factor(64, 64, form="recurrent")   # before N C M
Fraction(65, 32)
>>> linear_factor(64, 64, chunk_size=64)
Fraction(259, 64)

```

## Where the lines cross

The length from which on linear attention takes fewer multiply-adds than softmax
attention, with as many features as key dimensions and normalised. Causal softmax
attention may compute all scores and mask half of them, or no more than the pairs that
are seen. The last chunk is as short as it is on NumPy; elsewhere it is filled up.
"""

OPERATORS_TEXT = r"""
## Every operator

For each token and head, at T = {length} and K = V = {dim} (M = {dim} slots, two steps
for each token of `gated_delta_product`, two keys that share K for `mamba3_mimo`, chunks
of 64, float32), rounded to integers: **m** multiply-adds, **e** elementwise operations,
**x** exponentials. The **state** is numbers for each head; the **intensity** operations
for each compulsory byte, a multiply-add being two, of the chunkwise form; the
**gradient** is how many times the multiply-adds of the result that result and gradient
take together, chunkwise: each product once for the result, once when its span is
computed again, and once for each operand. All of it is about the forms in the array
API; on NumPy, operators that only add take the same multiply-adds forwards, and no
padding.
"""

FORMULAS = r"""
The state of `based` and `rebased` has the features of the keys, and `mesa` solves a
system for each token. What stands behind the other multiply-adds of a chunk of $C$
tokens, a power of two, with a memory of $K \times V$:

| | multiply-adds |
|---|---|
| pairs and their values | $C^2 (K + V)$ |
| memory written and read | $2 C K V$ |
| pairs, if channels decay apart | $\tfrac12 C (C - 1) K$ instead of $C^2 K$ |
| erase: pairs, solved, read, applied | $C^2 K + \tfrac13 C (C^2 - 1) + C K V + C^2 V$ |

```python
>>> from linkern.cost import operator_cost
>>> C, K, V = 64, 32, 16
>>> def chunk(op):
...     return operator_cost(op, C, key_dim=K, value_dim=V).multiply_adds
>>> written_and_read = 2 * C * K * V
>>> apart = C * (C - 1) * K // 2
>>> erased = C * (C * C - 1) // 3 + C * K * V + C * C * V
>>> chunk("simple_gla") == C * C * (K + V) + written_and_read
True
>>> chunk("gla") == apart + C * C * V + written_and_read
True
>>> chunk("delta_rule") == C * C * (K + V) + written_and_read + C * C * K + erased
True
>>> chunk("kda") == apart + C * C * V + written_and_read + apart + erased
True

```

## Bytes

Compulsory bytes are all inputs once, and the output and the state once. A form that
does not keep its memory in a cache reads and writes it at each step besides; chunks do
so once for each chunk.

```python
>>> sizes = {"key_dim": 64, "value_dim": 64, "heads": 8}
>>> for form in ("recurrent", "chunkwise"):
...     cost = operator_cost("linear_attention", 4096, form=form, **sizes)
...     compulsory = cost.read_bytes + cost.written_bytes
...     print(form, compulsory, cost.memory_bytes, round(cost.intensity, 1))
"""


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def crossings() -> str:
    """Return the table of crossings."""
    named = {
        "recurrent": {"form": "recurrent"},
        "chunks of 64, on NumPy": {"padded": False},
        "chunks of 64, filled up": {},
        "parallel": {"form": "parallel"},
    }
    rows = []
    for masked, scores in ((True, "all scores"), (False, "seen pairs")):
        for name, options in named.items():
            lengths = (
                crossover(key_dim=dim, value_dim=dim, masked=masked, **options)
                for dim in DIMS
            )
            rows.append([name, scores, *("never" if x is None else x for x in lengths)])
    sees_all = (crossover(key_dim=x, value_dim=x, causal=False) for x in DIMS)
    rows.append(["not causal", "all scores", *sees_all])
    return table(
        ["linear attention", "softmax", *(f"K = V = {dim}" for dim in DIMS)], rows
    )


def operators() -> str:
    """Return the table of operators."""
    head = ["operator", "m", "e", "x", "m", "e", "x", "state", "intensity", "gradient"]
    head[1:4] = [f"recurrent {x}" for x in head[1:4]]
    head[4:7] = [f"chunkwise {x}" for x in head[4:7]]
    return table(head, map(operator, WORK))


def sizes_of(name: str) -> dict[str, int]:
    """Return the sizes that an operator is counted at."""
    sizes = {"value_dim": DIM}
    if name not in ("hgrn", "rwkv4"):
        sizes["key_dim"] = DIM
    if name in ("abc", "gsa"):
        sizes["slots"] = DIM
    if name in ("gated_delta_product", "mamba3_mimo"):
        sizes["steps"] = 2
    return sizes


def operator(name: str) -> list[object]:
    """Return the row of one operator."""
    sizes = sizes_of(name)
    costs = [
        operator_cost(name, LENGTH, form=form, **sizes)
        for form in ("recurrent", "chunkwise")
    ]
    cells: list[object] = [f"[`{name}`](reference.md#linkern.{name})"]
    for cost in costs:
        counts = cost.multiply_adds, cost.elementwise, cost.exponentials
        cells.extend(f"{x / LENGTH:,.0f}" for x in counts)
    gradient = gradient_cost(name, LENGTH, form="chunkwise", **sizes)
    cells.append(f"{costs[1].state:,}")
    cells.append(f"{costs[1].intensity:.0f}")
    cells.append(f"{sum(gradient) / gradient.forward:.2f}")
    return cells


def bytes_of_forms() -> str:
    """Return what the last example of the page prints."""
    lines = []
    for form in ("recurrent", "chunkwise"):
        cost = operator_cost(
            "linear_attention", 4096, form=form, key_dim=64, value_dim=64, heads=8
        )
        compulsory = cost.read_bytes + cost.written_bytes
        lines.append(f"{form} {compulsory} {cost.memory_bytes} {cost.intensity:.1f}\n")
    return "".join(lines) + "\n```\n"


def page() -> str:
    """Return the page."""
    text = OPERATORS_TEXT.format(length=LENGTH, dim=DIM)
    return (
        f"{INTRODUCTION}\n{crossings()}{text}\n{operators()}{FORMULAS}"
        f"{bytes_of_forms()}"
    )


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
