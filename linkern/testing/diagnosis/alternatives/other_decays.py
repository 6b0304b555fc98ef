"""Other decays of heads, of operators whose decays are fixed and no input.

A kernel may have other numbers than the operator, by another formula or one for other
numbers of heads: what it has is measured, head by head.
"""

from collections.abc import Sequence

import numpy as np

from linkern.testing.diagnosis.factors.factor import Factor, by_rule, holds
from linkern.testing.influence.maps import InfluenceMap, Real

__all__ = ["other_decays"]

# What decays are in; the words name the heads.
WHERE = "sources 1 back or more"
# Bits of the words, and heads that they name.
COST, NAMED = 12.0, 3
# Entries that tell the decay of a head, and digits that are said of it.
TELLING, DIGITS = 24, 5


def other_decays(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return the decays of heads that predict all wrong entries.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of weights with wrong entries, those on fresh inputs among them.
    """
    known = [one for one in maps if one.wrong.sum() >= TELLING]
    fixed = "log_decay" in maps[0].problem.scope.operator.defaults
    if not (fixed and known and all(map(_of_pairs, known))):
        return None
    text = _said(max(known, key=lambda one: one.coordinates["head"].max()))
    factor = by_rule("replaced", text, _predicted, COST, where=WHERE)
    told = text and all(holds(factor, one, one.wrong) for one in known)
    return factor if told else None


def _said(one: InfluenceMap) -> str:
    """Return the decays of the first heads that have others, beside the right ones."""
    operator, meant = one.problem.scope.operator, one.problem.oracle_call.meant
    right, words = operator.defaults["log_decay"](meant), []
    heads = len(right)
    for head, ratio in _log_ratios(one).items():
        if ratio and np.isfinite(ratio):
            pair = (
                f"{np.exp(x):.{DIGITS}g}" for x in (right[head] + ratio, right[head])
            )
            words.append(f"{' in place of '.join(pair)} in head {head} of {heads}")
    if not words:
        return ""
    return f"decays {', '.join(words[:NAMED])}" + ", ..." * (len(words) > NAMED)


def _of_pairs(one: InfluenceMap) -> bool:
    return {"row", "source", "head"} <= {*one.coordinates}


def _log_ratios(one: InfluenceMap) -> dict[int, float]:
    """Return logarithms of the decays of heads over the right ones, where they tell."""
    apart = one.coordinates["row"] - one.coordinates["source"]
    head, ratios = one.coordinates["head"], {}
    with np.errstate(all="ignore"):
        ratio = np.log(one.measured / one.exact) / apart
    for h in np.unique(head):
        wrong = (head == h) & one.wrong
        known = ratio[wrong & (apart > 0) & np.isfinite(ratio)]
        few = np.nan if wrong.any() else 0.0
        ratios[int(h)] = float(np.median(known)) if known.size >= TELLING else few
    return ratios


def _predicted(one: InfluenceMap) -> Real:
    """Return the entries with the decays that were measured in them."""
    if not _of_pairs(one):
        return np.full(one.exact.shape, np.nan)
    ratios = _log_ratios(one)
    rate = np.array([ratios[int(h)] for h in one.coordinates["head"]])
    apart = one.coordinates["row"] - one.coordinates["source"]
    return np.asarray(one.exact * np.exp(rate * apart))
