"""The rules that linkern is shown beside: each is seen to pass and to fail."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.testing.linear_kernels import CORRECT, FAULTY

TOOLS = Path(__file__).parents[2] / "tools"
DUE = np.linspace(0.5, 2.5, 240, dtype=np.float32).reshape(2, 3, 10, 4)
KERNELS = {**CORRECT, **FAULTY}


@pytest.fixture
def tool(monkeypatch):
    """Import a script as it is imported when it runs: beside the others."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


@pytest.fixture
def rejected(tool):
    """The rules that reject an array, `DUE` being the right one."""
    rules = tool("other_rules")

    def by(got, due=DUE, multiple=2.0):
        # An ordinary implementation is off by 2^-20, relatively.
        plain = due * due.dtype.type(1 + 2.0**-20)
        pair = rules.Comparison(got, due, plain, multiple, tolerance=1e-5)
        return {n for n, r in rules.AVAILABLE.items() if not rules.accepts(r, pair)}

    return by


TIGHT = ("torch", "FlashAttention", "gpuemu")


def one_wrong(by, of=DUE):
    """Return an array of which one entry is wrong."""
    got = of.copy()
    got[0, 0, 0, 0] += by
    return got


def without_gpucheck(names):
    return names - {"gpucheck"}


def test_all_accept_the_exact_array(rejected):
    assert rejected(DUE.copy()) == set()


def test_all_reject_an_array_of_another_size(rejected):
    assert without_gpucheck(rejected(3 * DUE)) == {
        "KernelBench",
        "KernelBench-Hard",
        "FlashInfer-Bench",
        "gpuemu",
        "allclose 1e-3",
        "torch",
        "FLA",
        "FLA in CI",
        "FlashAttention",
    }


@pytest.mark.parametrize(
    ("error", "rules"),
    [
        (1e-6, set()),
        (4e-6, set()),
        (2e-5, {"torch", "FlashAttention", "gpuemu"}),
        (3e-4, {*TIGHT, "KernelBench"}),
        (3e-3, {*TIGHT, "KernelBench", "allclose 1e-3"}),
        (3e-2, {*TIGHT, "KernelBench", "allclose 1e-3", "FlashInfer-Bench"}),
    ],
)
def test_each_rule_has_its_limit_at_the_worst_entry(rejected, error, rules):
    assert without_gpucheck(rejected(one_wrong(error))) == rules


def test_a_ratio_hides_what_is_wrong_in_one_place(rejected):
    assert {"KernelBench-Hard", "torch"} <= rejected(one_wrong(0.1))
    assert not {"FLA", "FLA in CI"} & rejected(one_wrong(0.1))


@pytest.mark.parametrize(
    ("factor", "rules"),
    [
        (1.004, set()),
        (1.006, {"FLA"}),
        (1.02, {"FLA"}),
        (1.2, {"FLA", "FLA in CI"}),
    ],
)
def test_the_ratio_of_fla(rejected, factor, rules):
    got = (DUE * factor).astype(np.float32)
    assert {"FLA", "FLA in CI"} & rejected(got) == rules


def test_what_is_below_a_millionth_passes_whatever_its_ratio(rejected):
    small = np.full((2, 3), 1e-7, np.float32)
    assert "FLA" not in rejected(9 * small, small)


def test_flash_attention_compares_with_an_ordinary_implementation(rejected):
    got = (DUE * np.float32(1 + 2.5 * 2.0**-20)).astype(np.float32)
    assert "FlashAttention" in rejected(got)
    assert "FlashAttention" not in rejected(got, multiple=3.0)


def test_flashinfer_bench_wants_an_error_that_is_large_in_both_ways(rejected):
    small, large = np.full((2, 3), 1e-3, np.float32), np.full((2, 3), 1e3, np.float32)
    assert "FlashInfer-Bench" not in rejected(0 * small, small)
    assert "FlashInfer-Bench" not in rejected(large + 5, large)
    assert "FlashInfer-Bench" in rejected(large + 20, large)
    assert "FlashInfer-Bench" in rejected(one_wrong(np.inf))


def test_zeros_pass_where_the_output_is_small(rejected):
    small = np.full((2, 3), 9e-3, np.float32)
    assert not {"KernelBench-Hard", "FlashInfer-Bench"} & rejected(0 * small, small)
    assert {"KernelBench", "FLA", "gpuemu"} <= rejected(0 * small, small)


def test_nan_passes_nowhere(rejected, tool):
    assert rejected(one_wrong(np.nan)) == set(tool("other_rules").AVAILABLE)


def test_rules_for_tensors_want_a_tensor_and_torch_its_dtype(rejected):
    listed, wide = without_gpucheck(rejected(DUE.tolist())), DUE.astype(np.float64)
    assert not listed & {"allclose 1e-3"}
    assert listed == without_gpucheck(rejected(None)) - {"allclose 1e-3"}
    assert without_gpucheck(rejected(wide)) == {"torch", "gpuemu", "FlashInfer-Bench"}


def test_a_transposed_array_passes_nowhere(rejected, tool):
    turned = np.swapaxes(DUE, -1, -2)
    assert rejected(turned) == set(tool("other_rules").AVAILABLE)


@pytest.mark.parametrize("error", [0, 5e-6, 1.2e-5, 1.4e-5, 1e-2])
def test_the_rule_of_torch_is_that_of_torch(rejected, torch, error):
    got = (DUE + np.float32(error)).astype(np.float32)
    try:
        torch.testing.assert_close(torch.asarray(got), torch.asarray(DUE))
        theirs = False
    except AssertionError:
        theirs = True
    assert ("torch" in rejected(got)) == theirs


@pytest.mark.skipif(not find_spec("gpucheck"), reason="gpucheck is not installed")
def test_gpucheck_has_a_limit_for_each_dtype(rejected):
    assert "gpucheck" not in rejected(one_wrong(1e-4))
    assert "gpucheck" in rejected(one_wrong(3e-4))
    assert "gpucheck" not in rejected(one_wrong(1e-6))
    assert "gpucheck" in rejected(one_wrong(1e-6).astype(np.float64))


def test_a_conventional_test_looks_at_gradients_and_states(tool):
    conventional = tool("conventional")
    case = conventional.case("float32", "linear_attention", 64, 0)
    kinds = {
        "quadratic": 1,  # the output
        "chunk_32_with_state": 7,  # memory, normalizer, halves, three gradients
        "state_lacks_tail": 4,  # no gradients
        "returns_list": 1,
    }
    for name, count in kinds.items():
        assert len(list(conventional.comparisons(KERNELS[name], case))) == count, name


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("chunk_16", set()),
        ("chunk_lost", {"FLA", "torch", "KernelBench"}),
        ("state_ignored", {"FLA", "torch", "KernelBench"}),
        ("gradients_swapped", {"FLA", "torch", "KernelBench"}),
    ],
)
def test_a_conventional_test_fails_what_it_can_see(tool, monkeypatch, name, law):
    conventional = tool("conventional")
    short = [conventional.case("float32", "linear_attention", 64, n) for n in (0, 1)]
    monkeypatch.setattr(conventional, "cases", lambda dtype, op: short)
    found = conventional.rejected_by(KERNELS[name], "float32")
    assert law <= found
    assert law or not found


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("simple_gla by chunks", set()),
        ("kda by chunks", set()),
        ("future_pairs_in_chunk", {"FLA", "torch", "KernelBench"}),
    ],
)
def test_other_operators_are_tested_alike(tool, monkeypatch, name, law):
    conventional, script = tool("conventional"), tool("side_by_side")
    kernel = script.KERNELS[name]
    short = [conventional.case("float32", kernel.op, 64, 0)]
    monkeypatch.setattr(conventional, "cases", lambda dtype, op: short)
    conventional.calibrated.cache_clear()
    found = conventional.rejected_by(kernel.kernel, "float32", kernel.op)
    assert law <= found
    assert law or not found - {"gpucheck"}
    conventional.calibrated.cache_clear()


def test_the_page_counts_what_was_found(tool):
    script = tool("side_by_side")
    nobody = {name: set() for name in script.KERNELS}
    by_hand = nobody | {
        "chunk_lost": {"linkern", "FLA"},
        "eps_1e-6": {"linkern", "torch"},
        "eps_1e-10": {"linkern"},
        "quadratic": {"torch"},
    }
    table = script.TABLES[0]
    # torch rejects a correct kernel, so what it rejects besides is not caught.
    assert script.caught_alone(table, by_hand) == ["eps_1e-6", "eps_1e-10"]
    others = {t.title: nobody for t in script.TABLES}
    text = script.page({**others, table.title: by_hand})
    most = len(table.mutants)
    assert f"| **float32: mutants caught** | 3 of {most} | 0 of {most} " in text
    assert f"- float32: 2 of {most} (`eps_1e-6`, `eps_1e-10`)." in text
    assert "| `chunk_lost` | x |" in text
    assert ("not installed" in text) == (find_spec("gpucheck") is None)
