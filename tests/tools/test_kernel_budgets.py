"""The check of what kernels need: it knows all of them, and is seen to fail."""

import copy
import importlib
import json
import re
from importlib.resources import files
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_instances import Instance, instances

from linkern.kernels.cuda.sources import source

TOOLS = Path(__file__).parents[2] / "tools"
KERNEL = "chunk_fwd_simt: twice<float, 3>"
ONE = Instance("chunk_fwd_simt", "twice<float, 3>", 128, 1000)
NEEDS = {"registers": 40, "stack": 0, "spilled": 0, "static": 64}
NEEDS |= {"threads": 128, "dynamic": 1000}
TARGETS = ("sm_80", "sm_90", "sm_100")


@pytest.fixture
def tool(monkeypatch):
    """Both scripts, imported as they are when they run: one beside the other."""
    monkeypatch.syspath_prepend(str(TOOLS))
    names = ("nvrtc", "kernel_budgets")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def found_with(**changes):
    return {target: {KERNEL: {**NEEDS, **changes}} for target in TARGETS}


def record_with(tool, **changes):
    text = {"chunk_fwd_simt": tool.kernel_budgets.digest("chunk_fwd_simt")}
    return {"compiler": "13.0", "texts": text, "targets": found_with(**changes)}


def checked(tool, recorded, found, of=(ONE,), compiler="13.0"):
    return tool.kernel_budgets.check(recorded, of, found, compiler)


def test_what_is_as_recorded_passes_without_a_word(tool):
    assert checked(tool, record_with(tool), found_with()) == ([], True)


@pytest.mark.parametrize("name", ["registers", "static"])
def test_a_budget_lowered_by_one_fails(tool, name):
    recorded = record_with(tool, **{name: NEEDS[name] - 1})
    lines, good = checked(tool, recorded, found_with())
    assert not good
    assert f"sm_90: {KERNEL}: more: {name} {NEEDS[name] - 1} -> {NEEDS[name]}" in lines


@pytest.mark.parametrize("field", ["threads", "shared"])
def test_a_launch_that_asks_for_more_fails_without_compiling(tool, field):
    of = [ONE._replace(**{field: getattr(ONE, field) + 32})]
    lines, good = checked(tool, record_with(tool), {}, of)
    assert not good
    assert len(lines) == 4  # the three targets, and what to do


def test_less_is_good_and_to_be_recorded(tool):
    lines, good = checked(tool, record_with(tool), found_with(registers=39))
    assert good
    assert f"sm_80: {KERNEL}: less: registers 40 -> 39" in lines
    assert lines[-1].endswith(tool.kernel_budgets.ACCEPT)


def test_kernels_come_and_go_only_with_a_record(tool):
    other = ONE._replace(kernel="twice<float, 4>")
    lines, good = checked(tool, record_with(tool), found_with(), [ONE, other])
    assert not good
    assert "sm_90: chunk_fwd_simt: twice<float, 4>: not recorded" in lines
    recorded = record_with(tool)
    recorded["targets"]["sm_90"]["chunk_fwd_simt: once"] = dict(NEEDS)
    lines, good = checked(tool, recorded, found_with())
    assert not good
    assert "sm_90: chunk_fwd_simt: once: recorded, and never launched" in lines


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spilled": 4}, "spills 4 bytes"),
        ({"stack": 8}, "8 bytes of local memory"),
        ({"registers": 130, "threads": 512}, "512 threads of 136 registers"),
        ({"dynamic": 227 * 1024 - 64 + 1}, "232,449 bytes shared; 232,448 at most"),
    ],
)
def test_what_no_record_can_allow(tool, changes, said):
    """Even where it is recorded, and where nothing was compiled."""
    of = [ONE._replace(threads=changes.get("threads", 128))]
    of = [of[0]._replace(shared=changes.get("dynamic", 1000))]
    lines, good = checked(tool, record_with(tool, **changes), {}, of)
    assert not good
    assert any(f"sm_90: {KERNEL}: " in line and said in line for line in lines)


def test_what_a_block_may_have_it_may_have(tool):
    limits = {"registers": 128, "threads": 512, "static": 0, "dynamic": 163 * 1024}
    of = [ONE._replace(threads=512, shared=163 * 1024)]
    found = found_with(**limits)
    assert checked(tool, record_with(tool, **limits), found, of) == ([], True)


def test_another_text_or_compiler_is_to_be_recorded(tool):
    recorded = record_with(tool)
    lines, good = checked(tool, recorded, found_with(), compiler="13.1")
    assert not good
    assert "recorded with NVRTC 13.0, this is 13.1" in lines
    recorded["texts"]["chunk_fwd_simt"] = "another"
    lines, good = checked(tool, recorded, found_with())
    assert not good
    assert "chunk_fwd_simt: not the text that was recorded" in lines


def test_a_comment_is_no_other_text(tool, monkeypatch):
    of = {"a": "int x;  // one\n", "b": "int  x;\n// two\n", "c": "int y;\n"}
    monkeypatch.setattr(tool.kernel_budgets, "source", of.get)
    digest = tool.kernel_budgets.digest
    assert digest("a") == digest("b") != digest("c")


def test_few_kernels_have_all_pairs(tool):
    options = [("float", "double", "half"), ("1", "2"), ("true", "false"), "abcd"]
    names = [f"f<{', '.join(x)}>" for x in product(*options)] + ["g<1>", "h"]
    covering = tool.kernel_budgets.covering
    few = covering(names, 2)
    assert set(few) <= set(names)
    for places in combinations(enumerate(options), 2):
        for pair in product(*(x for _, x in places)):
            at = [i for i, _ in places]
            assert any(
                all(name[2:-1].split(", ")[i] == x for i, x in zip(at, pair))  # noqa: B905
                for name in few
                if name.startswith("f<")
            )
    assert {"g<1>", "h"} <= set(few)
    nested = [f"w<TileShape<{x}>, {y}>" for x in ("1, 2", "3, 4") for y in "abc"]
    assert covering(nested, 2) == nested
    assert len(covering(nested, 1)) == 3
    assert len(few) < len(names) // 2
    assert len(covering(names, 1)) < len(few)


def test_every_kernel_that_is_written_can_be_launched():
    launched = {(one.file, one.kernel.partition("<")[0]) for one in instances()}
    name = re.compile(r"__global__[^{;]*?(\w+)\([^()]+ params\)\s*{")
    written = {
        (path.name.removesuffix(".cu"), kernel)
        for path in (files("linkern.kernels.cuda") / "src").iterdir()
        if path.name.endswith(".cu")
        for kernel in name.findall(path.read_text())
    }
    assert launched == written


def test_the_record_is_of_the_kernels_of_today(tool):
    """What a run of the check says of it before it compiles anything."""
    recorded = json.loads(tool.kernel_budgets.FILE.read_text())
    assert checked(tool, recorded, {}, instances()) == ([], True)


def test_what_is_current_is_not_compiled_again(tool, monkeypatch):
    budgets = tool.kernel_budgets
    monkeypatch.setattr(tool.nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(budgets, "nvrtc", tool.nvrtc)
    recorded = record_with(tool)
    known = budgets.current(recorded, [ONE])
    assert known == recorded["targets"]
    wider = ONE._replace(shared=2000)
    found = budgets.measured([wider], budgets.RECORDED, known=known)
    assert found == found_with(dynamic=2000)
    recorded["texts"]["chunk_fwd_simt"] = "another"
    assert budgets.current(recorded, [ONE]) == {target: {} for target in TARGETS}
    recorded["compiler"] = "12.9"
    assert budgets.current(recorded, [ONE]) == {}


def test_a_record_is_read_as_it_was_written(tool):
    recorded = record_with(tool)
    text = tool.kernel_budgets.to_text(recorded)
    assert json.loads(text) == recorded
    assert sum(KERNEL in line for line in text.splitlines()) == 3
    assert all('"threads"' in x for x in text.splitlines() if KERNEL in x)


@pytest.fixture
def cheapest():
    """A kernel that takes less than a second to compile."""
    return "chunk_fwd_simt<float, float, IDENTITY, false, false>"


def test_a_kernel_made_to_spill_is_reported(tool, nvrtc, cheapest):
    recorded = json.loads(tool.kernel_budgets.FILE.read_text())
    text = source("chunk_fwd_simt")
    kernel = next(one for one in instances() if one.kernel == cheapest)
    asked = {"threads": kernel.threads, "dynamic": kernel.shared}
    needs = tool.nvrtc.compiled(text, "sm_90", [cheapest])[cheapest]
    called = f"chunk_fwd_simt: {cheapest}"
    found = {"sm_90": {called: {**needs._asdict(), **asked}}}
    assert checked(tool, recorded, found, instances()) == ([], True)

    tight = re.sub(
        r"__launch_bounds__\((\w+)[^)]*\)", r"__launch_bounds__(\1, 16)", text
    )
    assert tight != text
    needs = tool.nvrtc.compiled(tight, "sm_90", [cheapest])[cheapest]
    found = {"sm_90": {called: {**needs._asdict(), **asked}}}
    lines, good = checked(tool, copy.deepcopy(recorded), found, instances())
    assert not good
    assert any(cheapest in line and "spills" in line for line in lines)


def test_what_does_not_compile_is_said(tool, nvrtc):
    with pytest.raises(tool.nvrtc.CompilationFailed, match='identifier "nowhere"'):
        tool.nvrtc.compiled("__global__ void f() { nowhere(); }", "sm_90", ["f"])


def test_static_shared_memory_and_large_arrays_are_seen(tool, nvrtc):
    text = """
    __global__ void plain(float* x) { __shared__ float y[32]; y[threadIdx.x] = *x;
      __syncthreads(); *x = y[31 - threadIdx.x]; }
    template <int N> __global__ void wide(float* x) { float y[N];
      for (int i = 0; i < N; i++) y[i] = x[i]; *x = y[int(*x)]; }
    """
    found = tool.nvrtc.compiled(text, "sm_80", ["plain", "wide<100>"])
    assert found["plain"].static == 128
    assert found["plain"].stack == 0
    assert found["wide<100>"].stack == 400
