"""Contestants on a GPU, with a CPU in its place: they answer as they are judged."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from linkern.bench import truth
from linkern.bench.cuda import own, prepared, tasks, torch_forms
from linkern.bench.cuda.peers import LIMIT, PEERS, peer_named
from linkern.bench.cuda.race import judge_of
from linkern.bench.cuda.tasks import ALLOWED, TASKS, moved_bytes, rotated
from linkern.bench.cuda.worker import DeviceWorker
from linkern.bench.peers import OURS
from linkern.bench.tasks import Task

LENGTH = 96
CASES = [
    (peer.name, kind, dtype)
    for peer in PEERS
    for kind in peer.kinds
    for dtype in peer.dtypes
    if "fla" not in peer.needs
    # On NumPy, which stands for CuPy here, there is no decoder of bfloat16.
    and (peer.name, kind, dtype) != (OURS, "decode", "bfloat16")
]


class Here:
    """The clock of no device."""

    def run(self, call):
        return call()

    def captured(self, call):
        call()
        return call

    def seconds(self, call):
        call()
        return 1.0


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    cupy = SimpleNamespace(
        asarray=np.asarray,
        asnumpy=np.asarray,
        ones=np.ones,
        zeros_like=np.zeros_like,
        copyto=np.copyto,
    )

    def imported(name):
        return cupy if name == "cupy" else import_module(name)

    monkeypatch.setattr(own, "import_module", imported)
    monkeypatch.setattr(own, "CuPyClock", Here)
    monkeypatch.setattr(torch_forms, "TorchClock", Here)
    monkeypatch.setattr(torch_forms, "DEVICE", "cpu")
    monkeypatch.setattr(own, "COPIED", 1000)
    monkeypatch.setattr(tasks, "_ROTATED", 1)
    monkeypatch.setattr(DeviceWorker, "release", lambda self: None)


def small(kind, dtype="float32"):
    return Task("t", "", kind, (LENGTH,), batch=2, heads=4, dim=16, dtype=dtype)


def law_a_peer_answers_right(peer, task, spoiled=lambda x: x):
    length = 8 if task.kind == "decode" else LENGTH
    judge = judge_of(task, length, 3)
    worker = DeviceWorker()
    found = worker.prepare(peer, task, length, 3, judge.rows)
    assert judge.error(spoiled(found), peer.meaning) <= ALLOWED[task.dtype]
    taken = worker.measure(2)
    assert len(taken.seconds) == 2


@pytest.mark.parametrize(("name", "kind", "dtype"), CASES)
def test_peers_answer_right(name, kind, dtype, request):
    peer = peer_named(name)
    if "torch" in peer.needs:
        request.getfixturevalue("torch")
    law_a_peer_answers_right(peer, small(kind, dtype))


def test_timing_changes_no_answer(monkeypatch, torch):
    """Calls that add in place have a memory of their own."""
    task, peer = small("decode"), peer_named("torch-in-place")
    monkeypatch.setattr(tasks, "_ROTATED", 3 * moved_bytes(task, 8))
    judge, worker = judge_of(task, 8, 3), DeviceWorker()
    first = worker.prepare(peer, task, 8, 3, judge.rows)
    assert len(worker._ready.calls) == 3
    worker.measure(2)
    again = worker._ready.answer(tasks.judged_heads(task), judge.rows)
    np.testing.assert_array_equal(first, again)


FAULTS = {
    "heads exchanged": lambda found: [x[:, ::-1] for x in found],
    "one token late": lambda found: [np.roll(x, 1, axis=2) for x in found],
    "an array missing": lambda found: found[1:],
    "not a number": lambda found: [np.nan * x for x in found],
}


@pytest.mark.parametrize("kind", ["causal", "gradient", "decode"])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_answers_are_noticed(kind, fault):
    with pytest.raises(AssertionError):
        law_a_peer_answers_right(peer_named(OURS), small(kind), FAULTS[fault])


def test_copying_copies_and_answers_nothing():
    ready = own.copy(None, None)
    assert ready.answer([0], [0]) == []
    ready.calls[0]()
    assert LIMIT.meaning == "limit"


def test_heads_are_drawn_few_and_none_is_like_its_neighbour():
    task = small("causal", "float16")
    inputs = tasks.drawn(task, 5, 0)
    assert inputs.query.shape == (1, tasks.DRAWN, 5, 16)
    np.testing.assert_array_equal(inputs.key, inputs.key.astype("float16"))
    numbers = prepared.numbers_of_heads(task)
    for apart in (1, 2, 4):
        assert (numbers[apart:] != numbers[:-apart]).all()
    query = own._set(inputs, task)[0]
    assert query.shape == (2, 4, 5, 16)
    np.testing.assert_array_equal(query[1, 3], inputs.query[0, 7 % 3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bits_are_numbers(dtype):
    x = np.asarray([[1.0, -2.5, 0.0, 3e-3]], np.float32)
    bits = prepared.as_bits(x, dtype)
    assert bits.dtype.kind == "i"
    back = prepared.from_bits(bits, dtype)
    np.testing.assert_allclose(back, x, 2**-8)


def test_bytes_that_have_to_pass():
    """By hand: arrays, heads, tokens, numbers, bytes."""
    by_name = {task.name: task for task in TASKS}
    assert moved_bytes(by_name["causal"], 4096) == 4 * 128 * 4096 * 64 * 2
    assert moved_bytes(by_name["float32"], 4096) == 4 * 128 * 4096 * 64 * 4
    assert moved_bytes(by_name["gradient"], 16384) == 7 * 128 * 16384 * 64 * 2
    state = 2048 * 128 * 129 * 4
    assert state > 100e6
    both_ways = 2 * state + 2048 * 4 * 128 * 2
    assert moved_bytes(by_name["decode-2048"], 16) == both_ways


def test_sets_that_take_turns_are_larger_than_any_cache(monkeypatch):
    monkeypatch.setattr(tasks, "_ROTATED", 512 * 2**20)
    for task in TASKS:
        for length in task.lengths:
            count = rotated(task, length)
            assert count * moved_bytes(task, length) >= 512 * 2**20
            assert count == 1 or (count - 1) * moved_bytes(task, length) < 512 * 2**20


def test_functions_of_peers_are_there():
    for peer in (*PEERS, LIMIT):
        module, _, name = peer.prepare.partition(":")
        found = import_module(f"linkern.bench.cuda.{module}")
        assert name in found.__all__


@pytest.mark.skipif(find_spec("fla") is not None, reason="FLA is installed")
@pytest.mark.parametrize("normalize", [True, False])
def test_what_fla_is_asked(monkeypatch, torch, normalize):
    """Its kernel stands for itself here: shapes, features and scale are ours to say."""

    def attend(q, k, v, scale, normalize, initial_state=None, output_final_state=False):
        assert scale == 1.0
        state = q.new_zeros(1) if initial_state is None else initial_state
        q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
        scores = (q @ k.transpose(-1, -2)).tril()
        total = scores.sum(-1, True) if normalize else 1.0
        return (scores @ v / total).transpose(1, 2).float(), state

    module = SimpleNamespace(
        chunk_linear_attn=attend, fused_recurrent_linear_attn=attend
    )
    real = torch_forms.import_module
    monkeypatch.setattr(
        torch_forms,
        "import_module",
        lambda name: module if name.startswith("fla") else real(name),
    )
    peer = replace(peer_named("fla-chunk" if normalize else "fla-kernel"), needs=())
    for kind in peer.kinds:
        law_a_peer_answers_right(peer, small(kind))


def test_the_truth_of_a_gradient_is_without_the_output():
    judge = judge_of(small("gradient"), 8, 0)
    due = truth.answers(tasks.drawn(judge.task, 8, 0), "gradient", "attention", [0, 7])
    judge.rows = [0, 7]
    like = [head % 3 for head in tasks.judged_heads(judge.task)]
    assert judge.error([x[:, like] for x in due[1:]], "attention") == 0
    assert judge.error([x[:, like] for x in due], "attention") == np.inf
