"""Pairs of versions: as the page has them, and judged by their exit codes."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "findings-triton.md"


@pytest.fixture
def tool():
    return importlib.import_module("version_pairs")


def test_the_page_has_every_pair_and_its_command(tool):
    text = PAGE.read_text(encoding="utf-8").partition("## Old versions")[2]
    rows = re.findall(r"^\| (\d\S+) \| (\d\S+) \| `(\w+)` \| `(\w+)`", text, re.M)
    said = [[p.old, p.fixed, p.law] for p in tool.PAIRS]
    assert [[*row[:3]] for row in rows] == said
    commands = [line for line in text.split("\n") if line.startswith("linkern verify")]
    assert commands == [" ".join(("linkern", *pair.words())) for pair in tool.PAIRS]


def test_versions_with_block_pointers_need_an_older_triton(tool):
    assert tool.requirements("0.5.2") == ("fla-core==0.5.2",)
    assert tool.requirements("0.5.1") == ("fla-core==0.5.1", "triton<3.9")


@pytest.mark.parametrize(
    ("codes", "code", "said"),
    [((1, 0), 0, "as it must"), ((0, 0), 1, "WRONG"), ((1, 3), 1, "WRONG")],
)
def test_the_old_version_must_fail_and_the_fixed_one_pass(
    tool, codes, code, said, monkeypatch, tmp_path, capsys
):
    of = dict(zip(("0.5.2", "0.6.0"), codes, strict=True))
    monkeypatch.setattr(tool, "installed", lambda version, folder: version)
    monkeypatch.setattr(tool, "code_of", lambda pair, version, seconds: of[version])
    assert tool.main([str(tmp_path), "--only", "gdn2"]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{said}: gdn2:fused_recurrent_gdn2 no_access_out_of_bounds")
