"""The referee is mutated too: whatever breaks in it, something of ours notices."""

from itertools import count

import numpy as np
import pytest

from linkern.oracle import Bounded, sums
from linkern.testing import Plan, verify
from linkern.testing.checks import CHECKS, assertions
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Tally
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.kernels.correct import quadratic
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems import strategies
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.report.report import Report
from linkern.testing.runner import canaries, judging, loop
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.runner.results import CheckResult
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from tests.testing.linear_kernels import CORRECT, FAULTY

BFLOAT16 = {"accumulator_dtype": "bfloat16"}


def judged(kernel, check, declared=None, **options):
    """The result of one check, in one dtype and without shrinking."""
    options = {"dtypes": ("float32",), "profile": "quick", "shrink": False, **options}
    plan = Plan(
        "test",
        "linear_attention",
        Contract.from_mapping(declared or {}),
        checks=(check,),
        diagnose=False,
        function=kernel,
        **options,
    )
    return next(e.result for e in loop.run(plan) if isinstance(e, CheckFinished))


def ends_in_nan(query, key, value):
    """Right, but for the last row of every head."""
    output = quadratic(query, key, value)
    output[..., -1:, :] = np.nan
    return output


def only_nan(query, key, value):
    return np.full_like(quadratic(query, key, value), np.nan)


def nan_by_chance():
    """A kernel whose first row is NaN at every other call."""
    calls = count()

    def kernel(query, key, value):
        output = quadratic(query, key, value)
        output[..., :1, :] = np.nan if next(calls) % 2 else 0.5
        return output

    return kernel


def a_canary_survives():
    return bool(canaries.failures(seed=0))


def nan_passes():
    return judged(ends_in_nan, "value_on_reals").verdict != "failed"


def twice_the_bound_passes():
    """Compare numbers that are chosen to be just beyond what is allowed."""
    scope = Scope(OPERATORS["linear_attention"], Contract(), "float32")
    shape = Shape(1, 1, 3, 3, 2, 2)
    rng = np.random.default_rng(0)
    problem = real_problem(scope, shape, "uniform", "normal", rng)
    due = Bounded(np.ones((1, 1, 3, 2)), np.full((1, 1, 3, 2), 2.0**-15))
    checked = CheckedTarget(None, Tally())
    checked.require_within(due.output + due.bound, due, problem, "within the bound")
    try:
        checked.require_within(due.output + 2 * due.bound, due, problem, "beyond it")
    except assertions.Violation:
        return False
    return True


def float64_fails():
    kernel = CORRECT["chunk_16"]
    result = judged(kernel, "value_on_reals", dtypes=("float64",))
    return result.verdict != "passed"


def a_failure_is_no_exit_code():
    failed = CheckResult("a_check", "a law", "failed")
    return Report(Plan("a:kernel", "linear_attention"), (failed,)).exit_code != 1


def the_counterexample_is_none():
    """Call the kernel again with what is reported, and compare with what is said."""
    kernel = FAULTY["key_lost_at_chunk_edge"]
    example = judged(kernel, "value_on_integers", shrink=True).counterexample
    call = example.calls[-1]
    output = kernel(*call.inputs.values())
    if example.index is None or any(
        i >= n for i, n in zip(example.index, output.shape, strict=True)
    ):
        return True
    got = float(output[tuple(example.index)])
    low, high = example.allowed
    return got != example.got or low <= got <= high


def wider_intervals(monkeypatch):
    whole = assertions._interval
    monkeypatch.setattr(assertions, "_interval", lambda o, b, d: whole(o, 10 * b, d))


def lenient_with_nan(monkeypatch):
    whole = CheckedTarget._judge

    def judge(self, fine, ratio, got, *rest):
        whole(self, fine | np.isnan(got), ratio, got, *rest)

    monkeypatch.setattr(CheckedTarget, "_judge", judge)


def nothing_is_judged(monkeypatch):
    monkeypatch.setattr(CheckedTarget, "_judge", lambda *of: None)


def nothing_is_searched(monkeypatch):
    monkeypatch.setattr(judging, "search", lambda *of: None)


def nothing_is_compared_bitwise(monkeypatch):
    monkeypatch.setattr(CheckedTarget, "require_same", lambda *of: None)


def nothing_is_counted(monkeypatch):
    monkeypatch.setattr(Tally, "count", lambda self: None)


def the_exit_code_is_lost(monkeypatch):
    monkeypatch.setattr(Report, "exit_code", 0)


def an_oracle_in_float32(monkeypatch):
    whole = sums._recurrence

    def narrow(*arrays, causal):
        found = whole(*arrays, causal=causal)
        return tuple(x.astype(np.float32).astype(np.float64) for x in found)

    monkeypatch.setattr(sums, "_recurrence", narrow)


def inputs_of_zeros(monkeypatch):
    for name in ("integer_problem", "real_problem"):
        whole = getattr(strategies, name)

        def zeros(*of, whole=whole):
            made = whole(*of)
            return made.with_inputs(value=np.zeros_like(made.value))

        monkeypatch.setattr(strategies, name, zeros)


def a_passing_example_is_shown(monkeypatch):
    whole = judging.search

    def search(plan, check, scope, target, tally):
        try:
            whole(plan, check, scope, target, tally)
        except assertions.Violation:
            CheckedTarget(target, tally).run(tally.problem.prefix(2))
            raise

    monkeypatch.setattr(judging, "search", search)


MUTATIONS = [
    (wider_intervals, twice_the_bound_passes),
    (lenient_with_nan, nan_passes),
    (nothing_is_judged, a_canary_survives),
    (nothing_is_searched, a_canary_survives),
    (nothing_is_compared_bitwise, a_canary_survives),
    (nothing_is_counted, a_canary_survives),
    (inputs_of_zeros, a_canary_survives),
    (an_oracle_in_float32, float64_fails),
    (the_exit_code_is_lost, a_failure_is_no_exit_code),
    (a_passing_example_is_shown, the_counterexample_is_none),
]


@pytest.mark.parametrize(
    "noticed", dict.fromkeys(n for _, n in MUTATIONS), ids=lambda n: n.__name__
)
def test_a_sound_referee_raises_no_alarm(noticed):
    assert not noticed()


@pytest.mark.parametrize(
    ("mutate", "noticed"), MUTATIONS, ids=[m.__name__ for m, _ in MUTATIONS]
)
def test_every_mutation_of_the_referee_is_noticed(mutate, noticed, monkeypatch):
    mutate(monkeypatch)
    assert noticed()


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_ran_no_example_is_not_passed(check, monkeypatch):
    nothing_is_searched(monkeypatch)
    result = judged(CORRECT["chunk_32_with_state"], check)
    assert result.verdict in ("inconclusive", *INAPPLICABLE)
    assert result.message


def test_an_empty_search_in_one_of_two_dtypes_is_not_passed(monkeypatch):
    whole = judging.search

    def search(plan, check, scope, target, tally):
        if scope.dtype == "float32":
            whole(plan, check, scope, target, tally)

    monkeypatch.setattr(judging, "search", search)
    both = judged(quadratic, "value_on_reals", dtypes=("float32", "float64"))
    assert both.examples > 0
    assert both.verdict == "inconclusive"


COMPARING = [
    "short_sequences",
    "finite_output",
    "value_on_integers",
    "value_on_reals",
    "value_on_random_reals",
    "row_normalisation",
    "dimensions",
    "long_sequences",
    "prefix",
    "permutations",
    "additivity_of_values",
    "ranges",
]
OF_BITS = ["determinism", "causality", "heads_independent", "scaling_of_values"]


@pytest.mark.parametrize("check", COMPARING)
def test_nan_fails_wherever_outputs_are_compared_with_numbers(check):
    assert judged(only_nan, check).verdict == "failed"


@pytest.mark.parametrize("check", OF_BITS)
def test_nan_is_the_same_nan_where_bits_are_compared(check):
    assert judged(only_nan, check).verdict == "passed"
    assert judged(nan_by_chance(), check).verdict == "failed"


@pytest.mark.parametrize("check", ["value_on_reals", "prefix"])
def test_nan_fails_where_nothing_is_proved_too(check):
    def kernel(query, key, value):
        output = quadratic(query, key, value)
        output[..., 130:, :] = np.nan  # by then h u is above one half
        return output

    declared = {**BFLOAT16, "min_length": 200}
    assert judged(kernel, check, declared).verdict == "failed"


@pytest.mark.parametrize("check", ["value_on_reals", "dimensions", "prefix"])
def test_what_cannot_be_proved_is_inconclusive(check):
    declared = {**BFLOAT16, "min_length": 200}
    report = verify(
        quadratic,
        op="linear_attention",
        contract=declared,
        dtypes=("float32",),
        profile="quick",
        checks=[check],
    )
    assert report.verdict == "inconclusive"
    assert report.exit_code == 3
    assert "proved" in report.checks[0].message


@pytest.mark.parametrize(
    ("proved", "bounded", "declared", "verdict"),
    [
        (100, 100, {}, "passed"),
        (95, 100, {}, "passed"),
        (80, 100, {}, "inconclusive"),
        (99, 100, BFLOAT16, "inconclusive"),
        # Time was for a few alone: all but one must be proved, and some.
        (3, 4, {}, "passed"),
        (2, 4, {}, "inconclusive"),
        (1, 2, {}, "inconclusive"),
        (3, 4, BFLOAT16, "inconclusive"),
    ],
)
def test_a_few_inputs_without_a_bound_do_not_end_a_verdict(
    proved, bounded, declared, verdict
):
    contract = Contract.from_mapping(declared)
    plan = Plan("k.py:f", "gdn2", contract, dtypes=("float32",))
    tally = Tally(examples=25, asked=25, bounded=bounded, proved=proved)
    result = judging._unbroken(plan, CHECKS["gradient_value"], tally, {})
    assert result.verdict == verdict
    said = f"in {bounded - proved} of {bounded} comparisons" in result.message
    assert said == (proved < bounded)


def test_a_defect_that_starts_where_proof_ends_does_not_pass():
    def kernel(query, key, value):
        output = quadratic(query, key, value)
        output[..., 130:, :] = 0
        return output

    result = judged(kernel, "value_on_reals", {**BFLOAT16, "min_length": 200})
    assert result.verdict != "passed"


def raises_on_odd_lengths(query, key, value):
    if query.shape[-2] % 2 and query.shape[-2] > 8:  # the first call has fewer
        message = f"the length {query.shape[-2]} is odd"
        raise ValueError(message)
    return quadratic(query, key, value)


def of_another_dtype(query, key, value):
    return quadratic(query, key, value).astype(np.float16)


def first_row_nan(query, key, value):
    output = quadratic(query, key, value)
    output[..., :1, :] = np.nan
    return output


def first_row_nan_and_more(query, key, value):
    """A second defect where the output is finite."""
    output = first_row_nan(query, key, value)
    output[..., 7:8, :] *= 2
    return output


# Together with a check that judges no values.
JUDGED = ("shape_and_dtype", "finite_output", "value_on_reals", "prefix", "causality")


def verdicts(kernel, **options):
    report = verify(
        kernel,
        op="linear_attention",
        dtypes=("float32",),
        profile="quick",
        checks=JUDGED,
        **options,
    )
    return {check.name: check for check in report.checks}


@pytest.mark.parametrize(
    ("kernel", "reporter", "said"),
    [
        (first_row_nan, "finite_output", "an output that is not finite"),
        (raises_on_odd_lengths, "shape_and_dtype", "the length # is odd"),
        (of_another_dtype, "shape_and_dtype", "an output of another dtype"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_one_deviation_is_one_finding(kernel, reporter, said):
    checks = verdicts(kernel)
    failed = [name for name, check in checks.items() if check.verdict == "failed"]
    assert failed == [reporter]
    covered = checks["value_on_reals"]
    assert covered.verdict == "covered"
    assert reporter in covered.message
    assert said in covered.message


def test_a_law_of_which_nothing_is_left_to_judge_says_so():
    covered = verdicts(of_another_dtype)["value_on_reals"].message
    assert covered.endswith("nothing is left to judge")
    kept = verdicts(first_row_nan)["value_on_reals"].message
    assert kept.endswith("the law is kept wherever that is not met")


def test_a_second_defect_is_not_hidden_by_the_first():
    checks = verdicts(first_row_nan_and_more)
    assert checks["finite_output"].verdict == "failed"
    wrong = checks["value_on_reals"]
    assert wrong.verdict == "failed"
    assert wrong.counterexample.index[-2] == 7
    assert np.isfinite(wrong.counterexample.got)


def test_an_expected_failure_that_is_covered_stays_expected():
    known = dict.fromkeys(("finite_output", "value_on_reals"), "a first row of NaN")
    checks = verdicts(first_row_nan, expect_failure=known)
    assert {checks[name].verdict for name in known} == {"xfailed"}
    assert verdicts(quadratic, expect_failure=known)["prefix"].verdict == "passed"
    assert verdicts(quadratic, expect_failure=known)["value_on_reals"].verdict == (
        "failed"
    )


def test_a_poison_is_not_blamed_for_what_is_not_finite_without_it():
    assert judged(first_row_nan, "nan_policy").verdict == "passed"
    assert judged(MUTANTS["swallows_nan"].kernel, "nan_policy").verdict == "failed"


def test_infinity_is_finite_enough_where_the_exact_output_is_that_large():
    def large(query, key, value):
        return quadratic(query, key, value) * np.float32(3e38) * np.float32(3e38)

    assert judged(large, "finite_output").verdict == "failed"
    large_sums = Contract(normalize=False, scale=4.0)  # averages are never that large
    scope = Scope(OPERATORS["linear_attention"], large_sums, "float16")
    shape = Shape(1, 1, 3, 3, 2, 2)
    rng = np.random.default_rng(0)
    problem = real_problem(scope, shape, "uniform", "normal", rng)
    wide = problem.with_inputs(value=np.full_like(problem.value, 65504))
    checked = CheckedTarget(None, Tally())
    infinite = np.full((1, 1, 3, 2), np.inf)
    checked.require_finite(infinite, wide, "the exact output may round to infinity")
    for output, where in ((-infinite, wide), (infinite, problem)):
        with pytest.raises(assertions.Violation):
            checked.require_finite(output, where, "not finite")


def facts(seed):
    report = verify(
        FAULTY["key_lost_at_chunk_edge"],
        op="linear_attention",
        profile="quick",
        dtypes=("float32",),
        checks=["value_on_integers", "causality", "value_on_reals"],
        seed=seed,
    ).to_dict()
    for check in report["checks"]:
        del check["seconds"]
    return report


def test_the_same_seed_gives_the_same_report_and_another_one_other_examples():
    first, again, other = facts(3), facts(3), facts(4)
    assert first == again
    drawn = [[c["ratios"] for c in report["checks"]] for report in (first, other)]
    assert drawn[0] != drawn[1]


def test_a_violation_that_does_not_repeat_says_so():
    calls = count()

    def every_third(query, key, value):
        output = quadratic(query, key, value)
        return output * 2 if next(calls) % 3 == 2 else output

    result = judged(every_third, "value_on_reals")
    assert result.verdict == "failed"
    assert result.message == (
        "the error exceeds the proved bound, in some repetitions of the calls and not "
        "in others"
    )


def test_a_number_that_is_not_finite_is_named():
    result = judged(only_nan, "value_on_reals")
    assert result.message == "the error exceeds the proved bound: it is nan"
