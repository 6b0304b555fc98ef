"""Adapters of Triton kernels are interpreted, and give the exact recurrence."""

import numpy as np
import pytest

import linkern
from linkern.testing.target.process import ChildProcess
from linkern.testing.target.protocol import Call, TargetConfig
from tests.operators.problems import problem


def interpreted(name, op, inputs, **options):
    """Call an adapter on float32 inputs that are cut behind the fourth token."""
    target = f"linkern.adapters.fla_triton:{name}"
    config = TargetConfig(
        target, op=op, framework="torch", interpret=True, options=options
    )
    process = ChildProcess(config, timeout=120)
    try:
        single = {n: x.astype(np.float32) for n, x in inputs.items()}
        return process.call(Call(single, cuts=(4,), wants_state=True))
    finally:
        process.close()


@pytest.mark.parametrize("name", ["hgrn_chunkwise", "hgrn_recurrent"])
def test_heads_are_channels_of_hgrn(name, fla):
    rng = np.random.default_rng(0)
    value, log_decay = rng.standard_normal((2, 2, 3, 9, 5))
    inputs = {"value": value, "log_decay": -abs(log_decay)}
    reply = interpreted(name, "hgrn", inputs)
    expected = linkern.hgrn(*inputs.values())
    np.testing.assert_allclose(reply.output, expected.output, rtol=1e-5, atol=1e-5)
    (memory,) = reply.states
    np.testing.assert_allclose(memory, expected.state.memory, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ["gated_delta_rule", "kda"])
def test_heads_of_preconditioned_rules_have_ranges_of_their_own(rule, fla):
    op = f"preconditioned_{rule}"
    inputs = problem(op, np.random.default_rng(0), 6, batch=2, key_dim=4, value_dim=5)
    inputs["log_range"] = np.array([0.1, 0.7])
    reply = interpreted("preconditioned", op, inputs, kernel="fused_recurrent")
    expected = getattr(linkern, op)(**inputs)
    near = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(reply.output, expected.output, **near)
    for got, part in zip(reply.states, expected.state, strict=True):
        np.testing.assert_allclose(got, part, **near)
