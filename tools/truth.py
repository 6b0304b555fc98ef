"""Compare a diagnosis with what is wrong, as `truth.txt` says of every mutant."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from same_words import same_factor, same_set

__all__ = [
    "NO_FACTOR",
    "Expected",
    "described_rightly",
    "expectations",
    "same_factor",
    "same_set",
]

PAGE = Path(__file__).parent / "truth.txt"
# A set and so many others that are as short count as said.
TIES = 2
# Places that the name of a result tells.
_SAID = (
    ("initial state", "the initial state"),
    ("across sequences", "pairs across edges of sequences"),
    ("after the last sequence", "sources after the last sequence"),
)
# Words in place of a factor.
NO_FACTOR = ("unlike", "not finite", "partly not finite")


@dataclass(frozen=True)
class Expected:
    """Words that are right of one mutant; the fields are those of `truth.txt`."""

    stage: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    says: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``map``, ``rounding`` or ``behaviour``."""
        if not self.where:
            return "behaviour"
        rounds = any("rounded" in text or "truncated" in text for text in self.by)
        return "rounding" if rounds else "map"


@cache
def expectations(page: Path = PAGE) -> dict[str, Expected]:
    """Return what a page says is right of every mutant, by name."""
    result: dict[str, Expected] = {}
    for block in re.split(r"^\[(?=\w)", page.read_text(encoding="utf-8"), flags=re.M):
        name, _, body = block.partition("]\n")
        lines = (line.split(": ", 1) for line in body.splitlines() if ": " in line)
        fields = {key: tuple(x.split("; ")) for key, x in lines if key[0] != "#"}
        if not block.startswith("#"):
            result[name] = Expected(**fields)
    return result


def described_rightly(diagnosis: Any, expected: Expected) -> tuple[bool, bool | None]:
    """Return whether the place is right, and the factor; None if there is no factor.

    Parameters
    ----------
    diagnosis : Diagnosis or None
        What was measured.
    expected : Expected
        What is right.
    """
    factors = tuple(text for text in expected.by if text != "none")
    nothing = None if expected.by[:1] in ((), ("none",)) else False
    if diagnosis is None:
        return False, nothing
    said = diagnosis.name in expected.name
    if not diagnosis.where:
        said |= any(words in diagnosis.sentence for words in expected.says)
    if expected.kind == "behaviour":
        return said, None
    additions = [f" and {place}" for x, place in _SAID if x in diagnosis.stage]
    sets = (diagnosis.where, *diagnosis.alternatives[:TIES]) if diagnosis.where else ()
    where = said or any(
        same_set(text + more, right)
        for text in sets
        for more in ("", *additions)
        for right in expected.where
    )
    if expected.kind == "rounding":
        texts = (diagnosis.by_what, diagnosis.sentence)
        bits = {m for text in factors for m in re.findall(r"to (\d+) bits", text)}
        told = {m for text in texts for m in re.findall(r"(\d+) bits", text)}
        return bool(where), bool(bits & told)
    if not diagnosis.by_what or diagnosis.by_what.startswith(NO_FACTOR):
        return bool(where), nothing
    return bool(where), any(same_factor(diagnosis.by_what, x) for x in factors)
