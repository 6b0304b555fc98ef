"""Parameters from which kernels make decays of raw gates: `A_log` and `dt_bias`.

The same numbers for every call: referee and target make them from the sizes alone, so
that they are no inputs of a problem.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GATE_NAMES",
    "LARGEST_RATE",
    "PARAMETRIC_FORMS",
    "RAW_FORMS",
    "SOFTPLUS_THRESHOLD",
    "gate_names",
    "gate_parameters",
]

Real = NDArray[np.float64]

# Parameters of kernels for the logarithms of rates, and for what is added to gates.
GATE_NAMES = ("A_log", "dt_bias")
# The forms of decays whose kernels take them, and all that kernels make themselves.
PARAMETRIC_FORMS = ("softplus", "sigmoid")
RAW_FORMS = (*PARAMETRIC_FORMS, "logsigmoid")
# Multiples of an eighth between -5/8 and 5/8, and between -6/8 and 6/8: exact in every
# dtype, other ones for neighbours, and never zero in the first head.
_LOG_RATES, _BIASES = 11, 13
# How far the identity is from a softplus from 20 on, where PyTorch and others use it.
SOFTPLUS_THRESHOLD = 2.1e-9
LARGEST_RATE = float(np.exp(5 / 8))


def gate_names(taken: str) -> tuple[str, ...]:
    """Return the names of the parameters that a kernel takes: both, or that one.

    Examples
    --------
    >>> gate_names("both"), gate_names("dt_bias")
    (('A_log', 'dt_bias'), ('dt_bias',))
    """
    return GATE_NAMES if taken == "both" else (taken,)


def gate_parameters(
    heads: int, channels: int | None, taken: str = "both"
) -> tuple[Real, Real]:
    """Return `A_log`, one number for each head, and `dt_bias`.

    Parameters
    ----------
    heads : int
        Heads of values.
    channels : int or None
        Channels of a decay; None for one decay for each token.
    taken : str
        What a kernel takes of both; the other one is zero.

    Returns
    -------
    array (heads,), array (heads,) or (heads, channels)
        The logarithms of the rates, and what is added to raw gates.

    Examples
    --------
    >>> gate_parameters(3, None)
    (array([-0.625,  0.   ,  0.625]), array([-0.75 ,  0.125, -0.625]))
    """
    rates = (5 * np.arange(heads)) % _LOG_RATES - _LOG_RATES // 2
    size = (heads,) if channels is None else (heads, channels)
    biases = (7 * np.arange(int(np.prod(size)))) % _BIASES - _BIASES // 2
    names = gate_names(taken)
    kept = [float(name in names) / 8.0 for name in GATE_NAMES]
    return np.asarray(kept[0] * rates), np.asarray(kept[1] * biases.reshape(size))
