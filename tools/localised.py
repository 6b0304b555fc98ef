"""Diagnoses of mutants, beside what is wrong with them: two cells of the kill matrix.

A cell holds the words of a diagnosis; it begins with ``wrong:`` if they are not right,
and is a dash where nothing is said.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from truth import NO_FACTOR, Expected, described_rightly, expectations

from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.kernels.correct import CorrectKernel
from linkern.testing.kernels.mutants import Mutant
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig

__all__ = [
    "DIAGNOSED_AGAIN",
    "HELD_OUT",
    "Cells",
    "cells",
    "compared",
    "diagnosis_of",
    "is_right",
    "less_right",
    "summary",
]

# One mutant of so many is diagnosed again by `kill_matrix.py --check`.
DIAGNOSED_AGAIN = 8
# Mutants that were set aside while the localiser was developed; seen since.
_LIST = Path(__file__).parent / "held_out.txt"
HELD_OUT = frozenset(_LIST.read_text(encoding="utf-8").split())
DASH, WRONG, NO_PRODUCT = "—", "wrong: ", "no product"

LEGEND = """\
## Diagnoses

*Where* and *by what* are the words of the diagnosis: the entries that it says are wrong
and what they are multiplied by, or the behaviour or rounding that it names. They are
compared with what was written of each mutant from its code, in `tools/truth.txt`; of
some, no product is right. `--check` diagnoses one mutant in {again} again, and fails
where a cell is no longer right, or is wrong and was not; the slow tests diagnose all.

All of these mutants are in view: the table does not tell how well [unseen
faults](unseen-faults.md) are described. What the diagnosis says now:
"""

# The words of a place, and those of a factor.
Cells = tuple[str, str]


def diagnosis_of(
    kernel: CorrectKernel | Mutant, dtype: str = "float32"
) -> Diagnosis | None:
    """Return the diagnosis of a kernel in this process."""
    contract = Contract(**kernel.contract)
    environment = TargetConfig("test", op=kernel.op, scale=contract.scale)
    target = InProcess(environment, kernel.kernel)
    scope = Scope(
        OPERATORS[kernel.op],
        contract,
        dtype,
        interface=target.interface,
        styles=tuple(STYLES),
    )
    return diagnose(target, scope)


def cells(name: str, diagnosis: Diagnosis | None) -> Cells:
    """Return the cells of a mutant."""
    return compared(expectations()[name], diagnosis)


def compared(expected: Expected, diagnosis: Diagnosis | None) -> Cells:
    """Return the cells of a diagnosis, compared with what is right."""
    if diagnosis is None:
        return DASH, DASH
    where, by = described_rightly(diagnosis, expected)
    # A diagnosis that is no map has no stage, and its name says all of it.
    named = where or not diagnosis.stage
    place = diagnosis.where or (diagnosis.name if named else "")
    factor = diagnosis.by_what or (diagnosis.sentence if by else "")
    if by is None:
        return _cell(place, where), NO_PRODUCT
    factor = "" if factor.startswith(NO_FACTOR) else factor
    return _cell(place, where), _cell(factor, by)


def _cell(text: str, right: bool) -> str:
    if not text:
        return DASH
    return _one_line(text if right else WRONG + text)


def _one_line(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def is_right(cell: str) -> bool:
    """Return True if a cell says something, and that is right."""
    return cell != DASH and not cell.startswith(WRONG)


def less_right(claimed: Cells, measured: Cells) -> bool:
    """Return True if a cell is right on a page alone, or wrong as measured alone."""
    pairs = [*zip(claimed, measured, strict=True)]
    lost = any(is_right(one) and not is_right(other) for one, other in pairs)
    return lost or any(
        other.startswith(WRONG) and not one.startswith(WRONG) for one, other in pairs
    )


def summary(described: Mapping[str, Cells]) -> list[str]:
    """Return the lines about diagnoses: how many places and factors are right."""
    kinds: dict[str, list[str]] = {}
    for name, expected in expectations().items():
        side = "set aside" if name in HELD_OUT else "others"
        for key in (side, f"{side}: {expected.kind}"):
            kinds.setdefault(key, []).append(name)
    return [
        LEGEND.format(again=DIAGNOSED_AGAIN),
        "| mutants | *where* right | wrong | *by what* right | wrong |",
        "|---|---|---|---|---|",
        *(_counts(key, kinds[key], described) for key in sorted(kinds, reverse=True)),
        "",
    ]


def _counts(key: str, names: Iterable[str], described: Mapping[str, Cells]) -> str:
    """Return the line of some mutants; factors are right of those that have one."""
    names = [*names]
    places, factors = zip(*(described[name] for name in names), strict=True)
    certain = [described[name][1] for name in names if _has(expectations()[name])]
    numbers = (_right(places), _wrong(places), _right(certain), _wrong(factors))
    return f"| {' | '.join((key, *numbers))} |"


def _has(expected: Expected) -> bool:
    """Return True if some factor is right of a mutant."""
    return expected.by[:1] not in ((), ("none",))


def _right(texts: Sequence[str]) -> str:
    return f"{sum(map(is_right, texts))} of {len(texts)}"


def _wrong(texts: Sequence[str]) -> str:
    return str(sum(text.startswith(WRONG) for text in texts))
