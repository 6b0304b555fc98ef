"""Canaries: a few known defects that every run must catch before it gives a verdict.

A referee that passes everything looks just like one that finds nothing wrong. These
defects run through the same checks, runner and comparison as the target does.
"""

from linkern.testing.kernels.correct import CORRECT, CorrectKernel
from linkern.testing.kernels.mutants import MUTANTS, Mutant
from linkern.testing.runner.loop import CheckFinished, run
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract

__all__ = ["CANARIES", "failures"]

# Each must be caught by the first of its checks.
CANARIES = (
    "tail_not_written",
    "bfloat16_state",
    "eps_1e-6",
    "tail_mask_off_by_one",
    "normalizer_of_state_ignored",
    "replays_by_address",
    "gate_of_token_before",
)
# Few examples miss a canary once in a hundred times; a check that is blind always does.
TRIES = 3
# A correct kernel for each operator of the canaries must pass the same checks.
PASSING = {
    "linear_attention": "chunk_32_with_state",
    "simple_gla": "simple_gla by chunks",
}


def failures(seed: int) -> list[str]:
    """Return what the referee got wrong: empty if it can be trusted.

    Parameters
    ----------
    seed : int
        Seed of the examples.

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
    mutants = [MUTANTS[name] for name in CANARIES]
    for mutant in mutants:
        seeds = range(seed, seed + TRIES)
        if all(_verdict(mutant, mutant.checks[0], n) != "failed" for n in seeds):
            wrong.append(
                f"{mutant.checks[0]} did not catch the planted defect {mutant.name}"
            )
    for op, check in sorted({(mutant.op, mutant.checks[0]) for mutant in mutants}):
        if _verdict(CORRECT[PASSING[op]], check, seed, "smoke") != "passed":
            wrong.append(f"{check} did not pass a correct kernel")
    return wrong


def _verdict(
    kernel: CorrectKernel | Mutant, check: str, seed: int, profile: str = "quick"
) -> str:
    plan = Plan(
        target=f"canary:{kernel.name}",
        op=kernel.op,
        contract=Contract(**kernel.contract),
        dtypes=("float32",),
        profile=profile,
        seed=seed,
        checks=(check,),
        shrink=False,
        diagnose=False,
        function=kernel.kernel,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return results[0].verdict
