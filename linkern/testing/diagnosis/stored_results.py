"""Results that are stored in fewer bits than they should have."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.influence.maps import InfluenceMap, Real
from linkern.testing.problems.context import Scope

__all__ = ["rounded_result"]


def rounded_result(
    maps: Sequence[InfluenceMap], place: str, scope: Scope
) -> Diagnosis | None:
    """Return the bits of a result that is stored with fewer than it should have.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of the result, with wrong entries.
    place : str
        Words for the wrong entries; empty if there are none.
    scope : Scope
        What the target claims and declares.

    Returns
    -------
    Diagnosis or None
        None unless wrong entries are the nearest numbers of so many bits.
    """
    tensor = maps[0].tensor
    bits = max(int(_significand(one.measured[one.wrong]).max()) for one in maps)
    stored = "float32" if "state" in tensor else scope.output_dtype
    if not 1 < bits < SIGNIFICAND_BITS[stored]:
        return None
    for one in maps:
        half = np.exp2(np.frexp(one.exact)[1] - bits - 1.0)
        if (one.error > half + one.bound)[one.wrong].any():
            return None
    if all((_significand(one.measured) <= bits).all() for one in maps):
        place = "everywhere"
    name = "state" if tensor == "final state" else tensor.replace(" ", "_")
    what = f"rounded to {bits} bits"
    return Diagnosis(
        f"{name}_rounded",
        f"the {tensor} is {what}",
        stage=tensor,
        where=place,
        by_what=what,
    )


def _significand(x: Real) -> NDArray[np.int64]:
    """Return the significand bits that numbers need.

    Examples
    --------
    >>> _significand(np.asarray([0.0, 1.0, 0.75, -5.0])).tolist()
    [0, 1, 2, 3]
    """
    whole = np.ldexp(abs(np.frexp(np.nan_to_num(x))[0]), 53).astype(np.int64)
    last = np.maximum(whole & -whole, 1)
    return np.where(whole == 0, 0, 53 - np.log2(last)).astype(np.int64)
