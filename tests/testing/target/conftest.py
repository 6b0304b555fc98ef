"""Devices that are played."""

import pytest

from linkern.testing.target import frameworks
from tests.testing.cuda_device import Played


@pytest.fixture
def played(torch, monkeypatch):
    """A CUDA device of PyTorch, played on the CPU."""
    device = Played()
    framework = device.framework()
    monkeypatch.setitem(frameworks.FRAMEWORKS, "torch", lambda: framework)
    frameworks.framework_named.cache_clear()
    yield device
    frameworks.framework_named.cache_clear()
