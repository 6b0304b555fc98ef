"""The tables of docs/gpu.md are those of the record and of the model."""

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("kernel_predictions")


def test_the_page_is_current(tool, monkeypatch):
    assert tool.page() == tool.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(tool.cost, "CLOCK", 1e9)
    assert tool.page() != tool.PAGE.read_text(encoding="utf-8")


def test_what_was_not_counted_has_no_prediction(tool, monkeypatch):
    kernels = {name: x for name, x in tool.counts().items() if "chunk_gla" not in name}
    with monkeypatch.context() as patched:
        patched.setattr(tool, "counts", lambda: kernels)
        with pytest.raises(SystemExit, match=r"chunk_gla<.* was not counted: python"):
            list(tool.counted_calls())
    monkeypatch.setattr(tool, "digest", lambda file: f"another text of {file}")
    with pytest.raises(SystemExit, match="is not the text that was counted: python"):
        tool.counts()


def test_blocks_by_registers_shared_memory_and_threads(tool):
    """By hand: 65,536 registers, 228 KiB and 2048 threads of a multiprocessor."""
    need = {"registers": 1, "threads": 128, "static": 0, "dynamic": 0}
    assert tool.residents({**need, "registers": 128}) == 4
    assert tool.residents({**need, "registers": 129}) == 3
    assert tool.residents({**need, "dynamic": 113 << 10}) == 2
    assert tool.residents({**need, "dynamic": (113 << 10) + 1}) == 1
    assert tool.residents({**need, "threads": 1024}) == 2
    assert tool.residents({**need, "threads": 32}) == 32
