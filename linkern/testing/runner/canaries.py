"""Canaries: a few known defects that every run must catch before it may speak.

A referee that passes everything looks just like one that finds nothing wrong. These
defects run through the same checks, runner and comparison as the target does.
"""

from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.gated import GATED_CORRECT, GATED_MUTANTS
from linkern.testing.kernels.mutants import FAULTY
from linkern.testing.runner.loop import CheckFinished, run
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract

__all__ = ["CANARIES", "GATED_CANARIES", "failures"]

# Mutant and the check that must catch it.
CANARIES = {
    "tail_not_written": "value_on_integers",
    "bfloat16_state": "value_on_reals",
    "eps_1e-6": "row_normalisation",
    "tail_mask_off_by_one": "causality",
    "normalizer_of_state_ignored": "state_split",
    "replays_by_address": "determinism",
}
# The same of an operator with gates, the least costly of them, and one that is right.
GATED_CANARIES = {"gate_of_token_before": "value_on_reals"}
GATED_AND_RIGHT = "simple_gla by chunks"


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
    planted = {**CANARIES, **GATED_CANARIES}
    for mutant, check in planted.items():
        if _verdict(mutant, check, seed) != "failed":
            wrong.append(f"{check} did not catch the planted defect {mutant}")
    right = [("chunk_32_with_state", x) for x in sorted(set(CANARIES.values()))]
    right += [(GATED_AND_RIGHT, x) for x in GATED_CANARIES.values()]
    for kernel, check in right:
        if _verdict(kernel, check, seed) != "passed":
            wrong.append(f"{check} did not pass a correct kernel")
    return wrong


def _verdict(kernel: str, check: str, seed: int) -> str:
    gated = GATED_MUTANTS.get(kernel) or GATED_CORRECT.get(kernel)
    plan = Plan(
        target=f"canary:{kernel}",
        op=gated.op if gated else "linear_attention",
        contract=Contract(**gated.contract) if gated else Contract(),
        dtypes=("float32",),
        profile="quick",
        seed=seed,
        checks=(check,),
        shrink=False,
        diagnose=False,
        function=gated.kernel if gated else {**CORRECT, **FAULTY}[kernel],
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return results[0].verdict
