"""Significand bits that survive each stage of a target, for every operator.

They are those of the narrowest path from an input to the output. Sums in any order lose
a bit or two: that is no loss of a stage.
"""

from dataclasses import replace
from typing import NamedTuple

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.influence.paths import Survival, survivals, usual_bits
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Stages", "measure"]

NARROW = ("feature", "operand", "score", "state", "normalizer")
# Bits that the sums and products of a path lose.
SUMS = 3
# No format has fewer bits: where fewer survive, the output is wrong.
FEWEST = 6


class Stages(NamedTuple):
    """Bits by the quantity that has a full significand.

    Stages that are `capped` cannot show more; those that are `wrong` have no bits,
    since the output is wrong by more than rounding. If outputs are `scaled`, by an
    epsilon perhaps, bits are not those of a dtype.
    """

    bits: dict[str, int]
    capped: tuple[str, ...]
    wrong: tuple[str, ...]
    scaled: bool = False

    @property
    def narrowest(self) -> int:
        """The fewest bits seen where more could have been, of roundings."""
        if self.scaled:
            return max(SIGNIFICAND_BITS.values())
        seen = [n for stage, n in self.bits.items() if stage not in self.capped]
        return min(seen, default=max(SIGNIFICAND_BITS.values()))


def measure(target: Target, scope: Scope) -> Stages:
    """Return the bits of every stage.

    Raises
    ------
    DoesNotApply
        If the contract allows no sequence of a few tokens.
    TargetRaised, TargetDied
        If the target does not answer.
    """
    scope = _at_full_precision(scope)
    paths = survivals(target, scope)
    ceiling = SIGNIFICAND_BITS[scope.contract.precisions(scope.dtype).accumulator]
    bits: dict[str, int] = {}
    capped, wrong = [], []
    stages = tuple(dict.fromkeys(one.path for one in paths))
    for stage in stages:
        narrowest = _narrowest(paths, stage)
        # A product of two halves of an odd number of bits has one bit less.
        limit = narrowest.limit if narrowest.limit < ceiling - 1 else ceiling
        if narrowest.lost and narrowest.bits < FEWEST:
            wrong.append(stage)
        elif narrowest.lost:
            bits[stage] = min(usual_bits(narrowest.bits), limit)
        else:
            whole = narrowest.bits >= narrowest.limit - SUMS
            bits[stage] = limit if whole else narrowest.bits
            if bits[stage] < ceiling:
                capped.append(stage)
    if "value" in wrong:  # nothing is added to it, nor taken back
        return Stages({}, (), stages)
    scaled = any(one.scaled for one in paths)
    return Stages(bits, tuple(capped), tuple(wrong), scaled)


def _at_full_precision(scope: Scope) -> Scope:
    """Return the scope with no stage declared narrow: any loss is a loss."""
    contract = scope.contract
    default = "float64" if scope.dtype == "float64" else "float32"
    declared = contract.accumulator_dtype or default
    wide = declared if SIGNIFICAND_BITS[declared] > SIGNIFICAND_BITS[default] else None
    changed = {f"{name}_dtype": None for name in NARROW} | {"accumulator_dtype": wide}
    contract = replace(contract, **changed)  # type: ignore[arg-type]
    return replace(scope, contract=contract)


def _narrowest(paths: tuple[Survival, ...], stage: str) -> Survival:
    """Return the path of a stage on which most is lost."""
    ways = [one for one in paths if one.path == stage]
    if stage == "state":
        ways = ways[-1:]  # beside the source, a score may stand for the state
    return min(ways, key=lambda one: (not one.lost, one.bits))
