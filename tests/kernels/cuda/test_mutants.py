"""Planted faults in the kernels: every barrier, wait, bound and mask is needed.

A fault is found by wrong results, by an access out of bounds, or by ThreadSanitizer.
All faults of a file are compiled into one library, and each launch has at most one of
them; without a fault there must be no report.
"""

import re

import pytest

from linkern.kernels.cuda.sources import source
from tests.kernels.cuda import (
    test_chunk_bwd,
    test_chunk_bwd_simt,
    test_chunk_delta,
    test_chunk_delta_bwd,
    test_chunk_fwd,
    test_chunk_fwd_simt,
    test_chunk_gla,
    test_copy,
    test_decode,
    test_gates,
    test_recurrent,
    test_state_passing,
)
from tests.kernels.cuda.emulator.device import Change, Emulator, Way
from tests.kernels.cuda.emulator.watched import Run, reports
from tests.kernels.cuda.faults import RACES, WRONG
from tests.marks import in_turn


def some(problems, *names):
    """Return a function that runs some problems."""

    def run(device):
        for name in names:
            problems[name](device)

    return run


# Small problems that together execute all code of a file.
WATCHED = {
    "chunk_fwd_simt": some(test_chunk_fwd_simt.PROBLEMS, "bfloat16", "no features"),
    "chunk_fwd": some(test_chunk_fwd.PROBLEMS, *test_chunk_fwd.PROBLEMS),
    "chunk_delta": some(test_chunk_delta.PROBLEMS, *test_chunk_delta.PROBLEMS),
    "chunk_delta_bwd": some(
        test_chunk_delta_bwd.PROBLEMS, *test_chunk_delta_bwd.PROBLEMS
    ),
    "chunk_gla": some(test_chunk_gla.PROBLEMS, *test_chunk_gla.PROBLEMS),
    "state_passing": some(test_state_passing.PROBLEMS, *test_state_passing.PROBLEMS),
    "recurrent": some(
        {**test_recurrent.PROBLEMS, **test_gates.PROBLEMS},
        *("float32", "float64", "whole vectors", "infinity", "gates"),
    ),
    "recurrent_global": some(test_recurrent.GLOBAL_PROBLEMS, "float32"),
    "copy": some(test_copy.PROBLEMS, "tail"),
    "decode": some(test_decode.PROBLEMS, "two panels"),
    "chunk_bwd_simt": some(test_chunk_bwd_simt.PROBLEMS, "two panels", "two slices"),
    "chunk_bwd": some(test_chunk_bwd.PROBLEMS, *test_chunk_bwd.PROBLEMS),
}
# Shapes of blocks whose code is that of a file above.
FURTHER = {"shapes": test_chunk_fwd.further_shapes}
# The file whose faults are compiled and run in the least time.
SMALL = "recurrent_global"
# Short segments, so that few tokens make two of them.
CHANGED = {
    "chunk_bwd_simt": (Change("kSegmentChunks = 16;", "kSegmentChunks = 2;"),),
}


def barriers(file):
    """Return a change for each barrier that removes it."""
    text = source(file)
    return [
        Change(old, "", place)
        for old in ("__syncthreads();", "__syncwarp();")
        for place in range(text.count(old))
    ]


def waits(file):
    """Return a change for each wait for copies that waits for one group less."""
    groups = re.findall(r"cp_async_wait<(\d+)>\(\);", source(file))
    return [
        Change(
            f"cp_async_wait<{pending}>();", f"cp_async_wait<{int(pending) + 1}>();", i
        )
        for pending in sorted(set(groups))
        for i in range(groups.count(pending))
    ]


def law_each_is_found(mode, file, faults):
    """There is no report without a fault, and at least one for each fault."""
    runs = [
        Run(
            f"{__name__}:WATCHED:{file}",
            changed=CHANGED.get(file, ()),
            way=Way(resident=2),
            faults=faults,
            file=file,
            fault=fault,
        )
        for fault in (None, *range(len(faults)))
    ]
    right, *wrong = reports(mode, runs)
    assert right == []
    missed = [x.old for x, lines in zip(faults, wrong, strict=True) if not lines]
    assert not missed, missed


# A library is compiled for each kernel and sanitizer, which takes most of the time: CI
# runs about one file of four, under one of them; `pytest -m slow` each, under both.
@pytest.mark.parametrize(
    ("file", "mode"),
    in_turn(
        lambda file, _: file == SMALL,
        [(file, "address") for file in WATCHED] + [(file, "thread") for file in RACES],
        step=4,
    ),
)
def test_each_fault_is_found(file, mode):
    if mode == "thread":
        planted, left_out = RACES[file], barriers(file)
    else:
        planted, left_out = WRONG[file], waits(file)
    faults = [*left_out, *(Change(*fault) for fault in planted.items())]
    law_each_is_found(mode, file, faults)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thread", "address"])
def test_further_shapes_have_no_report(mode):
    run = Run(f"{__name__}:FURTHER:shapes", way=Way(resident=2))
    assert reports(mode, [run]) == [[]]


def test_lanes_read_from_different_banks():
    # A constant, which a launch cannot switch.
    device = Emulator(changed=[Change("kPitch = 24;", "kPitch = 16;")])
    with pytest.raises(AssertionError):
        test_chunk_fwd.PROBLEMS["two chunks"](device)
