"""The examples with tensors in the documentation are executed."""

import re
from pathlib import Path

import numpy as np

import linkern

ROOT = Path(__file__).parents[3]


def blocks(page):
    """Python code without prompts: `tests/test_docs.py` runs the other examples."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    return [block for block in found if not block.startswith(">>>")]


def test_the_page_of_pytorch(torch):
    del torch
    names = {}
    shown = blocks("docs/pytorch.md")
    assert len(shown) == 2
    for block in shown:
        exec(block, names)
    assert names["slope"].abs().sum() > 0


def test_the_readme(torch):
    del torch
    (shown,) = (x for x in blocks("README.md") if "torch" in x)
    query, key, value = np.random.default_rng(0).normal(size=(3, 4, 100, 16))
    names = {"query": query, "key": key, "value": value, "linkern": linkern}
    exec(shown, names)
    assert all(x.grad.abs().sum() > 0 for x in names["tensors"])
