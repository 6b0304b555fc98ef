"""The draw of the unseen set: 32 of the candidates, by a seed that was not chosen.

Candidates of each kind are taken in a random order until there are enough of it; one is
passed over if two faults of its operator have been drawn. So 32 faults have at least 16
operators. The seed is the number of the issue that asks for the set.
"""

from pathlib import Path

import numpy as np

__all__ = ["CANDIDATES", "SEED", "drawn"]

SEED = 18
CANDIDATES = Path(__file__).parent / "candidates.txt"
# Gradients first: the fewest operators have candidates of that kind.
NUMBERS = {"gradients": 5, "states": 5, "values": 22}
EACH = 2


def drawn(seed: int = SEED) -> list[tuple[str, str, str, str]]:
    """Return kind, operator, precedent and defect of each fault of the set."""
    lines = CANDIDATES.read_text(encoding="utf-8").splitlines()
    rows = [tuple(x.strip() for x in line.split("|")) for line in lines if line]
    candidates = [row for row in rows if not row[0].startswith("#")]
    rng = np.random.default_rng(seed)
    chosen: list[tuple[str, str, str, str]] = []
    for kind, number in NUMBERS.items():
        of_kind = [row for row in candidates if row[0] == kind]
        taken = 0
        for index in rng.permutation(len(of_kind)):
            kind_, op, precedent, defect = of_kind[index]
            if taken < number and sum(row[1] == op for row in chosen) < EACH:
                chosen.append((kind_, op, precedent, defect))
                taken += 1
    return chosen
