"""Instructions counted in machine code, and what a profiler counted."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
# What Nsight Compute counted, for 128 heads of 4096 tokens. The code of `chunk_fwd` and
# `chunk_bwd` without decays has hardly changed since.
COUNTED = ROOT / "docs" / "benchmarks" / "gpu-ncu-1a018045.txt"
LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   MOV R4, RZ ;
.L_x_0:
        /*0020*/                   ISETP.GE.AND P1, PT, R0, R2, PT ;
        /*0030*/               @P1 BRA `(.L_x_3) ;
        /*0040*/                   MOV R5, RZ ;
.L_x_1:
        /*0050*/                   HMMA.16816.F32.BF16 R8, R12, R16, R8 ;
        /*0060*/                   VIADD R5, R5, 0x1 ;
        /*0070*/                   ISETP.NE.AND P0, PT, R5, 0x4, PT ;
        /*0080*/               @P0 BRA `(.L_x_1) ;
        /*0090*/                   BRA `(.L_x_4) ;
.L_x_3:
        /*00a0*/                   FADD R8, R8, R9 ;
.L_x_4:
        /*00b0*/                   VIADD R4, R4, 0x1 ;
        /*00c0*/                   ISETP.GE.AND P0, PT, R4, R3, PT ;
        /*00d0*/              @!P0 BRA `(.L_x_0) ;
        /*00e0*/                   EXIT ;
.L_x_5:
        /*00f0*/                   BRA `(.L_x_5) ;
"""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


def test_the_longest_way_through_a_loop(load, torch):
    """By hand: 3 + 4 rounds of 4 + 1 + 3 through the inner loop; the other way has 6.

    PyTorch brings networkx.
    """
    del torch
    kernel = load("machine_loops").loops(LISTING)
    (chunks,) = kernel.inside
    assert chunks.instructions == 3 + 4 * 4 + 1 + 3
    assert chunks.inside == ()
    assert kernel.instructions == 2 + 1
    # A counter that is compared with a register has rounds that depend on the call.
    unknown = LISTING.replace("R5, 0x4, PT", "R5, R6, PT")
    ((chunks,),) = [load("machine_loops").loops(unknown).inside]
    assert chunks.instructions == 3 + 1 + 3
    assert [x.instructions for x in chunks.inside] == [4]
    assert chunks.all_instructions == 3 + 4 + 1 + 3


def test_a_record_is_read_as_it_was_written(load):
    tool = load("kernel_instructions")
    loop = tool.Loop(1, (tool.Loop(2, ()), tool.Loop(3, (tool.Loop(4, ()),))))
    assert tool.as_loop(tool.as_lists(loop)) == loop
    assert loop.all_instructions == 10


def test_a_profiler_counted_nearly_as_many(load):
    tool, predictions = load("kernel_instructions"), load("kernel_predictions")
    text, recorded = COUNTED.read_text(encoding="utf-8"), predictions.counts()
    ratios = {}
    for call in load("kernel_calls").planned_calls():
        if call.operator != "linear_attention":
            continue
        for launch in call.launches:
            if launch.file == "state_passing":
                continue
            name, shape = re.match(r"(\w+)<TileShape<(.*?)>", launch.kernel).groups()
            short = f"{name}<TileShape<{shape.replace(' ', '')}>"
            line = next(x for x in text.splitlines() if x.strip().startswith(short))
            profiled = int(re.search(r"([\d,]+) warp", line)[1].replace(",", ""))
            loop = recorded[f"{launch.file}: {launch.kernel}"]["loops"]
            most = predictions.most_instructions(launch, tool.as_loop(loop))
            ratios[launch.kernel] = most.instructions * launch.blocks / profiled
    assert len(ratios) == 9
    assert all(0.96 <= ratio <= 1.14 for ratio in ratios.values()), ratios
    assert 1.04 <= sum(ratios.values()) / 9 <= 1.06


@pytest.mark.parametrize(
    ("shape", "warps", "instructions", "microseconds"),
    [
        ("float,64,64,32,8", 8, 86_112_384, 375),
        ("bf16,64,64,32,8", 8, 47_886_848, 216),
        ("bf16,128,128,32,12", 12, 102_085_120, 345),
    ],
)
def test_a_warp_of_each_scheduler_waits(load, shape, warps, instructions, microseconds):
    """Times of `chunk_delta` by what was counted of it, at the profiler's clock."""
    predictions = load("kernel_predictions")
    line = f"chunk_delta<TileShape<{shape}>,1>: 128 x {32 * warps} threads"
    assert line in COUNTED.read_text(encoding="utf-8")
    waiting = warps - predictions.SCHEDULERS
    cycles = predictions.cost.cycles_of(2, waiting, instructions / 128, 1, 1)
    # What the same kernels of `chunk_fwd` took in calls, of what they took there.
    clock = (135 / 167 + 325 / 393 + 409 / 492) / 3
    predicted = 1e6 * cycles / predictions.cost.CLOCK
    assert abs(predicted / (clock * microseconds) - 1) <= 0.10
