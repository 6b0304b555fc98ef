"""Gradients that hold the denominator constant: named, and judged once declared.

Published kernels of the mLSTM (mlstm_kernels 2.0.6) return them: a norm of each head
follows, which no factor of a row changes.
"""

import numpy as np
import pytest

from linkern import oracle
from linkern.testing import UsageError, run
from linkern.testing.api import plan_of
from linkern.testing.runner.loop import CheckFinished, Diagnosed
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

SHAPE = (1, 2, 9)
LAWS = ("value_on_reals", "gradient_value", "gradient_identities", "finite_differences")


def transposed(x):
    return np.swapaxes(x, -1, -2)


def numerators(query, key, value, gates, cotangent, divisor):
    """Return the gradients of ``(scores * gates) @ value``, over a constant."""
    g = cotangent / divisor
    scores, weights = np.tril(query @ transposed(key)), np.tril(g @ transposed(value))
    return {
        "query": (weights * gates) @ key,
        "key": transposed(weights * gates) @ query,
        "value": transposed(scores * gates) @ g,
        "logarithms": weights * scores * gates,
    }


def linear(query, key, value):
    """Linear attention of the identity map."""
    scores = np.tril(query @ transposed(key))
    return scores @ value / scores.sum(-1, keepdims=True)


def linear_vjp(query, key, value, output_cotangent):
    divisor = np.tril(query @ transposed(key)).sum(-1, keepdims=True)
    inputs = query, key, value
    gradients = numerators(*inputs, query.dtype.type(1), output_cotangent, divisor)
    return {name: gradients[name] for name in ("query", "key", "value")}


def gated(query, key, value, input_gate, log_decay):
    """Return scaled queries, what gates give each pair, and the divisor of each row.

    Both are over the largest weight of the row.
    """
    sums, length = np.cumsum(log_decay, axis=-1), query.shape[-2]
    logs = sums[..., None] - sums[..., None, :] + input_gate[..., None, :]
    seen = np.tri(length, dtype=bool)
    logs = np.where(seen, logs, -np.inf)
    largest = logs.max(-1, keepdims=True) if length else logs
    gates = np.exp(logs - largest)
    query = query * query.dtype.type(query.shape[-1] ** -0.5)
    rows = (gates * (query @ transposed(key))).sum(-1, keepdims=True)
    return query, gates, np.maximum(abs(rows), np.exp(-largest))


def mlstm(query, key, value, input_gate, log_decay):
    q, gates, divisor = gated(query, key, value, input_gate, log_decay)
    return ((gates * (q @ transposed(key))) @ value / divisor).astype(value.dtype)


def mlstm_vjp(query, key, value, input_gate, log_decay, output_cotangent):
    q, gates, divisor = gated(query, key, value, input_gate, log_decay)
    gradients = numerators(q, key, value, gates, output_cotangent, divisor)
    pairs = gradients.pop("logarithms")
    # A gate is in all pairs with a row from it on and a source before it.
    after = np.flip(np.cumsum(np.flip(pairs, -2), axis=-2), -2)
    between = np.tril(np.cumsum(after, axis=-1), -1)
    length = pairs.shape[-1]
    decays = [
        between[..., t, t - 1] if t else 0 * after[..., 0, 0] for t in range(length)
    ]
    gradients["query"] = gradients["query"] * (q.dtype.type(query.shape[-1] ** -0.5))
    return gradients | {
        "input_gate": pairs.sum(-2),
        "log_decay": np.stack(decays, -1) if length else 0 * log_decay,
    }


linear.vjp, mlstm.vjp = linear_vjp, mlstm_vjp
KERNELS = {"linear_attention": linear, "mlstm": mlstm}
DECLARED = {"linear_attention": {"feature_map": "identity"}, "mlstm": {}}


def judged(op, kernel, *, diagnose=False, **declared):
    """Return the verdicts by law, and the diagnosis."""
    plan = plan_of(
        kernel, op=op, checks=LAWS, contract={**DECLARED[op], **declared}, seed=2,
        dtypes=("float64",), profile="quick", diagnose=diagnose, shrink=False,
    )  # fmt: skip
    with np.errstate(over="ignore"):
        events = [*run(plan)]
    results = [e.result for e in events if isinstance(e, CheckFinished)]
    causes = [e.diagnosis for e in events if isinstance(e, Diagnosed)]
    return {x.name: x.verdict for x in results}, causes


@pytest.mark.parametrize("op", KERNELS)
def test_a_constant_denominator_is_named(op):
    verdicts, (cause,) = judged(op, KERNELS[op], diagnose=True)
    assert verdicts["value_on_reals"] == "passed"
    assert verdicts["gradient_value"] == "failed"
    assert verdicts["finite_differences"] == "failed"
    assert cause.declaration == ("constant_denominator=true",)
    assert "is as with `a constant denominator` everywhere" in cause.sentence


@pytest.mark.parametrize("op", KERNELS)
def test_declared_it_is_judged(op):
    verdicts, _ = judged(op, KERNELS[op], constant_denominator=True)
    assert verdicts["value_on_reals"] == verdicts["gradient_value"] == "passed"
    assert verdicts["finite_differences"] == "not_applicable"
    assert verdicts["gradient_identities"] == "not_applicable"


@pytest.mark.parametrize("op", KERNELS)
def test_declared_another_gradient_fails(op):
    def doubled(*inputs):
        return KERNELS[op](*inputs)

    def vjp(**inputs):
        return {n: 2 * x for n, x in KERNELS[op].vjp(**inputs).items()}

    doubled.vjp = vjp
    verdicts, _ = judged(op, doubled, constant_denominator=True)
    assert verdicts["gradient_value"] == "failed"


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op", KERNELS)
def test_numerators_are_linear_in_queries_and_keys(op, constant):
    """So ``sum q dq = g . o`` over a constant; with the quotient's own, it is zero."""
    rng, operator = np.random.default_rng(4), OPERATORS[op]
    draws = {one.name: rng.uniform(1, 2, SHAPE) for one in operator.inputs}
    draws |= {n: rng.uniform(1, 2, (*SHAPE, 3)) for n in ("query", "key", "value")}
    identity = oracle.FEATURE_MAPS["identity"]
    options = oracle.Options(identity, identity, constant=constant)
    scale = 8.0  # so that no floor is above a sum
    g = rng.normal(size=draws["value"].shape)
    output = operator.evaluate(draws, scale, options=options).output
    gradients = operator.gradients(draws, g, scale, options=options)
    along = (g * output).sum() if constant else 0.0
    for name in ("query", "key", "input_gate"):
        if name in draws:
            x = 1 if name == "input_gate" else draws[name]
            assert np.isclose((x * gradients[name]).sum(), along, atol=1e-10)


def test_it_needs_a_denominator():
    with pytest.raises(UsageError, match="it needs `normalize=true`"):
        Contract(constant_denominator=True, normalize=False)
    with pytest.raises(UsageError, match="means nothing for gla"):
        Contract(constant_denominator=True).require_of(OPERATORS["gla"])
