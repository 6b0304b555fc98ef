"""Targets on several processes: right ones, published defects, deaths and waits."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from linkern.testing import verify
from linkern.testing.checks import CHECKS
from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.runner.judging import judge
from linkern.testing.runner.opening import config_of, open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.spec.contract import Contract
from linkern.testing.target.protocol import Call
from linkern.testing.target.ranks.sharding import Sharding
from tests.marks import in_turn

FAULTY = Path(__file__).parents[2] / "ranks_targets.py"
EXAMPLES = Path(__file__).parents[4] / "examples" / "ranks"
MODULES = ["all_gather", "ring", "all_to_all"]
OPERATORS = ("gla", "gated_delta_rule", "linear_attention")
LAWS = ("value_on_integers", "state_split", "gradient_of_state", "packed_gradients")
FIRST, SECOND = "token 0 of rank 0 of 2", "token 0 of rank 1 of 2"
ALONE = "of rank 1 of 2; no rank called a collective"
# A defect, where it was published, the law that names it, and the first wrong place:
# with its token, where the defect fixes that. Decays of a map count from the third rank
# on, to which it takes the state of the first.
DEFECTS = [
    # flash-linear-attention#1115
    ("head_offset_in_backward", "gla", "gradient_value", FIRST),
    # Megatron-LM#1464, of softmax attention
    ("queries_without_earlier_ranks", "gla", "gradient_value", SECOND),
    # flash-linear-attention, tests/context_parallel/debug.md
    (
        "gradient_of_state_dropped",
        "gla",
        "gradient_of_state",
        FIRST + " of span 0:1",
    ),
    ("half_of_values_unfilled", "gla", "value_on_integers", "of rank 1 of 2"),
    # flash-linear-attention#1180 and #740
    (
        "maps_in_tfloat32",
        "gated_delta_rule",
        "value_on_reals",
        "token 0 of rank 1 of 2",
    ),
    ("maps_in_bfloat16", "gla", "value_on_reals", SECOND),
    # flash-linear-attention#955
    ("first_batch_entry_for_all", "gla", "value_on_integers", "of rank 1 of 2"),
    # Megatron-LM#111 of ISEEKYAN
    ("cu_seqlens_by_ranks", "gla", "packed_equals_separate", "of rank 0 of 2"),
    (
        "boundary_at_the_edge_ignored",
        "gla",
        "packed_equals_separate",
        "token 0 of rank 1 of 2",
    ),
    # slime#1871
    ("tokens_scrambled", "gla", "value_on_integers", "of rank 2 of 3"),
    ("maps_in_reverse", "gla", "value_on_integers", "of rank 1 of 2"),
    # TransformerEngine#1930
    ("odd_lengths_cut", "gla", "value_on_integers", FIRST),
    ("padding_decays_the_state", "gla", "value_on_integers", SECOND),
    # LlamaFactory#10727
    (
        "runs_without_ranks",
        "gla",
        "value_on_integers",
        ALONE,
    ),
    ("wrong_neighbour", "gla", "value_on_integers", "of rank 1 of 2"),
    ("decay_counted_twice", "gla", "value_on_reals", "token 0 of rank 2 of 3"),
    ("final_state_without_last_rank", "gla", "state_split", " of span 1:2"),
    ("gradient_stops_at_the_rank", "gla", "gradient_value", FIRST),
]
FAST = ("head_offset_in_backward", "cu_seqlens_by_ranks", "odd_lengths_cut")


def plan_of(target, op="gla", **options):
    """A plan of few examples on two and three ranks."""
    options = {"dtypes": ("float32",), "profile": "quick"} | options
    return Plan(str(target), op, ranks=(2, 3), seed=3, **options)


@pytest.fixture(scope="module")
def target(torch):
    """A target in processes that all tests share, opened again by each."""
    del torch
    target = open_target(plan_of(f"{EXAMPLES}/all_gather.py:gla"))
    yield target
    target.close()


def judged(target, plan, law):
    target.reopen(config_of(plan))
    return judge(plan, target, CHECKS[law], {}).result


@pytest.mark.parametrize(
    ("module", "op", "law"),
    in_turn(lambda *x: x[0] == "all_gather", product(MODULES, OPERATORS, LAWS)),
)
def test_the_examples_are_right(module, op, law, target):
    plan = plan_of(f"{EXAMPLES}/{module}.py:{op}", op, profile="smoke")
    assert judged(target, plan, law).verdict == "passed"


@pytest.mark.parametrize(
    ("module", "op", "law"),
    in_turn(
        lambda *_: False,
        product(
            MODULES[1:], OPERATORS, ("gradient_value", "value_on_reals", "state_value")
        ),
    ),
)
def test_the_other_examples_are_right_in_more_laws(module, op, law, target):
    result = judged(target, plan_of(f"{EXAMPLES}/{module}.py:{op}", op), law)
    assert result.verdict == "passed", result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    MODULES[:1] + [pytest.param(x, marks=pytest.mark.exhaustive) for x in MODULES[1:]],
)
def test_four_ranks_are_one_function(module, torch):
    del torch
    report = verify(
        f"{EXAMPLES}/{module}.py:gated_delta_rule",
        op="gated_delta_rule",
        ranks=(4,),
        profile="smoke",
        seed=1,
        checks=("value_on_integers", "gradient_value", "packed_equals_separate"),
    )
    assert [check.verdict for check in report.checks] == ["passed"] * 3, str(report)


@pytest.mark.parametrize(
    ("name", "op", "law", "place"),
    [pytest.param(*x, marks=() if x[0] in FAST else pytest.mark.slow) for x in DEFECTS],
)
def test_a_published_defect_is_named(name, op, law, place, target):
    plan = plan_of(f"{FAULTY}:{name}", op)
    result = judged(target, plan, law)
    assert result.verdict == "failed"
    assert result.message.endswith(place)
    assert " ranks with " in result.counterexample.input
    assert "--ranks 2,3" in command(plan, law)


GROUPED = Contract(value_groups=True)


@pytest.mark.parametrize(
    ("module", "law"),
    [
        ("all_gather", "value_on_integers"),
        *in_turn(
            lambda *_: False,
            product(MODULES, ("gradient_value", "state_split", "packed_gradients")),
        ),
    ],
)
def test_value_heads_share_key_heads(module, law, target):
    op = "gated_delta_rule"
    plan = plan_of(f"{EXAMPLES}/{module}.py:{op}", op, contract=GROUPED)
    result = judged(target, replace(plan, profile="smoke"), law)
    assert result.verdict == "passed", result.message


@pytest.mark.slow
@pytest.mark.parametrize("law", ["value_on_integers", "gradient_value"])
def test_a_wrong_key_head_is_named(law, target):
    op = "gated_delta_rule"
    plan = plan_of(f"{FAULTY}:wrong_key_head", op, contract=GROUPED)
    result = judged(target, plan, law)
    assert result.verdict == "failed"
    assert " of rank 1 of 2" in result.message
    plan = plan_of(f"{FAULTY}:wrong_key_head", op)  # as many heads of each
    assert judged(target, plan, law).verdict == "passed"


def inputs(length=5):
    rng = np.random.default_rng(1)
    dims = {"query": 2, "key": 2, "value": 3, "log_decay": 2}
    return {n: -abs(rng.normal(size=(1, 2, length, k))) for n, k in dims.items()}


def processes(target):
    """The processes of two ranks."""
    return [child._process.pid for child in target._target._worlds[2]._children]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raises_on_one", "rank 0 raised ValueError: 5 tokens are odd"),
        ("dies_on_one", "rank 1 ended its process with exit code 3"),
        pytest.param(
            "other_collective",
            r"rank 0 waits in all_gather \(.*; rank 1 waits in all_reduce \(",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "returns_early", "rank 0 waits in all_gather", marks=pytest.mark.slow
        ),
    ],
)
def test_a_rank_that_fails_ends_all_of_them(name, expected, target, monkeypatch):
    target.reopen(config_of(plan_of(f"{FAULTY}:{name}")))
    monkeypatch.setattr(target, "_timeout", 3.0)
    before = processes(target)
    with pytest.raises(TargetDied, match=expected):
        target.call(Call(inputs(), sharding=Sharding(2, (1.0,))))
    assert len(before) == 2
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]
    # And they are started again for the next call.
    target.reopen(config_of(plan_of(f"{EXAMPLES}/ring.py:gla")))
    assert target.call(Call(inputs())).output.shape == (1, 2, 5, 3)


def test_the_page_shows_what_ranks_that_fail_say(target):
    page = (EXAMPLES.parents[1] / "docs" / "ranks.md").read_text(encoding="utf-8")
    shown = re.search(
        r"```text\nthe target (failed on 2 ranks:.*?)```", page, re.DOTALL
    )
    target.reopen(config_of(plan_of(f"{FAULTY}:raises_on_one")))
    with pytest.raises(TargetDied) as death:
        target.call(Call(inputs(), sharding=Sharding(2, (1.0,))))
    without_lines = re.compile(r":\d+\)")
    said = without_lines.sub(")", death.value.reason)
    assert said == without_lines.sub(")", " ".join(shown[1].split()))


def test_ranks_that_raise_are_asked_again(target):
    target.reopen(config_of(plan_of(f"{FAULTY}:raises_on_one")))
    with pytest.raises(TargetRaised, match=r"1 tokens are odd .* on rank 0 of 2; rank"):
        target.call(Call(inputs(4), sharding=Sharding(2, (0.25,))))
    assert target.call(Call(inputs(4))).output.shape == (1, 2, 4, 3)


def test_an_output_of_all_ranks_is_refused(target):
    result = judged(target, plan_of(f"{FAULTY}:whole_output"), "shape_and_dtype")
    assert "the output on rank 1 of 2 has shape" in result.message


def test_an_output_of_another_dtype_names_its_rank(target):
    result = judged(target, plan_of(f"{FAULTY}:wider_on_one"), "shape_and_dtype")
    assert result.verdict == "failed"
    assert "the output on rank 1 of 2 has dtype float64" in result.message


EVERY = Contract(ranks_final="every")


@pytest.mark.parametrize("law", ["state_value", "state_split", "packed_states"])
def test_a_rank_without_the_state_that_it_promises_is_named(law, target):
    name = f"{FAULTY}:no_state_on_first"
    plan = plan_of(name, contract=EVERY, shrink=False)
    result = judged(target, plan, law)
    assert result.verdict == "failed"
    assert "rank 0 of " in result.message
    assert "returned no final state" in result.message


def test_a_rank_with_a_part_of_the_state_is_named(target):
    name, op = f"{FAULTY}:no_normalizer_on_first", "linear_attention"
    result = judged(target, plan_of(name, op, contract=EVERY), "state_value")
    assert result.verdict == "failed"
    assert "rank 0 of 2 returned 1 of the 2 arrays that rank 1 has" in result.message


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("runs_without_ranks", True),
        pytest.param("of_functional_collectives", False, marks=pytest.mark.slow),
    ],
)
def test_a_target_that_calls_no_collective_is_told(name, alone, target):
    plan = plan_of(f"{FAULTY}:{name}", shrink=False)
    result = judged(target, plan, "value_on_integers")
    assert result.verdict == "failed"
    assert result.message.endswith("; no rank called a collective") is alone


def test_handing_a_state_over_is_no_collective_of_the_target(target):
    for name, collective in (
        (f"{FAULTY}:runs_without_ranks", False),
        (f"{EXAMPLES}/ring.py:gla", True),
        (f"{EXAMPLES}/all_to_all.py:gla", True),
    ):
        target.reopen(config_of(plan_of(name)))
        cotangent = np.ones((1, 2, 5, 3))
        for options in ({"wants_state": True}, {"cotangent": cotangent}):
            call = Call(inputs(), cuts=(2,), sharding=Sharding(2), **options)
            assert target.call(call).collective is collective


@pytest.mark.parametrize(
    "declared",
    [
        {"ranks_even": True},
        {"ranks_empty": False},
        {"ranks_initial": "every", "ranks_final": "every"},
    ],
)
def test_a_declaration_is_kept(declared, target):
    where = f"{EXAMPLES}/all_gather.py:gla"
    plan = plan_of(where, contract=Contract(**declared), profile="smoke")
    for law in ("value_on_integers", "state_split", "gradient_of_state"):
        result = judged(target, plan, law)
        assert result.verdict == "passed", result.message


PACKED = ("packed_equals_separate", "packed_states", "packed_gradients")
SPANS = ("value_on_integers", "state_split", "gradient_value", "gradient_of_state")


@pytest.mark.parametrize(
    ("name", "declared", "laws"),
    [
        ("in_zigzag", {"ranks_order": "zigzag", "ranks_even": True}, SPANS),
        (
            "offsets_taken_for_those_of_the_shard",
            {"ranks_cu_seqlens": "shard"},
            PACKED,
        ),
    ],
)
def test_another_convention_is_declared(name, declared, laws, target):
    where = f"{FAULTY}:{name}"
    plan = plan_of(where, contract=Contract(**declared), profile="smoke")
    for law in laws:
        result = judged(target, plan, law)
        assert result.verdict == "passed", result.message
    even = Contract(ranks_even=declared.get("ranks_even", False))
    plan = plan_of(where, contract=even)
    assert judged(target, plan, laws[0]).verdict == "failed"


def test_ranks_that_call_different_collectives_fail_with_a_line_of_each(torch):
    del torch
    report = verify(
        f"{FAULTY}:other_collective",
        op="gla",
        ranks=(2,),
        profile="smoke",
        checks=("value_on_integers",),
        timeout=2.0,
    )
    (result,) = report.checks
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert result.verdict == "failed"
    assert "did not return within 2 s on 2 ranks: rank 0 waits in" in result.message
    assert "; rank 1 waits in all_reduce (ranks_targets.py:" in result.message


@pytest.mark.parametrize(
    "name",
    [
        "Owner",
        pytest.param("of_default_group", marks=pytest.mark.slow),
        pytest.param("Callable", marks=pytest.mark.slow),
    ],
)
def test_a_module_owns_its_group(name, target):
    plan = plan_of(f"{FAULTY}:{name}", profile="smoke")
    for law in ("value_on_integers", "state_split"):
        result = judged(target, plan, law)
        assert result.verdict == "passed", result.message


@pytest.mark.slow
def test_a_verdict_of_all_laws(torch):
    del torch
    report = verify(
        f"{EXAMPLES}/all_gather.py:gated_delta_rule",
        op="gated_delta_rule",
        ranks=(2,),
        profile="smoke",
        seed=1,
    )
    assert report.verdict == "passed"
    assert report.to_dict()["ranks"] == [2]


def test_a_target_that_cannot_be_loaded_is_refused(torch):
    del torch
    with pytest.raises(UsageError, match=r"there is no file nowhere\.py"):
        open_target(plan_of("nowhere.py:kernel"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "other_parameters",
            r"the same on all ranks; on rank 1 of 2 its parameters are \(group, ",
        ),
        ("NeedsMore", r"must be a class that can be made of a `group` alone, or of"),
        pytest.param(
            "refused_on_one",
            r"missing a required argument: 'beta'\. \(rank 1 of 2\)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_target_that_ranks_cannot_load_alike_is_refused(name, match, target):
    with pytest.raises(UsageError, match=match):
        target.reopen(config_of(plan_of(f"{FAULTY}:{name}")))
