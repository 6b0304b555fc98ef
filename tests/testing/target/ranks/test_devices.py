"""Ranks on GPUs: a device each, by NCCL."""

from pathlib import Path

import pytest

from linkern.testing import UsageError, verify
from linkern.testing.target.protocol import TargetConfig
from linkern.testing.target.ranks.worker import _backend

EXAMPLES = Path(__file__).parents[4] / "examples" / "ranks"
ON_GPUS = TargetConfig("kernels.py:kernel", device="cuda", ranks=(2,))


@pytest.fixture
def second_of_two(torch, monkeypatch):
    """Return the devices that this process, the second of two ranks, chose."""
    chosen = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_a_rank_has_the_device_of_its_number(second_of_two):
    backend, config = _backend(ON_GPUS)
    assert (backend, config.device, second_of_two) == ("nccl", "cuda:1", [1])


def test_on_the_cpu_it_is_gloo(second_of_two):
    backend, config = _backend(TargetConfig("kernels.py:kernel", ranks=(2,)))
    assert (backend, config.device, second_of_two) == ("gloo", "cpu", [])


def test_fewer_devices_than_ranks_are_refused(torch):
    if torch.cuda.device_count() > 1:
        pytest.skip("there are two GPUs here")
    expected = "`ranks` needs 2 CUDA devices, a rank each, and there are [01]; leave"
    with pytest.raises(UsageError, match=expected):
        verify(f"{EXAMPLES}/all_gather.py:gla", op="gla", ranks=[2], device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("example", ["all_gather", "ring", "all_to_all"])
def test_the_examples_are_right_on_gpus(torch, example):
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two GPUs here")
    target = f"{EXAMPLES}/{example}.py:gla"
    report = verify(target, op="gla", ranks=[2], device="cuda", profile="smoke")
    assert report.exit_code == 0, str(report)
