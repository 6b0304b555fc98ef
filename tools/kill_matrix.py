"""Measure which check catches which planted defect, and write `docs/kill-matrix.md`.

    python tools/kill_matrix.py            # measure, and write the page
    python tools/kill_matrix.py --check    # put the page to the test

Every mutant of linear attention is run through every check, quick profile, without
shrinking; those of operators with gates, whose exact answers take longer, through the
checks that matter to them, and correct kernels of the same operator through those that
must catch one. It is a failure if a mutant survives or if a correct kernel is flagged.
What catches a mutant by chance is left out of the page.

With `--check`, each mutant is run through the checks that the page says catch it: it is
a failure if the one that is made for it does not, or if the page is not the one that
follows from its rows, because it is about other mutants or checks. Which checks catch a
mutant besides its own may depend on how a machine rounds: if one of them does not, that
is printed and is no failure. Inputs depend on more than the seed: Hypothesis also draws
numbers that it finds in a user's own modules, and ours count as such where the package
is installed for editing. Two further seeds are therefore tried on a mutant that its own
check missed, which survives if they miss it, too. Correct kernels are left to the
tests, which judge them in every dtype. The tests also hold all that is a failure here:
that each mutant fails its own check, and that the page follows from its rows.
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from difflib import unified_diff
from pathlib import Path

# Two processes on two cores; threads of BLAS would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from linkern.testing import CHECKS, Plan, run
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.gated import GATED_CORRECT, GATED_MUTANTS
from linkern.testing.kernels.mutants import FAULTY, MUTANTS
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract

PAGE = Path(__file__).parents[1] / "docs" / "kill-matrix.md"
DTYPE = "float32"
FURTHER_SEEDS = (1, 2)
# Defects that show at some calls and not at others: what else catches them is chance.
BY_CHANCE = {
    "jitters",
    "tail_uninitialised",
    "shares_scratch",
    "replays_by_address",
    "keeps_features_by_address",
    "keeps_state_between_calls",
    "returns_one_buffer",
    "overwrites_key",
}


Asked = dict[str, tuple[str, ...]]
Caught = dict[str, list[str]]


def caught_by(name: str, checks: tuple[str, ...] = (), seed: int = 0) -> list[str]:
    """Return the checks that fail on a kernel, of some or of all."""
    plan = Plan(
        target=f"kernel:{name}",
        op="linear_attention",
        dtypes=(DTYPE,),
        profile="quick",
        shrink=False,
        diagnose=False,
        function={**CORRECT, **FAULTY}[name],
        checks=checks,
        seed=seed,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return [r.name for r in results if r.verdict not in ("passed", "unsupported")]


def gated_caught_by(name: str, checks: tuple[str, ...], seed: int = 0) -> list[str]:
    """Return the checks that fail on a kernel of the family, of some."""
    kernel = GATED_MUTANTS.get(name) or GATED_CORRECT[name]
    plan = Plan(
        target=f"kernel:{name}",
        op=kernel.op,
        contract=Contract(**kernel.contract),
        dtypes=(DTYPE,),
        profile="quick",
        shrink=False,
        diagnose=False,
        function=kernel.kernel,
        checks=checks,
        seed=seed,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    # That nothing can be proved of strong gates says nothing about a kernel.
    silent = ("passed", "unsupported", "inconclusive")
    return [r.name for r in results if r.verdict not in silent]


def laws_of(name: str) -> tuple[str, ...]:
    """Return the checks that matter to a kernel of the family."""
    if name in GATED_MUTANTS:
        return GATED_MUTANTS[name].laws
    of_op = (m for m in GATED_MUTANTS.values() if m.op == GATED_CORRECT[name].op)
    return tuple(sorted({mutant.laws[0] for mutant in of_op} | {"value_on_reals"}))


def measured() -> tuple[Caught, Caught]:
    """Return what catches each kernel: of linear attention, of operators with gates."""
    names, gated = [*MUTANTS, *CORRECT], [*GATED_MUTANTS, *GATED_CORRECT]
    return _run(dict.fromkeys(names, ()), {name: laws_of(name) for name in gated})


def _run(plain: Asked, gated: Asked) -> tuple[Caught, Caught]:
    with ProcessPoolExecutor(2) as pool:
        caught = pool.map(caught_by, plain, plain.values())
        with_gates = pool.map(gated_caught_by, gated, gated.values())
        return (
            dict(zip(plain, caught, strict=True)),
            dict(zip(gated, with_gates, strict=True)),
        )


def claimed(text: str) -> tuple[Caught, Caught]:
    """Return what the rows of a page say of each kernel."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines()]
    of = {row[0].strip("`"): row for row in rows if len(row) > 2}
    known = set(CHECKS)

    def said(name: str, column: int) -> list[str]:
        cell = of.get(name, [""] * (column + 1))[column]
        words = cell.replace("*", "").replace(";", ",").replace(" alone", "")
        return [word for word in words.split(", ") if word in known]

    found = {name: said(name, 2) for name in MUTANTS}
    gated = {name: said(name, 3) for name in GATED_MUTANTS}
    nothing: Caught = {name: [] for name in (*CORRECT, *GATED_CORRECT)}
    return found | nothing, gated | nothing


def put_to_the_test(text: str) -> list[str]:
    """Return what is wrong with a page, in sentences."""
    found, gated = claimed(text)
    due = page(found, gated)
    wrong = []
    if due != text:
        pages = (text.splitlines(), due.splitlines())
        sys.stderr.writelines(f"{x}\n" for x in unified_diff(*pages, "page", "due"))
        wrong.append(f"{PAGE.name} is about other mutants or checks: write it again")
    made_for = {name: mutant.law for name, mutant in MUTANTS.items()}
    made_for_gates = {name: mutant.laws[0] for name, mutant in GATED_MUTANTS.items()}
    caught = _run(
        {n: tuple({law, *found[n]}) for n, law in made_for.items()},
        {n: tuple({law, *gated[n]}) for n, law in made_for_gates.items()},
    )
    for laws, said, seen, again in zip(
        (made_for, made_for_gates),
        (found, gated),
        caught,
        (caught_by, gated_caught_by),
        strict=True,
    ):
        missed = {name: sorted({*said[name]} - {*seen[name]}) for name in laws}
        sys.stderr.writelines(
            f"{name}: here not caught by {', '.join(by)}\n"
            for name, by in missed.items()
            if by
        )
        wrong += [
            f"survived: {name}"
            for name, law in laws.items()
            if law not in seen[name]
            and not any(again(name, (law,), seed) for seed in FURTHER_SEEDS)
        ]
    return wrong


def page(found: Caught, gated: Caught) -> str:
    """Return the page."""
    lines = [
        "# The kill matrix",
        "",
        "Generated by `tools/kill_matrix.py`: every planted defect of",
        "`linkern.testing.kernels.mutants` through every check, quick profile, seed 0,",
        "NumPy.",
        "A check that catches what no other check catches is *alone* with it.",
        "",
        f"| | {DTYPE} |",
        "|---|---|",
        _row("mutants caught", [_count(found, MUTANTS)]),
        _row("correct kernels flagged", [_count(found, CORRECT)]),
        "",
        "## By mutant (float32)",
        "",
        "| mutant | after | caught by |",
        "|---|---|---|",
    ]
    for name, mutant in MUTANTS.items():
        checks = found[name]
        shown = ", ".join(checks) or "**nothing**"
        if name in BY_CHANCE:
            shown = f"{mutant.law}; others by chance"
        elif len(checks) == 1:
            shown = f"**{checks[0]}** alone"
        lines.append(f"| `{name}` | {mutant.precedent} | {shown} |")
    lines += [
        "",
        "## By check (float32)",
        "",
        "Checks without a mutant of their own are seen to fail on kernels of",
        "`tests/testing/checks/test_checks.py`.",
        "",
        "| check | catches | alone | catches with gates |",
        "|---|---|---|---|",
    ]
    certain = {n: found[n] for n in found if n not in BY_CHANCE}
    catches = Counter(check for name in certain for check in certain[name])
    with_gates = Counter(check for name in GATED_MUTANTS for check in gated[name])
    for check in CHECKS:
        alone = ", ".join(f"`{n}`" for n, c in certain.items() if c == [check])
        counts = str(catches[check]), alone, str(with_gates[check])
        lines.append(_row(check, [*counts]))
    return "\n".join(lines + gated_part(gated)) + "\n"


def gated_part(found: dict[str, list[str]]) -> list[str]:
    """Return the part of the page about operators with gates."""
    lines = [
        "",
        "## Operators with gates (float32)",
        "",
        "Every planted defect of `linkern.testing.kernels.gated` through the checks",
        "that matter to it. The number in front is that of our own list of defects",
        "found in the field, of which each is like one; where that was comes after it.",
        "Correct kernels of an operator go through the checks that must catch one of",
        "its mutants.",
        "",
        "| | caught or flagged |",
        "|---|---|",
        _row("mutants with gates caught", [_count(found, GATED_MUTANTS)]),
        _row("correct kernels with gates flagged", [_count(found, GATED_CORRECT)]),
        "",
        "| mutant | operator | after | caught by | not by |",
        "|---|---|---|---|---|",
    ]
    for name, mutant in GATED_MUTANTS.items():
        caught, missed = found[name], {*mutant.laws} - {*found[name]}
        shown = ", ".join(caught) or "**nothing**"
        cells = [f"`{name}`", mutant.op, mutant.precedent, shown]
        lines.append(_row(cells[0], [*cells[1:], ", ".join(sorted(missed))]))
    return lines


def _row(title: str, cells: list[str]) -> str:
    return f"| {title} | " + " | ".join(cells) + " |"


def _count(found: dict[str, list[str]], names: object) -> str:
    of = [found[name] for name in names]  # type: ignore[attr-defined]
    return f"{sum(bool(checks) for checks in of)} of {len(of)}"


def main() -> int:
    """Write the page or put it to the test; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        wrong = put_to_the_test(PAGE.read_text(encoding="utf-8"))
    else:
        found, gated = measured()
        PAGE.write_text(page(found, gated), encoding="utf-8")
        wrong = [f"survived: {name}" for name in MUTANTS if not found[name]]
        laws = {name: mutant.laws[0] for name, mutant in GATED_MUTANTS.items()}
        wrong += [f"survived: {n}" for n, law in laws.items() if law not in gated[n]]
        wrong += [f"flagged though right: {name}" for name in CORRECT if found[name]]
        wrong += [f"flagged though right: {n}" for n in GATED_CORRECT if gated[n]]
    sys.stderr.writelines(f"{sentence}\n" for sentence in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
