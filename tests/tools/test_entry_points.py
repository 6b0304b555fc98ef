"""Signatures of published kernels are accepted: recorded ones, and installed ones."""

import importlib
from dataclasses import replace

import entry_points as tool
import pytest

from linkern.testing import UsageError

KERNELS = tool.kernels()
INSTALLED = [x for x in KERNELS if x.name.startswith("fla.")]


def names(kernels):
    return [x.name.rpartition(":")[2] for x in kernels]


def test_the_page_is_written_from_the_code():
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


def test_twenty_need_no_declaration_but_the_layout():
    assert len({x.name for x in KERNELS}) == len(KERNELS)
    plain = [x for x in KERNELS if {*x.declare} <= {"layout=bthd"}]
    assert len(plain) >= 20


@pytest.mark.parametrize("kernel", KERNELS, ids=names(KERNELS))
def test_recorded_signature_is_accepted(kernel):
    contract, interface, _ = kernel.accepted(kernel.stub())
    assert contract.layout == "bthd"
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
