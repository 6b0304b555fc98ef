"""Planted faults in the kernels: each barrier, wait, bound, mask and swizzle is needed.

A fault is found by what it changes: numbers, in one of the ways in which threads can
run; or by what a sanitizer reports, of which numbers need not show anything.
"""

import re
from typing import NamedTuple

import pytest

from linkern._cuda.sources import source
from tests import test_cuda_additive, test_cuda_backward
from tests.cuda_problems import WAYS
from tests.emulator.device import Change, Emulator, LaunchFailed
from tests.emulator.watched import Run, reports

MODULES = {"additive": test_cuda_additive, "backward": test_cuda_backward}
# The problems of each file that go through all of it.
WATCHED = {
    "additive": ("bfloat16", "no features"),
    "backward": ("two segments", "two panels"),
}


class Fault(NamedTuple):
    """One change, and who is to find it: numbers by default, or a sanitizer."""

    file: str
    problem: str
    old: str
    new: str
    by: str = "numbers"

    @property
    def id(self):
        return f"{self.file}: {self.old} -> {self.new}"


FAULTS = (
    Fault(
        "additive",
        "bfloat16",
        "written <= reader ? left * scores[i]",
        "written < reader ? left * scores[i]",
    ),
    Fault(
        "additive", "bfloat16", "bool there = row < count &&", "bool there =", "address"
    ),
    Fault("additive", "bfloat16", "&& channel + column < channels", "", "address"),
    Fault(
        "additive",
        "bfloat16",
        "bool there = panel + k < features &&",
        "bool there =",
        "address",
    ),
    Fault("additive", "bfloat16", "&& column < values && from", "&& from", "address"),
    Fault(
        "additive",
        "bfloat16",
        "if (row >= count || column >= values) continue;",
        "if (column >= values) continue;",
        "address",
    ),
    Fault(
        "additive",
        "bfloat16",
        "if (row >= count || column >= values) continue;",
        "if (row >= count) continue;",
        "address",
    ),
    Fault(
        "additive",
        "bfloat16",
        "if (panel + k >= features || column >= values) continue;",
        "if (column >= values) continue;",
        "address",
    ),
    Fault(
        "additive",
        "bfloat16",
        "thread < kPanel && panel + thread < features",
        "thread < kPanel",
        "address",
    ),
    Fault(
        "additive",
        "bfloat16",
        "k < kPanel && panel + k < features; k++",
        "k < kPanel; k++",
        "address",
    ),
    Fault(
        "additive",
        "bfloat16",
        "thread < count ? log_decay[",
        "true ? log_decay[",
        "address",
    ),
)


def problem(file, name):
    return f"tests.test_cuda_{file}:PROBLEMS:{name}"


@pytest.mark.parametrize("file", WATCHED)
def test_sanitizers_report_nothing(file):
    for mode in ("thread", "address"):
        runs = [Run(problem(file, name)) for name in MODULES[file].PROBLEMS]
        assert reports(mode, runs) == [[] for _ in runs]


def barriers(text):
    """Return a change for each barrier of a source that leaves it out."""
    return [
        Change(old, "", place)
        for old in ("__syncthreads();", "__syncwarp();")
        for place in range(text.count(old))
    ]


def waits(text):
    """Return a change for each wait for copies that leaves one more under way."""
    found = re.findall(r"wait_for_copies<(\d+)>\(\);", text)
    return [
        Change(f"wait_for_copies<{left}>();", f"wait_for_copies<{int(left) + 1}>();", i)
        for left in sorted(set(found))
        for i in range(found.count(left))
    ]


@pytest.mark.parametrize("file", WATCHED)
def test_every_barrier_is_needed(file):
    changes = barriers(source(file))
    assert changes
    runs = [
        Run(problem(file, name), (change,))
        for change in changes
        for name in WATCHED[file]
    ]
    lines = reports("thread", runs)
    found = {run.changed[0] for run, line in zip(runs, lines, strict=True) if line}
    assert set(changes) == found


def fails(fault_or_change, file, names):
    """Whether numbers are wrong, or a launch fails, in one of the ways."""
    for name in names:
        for way in WAYS:
            try:
                MODULES[file].PROBLEMS[name](Emulator(way, changed=[fault_or_change]))
            except (AssertionError, LaunchFailed):
                return True
    return False


@pytest.mark.parametrize("file", WATCHED)
def test_every_wait_is_needed(file):
    for change in waits(source(file)):
        assert fails(change, file, WATCHED[file]), change


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.by == "numbers"], ids=lambda f: f.id
)
def test_numbers_show_it(fault):
    assert fails(Change(fault.old, fault.new), fault.file, [fault.problem])


def test_addresses_show_it():
    faults = [fault for fault in FAULTS if fault.by == "address"]
    runs = [Run(problem(f.file, f.problem), (Change(f.old, f.new),)) for f in faults]
    lines = reports("address", runs)
    assert [f.id for f, line in zip(faults, lines, strict=True) if not line] == []
