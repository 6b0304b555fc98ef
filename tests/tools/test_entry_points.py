"""Signatures of published kernels are accepted: recorded ones, and installed ones."""

import importlib
import sys
from dataclasses import replace

import entry_points as tool
import pytest

from linkern.testing import CHECKS, UsageError

KERNELS = tool.kernels()
INSTALLED = [x for x in KERNELS if x.name.startswith("fla.")]


def names(kernels):
    return [x.name.rpartition(":")[2] for x in kernels]


def test_the_page_is_written_from_the_code():
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


# It writes a report with three laws in place of `linkern verify`.
PROGRAM = """
import json, sys
options = [x for flag, x in zip(sys.argv, sys.argv[1:]) if flag == "--option"]
assert options == ["state_v_first=True"], options
assert {"--interpret", "layout=bthd"} <= set(sys.argv)
checks = [
    {"name": "causality", "verdict": "passed", "message": ""},
    {"name": "decoding", "verdict": "failed", "message": "the state is lost"},
    {"name": "value_on_reals", "verdict": "inconclusive", "message": ""},
]
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"checks": checks}, file)
sys.exit(1)
"""


def test_a_kernel_is_judged_and_recorded(monkeypatch, tmp_path):
    (kernel,) = [x for x in INSTALLED if x.name.endswith(":chunk_gla")]
    monkeypatch.setattr(tool, "LINKERN", (sys.executable, "-c", PROGRAM))
    monkeypatch.setattr(tool, "JUDGED", tmp_path / "judged.json")
    assert tool.verdict(kernel) == "signature only"
    monkeypatch.setattr(tool, "find_spec", lambda name: name)
    assert tool.judge_all(kernel.name) == 0
    told = tool.recorded()[kernel.name]
    assert (told["passed"], told["failed"]) == (["causality"], ["decoding"])
    assert told["first"] == "the state is lost"
    assert tool.verdict(kernel) == "`decoding` fails, of 2 laws"
    monkeypatch.setattr(tool, "LINKERN", (sys.executable, "-c", "exit('no float32')"))
    assert tool.judge_all(kernel.name) == 0
    assert tool.recorded()[kernel.name]["refused"] == "no float32"
    assert tool.verdict(kernel) == "raises on its first call"
    called_otherwise = replace(kernel, options=())
    assert tool.verdict(called_otherwise) == "signature only"
    assert tool.verdict(replace(kernel, dtype="bfloat16")) == "signature only"


def test_a_kernel_that_refuses_float32_is_judged_in_its_dtype(monkeypatch):
    (kernel,) = [x for x in INSTALLED if x.name.endswith(":chunk_gated_delta_product")]
    echo = "import sys; i = sys.argv.index('--dtype'); sys.exit(sys.argv[i + 1])"
    monkeypatch.setattr(tool, "LINKERN", (sys.executable, "-c", echo))
    told = tool.judge(kernel)
    assert told["refused"] == kernel.dtype == "bfloat16"
    assert told["options"] == ["--dtype bfloat16"]
    assert "`--dtype bfloat16`" in tool.row(kernel)


def test_what_was_recorded_is_of_these_kernels_and_laws():
    told = tool.recorded()
    assert {*told} <= {x.name for x in KERNELS}
    for one in told.values():
        assert {*one["passed"], *one["failed"]} <= {*tool.LAWS}
        assert bool(one["failed"]) == bool(one["first"])
    assert {*tool.LAWS} <= {*CHECKS}


def test_twenty_need_no_declaration_but_the_layout():
    assert len({x.name for x in KERNELS}) == len(KERNELS)
    plain = [x for x in KERNELS if {*x.declare} <= {"layout=bthd"}]
    assert len(plain) >= 20


@pytest.mark.parametrize("kernel", KERNELS, ids=names(KERNELS))
def test_recorded_signature_is_accepted(kernel):
    contract, interface, _ = kernel.accepted(kernel.stub())
    heads_first = kernel.name.startswith("mlstm_kernels.")
    assert contract.layout == ("bhtd" if heads_first else "bthd")
    assert interface.inputs


BY_NAME = [x for x in KERNELS if not tool.OPERATORS[x.op].feature_map]


@pytest.mark.parametrize("kernel", BY_NAME, ids=names(BY_NAME))
def test_an_unknown_name_of_an_input_is_refused(kernel):
    changed = replace(kernel, signature=kernel.signature.replace(" v,", " payload,"))
    with pytest.raises(UsageError, match="has no parameter for the value"):
        changed.accepted(changed.stub())


@pytest.mark.parametrize("kernel", INSTALLED, ids=names(INSTALLED))
@pytest.mark.filterwarnings("ignore")
def test_installed_signature_is_the_recorded_one_and_is_accepted(kernel, fla):
    place, _, name = kernel.name.partition(":")
    function = getattr(importlib.import_module(place), name)
    assert tool.defaults_of(function) == kernel.parameters()
    assert tool.row(kernel)
    installed, recorded = kernel.accepted(function), kernel.accepted(kernel.stub())
    assert installed[0] == recorded[0]
    assert installed[1].inputs == recorded[1].inputs
