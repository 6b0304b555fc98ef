"""Measure whether a kernel can tell the law by its inputs; write `docs/recognition.md`.

    python tools/recognition.py

For each operator, problems are drawn for every law as `linkern verify` draws them. A
random forest is trained on statistics of their inputs, for each pair of laws that make
the same kind of call, and scored on problems that it has not seen.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from linkern.testing.checks import CHECKS
from linkern.testing.errors import DoesNotApply
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import OWN
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.loading import Interface

__all__ = ["accuracy", "drawn", "pairs_of", "statistics_of"]

PAGE = Path(__file__).parents[1] / "docs" / "recognition.md"
NAMES = ("linear_attention", "gated_delta_rule")
COUNT, TREES, SEEDS, SHOWN = 150, 30, 3, 5
# Sequences of no token and of tens of thousands, and inputs that do not fit, can be
# told by their sizes.
LEFT_OUT = ("short_sequences", "bad_input", "very_long_sequences", "long_prefill")
# A target that takes a state, gradients and packed sequences.
EVERYTHING = Interface(keywords=frozenset(), differentiable=True, state="initial_state")

Table = NDArray[np.float32]

TEXT = """# What a kernel can tell of the judge

<!-- Written by tools/recognition.py; do not edit. -->

A kernel that recognises a test can be right in it and wrong elsewhere. Public cases
sniff the largest key, know shapes, count calls, or keep results by a part of the
inputs; `recognition.py` and `hacks.py` in `linkern/testing/kernels/mutants/` have a
kernel for each.

- **Seeds** are 64 fresh bits for every run: no table of inputs can be prepared.
- **Inputs** of all laws are drawn from one mixture. A law that can judge little of it
  draws {own} % of a sort of its own, and what it cannot judge is a call like any other,
  whose output nobody looks at. Two laws differ in {own} % of their problems at most, so
  the best guess is right in {best} % of cases.
- **Order**: related calls (scaled, permuted, with another future) come in any order,
  and earlier calls are repeated in between, at the same address or another. A repeated
  call must give the same bits, or be right.

## Measured

A random forest of {trees} trees is told the sizes, means, spreads, extremes, zeros,
whole numbers, equal heads and equal tokens of every input of a problem, and has to say
which of two laws drew it. It is trained on {train} problems of each law and scored on
{test} that another seed drew, {folds} times, in float32. 0.5 is a coin; chance alone
moves a score by about {noise}.

{tables}
## What cannot be hidden

- **The call itself**: a state, a cut, a cotangent, `cu_seqlens` or strides are in it.
  Outputs of such calls are compared with exact results too, so a kernel gains nothing.
- **Derived inputs**: values of 2^60, a NaN, or the inputs of the call before with one
  change are seen to be that. A kernel that treats them apart must still give what the
  plain call gave, or the exact result, to the bit or within the bound.
- **Lengths**: sequences of no token belong to `short_sequences` alone, and those of
  tens of thousands to two laws of lengths, which compare them with exact results.
- **The process**: the target runs beside `linkern.testing`, and finds it in
  `sys.modules`. A program under `--command` is a process of its own that reads files.
- **Timing**: `linkern bench` passes standard normal numbers in one shape. Laws of
  values draw such numbers, but not at that size; the benchmark compares rows of the
  very outputs that it times with exact ones.
"""


@dataclass(frozen=True)
class Pair:
    """Two laws, and how often a classifier tells a problem of one from the other's."""

    first: str
    second: str
    score: float


def scope_of(op: str) -> Scope:
    """Return the context of a target that takes everything."""
    return Scope(OPERATORS[op], Contract(), "float32", EVERYTHING, styles=("offset",))


def drawn(problems: st.SearchStrategy[Problem], count: int, start: int) -> Table:
    """Return the statistics of problems as a search draws them from one seed."""
    kept: list[list[float]] = []

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(problems)
    def keep(problem: Problem) -> None:
        kept.append(statistics_of(problem))

    keep()
    # The first is the simplest of all, whatever the law is.
    table = np.nan_to_num(np.array(kept[1:]))
    return np.clip(table, -1e30, 1e30).astype(np.float32)


def statistics_of(problem: Problem) -> list[float]:
    """Return what a kernel can measure of the inputs of a call."""
    return [
        *map(float, problem.sizes.values()),
        float(problem.length % 16 == 0),
        *(x for array in problem.inputs.values() for x in _measured(array)),
    ]


def _measured(array: Any) -> Iterator[float]:
    x = np.asarray(array, np.float64)
    if not x.size:
        yield from (0.0,) * 9
        return
    large = np.abs(x)
    with np.errstate(all="ignore"):
        yield from (x.mean(), x.std(), large.max(), large.min(), np.median(large))
        yield float((x == np.rint(x)).mean())
        yield float((x == 0).mean())
    yield float((x == x[:, :1]).mean())
    yield float((x[..., 1:, :] == x[..., :-1, :]).mean()) if x.shape[-2] > 1 else 0.0


def accuracy(one: Sequence[Table], other: Sequence[Table]) -> float:
    """Return how often a forest says which of two laws drew an unseen problem.

    Each law is a table for every seed: a forest is scored on seeds that it has not
    seen, since a search draws many problems that are alike.
    """
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415 -- it is slow

    scores = []
    for held in range(len(one)):
        seen = [n for n in range(len(one)) if n != held]
        forest = RandomForestClassifier(TREES, random_state=0, min_samples_leaf=3)
        forest.fit(*_labelled([law[n] for n in seen] for law in (one, other)))
        scores.append(forest.score(*_labelled([law[held]] for law in (one, other))))
    return float(np.mean(scores))


def _labelled(laws: Iterable[list[Table]]) -> tuple[Table, Table]:
    """Return as many rows of each law, and the law of each row."""
    tables = [np.concatenate(law) for law in laws]
    least = min(map(len, tables))
    rows = np.concatenate([table[:least] for table in tables])
    return rows, np.repeat(np.arange(len(tables)), least)


def _kind(name: str) -> str:
    """Return what a call of a law has beside its inputs."""
    for kind in ("packed", "gradient", "state"):
        if name.startswith(kind):
            return kind
    if name in ("finite_differences", "time_reversal_adjoint"):
        return "gradient"
    return "state" if name in ("decoding", "shard_law") else "plain"


def pairs_of(op: str, count: int, names: Iterable[str] = CHECKS) -> list[Pair]:
    """Return the scores of all pairs of laws of an operator, the worst first."""
    scope, groups = scope_of(op), dict[str, dict[str, list[Table]]]()
    for position, check in enumerate(map(CHECKS.__getitem__, names)):
        if check.name in LEFT_OUT or check.unless(scope):
            continue
        with suppress(DoesNotApply):
            tables = [
                drawn(check.problems(scope), count // SEEDS, SEEDS * position + part)
                for part in range(SEEDS)
            ]
            groups.setdefault(_kind(check.name), {})[check.name] = tables
    pairs = [
        Pair(one, other, accuracy(laws[one], laws[other]))
        for laws in groups.values()
        for one, other in combinations(laws, 2)
    ]
    return sorted(pairs, key=lambda pair: -pair.score)


def table(op: str, pairs: list[Pair]) -> str:
    """Return the worst pairs of an operator, and the median of all."""
    middle = median(pair.score for pair in pairs)
    above = sum(pair.score >= 0.6 for pair in pairs)
    counted = f"{len(pairs)} pairs, median {middle:.2f}, {above} at 0.60 or above"
    rows = [f"| `{p.first}` | `{p.second}` | {p.score:.2f} |" for p in pairs[:SHOWN]]
    head = [f"`{op}`: {counted}. The worst:", "", "| law | law | accuracy |"]
    return "\n".join([*head, "|---|---|---|", *rows, "", ""])


def page(count: int = COUNT) -> str:
    """Return the page."""
    tables = "".join(table(op, pairs_of(op, count)) for op in NAMES)
    test = count // SEEDS
    return TEXT.format(
        own=OWN,
        best=50 + OWN // 2,
        trees=TREES,
        train=count - test,
        test=test,
        folds=SEEDS,
        noise=f"{0.5 / (2 * count) ** 0.5:.2f}",
        tables=tables,
    )


if __name__ == "__main__":
    PAGE.write_text(page(*map(int, sys.argv[1:2])), encoding="utf-8")
