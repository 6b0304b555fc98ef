"""Planted faults in the kernels: each barrier, wait, bound, mask and swizzle is needed.

A fault is found by wrong numbers, by an address of what is not there, or, where
numbers need not show it, by ThreadSanitizer. All faults of a file are compiled into one
library, and each launch has one of them; without any, nothing is to be found.
"""

import re

import pytest

from linkern.kernels.cuda.sources import source
from tests.kernels.cuda import (
    test_chunk_bwd,
    test_chunk_bwd_simt,
    test_chunk_fwd,
    test_chunk_fwd_simt,
    test_decode,
    test_recurrent,
)
from tests.kernels.cuda.emulator.device import Change, Emulator, Way
from tests.kernels.cuda.emulator.watched import Run, reports
from tests.kernels.cuda.faults import RACES, WRONG


def some(problems, *names):
    """Return a function that goes through some problems."""

    def run(device):
        for name in names:
            problems[name](device)

    return run


# Small problems that together go through all of a file.
WATCHED = {
    "chunk_fwd_simt": some(test_chunk_fwd_simt.PROBLEMS, "bfloat16", "no features"),
    "chunk_fwd": some(test_chunk_fwd.PROBLEMS, *test_chunk_fwd.PROBLEMS),
    "state_passing": some(
        {**test_chunk_fwd.PROBLEMS, **test_chunk_bwd.PROBLEMS},
        *("two segments", "from nothing", "groups"),
    ),
    "recurrent": some(
        test_recurrent.PROBLEMS, "float32", "float64", "whole vectors", "infinity"
    ),
    "recurrent_global": some(test_recurrent.GLOBAL_PROBLEMS, "float32"),
    "decode": some(test_decode.PROBLEMS, "two panels"),
    "chunk_bwd_simt": some(test_chunk_bwd_simt.PROBLEMS, "two panels", "two slices"),
    "chunk_bwd": some(test_chunk_bwd.PROBLEMS, *test_chunk_bwd.PROBLEMS),
}
# Segments so short that two of them are few tokens.
CHANGED = {
    "chunk_bwd_simt": (Change("kSegmentChunks = 16;", "kSegmentChunks = 2;"),),
}


def barriers(file):
    """Return a change for each barrier that leaves it out."""
    text = source(file)
    return [
        Change(old, "", place)
        for old in ("__syncthreads();", "__syncwarp();")
        for place in range(text.count(old))
    ]


def waits(file):
    """Return a change for each wait for copies that leaves one more under way."""
    found = re.findall(r"cp_async_wait<(\d+)>\(\);", source(file))
    return [
        Change(f"cp_async_wait<{left}>();", f"cp_async_wait<{int(left) + 1}>();", i)
        for left in sorted(set(found))
        for i in range(found.count(left))
    ]


def law_each_is_found(mode, file, faults):
    """Nothing is found without a fault, and something with each of them."""
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


@pytest.mark.parametrize("file", RACES)
def test_what_threads_do_to_each_other(file):
    races = [Change(*fault) for fault in RACES[file].items()]
    law_each_is_found("thread", file, [*barriers(file), *races])


@pytest.mark.parametrize("file", WATCHED)
def test_numbers_and_addresses(file):
    wrong = [Change(*fault) for fault in WRONG[file].items()]
    law_each_is_found("address", file, [*waits(file), *wrong])


def test_lanes_read_from_different_banks():
    # A constant, which no launch can choose.
    device = Emulator(changed=[Change("kPitch = 24;", "kPitch = 16;")])
    with pytest.raises(AssertionError):
        test_chunk_fwd.PROBLEMS["two chunks"](device)
