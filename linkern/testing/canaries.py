"""Canaries: a few known defects that every run must catch before it may speak.

A referee that passes everything looks just like one that finds nothing wrong. These
defects run through the same checks, runner and comparison as the target does.
"""

from linkern.testing.contract import Contract
from linkern.testing.correct import CORRECT
from linkern.testing.mutants import FAULTY
from linkern.testing.plan import Plan
from linkern.testing.runner import CheckFinished, run

__all__ = ["CANARIES", "failures"]

# Mutant and the check that must catch it.
CANARIES = {
    "tail_not_written": "value_on_integers",
    "bfloat16_state": "value_on_reals",
    "eps_1e-6": "row_normalisation",
    "tail_mask_off_by_one": "causality",
    "normalizer_of_state_ignored": "state_split",
    "replays_by_address": "determinism",
}


def failures(seed: int) -> list[str]:
    """Return what the referee got wrong: empty if it can be trusted.

    Parameters
    ----------
    seed : int
        Which examples are tried.

    Returns
    -------
    list of str
        One sentence for each defect that was missed and each false alarm.

    Examples
    --------
    >>> failures(seed=0)
    []
    """
    wrong = []
    for mutant, check in CANARIES.items():
        if _verdict(mutant, check, seed) != "failed":
            wrong.append(f"{check} did not catch the planted defect {mutant}")
    for check in sorted(set(CANARIES.values())):
        if _verdict("chunk_32_with_state", check, seed) != "passed":
            wrong.append(f"{check} did not pass a correct kernel")
    return wrong


def _verdict(kernel: str, check: str, seed: int) -> str:
    plan = Plan(
        target=f"canary:{kernel}",
        op="linear_attention",
        contract=Contract(),
        dtypes=("float32",),
        profile="quick",
        seed=seed,
        checks=(check,),
        shrink=False,
        diagnose=False,
        function={**CORRECT, **FAULTY}[kernel],
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return results[0].verdict
