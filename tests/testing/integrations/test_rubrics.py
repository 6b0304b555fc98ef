"""Rewards of training environments: OpenEnv's rubric, the taskset of Verifiers."""

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from linkern.testing.integrations.sources import code_in, written
from tests.conftest import not_installed

RIGHT = '''\
import numpy as np


def kernel(query, key, value, log_decay):
    """Decay the state, write, read."""
    lead, (length, key_dim) = query.shape[:2], query.shape[2:]
    groups = value.shape[1] // query.shape[1]
    query, key = (np.repeat(x, groups, axis=1) for x in (query, key))
    memory = np.zeros((*value.shape[:2], key_dim, value.shape[-1]), value.dtype)
    output = np.empty_like(value)
    scale = query.dtype.type(key_dim**-0.5)
    for t in range(length):
        memory = np.exp(log_decay[:, :, t, None, None]) * memory
        memory = memory + key[:, :, t, :, None] * value[:, :, t, None, :]
        output[:, :, t] = scale * (query[:, :, t, None, :] @ memory)[:, :, 0]
    return output
'''
WRONG = RIGHT.replace(
    "memory = np.exp(log_decay[:, :, t, None, None]) * memory", "pass"
)
REPLY = "The kernel decays its state.\n\n```python\n{}```\n"
# More than any machine needs for the few examples of one round.
BUDGET = {"seconds": 300, "profile": "smoke"}


def need(name):
    if find_spec(name) is None:
        not_installed(name)


def test_the_last_block_of_a_reply_is_its_code():
    assert code_in("```py\nx = 1\n```\nbetter:\n```python\nx = 2\n```") == "x = 2\n"
    assert code_in("x = 3\n") == "x = 3\n"


def test_files_are_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with written({"candidate.py": RIGHT}, "kernel") as target:
        assert target.endswith("candidate.py:kernel")
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


@pytest.mark.library
class TestOpenEnv:
    """A rubric of OpenEnv."""

    @pytest.fixture
    def rubric(self):
        need("openenv")
        from linkern.testing.integrations.openenv import KernelRubric

        return KernelRubric("simple_gla", **BUDGET, framework="numpy", seed=0)

    def test_a_correct_kernel_gets_the_whole_reward(self, rubric):
        action = SimpleNamespace(code=RIGHT)
        assert rubric(action, None) == rubric.last_score == 1.0
        assert rubric.grade.verdict == "passed"

    def test_a_wrong_kernel_gets_less_and_a_cause(self, rubric):
        assert rubric(SimpleNamespace(code=REPLY.format(WRONG)), None) < 1.0
        assert rubric.grade.verdict == "failed"

    def test_no_python_gets_nothing(self, rubric):
        assert rubric(SimpleNamespace(code="I cannot do that."), None) == 0.0
        assert rubric.grade.verdict == "refused"


@pytest.mark.library
class TestVerifiers:
    """A taskset of Verifiers."""

    @pytest.fixture
    def integration(self):
        need("verifiers")
        from linkern.testing.integrations import verifiers

        return verifiers

    def test_there_is_a_task_for_each_operator(self, integration):
        config = integration.KernelTasksetConfig(ops=("gla", "kda"))
        tasks = list(integration.KernelTaskset(config))
        assert [task.data.op for task in tasks] == ["gla", "kda"]
        assert "kernel(query, key, value, log_decay)" in tasks[0].data.prompt

    @pytest.mark.parametrize(
        ("code", "verdict"), [(RIGHT, "passed"), (WRONG, "failed")]
    )
    def test_the_reward_is_the_score(self, integration, code, verdict):
        config = integration.KernelTasksetConfig(
            ops=("simple_gla",), framework="numpy", task=BUDGET
        )
        (task,) = integration.KernelTaskset(config)
        trace = SimpleNamespace(last_reply=REPLY.format(code), info={})
        reward = asyncio.run(task.score_of_kernel(trace))
        assert trace.info["linkern"]["verdict"] == verdict
        assert (reward == 1.0) is (verdict == "passed")
