"""Targets of `jax.shard_map` on devices of the CPU: right, faulty and refused ones."""

from pathlib import Path

import numpy as np
import pytest

from linkern.testing.checks import CHECKS
from linkern.testing.errors import UsageError
from linkern.testing.runner.judging import judge
from linkern.testing.runner.opening import config_of, open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.spec.contract import Contract
from linkern.testing.target.protocol import Call
from linkern.testing.target.ranks.sharding import Sharding

FAULTY = Path(__file__).parents[2] / "jax_ranks_targets.py"
EXAMPLE = Path(__file__).parents[4] / "examples" / "ranks" / "sharded_jax.py"
DEFECTS = [
    ("wrong_neighbour", "gla", "value_on_integers"),
    ("gradient_of_state_dropped", "gla", "gradient_of_state"),
    ("maps_in_reverse", "gla", "value_on_integers"),
    ("gradient_stops_at_the_rank", "gla", "gradient_value"),
    ("final_state_without_last_rank", "gla", "state_split"),
    ("maps_in_bfloat16", "gated_delta_rule", "value_on_reals"),
    ("without_ranks", "gla", "value_on_integers"),
]
FAST = ("wrong_neighbour", "gradient_stops_at_the_rank")


def plan_of(target, op="gla", **options):
    """A plan of few examples on two and three ranks."""
    options = {"dtypes": ("float32",), "profile": "smoke", "framework": "jax"} | options
    return Plan(str(target), op, ranks=(2, 3), seed=3, **options)


@pytest.fixture(scope="module")
def target(jax):
    """A target in a process that all tests share, opened again by each."""
    del jax
    target = open_target(plan_of(f"{EXAMPLE}:gla"))
    yield target
    target.close()


def judged(target, plan, law):
    target.reopen(config_of(plan))
    return judge(plan, target, CHECKS[law], {}).result


# Compiling takes a minute for each.
@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        "gated_delta_rule",
        pytest.param("gla", marks=pytest.mark.exhaustive),
        pytest.param("linear_attention", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(
    "law",
    [
        "value_on_integers",
        pytest.param("state_split", marks=pytest.mark.exhaustive),
        "gradient_of_state",
    ],
)
def test_the_example_is_right(op, law, target):
    result = judged(target, plan_of(f"{EXAMPLE}:{op}", op), law)
    assert result.verdict == "passed", result.message


@pytest.mark.parametrize(
    ("name", "op", "law"),
    [pytest.param(*x, marks=() if x[0] in FAST else pytest.mark.slow) for x in DEFECTS],
)
def test_a_defect_is_named(name, op, law, target):
    plan = plan_of(f"{FAULTY}:{name}", op, profile="quick")
    result = judged(target, plan, law)
    assert result.verdict == "failed"
    assert " of rank " in result.message
    assert " ranks with " in result.counterexample.input
    assert "--framework jax" in command(plan, law)
    assert "--ranks 2,3" in command(plan, law)


def inputs(length=6):
    rng = np.random.default_rng(1)
    dims = {"query": 2, "key": 2, "value": 3, "log_decay": 2}
    return {n: -abs(rng.normal(size=(1, 2, length, k))) for n, k in dims.items()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_are_one_function(ranks, target):
    whole = inputs()
    target.reopen(config_of(plan_of(f"{EXAMPLE}:gla", dtypes=("float64",))))
    cotangent = np.ones((1, 2, 6, 3))
    call = Call(whole, sharding=Sharding(ranks), cotangent=cotangent, wants_state=True)
    reply = target.call(call)
    state, expected = np.zeros((1, 2, 2, 3)), []
    for q, k, v, g in zip(*(np.moveaxis(x, 2, 0) for x in whole.values()), strict=True):
        state = np.exp(g)[..., None] * state + k[..., None] * v[..., None, :]
        expected.append(np.einsum("bhk,bhkv->bhv", q, state) / 2**0.5)
    np.testing.assert_allclose(reply.output, np.stack(expected, 2), rtol=1e-12)
    totals = [
        np.sum(of_x * x)
        for of_x, x in zip(reply.gradients, whole.values(), strict=True)
    ]
    # The output is linear in queries, keys and values.
    np.testing.assert_allclose(totals[:3], [np.sum(expected)] * 3, rtol=1e-12)


def test_an_output_of_all_ranks_is_refused(target):
    result = judged(target, plan_of(f"{FAULTY}:whole_output"), "shape_and_dtype")
    assert result.verdict == "failed"
    assert "has shape" in result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "declared", "laws"),
    [
        (
            "in_zigzag",
            {"ranks_order": "zigzag", "ranks_even": True},
            ("value_on_integers", "gradient_value"),
        ),
        pytest.param(
            "in_zigzag",
            {"ranks_order": "zigzag", "ranks_even": True},
            ("state_split",),
            marks=pytest.mark.exhaustive,
        ),
        ("packed", {}, ("packed_equals_separate", "packed_gradients")),
        (
            "by_sequence_of_shard",
            {"ranks_cu_seqlens": "shard"},
            ("packed_equals_separate",),
        ),
    ],
)
def test_a_convention_is_kept(name, declared, laws, target):
    where = f"{FAULTY}:{name}"
    for law in laws:
        plan = plan_of(where, contract=Contract(**declared))
        result = judged(target, plan, law)
        assert result.verdict == "passed", result.message
    if declared:
        plan = plan_of(where, profile="quick")
        assert judged(target, plan, laws[0]).verdict == "failed"


@pytest.mark.slow
def test_every_rank_returns_the_state_that_it_promises(target):
    for declared, name, expected in (
        ("every", f"{EXAMPLE}:gla", "passed"),
        ("every", f"{FAULTY}:state_on_last_rank_alone", "failed"),
        ("last", f"{FAULTY}:state_on_last_rank_alone", "passed"),
    ):
        contract = Contract(ranks_final=declared)
        plan = plan_of(name, contract=contract, checks=("state_value",))
        assert judged(target, plan, "state_value").verdict == expected


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("with_position", r"must not take `position` over ranks"),
        ("with_vjp", r"must leave its gradients to `jax\.custom_vjp`"),
    ],
)
def test_what_a_rank_cannot_take_is_refused(name, match, jax):
    del jax
    with pytest.raises(UsageError, match=match):
        open_target(plan_of(f"{FAULTY}:{name}"))


def test_fewer_devices_than_ranks_are_refused(jax, monkeypatch):
    del jax
    flag = "--xla_force_host_platform_device_count=2"
    monkeypatch.setenv("XLA_FLAGS", flag)
    with pytest.raises(UsageError, match=r"needs 3 devices of JAX, and .* allows 2"):
        open_target(plan_of(f"{EXAMPLE}:gla"))


def test_the_framework_of_jax_must_be_named(torch, jax):
    del torch, jax
    with pytest.raises(UsageError, match=r"is for arrays of JAX .* `--framework jax`"):
        open_target(plan_of(f"{EXAMPLE}:gla", framework=None))
