"""Declarations that a measurement contradicts; none that a correct kernel could make.

To declare less than was measured is no contradiction.
"""

from collections.abc import Iterator
from dataclasses import replace

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.behaviours.roundings import rounding
from linkern.testing.fingerprint.epsilon import Epsilon
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.target.process import Target

__all__ = ["about_chunks", "about_epsilon", "about_stages"]

HOW_IT_ENTERS = {
    "denominator": "{:g} is added to the denominator",
    "normalizer": "{:g} is added to each entry of the normalizer",
    "clamp": "the denominator never falls below {:g}",
}


def about_stages(target: Target, scope: Scope) -> Iterator[str]:
    """Yield one sentence for each stage that keeps fewer bits than it should.

    The declaration that each sentence asks for is taken as made by the next one.
    """
    for _ in SIGNIFICAND_BITS:
        narrow = rounding(target, scope)
        if narrow is None:
            return
        asked = dict(pair.split("=", 1) for pair in narrow.declaration)
        advice = " ".join(narrow.declaration)
        yield (
            f"{_declared(scope, asked)}{narrow.sentence}: "
            + (f"declare {advice}" if advice else "no declaration allows that")
        )
        wanted = Contract.from_mapping(asked)
        changed = {key: getattr(wanted, key) for key in asked}
        contract = replace(scope.contract, **changed)
        if contract == scope.contract:
            return
        scope = replace(scope, contract=contract)


def _declared(scope: Scope, asked: dict[str, str]) -> str:
    """Return the start of a sentence: the dtypes that stages are declared to have."""
    precisions = scope.contract.precisions(scope.dtype)
    listed = []
    for key in asked:
        if key.endswith("_dtype"):
            declared = getattr(precisions, key.removesuffix("_dtype"))
            dtype = declared or precisions.accumulator
            listed.append(f"`{key}` is {dtype} ({SIGNIFICAND_BITS[dtype]} bits)")
    return f"{' and '.join(listed)}, but " if listed else ""


def about_epsilon(scope: Scope, measured: Epsilon) -> Iterator[str]:
    """Yield a sentence if another epsilon was measured than was declared."""
    contract = scope.contract
    if not measured.intervals or _agrees(scope, measured):
        return
    declared = f"`eps` is declared {contract.eps:g}"
    if contract.eps:
        declared += f" with eps_mode={contract.eps_mode}"
    if measured.mode is None:
        yield f"{declared}, but there is none above {measured.resolution:.2g}: omit it"
        return
    mode = "" if measured.mode == "denominator" else f" and eps_mode={measured.mode}"
    yield (
        f"{declared}, but {HOW_IT_ENTERS[measured.mode].format(measured.size)}: "
        f"declare eps={measured.size:g}{mode}"
    )


def _agrees(scope: Scope, measured: Epsilon) -> bool:
    """Return True if the declared epsilon can be the measured one."""
    contract = scope.contract
    if not contract.eps:
        return measured.mode is None
    if contract.eps_mode not in measured.intervals:
        return False
    low, high = measured.intervals[contract.eps_mode]
    # A kernel rounds the epsilon it is given to the precision that it works in.
    unit = contract.precisions(scope.dtype).unit
    return low <= contract.eps * (1 + unit) and contract.eps * (1 - unit) <= high


def about_chunks(scope: Scope, measured: int | None) -> Iterator[str]:
    """Yield a sentence if another chunk size was measured than was declared."""
    declared = scope.contract.chunk_size
    if declared is not None and measured is not None and declared != measured:
        yield (
            f"`chunk_size` is declared {declared}, but sums have an edge every "
            f"{measured} tokens: declare chunk_size={measured}"
        )
