"""The fingerprint of a target: what can be measured of its arithmetic.

Which significands survive where, which epsilon is in the quotient, at which chunk edges
sums are closed; and which of its declarations that contradicts.
"""

from linkern.testing.fingerprint.measurement import (
    Fingerprint,
    fingerprint,
)
from linkern.testing.fingerprint.rendering import sheet

__all__ = ["Fingerprint", "fingerprint", "sheet"]
