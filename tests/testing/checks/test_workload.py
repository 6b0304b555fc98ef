"""Laws on the inputs of a user."""

import numpy as np
import pytest
from safetensors.numpy import save_file

import linkern
from linkern.testing import CHECKS, UsageError, grade, verify
from linkern.testing.checks import workload
from linkern.testing.problems import workload as inputs

NAMES = ("query", "key", "value")
OPTIONS = {"op": "linear_attention", "seed": 0, "profile": "smoke"}


@pytest.fixture
def file(tmp_path):
    def save(length=30, **more):
        rng = np.random.default_rng(0)
        shape = (2, 2, length, 4)
        stored = {name: rng.normal(size=shape).astype(np.float32) for name in NAMES}
        path = str(tmp_path / f"{length}.safetensors")
        save_file(stored | more, path)
        return path

    inputs.read_workload.cache_clear()
    return save


def wrong_beyond(length):
    def kernel(query, key, value):
        output = linkern.linear_attention(query, key, value).output.copy()
        if query.shape[-2] == 200:
            output[..., length:, :] *= 1.01
        return output

    return kernel


def test_a_kernel_that_is_wrong_on_these_inputs_alone_fails(file):
    options = OPTIONS | {"checks": ["value_on_reals", "heads_independent"]}
    kernel = wrong_beyond(100)
    assert verify(kernel, dtypes=["float32"], **options).verdict == "passed"
    report = verify(kernel, dtypes=["float32"], inputs=file(200), **options)
    assert report.verdict == "failed"
    assert [one.profile for one in report.rounds] == ["inputs", "smoke"]
    (failed,) = report.failures
    assert failed.name == "value_on_reals"
    assert "inputs of 200.safetensors" in failed.counterexample.input
    assert failed.counterexample.index[-2] == 100
    assert "all outputs on 200.safetensors are compared" in report.notes[-1]


def test_what_is_too_long_is_judged_in_part_and_said(file, monkeypatch):
    monkeypatch.setattr(inputs, "TOKENS", 50)
    options = OPTIONS | {"checks": ["value_on_reals"], "dtypes": ["float32"]}
    path = file(200)
    for length, verdict in ((100, "passed"), (40, "failed")):
        report = verify(wrong_beyond(length), inputs=path, **options)
        assert report.verdict == verdict
        assert "the first 50 of 200 tokens in 4 of 4 heads" in report.notes[-1]


def test_a_kernel_that_looks_ahead_on_these_inputs_alone_fails(file, monkeypatch):
    def kernel(query, key, value):
        output = linkern.linear_attention(query, key, value).output
        late = query.shape[-2] == 200
        return output + value[..., -1:, :] * np.float32(late * 1e-3)

    monkeypatch.setattr(inputs, "PRODUCTS", 1)  # no value is compared with an exact one
    one = grade(
        kernel,
        inputs=file(200),
        dtypes=["float32"],
        checks=["causality"],
        seconds=600.0,
        **OPTIONS,
    )
    assert one.broken == ("causality",)
    assert [each.profile for each in one.rounds] == ["inputs"]


def test_gradients_are_judged_if_there_is_a_cotangent(file):
    cotangent = np.ones((2, 2, 30, 4), np.float32)
    scope = workload.Scope(
        linkern.testing.OPERATORS["linear_attention"],
        linkern.testing.Contract(),
        "float32",
    )
    for more, judged in (({}, False), ({"output_cotangent": cotangent}, True)):
        inputs.read_workload.cache_clear()
        one = inputs.read_workload(file(**more), scope.operator.name, scope.contract)
        assert ("gradient_value" in workload.laws_of(one, scope)) == judged


def test_laws_on_inputs_are_checks():
    laws = workload._VIEWS | workload._WHOLE | workload._GRADIENTS
    assert set(laws) <= set(CHECKS)


def test_inputs_that_cannot_be_used_are_no_fault_of_the_candidate(file, tmp_path):
    (tmp_path / "wrong.safetensors").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="no safetensors file"):
        grade("absent:kernel", inputs=str(tmp_path / "wrong.safetensors"), **OPTIONS)
    with pytest.raises(UsageError, match="name one of these checks"):
        grade("absent:kernel", inputs=file(), checks=["bad_input"], **OPTIONS)
