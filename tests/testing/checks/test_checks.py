"""Each check is seen to fail on a kernel that breaks its law, and to pass others."""

import numpy as np
import pytest

import linkern
from linkern.testing import CHECKS, run, verify
from linkern.testing.api import plan_of
from linkern.testing.checks import OF_LAUNCHES
from linkern.testing.kernels.assembly import Parts, packed, stateful
from linkern.testing.kernels.correct import quadratic
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.kernels.planted import PLANTED
from linkern.testing.runner.loop import CheckFinished
from tests.marks import slow_unless
from tests.testing.linear_kernels import CORRECT, FAULTY

IDENTITY = {"feature_map": "identity"}


def in_features(query, key, value):
    """Correct on features: the recurrent form of a kernel without a feature map."""
    scores = np.tril(query @ np.swapaxes(key, -1, -2))
    return (scores @ value) / scores.sum(-1, keepdims=True)


def validates(query, key, value):
    if query.shape != key.shape or key.shape[:-1] != value.shape[:-1]:
        message = "shapes do not fit"
        raise ValueError(message)
    return quadratic(query, key, value)


# Of linear attention where there is one.
KERNELS = [*MUTANTS.values(), *PLANTED.values()]
KERNELS.sort(key=lambda one: one.op == "linear_attention")
BREAKS = {one.checks[0]: one for one in KERNELS}
DTYPES = {"finite_differences": ("float64",)}


def judge(kernel, check, **options):
    """The result of one check; what causes it is asked elsewhere."""
    options = {
        "op": "linear_attention",
        "profile": "quick",
        "dtypes": ("float32",),
        **options,
    }
    plan = plan_of(kernel, checks=[check], diagnose=False, **options)
    return next(e.result for e in run(plan) if isinstance(e, CheckFinished))


def judge_all(kernel, contract):
    """The report of all checks, in the dtype in which most can go wrong."""
    return verify(
        kernel,
        op="linear_attention",
        contract=contract,
        dtypes=("float32",),
        profile="quick",
    )


# Those of operators with gates are seen to fail in test_family.
OF_GATES = "linkern.testing.checks.gates"
LAWS = [
    name
    for name, law in CHECKS.items()
    if law.law.__module__ != OF_GATES and name not in OF_LAUNCHES
]


def test_every_check_has_a_kernel_that_breaks_it():
    assert set(LAWS) <= set(BREAKS) <= set(CHECKS)


def judge_law(kernel, check, **options):
    dtypes = DTYPES.get(check, ("float32",))
    return judge(kernel, check, dtypes=dtypes, **options)


@pytest.mark.parametrize("check", LAWS)
def test_each_check_is_seen_to_fail(check):
    wrong = BREAKS[check]
    result = judge_law(wrong.kernel, check, op=wrong.op, contract=wrong.contract)
    assert result.verdict == "failed"
    assert result.message
    assert result.counterexample.calls


@pytest.mark.parametrize("check", LAWS)
def test_each_check_is_seen_to_pass(check):
    right = packed(stateful(Parts()))
    if check == "scaling_of_keys":
        right = in_features
    elif check == "bad_input":
        right = validates
    elif check in ("parallel_equals_recurrent", "chunk_invariance"):
        right = linkern.linear_attention
    wrong = BREAKS[check]
    contract = wrong.contract if wrong.op == "linear_attention" else {}
    result = judge_law(right, check, contract=contract)
    assert result.verdict == "passed"
    assert result.examples >= CHECKS[check].least


@pytest.mark.parametrize(
    ("check", "contract", "reason"),
    [
        ("scaling_of_keys", {}, "elu_plus_one is not homogeneous"),
        ("scaling_of_keys", {**IDENTITY, "eps": "1e-6"}, "eps=1e-06"),
        ("row_normalisation", {"normalize": "false"}, "normalize=false"),
        (
            "value_on_integers",
            {"feature_map": "softmax"},
            "softmax has integer features",
        ),
        ("value_on_random_reals", {"rounding": "truncation"}, "rounding=truncation"),
        ("decay_extremes", {}, "takes no decays"),
    ],
)
def test_laws_that_do_not_apply_say_why(check, contract, reason):
    result = judge(quadratic, check, contract=contract)
    assert result.verdict == "not_applicable"
    assert reason in result.message
    assert not result.remedies


@pytest.mark.parametrize(
    ("check", "contract", "reason", "remedy"),
    [
        ("parallel_equals_recurrent", {}, "no keyword `form`", "keyword `form`"),
        ("chunk_invariance", {}, "no keyword `chunk_size`", "keyword `chunk_size`"),
        ("heads_independent", {"layout": "td"}, "td has no heads", "with heads"),
        ("short_sequences", {"min_length": "2"}, "no token nor one", "of one token"),
        (
            "state_split",
            {},
            "takes no state: no parameter initial_state or state",
            "return a state",
        ),
        ("gradient_value", {}, "no attribute `vjp`", "declare a `vjp`"),
        ("gradient_value", {"gradients": "none"}, "gradients=none", "leave out"),
        ("finite_differences", {}, "float64, not float32", "add the dtype float64"),
        ("strides", {"strides": "contiguous"}, "strides=contiguous", "leave out"),
        ("nan_policy", {"nan_policy": "any"}, "nan_policy=any", "leave out"),
        ("thread_safety", {"thread_safe": "false"}, "thread_safe=false", "leave out"),
        ("bad_input", {}, "promise to refuse bad input", "declare validates=true"),
    ],
)
def test_laws_that_are_skipped_say_what_would_have_them_judged(
    check, contract, reason, remedy
):
    result = judge(quadratic, check, contract=contract)
    assert result.verdict == "skipped"
    assert reason in result.message
    assert any(remedy in one for one in result.remedies)


def test_a_law_that_needs_two_things_names_both():
    result = judge(quadratic, "gradient_of_state")
    assert result.remedies == (
        "take and return a state",
        "declare a `vjp`",
    )


def test_no_remedy_is_offered_where_the_law_does_not_apply_anyway():
    delta_rule = linkern.delta_rule
    options = {"op": "delta_rule", "dtypes": ("float32",), "profile": "quick"}
    options |= {"contract": {"gradients": "none"}, "checks": ["time_reversal_adjoint"]}
    (result,) = verify(delta_rule, **options).checks
    assert result.verdict == "not_applicable"


def test_reasons_of_two_dtypes_do_not_hide_one_another():
    """Float64 is judged anyway; it is the gradient that is missing."""
    both = ("float32", "float64")
    result = judge(quadratic, "finite_differences", dtypes=both)
    assert result.verdict == "skipped"
    assert "float32: it needs float64" in result.message
    assert "float64: its library does not differentiate" in result.message
    assert result.remedies == ("declare a `vjp`",)


def test_a_law_that_holds_names_the_dtypes_in_which_it_was_judged():
    both = ("float32", "float64")
    whole = judge(linkern.linear_attention, "value_on_reals", dtypes=both)
    assert whole.dtypes == both
    right = CORRECT["chunk_32_with_state"]
    part = judge(right, "finite_differences", dtypes=both)
    assert part.verdict == "passed"
    assert part.dtypes == ("float64",)


@pytest.mark.parametrize("check", ["strides", "nothing_leaks_from_padding"])
def test_a_law_about_memory_is_covered_where_a_plain_call_is_wrong(check):
    def doubled(query, key, value):
        return 2 * quadratic(query, key, value)

    result = judge(doubled, check)
    assert result.verdict == "covered"
    assert "value_on_reals" in result.message
    # Each is counted once, however often the law asks.
    assert f"wrong on {result.examples} of {result.examples} inputs" in result.message
    assert judge(quadratic, check).verdict == "passed"


def test_a_lost_key_shrinks_to_just_past_the_chunk():
    example = judge(
        FAULTY["key_lost_at_chunk_edge"], "value_on_integers"
    ).counterexample
    # The mutant loses the last key of a full chunk of 16, so 17 tokens are needed.
    assert example.calls[-1].inputs["query"].shape[-2] == 17
    assert example.index[-2] == 16
    assert example.got != example.expected


def test_a_kernel_that_rounds_between_its_sums_is_right_but_not_exact():
    for name, exact in (("divides_first", True), ("renormalises", False)):
        result = judge(CORRECT[name], "value_on_integers")
        assert result.verdict == "passed"
        assert ("not exact" in result.message) != exact


def test_a_declared_epsilon_is_allowed_and_another_one_is_not():
    kernel = FAULTY["eps_1e-6"]
    assert judge_all(kernel, {"eps": "1e-6"}).verdict == "passed"
    for dtype in ("float32", "float64"):
        for eps, verdict in (("1e-6", "passed"), ("1e-5", "failed")):
            declared = {"contract": {"eps": eps}, "dtypes": (dtype,)}
            assert judge(kernel, "value_on_reals", **declared).verdict == verdict


@pytest.mark.parametrize(
    ("mutant", "declared"),
    slow_unless(
        lambda name, _: name == "bfloat16_state",
        [
            ("tfloat32_operands", {"operand_dtype": "tfloat32"}),
            ("bfloat16_scores", {"score_dtype": "bfloat16"}),
            # Scores are operands of the second product.
            ("bfloat16_scores", {"operand_dtype": "bfloat16"}),
            (
                "bfloat16_state",
                {"state_dtype": "bfloat16", "normalizer_dtype": "bfloat16"},
            ),
            ("bfloat16_normalizer", {"normalizer_dtype": "bfloat16"}),
            ("denominator_clamped", {"eps": "1e-3", "eps_mode": "clamp"}),
        ],
    ),
)
def test_declared_relaxations_make_mutants_honest(mutant, declared):
    checks = judge_all(FAULTY[mutant], declared).checks
    assert [c.name for c in checks if c.verdict == "failed"] == []


def test_layouts_lengths_and_dims_are_respected():
    def kernel(query, key, value):
        assert query.ndim == 4
        assert query.shape[1] % 8 == 0
        assert query.shape[-1] == value.shape[-1]
        assert query.shape[-1] in (4, 8)
        swapped = (np.swapaxes(x, 1, 2) for x in (query, key, value))
        return np.swapaxes(quadratic(*swapped), 1, 2)

    contract = {
        "layout": "bthd",
        "length_multiple_of": 8,
        "key_dims": [4, 8],
        "equal_dims": True,
        "max_length": 64,
    }
    assert judge_all(kernel, contract).verdict == "passed"


@pytest.mark.parametrize("layout", slow_unless(lambda x: x == "td", ["htd", "td"]))
def test_fewer_axes(layout):
    def kernel(query, key, value):
        assert query.ndim == len(layout)
        return quadratic(query, key, value)

    assert judge_all(kernel, {"layout": layout}).verdict == "passed"


def test_the_same_seed_gives_the_same_report():
    def facts(seed):
        report = verify(
            FAULTY["tail_not_written"],
            checks=["value_on_integers", "causality"],
            op="linear_attention",
            profile="quick",
            seed=seed,
        )
        checks = report.to_dict()["checks"]
        return [{k: v for k, v in c.items() if k != "seconds"} for c in checks]

    assert facts(3) == facts(3)
    assert facts(3) != facts(4)


def test_a_noncausal_kernel_passes_its_own_operator_and_fails_the_causal_one():
    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value, causal=False).output

    causal, both = CORRECT["quadratic"], "linear_attention_noncausal"
    for check in ("value_on_reals", "row_normalisation"):
        assert judge(kernel, check, op=both).verdict == "passed"
    assert judge(kernel, "value_on_reals").verdict == "failed"
    assert judge(causal, "value_on_reals", op=both).verdict == "failed"


def test_a_signalling_nan_is_a_finding_and_no_warning():
    def unwritten(query, key, value):
        return np.full(value.shape, 0x7FA00000, np.uint32).view(np.float32)

    report = verify(
        unwritten,
        op="linear_attention",
        dtypes=("float32",),
        checks=("finite_output", "value_on_integers", "prefix"),
        profile="quick",
        framework="numpy",
    )
    assert {check.name for check in report.failures} >= {"finite_output"}
    assert not [check for check in report.checks if check.verdict == "error"]


def test_weights_of_a_gated_row_sum_to_one():
    def kernel(query, key, value, log_decay):
        output = linkern.power_retention(query, key, value, log_decay).output
        return np.where(np.arange(value.shape[2])[:, None] < 32, output, output / 2)

    options = {"op": "power_retention", "checks": ("row_normalisation",)}
    report = verify(kernel, profile="quick", dtypes=("float32",), seed=0, **options)
    assert report.verdict == "failed"
    said = report.failures[0].message
    assert said.startswith("equal values do not come back unchanged")
