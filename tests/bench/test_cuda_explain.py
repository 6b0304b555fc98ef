"""``linkern bench --device cuda --explain``: the plans, without a GPU and with one."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.bench.cuda import CUDA, explain
from linkern.kernels.cuda.plan.choice import choose
from linkern.kernels.cuda.plan.tiles import Sizes


def invoke(*words):
    return CliRunner().invoke(cli.main, ["bench", *words])


@pytest.fixture
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(explain, "multiprocessors_here", lambda: None)


def card_here(monkeypatch, multiprocessors):
    here = ("a made-up GPU", multiprocessors, 227 << 10)
    monkeypatch.setattr(explain, "multiprocessors_here", lambda: here)


def test_every_card_and_the_reason(without_a_gpu):
    result = invoke("--device", "cuda", "--explain", "--task", "causal")
    assert result.exit_code == 0, result.output
    for length in (4096, 16384, 65536):
        assert f"causal, {length} tokens; B = 8, H = 16, K = V = 64" in result.output
    cut = "chunk_fwd, K 64, 64 columns, 128 tokens, 8 warps, 128 blocks"
    line = f"  H100 and H200: {cut}, 1 at once on a multiprocessor, 122 us predicted; "
    assert line in result.output
    assert "thousand cycles predicted, beside" in result.output
    assert "no measurement" in result.output
    assert "none of those" not in result.output


def test_a_prediction_of_time_is_for_the_card_of_the_fit(without_a_gpu):
    by_card = {
        plan.card: plan for plan in explain.plans([(CUDA.task("causal"), [4096])])
    }
    predicted = {name: plan.predicted is not None for name, plan in by_card.items()}
    assert predicted == {"A100": False, "H100 and H200": True, "B200": False}
    assert by_card["A100"].resident == 2


@pytest.mark.parametrize("multiprocessors", [78, 132])
def test_the_card_here_comes_first(monkeypatch, multiprocessors):
    card_here(monkeypatch, multiprocessors)
    result = invoke("--device", "cuda", "--explain", "--quick")
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[1]
    assert first.startswith("  a made-up GPU, here: chunk_fwd")
    unknown = multiprocessors == 78
    assert ("the safe shape: a card of 78" in first) == unknown
    told = "a made-up GPU, here: 78 multiprocessors are none of those that the planner"
    assert (told in result.output) == unknown
    assert "one kernel for each token" in result.output


@pytest.mark.parametrize("multiprocessors", [78, 132])
def test_it_explains_what_the_planner_does(monkeypatch, multiprocessors):
    card_here(monkeypatch, multiprocessors)
    task = CUDA.task("wide")
    plan = explain.plans([(task, [4096])])[0]
    choice = choose(Sizes(2, 128, 4096, 128, 128), multiprocessors, 227 << 10)
    assert plan.cut == explain._words(choice.shape)
    assert plan.reason == choice.reason


@pytest.mark.parametrize(
    ("dim", "cut", "blocks", "reason"),
    [
        (64, "K 64, 64 columns, 32 tokens, 8 warps", 128, "the longest chunks;"),
        (128, "K 128, 128 columns, 32 tokens, 12 warps", 128, "few blocks of many"),
        (256, "", 0, "no chunks of so many features"),
    ],
)
def test_gated_delta_rule(dim, cut, blocks, reason, without_a_gpu):
    task = replace(CUDA.task("delta"), dim=dim)
    plan = explain.plans([(task, [4096])])[1]
    assert (plan.cut, plan.blocks) == (cut, blocks)
    assert plan.kernel == ("chunk_delta" if cut else "recurrent")
    assert plan.reason.startswith(reason)


@pytest.mark.parametrize(
    ("dim", "dtype", "cut", "blocks", "reason"),
    [
        (64, "bfloat16", "K 64, 64 columns, 16 tokens, 8 warps", 128, "blocks that"),
        (128, "bfloat16", "K 128, 128 columns, 16 tokens, 12 warps", 128, "few blocks"),
        (128, "float32", "K 128, 64 columns, 16 tokens, 8 warps", 256, "blocks that"),
        (256, "bfloat16", "", 0, "no chunks of so many features"),
    ],
)
def test_kimi_delta_attention(dim, dtype, cut, blocks, reason, without_a_gpu):
    task = replace(CUDA.task("kda"), dim=dim, dtype=dtype)
    plan = explain.plans([(task, [4096])])[1]
    assert (plan.cut, plan.blocks) == (cut, blocks)
    assert plan.kernel == ("chunk_gla" if cut else "recurrent")
    assert plan.reason.startswith(reason)


def test_gradients_of_gated_delta_rule(without_a_gpu):
    """Blocks of many columns have too few registers for 128 features."""
    plan = explain.plans([(CUDA.task("delta-gradient-wide"), [4096])])[1]
    assert plan.cut == "K 128, 64 columns, 32 tokens, 8 warps"
    assert (plan.kernel, plan.blocks) == ("chunk_delta_bwd", 256)
    task = replace(CUDA.task("delta-gradient"), dim=256)
    assert explain.plans([(task, [4096])])[1].kernel == "array code"


def test_gradients_have_the_first_cut_that_fits(without_a_gpu):
    plan = explain.plans([(CUDA.task("gradient"), [4096])])[1]
    assert plan.cut == "K 64, 64 columns, 64 tokens, 8 warps"
    assert plan.reason == "the first that fits; no model of it"


def test_a_cpu_has_no_cuts():
    result = invoke("--explain")
    assert result.exit_code == 2
    assert "--explain needs --device cuda" in result.output
