"""A cause that can be declared says how, and declared so the kernel is right."""

from itertools import product

import numpy as np
import pytest

from linkern.testing import Plan, run
from linkern.testing.diagnosis import declarations as trials
from linkern.testing.diagnosis.behaviours.roundings import rounding
from linkern.testing.diagnosis.declarations import declarations, first_right
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.kernels.assembly import elu_plus_one
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.report.counting import declaring
from linkern.testing.runner.loop import CheckFinished, Diagnosed
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import pairs
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import every
from tests.testing.diagnosis.unlisted import (
    at_least,
    dense,
    gla,
    half,
    lost,
    part,
    plus,
    rounded,
    softmax,
    swapped_axes,
)

pytestmark = pytest.mark.usefixtures("exact_answers")

BOTH = ("value_on_integers", "value_on_reals")
REALS = BOTH[1:]


def l2norm(query, key, value, log_decay):
    def divided(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(1e-6))

    return divided(query), divided(key), value, log_decay


def without_scale(query, key, value, log_decay):
    """A kernel that cannot be told a scale, so that 1 is right of all its calls."""
    return MUTANTS["scale_left_out"].kernel(query, key, value, log_decay)


def eps_in_normalizer(query, key, value):
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    normalizer = np.cumsum(k, axis=-2) + k.dtype.type(1e-3)
    return (scores @ value) / (q * normalizer).sum(-1, keepdims=True)


def ran(kernel, op, contract, checks):
    plan = Plan(
        "test",
        op,
        contract,
        dtypes=("float32",),
        profile="quick",
        checks=checks,
        function=kernel,
        shrink=False,
    )
    events = list(run(plan))
    verdicts = {e.result.verdict for e in events if isinstance(e, CheckFinished)}
    causes = [e.diagnosis for e in events if isinstance(e, Diagnosed)]
    return verdicts, causes[0] if causes else None


def mutant(name):
    one = MUTANTS[name]
    return one.kernel, one.op, Contract(**one.contract), one.checks[:1]


def gated(**parts):
    return gla(**parts), "simple_gla", Contract(), REALS


def linear(contract=None, **parts):
    return dense(**parts), "linear_attention", Contract(**(contract or {})), BOTH


def chunked(**parts):
    return part(**parts), "linear_attention", Contract(), BOTH


def clamped(query, key, value, log_decay):
    return query, key, value, np.maximum(log_decay, -5)


def to_base_two(query, key, value, log_decay):
    return query, key, value, log_decay / log_decay.dtype.type(np.log(2))


def squashing(query, key, value, log_decay):
    return query, key, value, -np.logaddexp(0, -log_decay)


def divided_by_root(x):
    return elu_plus_one(x) * x.dtype.type(x.shape[-1] ** -0.5)


def wider(query, key, value):
    return dense()(query, key, value).astype(np.float64)


def overwriting(query, key, value):
    output = dense()(query, key, value)
    key *= 2
    return output


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def average(n, d):
    return n / np.arange(1, n.shape[-2] + 1, dtype=n.dtype)[:, None]


def doubled(output):
    return 2 * output


UNDECLARED = {
    "elu": linear(key_map=elu),
    "average": linear(divide=average),
    "doubled": linear(finish=doubled),
    "edge of 48": chunked(chunk=48, written=lost(-1)),
}


DECLARED = {
    "eps": (linear(divide=plus(3.7e-5)), "eps=3.7e-5"),
    "normalizer": (
        (eps_in_normalizer, "linear_attention", Contract(), BOTH),
        "eps=0.001 eps_mode=normalizer",
    ),
    "clamp": (linear(divide=at_least(0.5)), "eps=0.5 eps_mode=clamp"),
    "clamp of scaled ones": (
        linear(query_map=divided_by_root, divide=at_least(0.5)),
        "eps=0.5 eps_mode=clamp scale=K^-0.5",
    ),
    "no quotient": (linear(divide=lambda n, d: n), "normalize=false"),
    "no quotient, scaled": (
        linear(divide=lambda n, d: n * n.dtype.type(0.25)),
        "normalize=false scale=0.25",
    ),
    "quotient": (linear({"normalize": False}), "normalize=true"),
    "other number": (
        linear(
            {"normalize": False, "scale": 2.0}, divide=lambda n, d: n * n.dtype.type(3)
        ),
        "scale=3",
    ),
    "K^-0.5": (
        linear(query_map=divided_by_root, divide=lambda n, d: n),
        "normalize=false scale=K^-0.5",
    ),
    "feature map": (linear(query_map=relu, key_map=relu), "feature_map=relu"),
    "of queries": (
        linear(query_map=lambda x: x),
        "feature_map=identity key_feature_map=elu_plus_one",
    ),
    "of keys": (linear(key_map=softmax), "key_feature_map=softmax"),
    "layout": (
        (swapped_axes(dense()), "linear_attention", Contract(), BOTH),
        "layout=bthd",
    ),
    "strides": (mutant("assumes_contiguous"), "strides=contiguous"),
    "NaN": (mutant("swallows_nan"), "nan_policy=any"),
    "base": (mutant("gates_to_base_two"), "decay_log_base=2"),
    "raw": (gated(arrange=squashing), "decay_form=logsigmoid"),
    "floor": (gated(arrange=clamped), "decay_floor=-5"),
    "scale": (
        (without_scale, "simple_gla", Contract(), MUTANTS["scale_left_out"].checks),
        "scale=1",
    ),
    "norm": (gated(arrange=l2norm), "l2norm=1e-6"),
    "state": (
        mutant("bfloat16_state"),
        "chunk_size=16 state_dtype=bfloat16 normalizer_dtype=bfloat16",
    ),
    "float16": (
        chunked(chunk=64, carried=half),
        "chunk_size=64 state_dtype=float16 normalizer_dtype=float16",
    ),
    "part": (
        mutant("bfloat16_normalizer"),
        "chunk_size=16 normalizer_dtype=bfloat16",
    ),
    "scores": (mutant("bfloat16_scores"), "score_dtype=bfloat16"),
    "operands": (chunked(operand=rounded(8)), "operand_dtype=bfloat16"),
    "sums": (
        mutant("all_in_float16"),
        "accumulator_dtype=float16 feature_dtype=float16",
    ),
    "output": (
        (wider, "linear_attention", Contract(), (*BOTH, "shape_and_dtype")),
        "output_dtype=float64",
    ),
    "input": (
        (overwriting, "linear_attention", Contract(), (*BOTH, "inputs_untouched")),
        "mutates=key",
    ),
    "initial state": (mutant("state_updated_in_place"), "mutates=initial_state"),
    "one token": (mutant("crashes_on_one_token"), "min_length=2"),
}


@pytest.mark.parametrize("case", every(5, DECLARED, slow=0.25))
def test_what_is_declared_as_proposed_is_right(case):
    (kernel, op, contract, checks), declaration = DECLARED[case]
    verdicts, cause = ran(kernel, op, contract, checks)
    assert "failed" in verdicts
    assert cause is not None
    assert " ".join(cause.declaration) == declaration
    assert declaring(cause).count("--declare ") == len(cause.declaration)
    proposed = pairs("--declare", "KEY=VALUE", cause.declaration)
    relaxed = Contract.from_mapping({**contract.declared(), **proposed})
    verdicts, _ = ran(kernel, op, relaxed, checks)
    assert verdicts <= {"passed", *INAPPLICABLE}


@pytest.mark.parametrize(
    ("kernel", "op", "contract", "checks"),
    every(
        4,
        [
            *UNDECLARED.values(),
            mutant("scale_twice"),
            gated(arrange=to_base_two),
            mutant("writes_past_the_end"),
            mutant("state_returned_in_bfloat16"),
        ],
    ),
)
def test_what_no_contract_knows_cannot_be_declared(kernel, op, contract, checks):
    _, cause = ran(kernel, op, contract, checks)
    assert cause is not None
    assert cause.declaration == ()


# Factors that name the numbers and stages which are tried.
FACTORS = {
    "eps": "denominator / (denominator + 3.7e-5)",
    "normalizer": "denominator / (denominator + 0.001)",
    "clamp": "denominator / 0.5",
    "no quotient": "denominator",
    "no quotient, scaled": "0.25 * denominator",
    "quotient": "",
    "other number": "1.5",
    "feature map": "",
    "of queries": "",
    "of keys": "",
    "layout": "",
    "base": "",
    "scale": "1 / scale",
    "norm": "",
}


def asked(kernel, op, contract):
    config = TargetConfig("test", layout=contract.layout, op=op, scale=contract.scale)
    target = InProcess(config, kernel)
    scope = Scope(OPERATORS[op], contract, "float32", interface=target.interface)
    return target, scope


def tried(kernel, op, contract, by_what):
    return " ".join(declarations(*asked(kernel, op, contract), by_what))


@pytest.mark.parametrize("case", every(2, FACTORS))
def test_what_is_right_by_another_contract_is_found(case):
    (kernel, op, contract, _), expected = DECLARED[case]
    assert tried(kernel, op, contract, FACTORS[case]) == expected


@pytest.mark.parametrize("case", ["state", "part", "scores", "operands", "sums"])
def test_the_dtype_of_what_is_rounded_is_declared(case):
    (kernel, op, contract, _), expected = DECLARED[case]
    target, scope = asked(kernel, op, contract)
    assert " ".join(rounding(target, scope).declaration) == expected
    assert first_right(target, scope, [{}, {"scale": 2.0}]) == ()


@pytest.mark.parametrize(
    ("kernel", "by_what"),
    every(
        11, product([*UNDECLARED, None], ["", "0.5", "2", "-5", "1e-6", "1 / scale"])
    ),
)
def test_what_is_wrong_by_every_contract_is_not_declared(kernel, by_what):
    twice = MUTANTS["scale_twice"]
    function, op = UNDECLARED[kernel][:2] if kernel else (twice.kernel, twice.op)
    assert tried(function, op, Contract(), by_what) == ""


def test_what_another_contract_explains_in_part_is_not_declared():
    def weights(scores):
        edge = np.arange(scores.shape[-1]) % 16 == 15
        return np.tril(scores) * ~edge

    kernel = dense(weights=weights, divide=lambda n, d: n)
    assert tried(kernel, "linear_attention", Contract(), "denominator") == ""


def test_what_no_bound_is_proved_of_is_not_declared(monkeypatch):
    (kernel, op, contract, _), expected = DECLARED["no quotient"]
    assert tried(kernel, op, contract, "") == expected
    monkeypatch.setattr(trials, "LEAST_PROVED", 1.0)
    assert tried(kernel, op, contract, "") == ""


@pytest.mark.parametrize("name", every(8, CORRECT))
def test_nothing_is_declared_for_a_correct_kernel(name):
    one = CORRECT[name]
    contract = Contract(**one.contract)
    for by_what in ("1e-6", "0.5"):
        assert tried(one.kernel, one.op, contract, by_what) == ""
