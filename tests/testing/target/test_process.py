"""A target can do what it likes in its own process; here it costs one failed check."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from linkern.testing import UsageError, verify
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.target.process import ChildProcess, InProcess
from linkern.testing.target.worker import Call, TargetConfig
from tests.waiting import LONG

KERNELS = Path(__file__).parents[1] / "targets.py"


def target(name):
    return f"{KERNELS}:{name}"


def call(length=2, dtype=np.float32):
    x = np.ones((1, 1, length, 1), dtype)
    return Call({"query": x, "key": x, "value": x})


@pytest.fixture
def child():
    opened = []

    def open_child(name, timeout=LONG, **options):
        opened.append(ChildProcess(TargetConfig(target(name), **options), timeout))
        return opened[-1]

    yield open_child
    for process in opened:
        process.close()


def test_both_kinds_of_process_give_the_same_reply(child):
    apart, inside = child("good"), InProcess(TargetConfig(target("good")))
    for dtype in (np.float32, np.float64, np.float16):
        one, other = apart.call(call(dtype=dtype)), inside.call(call(dtype=dtype))
        assert np.array_equal(one.output, other.output)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)


def test_bfloat16_crosses_between_processes(child):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    reply = child("good").call(call(dtype=ml_dtypes.bfloat16))
    assert reply.dtype == "bfloat16"
    assert reply.output.dtype == np.float32


def test_a_crash_is_named_and_survived(child):
    process = child("segfaults")
    with pytest.raises(TargetDied, match="crashed with SIGSEGV"):
        process.call(call(50))
    assert process.call(call(2)).output is not None


def test_a_process_that_cuda_left_useless_is_started_again(child):
    process = child("leaves_a_sticky_error")
    with pytest.raises(TargetRaised, match="illegal memory access"):
        process.call(call(50))
    assert process.call(call(2)).output is not None


def test_a_hang_is_ended(child, monkeypatch):
    process = child("hangs_once_in_a_while", timeout=0.5)
    with pytest.raises(TargetDied, match=r"did not return within 0.5 s") as caught:
        process.call(call(50))
    assert caught.value.hung
    monkeypatch.setattr(process, "timeout", LONG)
    assert process.call(call(2)).output is not None


def test_leaving_the_process_is_named(child):
    with pytest.raises(TargetDied, match="ended its process with exit code 7"):
        child("exits_hard").call(call())
    with pytest.raises(TargetDied, match="ended its process with exit code 3"):
        child("exits").call(call())


def test_output_of_the_target_does_not_reach_the_protocol(child):
    assert child("chatters").call(call()).shape == (1, 1, 2, 1)


def test_exceptions_come_back_with_their_place(child):
    with pytest.raises(
        TargetRaised, match=r"RuntimeError: no such kernel image \(targets.py:\d+\)"
    ):
        child("raises").call(call())


def test_instances_can_be_targets(child):
    assert child("layer").call(call()).shape == (1, 1, 2, 1)


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing", 'has no attribute "missing"'),
        ("not_callable", "must be callable, got int"),
        ("two_arguments", "must be callable as f(query, key, value)"),
        ("Layer", "is a class; name an instance"),
    ],
)
def test_unusable_targets_are_refused(name, sentence, in_process):
    import re

    with pytest.raises(UsageError, match=re.escape(sentence)):
        verify(target(name), op="linear_attention", in_process=in_process)


@pytest.mark.parametrize("framework", ["array_api_strict", "torch", "jax"])
def test_other_libraries(framework, request):
    if framework == "array_api_strict":
        pytest.importorskip(framework)
    else:
        request.getfixturevalue(framework)
    dtypes = ("float32", "float64")
    if framework == "torch":
        dtypes += ("bfloat16", "float16")
    if framework == "jax":
        dtypes = ("float64",)  # which must be allowed first; it compiles for each
    report = verify(
        "linkern:linear_attention",
        op="linear_attention",
        framework=framework,
        dtypes=dtypes,
        profile="quick",
        checks=["value_on_reals", "inputs_untouched"],
    )
    assert report.verdict == "passed"


# A loop of JAX in a function that is called as it is, since it looks at the numbers: it
# returns how many programs came from the cache.
HITS = dedent("""
    import jax

    hits = []

    def listen(event, **_):
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    start = jax.numpy.zeros(1)  # it compiles while it is imported, too

    def hits_so_far(query, key, value):
        assert float(jax.numpy.abs(value).max()) >= 0

        def step(carry, x):
            return carry + x, carry

        loop = jax.lax.scan(step, value[..., 0, :], value[0, 0, :, None])
        jax.block_until_ready(loop)
        return jax.numpy.full_like(value, len(hits))
""")


def test_a_loop_of_jax_is_compiled_once(jax, tmp_path):
    """Also after the process died, and until the target is closed."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(HITS, encoding="utf-8")
    config = TargetConfig(f"{kernel}:hits_so_far", "jax")
    process = ChildProcess(config, LONG)
    try:
        counts = [process.call(call()).output.flat[0] for _ in range(3)]
        assert counts[0] < counts[1] < counts[2]
        process._end()
        assert process.call(call()).output.flat[0] > 0
        folder = Path(process._compiled.name)
        assert any(folder.iterdir())
    finally:
        process.close()
    assert not folder.exists()
