"""Triton kernels of HGRN are interpreted, and give the exact recurrence."""

import numpy as np
import pytest

import linkern
from linkern.testing.target.process import ChildProcess
from linkern.testing.target.protocol import Call, TargetConfig


@pytest.mark.parametrize("name", ["hgrn_chunkwise", "hgrn_recurrent"])
def test_heads_are_channels_of_hgrn(name, fla):
    rng = np.random.default_rng(0)
    value, log_decay = rng.standard_normal((2, 2, 3, 9, 5))
    inputs = {"value": value, "log_decay": -abs(log_decay)}
    target = f"linkern.adapters.fla_triton:{name}"
    config = TargetConfig(target, op="hgrn", framework="torch", interpret=True)
    process = ChildProcess(config, timeout=120)
    try:
        single = {n: x.astype(np.float32) for n, x in inputs.items()}
        reply = process.call(Call(single, cuts=(4,), wants_state=True))
    finally:
        process.close()
    expected = linkern.hgrn(*inputs.values())
    np.testing.assert_allclose(reply.output, expected.output, rtol=1e-5, atol=1e-5)
    (memory,) = reply.states
    np.testing.assert_allclose(memory, expected.state.memory, rtol=1e-5, atol=1e-5)
