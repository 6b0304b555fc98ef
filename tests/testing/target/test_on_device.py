"""Targets on a CUDA device: one that is played, and a real one where there is one."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.testing import Contract, UsageError, verify
from linkern.testing.checks import INTERPRETED, ON_CUDA
from linkern.testing.runner import reproduce
from linkern.testing.target import frameworks
from linkern.testing.target.accelerators import jax_cuda, jax_device
from linkern.testing.target.memory_layout import STYLES, place
from tests.marks import slow_unless
from tests.testing.cuda_device import Played, Real, kernel

CONTRACT = Contract(cuda_graphs=True, gradients="none")
FAULTS = {
    "unwritten": "no_uninitialised_memory",
    "stream": "current_stream",
    "host": "graph_replay",
}


def judged(function, **options):
    return verify(
        function,
        op="linear_attention",
        framework="torch",
        contract=options.pop("contract", CONTRACT),
        **{
            "device": "cuda",
            "dtypes": ("float32",),
            "checks": ON_CUDA,
            "profile": "smoke",
            **options,
        },
    )


def law_of_faults(torch, device, fault):
    report = judged(kernel(torch, device, fault))
    failed = {check.name for check in report.failures}
    assert {check.name for check in report.checks} == {*ON_CUDA}
    assert FAULTS.get(fault) in failed if fault else not failed


@pytest.mark.parametrize("fault", slow_unless(lambda fault: not fault, ["", *FAULTS]))
def test_laws_of_launches(torch, played, fault):
    law_of_faults(torch, played, fault)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_laws_of_launches_on_a_gpu(torch, fault):
    law_of_faults(torch, Real(torch), fault)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_the_device_of_the_inputs_is_the_current_one(torch, played, device):
    report = judged(kernel(torch, played), device=device, checks=("causality",))
    assert report.exit_code == 0
    assert {*played.entered} == {device}
    assert report.to_dict()["environment"]["device"] == device
    assert f"(torch on {device}: float32)" in str(report)


def test_all_other_laws_hold_on_a_device_too(torch, played):
    report = judged(kernel(torch, played), checks=())
    assert report.exit_code == 0, str(report)
    ran = {check.name for check in report.checks if check.applies}
    assert {"value_on_reals", "no_uninitialised_memory"} <= ran
    assert not ran & {*INTERPRETED} - {*ON_CUDA}


def test_graphs_are_judged_only_if_declared(torch, played):
    report = judged(kernel(torch, played), contract=Contract(gradients="none"))
    (skipped,) = (x for x in report.checks if x.verdict == "skipped")
    assert skipped.name == "graph_replay"
    assert "cuda_graphs=true" in str(skipped)


def test_on_a_cpu_the_laws_of_a_device_do_not_apply(torch):
    report = judged(kernel(torch, Played()), device="cpu")
    assert not any(check.applies for check in report.checks)


@pytest.mark.slow  # as all cases here that fail, it looks for the cause
def test_what_lies_around_the_inputs_is_seen_on_a_device(torch, played):
    def writes_past_the_end(query, key, value):
        out = kernel(torch, played)(query, key, value)
        storage = value.new_empty(0).set_(value.untyped_storage())
        if value.storage_offset():
            storage[value.storage_offset() + value.numel()] = 7.0
        return out

    report = judged(writes_past_the_end, checks=("nothing_leaks_from_padding",))
    assert "wrote to the memory around" in str(report)


@pytest.mark.parametrize("style", [s for s in STYLES if s != "reversed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_an_input_lies_on_a_device_as_it_does_here(torch, style, dtype):
    x = np.arange(2 * 3 * 5 * 4.0).reshape(2, 3, 5, 4)
    x = x[:, :1].repeat(3, 1).astype(frameworks.numpy_dtype(dtype))
    placed, framework = place(x, style), frameworks.framework_named("torch")
    native, refresh = framework.wrap(placed.view, placed.base, "cpu:0")
    assert np.array_equal(framework.to_numpy(native), x.astype(np.float64))
    assert [n * x.itemsize for n in native.stride()] == [*placed.view.strides]
    native[0, 0, 0, 0] = -1
    assert not placed.disturbed
    refresh()
    assert placed.disturbed
    assert placed.view[0, 0, 0, 0] == -1


def test_a_rewritten_input_has_the_same_address_and_version(torch):
    framework = frameworks.framework_named("torch")
    x, other = torch.zeros(3), torch.ones(3)
    before = x.data_ptr(), x._version
    framework.overwrite(x, other)
    assert (x.data_ptr(), x._version) == before
    assert x.tolist() == [1, 1, 1]


def test_devices_of_jax_have_numbers():
    known = {"cpu": ["the CPU"], "cuda": ["first", "second"]}
    jax = SimpleNamespace(devices=known.__getitem__, default_device=nullcontext)
    names = ("cpu", "cuda", "cuda:1")
    assert [jax_device(jax, x) for x in names] == ["the CPU", "first", "second"]
    with jax_cuda(jax).current("cuda:1") as current:
        assert current == "second"


def test_the_catalogue_is_judged_on_a_cpu():
    result = CliRunner().invoke(cli.main, ["verify", "--device", "cuda"])
    assert result.exit_code == 2
    assert "--device is for one target" in result.output


def kept_by_version(torch, calls):
    right, kept = kernel(torch, Played()), {}

    def kernel_with_cache(*inputs):
        key = tuple((x.data_ptr(), x._version, x.shape) for x in inputs)
        kept.setdefault(key, right(*inputs))
        return kept[key].clone()

    return kernel_with_cache


def wrong_after_twenty(torch, calls):
    right = kernel(torch, Played())

    def kernel_that_warms_up(*inputs):
        calls.append(1)
        return right(*inputs) + (len(calls) > 20)

    return kernel_that_warms_up


@pytest.mark.parametrize("faulty", [kept_by_version, wrong_after_twenty])
def test_what_earlier_calls_leave_is_seen(torch, faulty):
    function = faulty(torch, [])
    report = judged(function, device="cpu", checks=("freshness",), profile="quick")
    assert [check.name for check in report.failures] == ["freshness"]


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "tpu"])
def test_a_device_that_is_not_there_is_refused(torch, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UsageError, match=f'torch has no device "{device}" .*; leave'):
        judged(kernel(torch, Real(torch)), device=device)


STRIDED = """import torch

def kernel(query, key, value):
    phi = lambda x: torch.where(x > 0, x + 1, x.exp())
    assert str(value.device) == "cpu"
    flat = value if value.is_contiguous() else value.contiguous() + 1
    weights = (phi(query) @ phi(key).mT).tril()
    return weights @ flat / weights.sum(-1, keepdim=True)
"""


@pytest.mark.slow  # it looks for the cause, and runs a script
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reproducer_has_the_strides_on_the_device(torch, tmp_path, dtype):
    (tmp_path / "kernel.py").write_text(STRIDED)
    report = judged(
        f"{tmp_path}/kernel.py:kernel",
        device="cpu:0",  # a name that is not that of the CPU
        checks=("strides",),
        dtypes=(dtype,),
        in_process=True,
        contract=Contract(feature_dtype=None if dtype == "float32" else dtype),
    )
    (failed,) = report.failures
    script = reproduce.write(report.plan, failed, failed.counterexample, tmp_path)
    assert subprocess.run([sys.executable, str(script)], check=False).returncode == 1
