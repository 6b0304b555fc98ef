"""Every peer on a CPU agrees with the reference, and wrong peers are caught."""

import gc
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from linkern.bench import reference
from linkern.bench.clocks import HostCall, Turn
from linkern.bench.cpu import CPU, limits
from linkern.bench.cpu.dask_peers import RepeatedCall
from linkern.bench.peers import left_out, takes_part
from linkern.bench.tasks import OURS, Inputs, Task, drawn
from linkern.bench.worker import LocalWorker
from tests.marks import every

LENGTH = 128
# JAX and the compiler of PyTorch take seconds to start.
SLOW = {"jax-scan", "torch-compile"}
CASES = [
    pytest.param(
        *(peer.name, kind, dtype), id="-".join((*peer.needs, peer.name, kind, dtype))
    )
    for peer in CPU.peers
    for kind in peer.kinds
    for dtype in peer.dtypes
    if peer.name not in SLOW and set(peer.needs) <= {"torch"}
]


def small(kind, dtype="float32"):
    return Task("t", "", kind, (LENGTH,), batch=2, heads=2, dim=16, dtype=dtype)


def law_a_peer_answers_right(prepare, peer, kind, dtype):
    task = small(kind, dtype)
    inputs = drawn(task, LENGTH, 3)
    prepared = prepare(inputs, task, **peer.options)
    rows = reference.judged_rows(LENGTH)
    for _ in range(2):  # a second call starts from nothing, too
        result = [x[..., rows, :] for x in prepared.read(prepared.call())]
        assert {str(x.dtype) for x in result} == {dtype}
        expected = reference.answers(inputs, kind, peer.meaning, rows)
        # As in a run; correct peers are a hundred times closer.
        error = reference.largest_error(result, expected)
        assert error <= reference.ALLOWED[dtype]


@pytest.mark.parametrize(("name", "kind", "dtype"), CASES)
def test_peers_answer_right(name, kind, dtype, request):
    peer = CPU.peer(name)
    if peer.needs:
        request.getfixturevalue("torch")
    law_a_peer_answers_right(peer.function(), peer, kind, dtype)


@pytest.mark.parametrize("name", ["jax-scan", "linkern-jax"])
@pytest.mark.parametrize("kind", every(2, ["gradient", "compile"]))
def test_jax_answers_right(jax, name, kind):
    peer = CPU.peer(name)
    law_a_peer_answers_right(peer.function(), peer, kind, "float64")


def test_gated_delta_rules_on_jax_agree(jax):
    task = small("compile-delta", "float64")
    calls = [
        CPU.peer(name).ready(task, LENGTH, 3)
        for name in ("linkern-jax-delta", "jax-scan-delta")
    ]
    ours, other = (call.read(call.call()) for call in calls)
    assert len(ours) == 4  # the output and three gradients
    unread = replace(calls[1], read=None)  # it is compiled, and does not run
    assert unread.answer([0]) == []
    assert unread.peak(traced=False).extra is not None
    assert reference.largest_error(ours, other) <= reference.ALLOWED["float64"]


@pytest.mark.usefixtures("dask", "zarr")
def test_stores_hold_the_right_gradients():
    task, rows = small("gradient"), reference.judged_rows(LENGTH)
    peer = CPU.peer("dask-zarr")
    prepared = peer.function()(drawn(task, LENGTH, 3), task, chunk=48)
    result = prepared.answer(rows)
    expected = reference.answers(drawn(task, LENGTH, 3), task.kind, peer.meaning, rows)
    assert reference.largest_error(result, expected) <= reference.ALLOWED["float32"]
    assert prepared.peak(traced=True).extra > 0


@pytest.mark.usefixtures("dask", "zarr")
def test_a_stream_repeats_its_inputs_and_keeps_no_output():
    task, length, chunk = replace(small("stream"), period=96), 250, 48
    inputs, rows = drawn(task, length, 3), reference.judged_rows(length)
    assert inputs.query.shape[2] == task.period
    repeated = np.arange(length) % task.period
    whole = Inputs(*(x[:, :, repeated] for x in inputs.arrays()), inputs.cotangent)
    due = reference.answers(whole, "causal", "attention", rows)
    expected = reference.answers(inputs, task.kind, "attention", rows)
    assert reference.largest_error(expected, due) <= reference.ALLOWED["float64"]

    peer = replace(CPU.peer("dask-stream"), options={"chunk": chunk})
    prepared = peer.ready(task, length, 3)
    stores = prepared.stores
    for name in ("query", "key", "value"):
        read = stores.read(name)
        assert read.chunks[2] == chunk
        np.testing.assert_array_equal(read[...], getattr(whole, name))
    result = prepared.answer(rows)
    assert reference.largest_error(result, due) <= reference.ALLOWED["float32"]
    turn = prepared.turn(1.0)
    assert turn.calls == 1
    assert prepared.peak(traced=False).extra == prepared.growth[0]
    # The call that was judged is a turn if it took long, once.
    prepared.first[:] = [Turn(60.0, 1)]
    assert prepared.turn(1.0).seconds == 60.0
    assert prepared.turn(1.0).seconds != 60.0
    prepared.first[:] = [Turn(59.0, 1)]
    assert prepared.turn(1.0).seconds != 59.0
    assert sorted(x.name for x in stores.folder.iterdir()) == ["key", "query", "value"]
    del prepared
    gc.collect()
    assert not stores.folder.exists()


@pytest.mark.usefixtures("dask", "zarr")
def test_a_copy_reads_the_chunks_of_a_stream_and_writes_the_values():
    task, length = replace(small("stream"), period=96), 250
    peer = replace(CPU.peer("dask-copy"), options={"chunk": 48})
    prepared = peer.ready(task, length, 3)
    assert prepared.answer(reference.judged_rows(length)) == []
    prepared.call()
    output = prepared.stores.read("output")
    assert output.chunks[2] == 48
    assert output.shape == (*drawn(task, length, 3).value.shape[:2], length, task.dim)
    np.testing.assert_array_equal(output, prepared.stores.read("value")[...])


def test_a_call_on_a_period_counts_for_all_of_them():
    task = replace(small("stream"), period=96)
    peer = CPU.peer("linkern-in-memory")
    call = peer.ready(task, 4 * task.period, 3)
    assert call.times == 4
    assert call.period.call().output.shape[2] == task.period
    counted = RepeatedCall(OneSecond(), 4)
    assert counted.turn(0.0).seconds == 4


class OneSecond:
    def turn(self, window):
        return Turn(1.0, int(window) + 1)


def chunks_that_forget(peer):
    """Take each half as a sequence of its own."""

    def prepare(inputs, task, **options):
        half = LENGTH // 2
        parts = [
            peer.function()(
                Inputs(*(x[:, :, at] for x in vars(inputs).values())), task, **options
            )
            for at in (slice(0, half), slice(half, None))
        ]
        return HostCall(
            lambda: [part.call() for part in parts],
            lambda made: [
                np.concatenate(
                    [part.read(x)[0] for part, x in zip(parts, made, strict=True)], 2
                )
            ],
        )

    return prepare


def eyes_on_the_next_token(peer):
    def prepare(inputs, task, **options):
        key = np.concatenate((inputs.key[:, :, 1:], inputs.key[:, :, :1]), 2)
        return peer.function()(replace(inputs, key=key), task, **options)

    return prepare


def keeps_its_state(peer):
    """Answer right the first time only."""

    def prepare(inputs, task, **options):
        made = peer.function()(inputs, task, **options)
        calls = []

        def call():
            calls.append(0)
            return made.call()

        return HostCall(call, lambda x: [y / len(calls) for y in made.read(x)])

    return prepare


@pytest.mark.parametrize("name", [OURS, "torch-loop-64"])
@pytest.mark.parametrize(
    "mutant", [chunks_that_forget, eyes_on_the_next_token, keeps_its_state]
)
def test_wrong_peers_are_caught(name, mutant, request):
    peer = CPU.peer(name)
    if peer.needs:
        request.getfixturevalue("torch")
    with pytest.raises(AssertionError):
        law_a_peer_answers_right(mutant(peer), peer, "causal", "float32")


def test_names_are_unique():
    names = [peer.name for peer in (*CPU.peers, *CPU.limits)]
    assert len(set(names)) == len(names)
    assert all(CPU.peer(name).name == name for name in names)
    assert CPU.peer("nobody") is None
    for peer in (*CPU.peers, *CPU.limits):
        if all(find_spec(module) for module in ("torch",) if module in peer.needs):
            assert callable(peer.function())


def test_every_task_has_peers_and_limits():
    for task in CPU.tasks:
        able = {p.name for p in CPU.peers if task.kind in p.kinds}
        assert task.baseline in able
        # Nobody else compiles ours, or reads such a stream from stores.
        alone = task.kind.startswith(("compile", "stream"))
        assert len(able) > (1 if alone else 3)
        assert all(takes_part(limit, task) for limit in CPU.limits)


@pytest.mark.parametrize("kind", ["causal", "stream"])
def test_limits_are_measured_beside_every_kind_of_task(kind, monkeypatch):
    monkeypatch.setattr(limits, "ORDER", 4)
    monkeypatch.setattr(limits, "COPIED", 64)
    for limit in CPU.limits:
        assert limit.ready(small(kind), LENGTH, 0).turn(0.0).seconds > 0


def test_missing_packages_take_no_part(monkeypatch):
    monkeypatch.setattr("linkern.bench.peers.find_spec", lambda name: None)
    (causal,) = (task for task in CPU.tasks if task.name == "causal")
    assert [p.name for p in CPU.peers if takes_part(p, causal)] == [OURS]


def test_peers_are_left_out_with_a_reason():
    ours, parallel = CPU.peer(OURS), CPU.peer("torch-parallel-64")
    assert left_out(ours, 10**6 + 1) is None
    assert left_out(parallel, 640) is None
    assert "above 65536" in left_out(parallel, 2**20)
    assert left_out(parallel, 641) == "takes multiples of 64 tokens"
    assert "above 16384" in left_out(CPU.peer("torch-sdpa"), 16385)
    (doubles,) = (task for task in CPU.tasks if task.name == "float64")
    assert not takes_part(CPU.peer("ft"), doubles)
    (alone,) = (task for task in CPU.tasks if task.name == "one-head")
    assert takes_part(CPU.peer("linkern-one-thread"), alone)
    assert not takes_part(CPU.peer("linkern-one-thread"), replace(alone, name="x"))


def test_a_worker_prepares_answers_and_releases():
    task, rows = small("causal"), [0, 5]
    worker = LocalWorker()
    first = worker.prepare(CPU.peer(OURS), task, LENGTH, 3, rows)
    inputs = drawn(task, LENGTH, 3)
    expected = reference.answers(inputs, "causal", "attention", rows)
    assert reference.largest_error(first, expected) <= 1e-6
    assert worker.turn(0.0).calls == 1
    assert worker.peak().extra > 0
    assert worker.peak().held is None
    worker.release()
    assert worker.prepared is None


def test_memory_is_beside_the_result():
    def call():
        output = np.ones(10**6, "uint8")
        np.ones(3 * 10**6, "uint8")
        return output

    extra = HostCall(call, lambda output: [output]).peak(traced=True).extra
    # The second array, and some hundred bytes of Python around both.
    assert 3 * 10**6 <= extra <= 3 * 10**6 + 10**4


def test_the_seed_determines_the_inputs():
    first, again, other = (drawn(small("gradient"), 9, x) for x in (1, 1, 2))
    assert np.array_equal(first.cotangent, again.cotangent)
    assert not np.array_equal(first.query, other.query)
    assert first.query.shape == (2, 2, 9, 16)


def test_work_is_counted_by_the_formula():
    task = Task("t", "", "causal", (1000,), batch=3, heads=2, dim=8)
    # 2 C (K + V) + 4 K V for each token and head, C = 64.
    assert task.operations(1000) == 1000 * 6 * (2 * 64 * 16 + 4 * 64)
    assert task.compulsory_bytes(10) == 4 * 10 * 6 * 8 * 4
    decode = replace(task, kind="decode")
    assert decode.operations(1000) == 6 * 4 * 64
    assert decode.steps(1000) == 1000
    assert decode.compulsory_bytes(10) is None
    assert replace(task, kind="gradient").operations(10) is None
    assert replace(task, kind="gradient", dtype="float64").compulsory_bytes(1) == (
        8 * 6 * 8 * 8
    )
