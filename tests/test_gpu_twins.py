"""What a GPU will be asked first, asked of the emulator: both must know the answer."""

import importlib
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from linkern._cuda.device import Launch
from tests.emulator import build
from tests.emulator.device import Emulator, Way

TOOLS = Path(__file__).parents[1] / "tools"
NAMES = [
    *(f"{kernel}<{x}>" for x in ("bf16", "f16") for kernel in ("widens", "narrows")),
    *(f"multiplies<{x}>" for x in ("bf16", "f16")),
    *("copies", "spreads<false>", "spreads<true>"),
]
WAYS = [Way("forward", "at once"), Way("shuffled", "when waited for", truncates=True)]


@pytest.fixture
def twins(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    found = importlib.import_module("gpu_twins")
    monkeypatch.setattr(build, "source", lambda file: found.text())
    return found


def emulated(twins, probe, way=WAYS[0], **more):
    found = np.full(probe.due.size, 0xFFFFFFFF, np.uint32)
    given = np.ascontiguousarray(probe.given)
    words = twins.parameters(given.ctypes.data, found.ctypes.data)
    kernel, lanes = probe.kernel, twins.LANES
    launch = Launch("probes", kernel, probe.blocks, lanes, probe.shared, words)
    Emulator(way, **more).launch(launch)
    return found


def probe_named(twins, name):
    (found,) = (probe for probe in twins.probes() if probe.kernel == name)
    return found


def test_these_are_all(twins):
    assert sorted(probe.kernel for probe in twins.probes()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_emulator_does_what_the_manual_says(twins, name):
    probe = probe_named(twins, name)
    for way in WAYS:
        assert probe.wrong(emulated(twins, probe, way)) == ""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("widens<f16>", "out[1] = high(T()", "out[1] = low(T()"),
        ("narrows<bf16>", "in[0], in[1]);", "in[1], in[0]);"),
        ("copies", "place % 3 != 0;", "place % 3 != 1;"),
        ("spreads<true>", "if (Transposed)", "if (!Transposed)"),
        ("multiplies<bf16>", "in[4], in[5]);", "in[5], in[4]);"),
    ],
)
def test_another_answer_is_noticed(twins, name, old, new):
    probe = probe_named(twins, name)
    wrong = probe.wrong(emulated(twins, probe, changed={old: new}))
    assert re.match(r"\d+ of \d+ differ, first at \(.*\): .* for ", wrong)


@pytest.mark.parametrize("truncates", [False, True])
def test_it_is_seen_whether_sums_are_cut_off(twins, truncates):
    probe = twins.cut_off()
    found = emulated(twins, probe, Way(truncates=truncates))
    assert (probe.wrong(found) == "") == truncates


def test_every_wrapper_is_probed(twins):
    wrappers = (files("linkern._cuda") / "device.cuh").read_text()
    names = set(re.findall(r"DEVICE \w+ (\w+)\(", wrappers))
    assert "multiply_add" in names
    asked = twins.PROBES.read_text()
    assert {
        name for name in names if f"{name}(" not in asked.replace("<", "(")
    } == set()


def test_probes_compile_for_a_gpu(twins, nvrtc):
    found = importlib.import_module("nvrtc").compiled(twins.text(), "sm_90", NAMES)
    assert not any(needs.stack for needs in found.values())
