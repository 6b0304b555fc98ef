"""The first call: what a target refuses is one sentence, and its remedy was tried."""

import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import linkern
from linkern.testing import UsageError, run, verify
from linkern.testing.api import plan_of
from linkern.testing.kernels.correct import quadratic
from linkern.testing.runner.first_call import (
    NO_TOKEN,
    UNDER_JIT,
    UNTRIED_GROUPS,
    VALUE_GROUPS,
)
from linkern.testing.runner.loop import CheckFinished, Opened
from linkern.testing.runner.opening import (
    LONG_TIMEOUT,
    TIMEOUT,
    _seconds_of_a_call,
)
from linkern.testing.runner.remedies import (
    _HINTS,
    _HINTS_ON_CPU,
    _LIBRARIES,
    remedy,
)
from linkern.testing.spec.contract import Contract
from tests.testing.undiagnosed import undiagnosed

TARGETS = Path(__file__).parents[1] / "targets.py"
OF_TORCH = Path(__file__).parents[1] / "torch_targets.py"
torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")


def judged(target, *checks, **options):
    """The report of some checks; of one if none is named."""
    checks = checks or ("shape_and_dtype",)
    return verify(
        target, op="linear_attention", profile="quick", checks=checks, **options
    )


def refusal(target, **options):
    with pytest.raises(UsageError) as refused:
        judged(target, **options)
    return str(refused.value)


def swapped(kernel):
    def other(q, k, v):
        inputs = (np.swapaxes(x, 1, 2) for x in (q, k, v))
        return np.swapaxes(kernel(*inputs), 1, 2)

    return other


def raises(q, k, v):
    message = "no such kernel"
    raise RuntimeError(message)


def of_three_axes(q, k, v):
    _heads, _time, _dim = q.shape
    return quadratic(q, k, v)


def of_two_axes(q, k, v):
    _time, _dim = q.shape
    return quadratic(q, k, v)


def square(q, k, v):
    if q.shape[-1] != v.shape[-1]:
        message = f"K={q.shape[-1]} must be V={v.shape[-1]}"
        raise ValueError(message)
    return quadratic(q, k, v)


def in_tiles_of_16(q, k, v):
    assert q.shape[2] % 16 == 0
    return quadratic(q, k, v)


def of_16_tokens_at_least(q, k, v):
    assert q.shape[2] > 16
    return quadratic(q, k, v)


def of_some_dims(q, k, v):
    assert q.shape[-1] in (32, 64)
    return quadratic(q, k, v)


def in_half_only(q, k, v):
    if q.dtype.itemsize != 2:
        message = "expected half precision"
        raise TypeError(message)
    return quadratic(*(x.astype(np.float32) for x in (q, k, v))).astype(q.dtype)


def in_float32_only(q, k, v):
    if q.dtype != np.float32:
        message = f"unsupported dtype {q.dtype}"
        raise TypeError(message)
    return quadratic(q, k, v)


def of_one_head(q, k, v):
    """Raise for several heads: no declaration says that."""
    assert q.shape[1] == 1, q.shape
    return quadratic(q, k, v)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (of_three_axes, "--declare layout=htd"),
        (of_two_axes, "--declare layout=td"),
        (square, "--declare equal_dims=true"),
        (in_tiles_of_16, "--declare length_multiple_of=16"),
        (of_16_tokens_at_least, "--declare min_length=17"),
        (of_some_dims, "--declare key_dims=32,64"),
        (
            swapped(in_tiles_of_16),
            "--declare layout=bthd --declare length_multiple_of=16",
        ),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_least_declaration_is_named_and_then_it_runs(kernel, words):
    said = refusal(kernel)
    assert f"It runs with `{words}`: declare that if it is meant." in said
    assert "on its first call (B=2 H=3 T=5 K=4 V=6 float32)" in said
    declared = dict(re.findall(r"--declare (\w+)=(\S+)", words))
    assert judged(kernel, contract=declared).verdict == "passed"


def test_what_is_declared_already_is_not_named_again():
    declared = Contract(layout="bthd")
    said = refusal(swapped(in_tiles_of_16), contract=declared)
    assert "`--declare length_multiple_of=16`" in said
    assert "layout" not in said


def test_a_dtype_that_only_defaults_ask_for_is_left_out_and_said():
    report = judged(in_float32_only)
    assert report.verdict == "passed"
    assert report.plan.dtypes == ("float32",)
    assert report.environment["dtypes"] == ["float32"]
    (note,) = report.notes
    assert note.startswith("float64 is not judged: the target raised TypeError")
    assert note in " ".join(str(report).split())
    assert report.to_dict()["notes"] == [note]
    assert "--dtype float32" in report.checks[0].again


def test_a_dtype_that_was_asked_for_is_refused():
    said = refusal(in_float32_only, dtypes=("float32", "float64"))
    assert "raised TypeError: unsupported dtype float64" in said
    assert "It runs on float32: judge that with `--dtype float32`." in said


def test_a_narrow_dtype_is_tried():
    pytest.importorskip("ml_dtypes")
    said = refusal(in_half_only)
    assert "It runs on bfloat16: judge it with `--dtype bfloat16`." in said


def test_what_raises_everywhere_is_one_sentence():
    said = refusal(raises)
    assert said.count("no such kernel") == 1
    assert "arrays (batch, heads, time, dim) of numpy" in said


def test_an_async_function_is_refused():
    async def kernel(query, key, value):
        return quadratic(query, key, value)

    assert "is an async function; name one that returns its output" in refusal(kernel)


def test_what_runs_on_the_plainest_input_is_judged():
    report = judged(of_one_head)
    assert report.verdict == "failed"
    assert report.plan.dtypes == ("float32", "float64")


def test_a_plan_that_expects_failures_is_judged():
    known = {"shape_and_dtype": "it raises"}
    assert judged(raises, expect_failure=known).verdict == "xfailed"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Pointer argument (at 0) cannot be accessed from Triton", "--device cuda"),
        ("ModuleNotFoundError: No module named 'triton_kernels'", "install it"),
        ("MemoryError: it wanted more than 4 GiB", "--memory"),
        ("Block pointers have been removed: Triton's interpreter", "triton<3.9"),
    ],
)
def test_what_cannot_be_tried_is_told_from_the_exception(said, hint):
    def kernel(q, k, v):
        raise RuntimeError(said)

    assert hint in refusal(kernel)
    known = {**_HINTS, **_HINTS_ON_CPU}
    assert any(re.search(words, said, re.IGNORECASE) for words in known)


class NothingRuns:
    """Trials of a target that raises on every input."""

    def runs(self, *_):
        return False


def test_on_a_gpu_nobody_is_sent_to_one():
    """As PyTorch said of kernels that made masks where their inputs were not."""
    plan = replace(plan_of(quadratic, op="linear_attention"), framework="torch")
    mixed = "RuntimeError: found at least two devices, cuda:0 and cpu! (kernel.py:12)"
    devices = ("cpu", "cuda", "cuda:1")
    said = {x: remedy(replace(plan, device=x), mixed, NothingRuns()) for x in devices}
    assert "--device cuda" in said["cpu"]
    assert "device=query.device" in said["cuda"] == said["cuda:1"]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, TIMEOUT),
        ({"seconds": 8.0}, 4.0),
        ({"seconds": 8.0, "timeout": 60.0}, 60.0),
        ({"seconds": 8.0, "interpret": True, "framework": "torch"}, LONG_TIMEOUT),
        ({"seconds": 8.0, "framework": "jax"}, LONG_TIMEOUT),
        ({"seconds": 8.0, "framework": "torch", "device": "cuda"}, LONG_TIMEOUT),
    ],
)
def test_a_call_that_compiles_may_take_as_long_as_the_run(options, seconds):
    plan = plan_of(f"{TARGETS}:quadratic", op="linear_attention")
    assert _seconds_of_a_call(replace(plan, **options)) == seconds


def test_the_contract_may_leave_no_such_input():
    report = judged(quadratic, contract={"min_length": "3", "max_length": "3"})
    assert report.verdict == "passed"


def raising_on_no_token(query, key, value):
    if not query.shape[2]:
        msg = "no tokens"
        raise ValueError(msg)
    return quadratic(query, key, value)


def without_states_of_no_token(
    query, key, value, initial_state=None, return_state=False
):
    if return_state:
        raising_on_no_token(query, key, value)
    result = linkern.linear_attention(query, key, value, initial_state=initial_state)
    return (result.output, result.state) if return_state else result.output


def wrong_on_no_token(query, key, value):
    return quadratic(query, key, value) if query.shape[2] else value[..., :1]


@pytest.mark.parametrize("kernel", [raising_on_no_token, without_states_of_no_token])
def test_an_exception_on_no_token_is_noted_and_not_judged(kernel):
    report = judged(kernel, "state_split", "short_sequences")
    assert report.verdict == "passed"
    assert report.plan.contract.min_length == 1
    assert NO_TOKEN.partition("{}")[0] in report.notes[-1]
    assert "ValueError: no tokens" in report.notes[-1]


@pytest.mark.parametrize(
    ("kernel", "declared"),
    [
        (raising_on_no_token, {"min_length": "0"}),
        (f"{TARGETS}:exits_on_no_token", {}),
        (wrong_on_no_token, {}),
    ],
)
def test_no_token_is_judged_where_it_is_declared_and_where_nothing_is_raised(
    kernel, declared
):
    report = judged(kernel, "short_sequences", contract=declared)
    assert report.verdict == "failed"
    assert " T=0 " in report.checks[0].counterexample.input
    assert not any(NO_TOKEN.partition("{}")[0] in note for note in report.notes)


@pytest.mark.parametrize("name", ["exits_hard", "hangs"])
def test_a_target_that_dies_at_once_is_reported_once(name):
    checks = ("shape_and_dtype", "causality", "value_on_reals")
    report = judged(f"{TARGETS}:{name}", *checks, timeout=2.0)
    first, *rest = report.checks
    assert [c.name for c in report.checks] == [c.name for c in report.plan.chosen()]
    assert first.verdict == "failed"
    assert first.message.endswith("on its first call")
    assert first.counterexample.died
    assert first.counterexample.calls
    for check in rest:
        assert check.verdict == "covered"
        assert check.message.startswith(f"not run: {first.name} reports that")


def test_the_plan_is_settled_before_the_first_check():
    events = list(run(plan_of(quadratic, op="linear_attention", checks=["causality"])))
    assert isinstance(events[0], Opened)
    assert events[0].plan.framework == "numpy"
    assert events[0].plan.dtypes == ("float32", "float64")
    assert events[0].notes == ()


@torch
@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("annotated", "inferred: the annotations of annotated"),
        ("plain", "inferred: plain uses torch"),
        ("layer", "inferred: it is a torch.nn.modules.module.Module"),
        ("imports_late", "inferred: it takes none of numpy (raised"),
        ("through_a_table", "inferred: it takes none of numpy (raised"),
    ],
)
def test_torch_is_inferred_and_said(name, note):
    report = judged(f"{OF_TORCH}:{name}", dtypes=("float32",))
    assert report.verdict == "passed"
    assert report.plan.framework == report.environment["framework"] == "torch"
    assert report.notes[0].startswith("arrays of torch, ")
    assert note in report.notes[0]
    assert "--framework torch" in report.checks[0].again


@torch
def test_a_framework_that_was_named_is_not_replaced():
    said = refusal(f"{OF_TORCH}:plain", framework="numpy")
    assert "It runs on arrays of torch: judge it with `--framework torch`." in said
    said = refusal(f"{TARGETS}:good", framework="torch")
    assert "It runs on arrays of numpy: judge it with `--framework numpy`." in said


@torch
def test_a_restriction_of_a_torch_kernel_is_found_on_torch_arrays():
    said = refusal(f"{OF_TORCH}:tiled_through_a_table")
    assert "--declare length_multiple_of=16" in said


@torch
def test_torch_stays_out_of_the_process_of_the_referee(tmp_path):
    program = (
        "import sys\n"
        "from linkern.testing import verify\n"
        f"report = verify({f'{OF_TORCH}:plain'!r}, op='linear_attention', "
        "profile='quick', checks=['shape_and_dtype'], dtypes=['float32'])\n"
        "assert report.verdict == 'passed', report\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@jax
@pytest.mark.parametrize("compiled", [True, False])
def test_jax_is_inferred_from_a_function(compiled):
    import jax as library

    def kernel(query, key, value):
        q, k = (library.nn.elu(x) + 1 for x in (query, key))
        scores = library.numpy.tril(q @ library.numpy.swapaxes(k, -1, -2))
        return (scores @ value) / scores.sum(-1, keepdims=True)

    plan = plan_of(
        library.jit(kernel) if compiled else kernel,
        op="linear_attention",
        checks=["bad_input"],
        dtypes=["float32"],
        framework=None if compiled else "jax",
    )
    (opened, *_) = run(replace(plan, seconds=100.0))
    assert opened.plan.framework == "jax"
    if compiled:
        assert opened.notes[0].startswith("arrays of jax, inferred: it is a jaxlib")
    assert UNDER_JIT not in opened.notes  # it is not called by name


def test_libraries_are_told_from_exceptions():
    """Texts as the libraries write them; the last one names none."""
    for said, name in (
        ("exp(): argument 'input' must be Tensor, not numpy.ndarray", "torch"),
        ("'numpy.ndarray' object has no attribute 'contiguous'", "torch"),
        ("'numpy.ndarray' object has no attribute 'at'", "jax"),
        ("'Tensor' object has no attribute 'astype'", "numpy"),
        ("Unsupported type <class 'numpy.ndarray'> cupy", "cupy"),
    ):
        assert re.search(_LIBRARIES[name], said), said
    assert not any(re.search(words, "shapes differ") for words in _LIBRARIES.values())


def grouped(query, key, value, log_decay, *, divided=True):
    """Simple GLA whose heads of values share queries: neighbours, or in turns."""
    times = value.shape[1] // query.shape[1]
    spread = np.repeat if divided else lambda x, n, axis: np.concatenate([x] * n, axis)
    query, key = (spread(x, times, axis=1) for x in (query, key))
    return linkern.simple_gla(query, key, value, log_decay).output


def in_turns(query, key, value, log_decay):
    return grouped(query, key, value, log_decay, divided=False)


def of_first_heads(query, key, value, log_decay):
    """Takes as many heads of values as of queries, and leaves the others zero."""
    output, heads = np.zeros_like(value), query.shape[1]
    inputs = query, key, value[:, :heads], log_decay[:, :heads]
    output[:, :heads] = linkern.simple_gla(*inputs).output
    return output


@pytest.mark.parametrize(
    ("kernel", "contract", "verdict", "declared"),
    [
        (grouped, {}, "passed", True),
        (in_turns, {}, "failed", True),
        (in_turns, {"value_groups": False}, "passed", False),
        (of_first_heads, {}, "passed", None),
    ],
)
def test_heads_of_values_that_share_queries_are_judged_if_they_are_taken(
    kernel, contract, verdict, declared
):
    options = {"profile": "quick", "dtypes": ("float32",), "contract": contract}
    plan = plan_of(kernel, op="simple_gla", checks=["value_on_reals"], **options)
    events = [*run(plan)]
    opened = next(one for one in events if isinstance(one, Opened))
    assert opened.plan.contract.value_groups is declared
    assert (VALUE_GROUPS in opened.notes) is bool(declared)
    (result,) = (one.result for one in events if isinstance(one, CheckFinished))
    assert result.verdict == verdict


@pytest.mark.parametrize("declared", [None, True, False])
def test_it_is_said_if_heads_that_share_queries_are_not_tried(declared, torch):
    """Over ranks, among others."""
    contract = {} if declared is None else {"value_groups": declared}
    options = {"checks": ["finite_output"], "profile": "smoke", "ranks": (2,)}
    report = verify("linkern:simple_gla", op="simple_gla", contract=contract, **options)
    assert (UNTRIED_GROUPS in report.notes) is (declared is None)


def test_heads_that_share_queries_are_judged_of_targets_that_compile(jax):
    def kernel(query, key, value, log_decay):
        times = value.shape[1] // query.shape[1]
        query, key = (jax.numpy.tile(x, (1, times, 1, 1)) for x in (query, key))
        return linkern.simple_gla(query, key, value, log_decay).output

    options = {"profile": "quick", "dtypes": ("float32",), "framework": "jax"}
    report = undiagnosed(kernel, op="simple_gla", checks=["value_on_reals"], **options)
    assert report.verdict == "failed"
    assert VALUE_GROUPS in report.notes


def test_heads_that_share_queries_are_not_judged_where_they_are_taken_in_part():
    def kernel(query, key, value, log_decay, initial_state=None):
        if initial_state is not None and value.shape[1] > query.shape[1]:
            msg = "no states of shared queries"
            raise NotImplementedError(msg)
        times = value.shape[1] // query.shape[1]
        query, key = (np.repeat(x, times, axis=1) for x in (query, key))
        inputs = query, key, value, log_decay
        return linkern.simple_gla(*inputs, initial_state=initial_state)

    options = {"profile": "quick", "dtypes": ("float32",)}
    plan = plan_of(kernel, op="simple_gla", checks=["state_split"], **options)
    *_, last = (one.result for one in run(plan) if isinstance(one, CheckFinished))
    assert last.verdict == "passed"
