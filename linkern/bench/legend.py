"""Legend of the tables: a line for each column of a suite."""

from collections.abc import Mapping
from types import MappingProxyType

from linkern.bench.suites import Suite
from linkern.bench.tasks import OURS

__all__ = ["legend"]

_TIME = "median (lowest-highest) of the rounds"
_ERROR = "largest difference from a float64 answer, over its largest number"
_RATIO = f"times as long as {OURS} takes; above 1 is slower than {OURS}"

_LINES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cpu": {
            "tokens": "length of the sequence",
            "contestant": "who computes; limits: what this machine reaches meanwhile",
            "time": f"of one call, or of one token where they come singly: {_TIME}; "
            "! others used more than 8 % of the processor meanwhile",
            f"time / {OURS}": _RATIO,
            "of GEMM": "share of the speed of a large matrix product, counting the "
            "operations of the chunk form at 64",
            "floor": "time of copying inputs and outputs once, as a share of the time",
            "extra": "most memory beside both during one call; ~ by the growth of the "
            "process",
            "error": _ERROR,
        },
        "cuda": {
            "tokens": "length of the sequence",
            "contestant": "who computes; limit: what this GPU reaches meanwhile",
            "time": f"of one call, by the clock of the GPU: {_TIME}",
            "of copying": "time of copying the bytes that have to pass once, as a "
            "share of the time",
            f"time / {OURS}": _RATIO,
            "error": _ERROR,
            "by": "graph, one launch of many calls; events, call by call, gaps "
            "included",
        },
        "generation": {
            "tokens": "number of tokens that are generated",
            "contestant": "who generates",
            "seconds": f"for all tokens: {_TIME}; * estimated from sampled tokens",
            "tokens/s": "tokens over seconds",
            "time / baseline": "times as long as the baseline takes; above 1 is slower",
            "held": "memory kept from one token to the next, at the end",
            "peak": "most memory while preparing and at the last token; ~ by the "
            "growth of the process",
        },
    }
)


def legend(suite: Suite) -> tuple[str, ...]:
    """Return a line for each column of the tables of a suite.

    Examples
    --------
    >>> from linkern.bench.cpu import CPU
    >>> legend(CPU)[0]
    'tokens: length of the sequence'
    """
    lines = _LINES[suite.name].items()
    return tuple(f"{column}: {meaning}" for column, meaning in lines)
