"""Peers on a GPU, with a CPU in its place, agree with the reference."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import linkern
from linkern.bench import reference
from linkern.bench.cuda import CUDA, arrays, cupy_peers, torch_peers
from linkern.bench.reference import ALLOWED, Judge
from linkern.bench.tasks import DISTINCT_HEADS, OURS, Task, drawn
from linkern.bench.worker import LocalWorker
from tests.kernels.cuda.emulator.device import Emulator

LENGTH = 96
(LIMIT,) = CUDA.limits
CASES = [
    (peer.name, kind, dtype)
    for peer in CUDA.peers
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

    monkeypatch.setattr(cupy_peers, "import_module", imported)
    monkeypatch.setattr(cupy_peers, "CuPyClock", Here)
    monkeypatch.setattr(torch_peers, "TorchClock", Here)
    monkeypatch.setattr(torch_peers, "DEVICE", "cpu")
    monkeypatch.setattr(cupy_peers, "CuPyDevice", Emulator)
    monkeypatch.setattr(cupy_peers, "COPIED", 1040)
    monkeypatch.setattr(arrays, "_ROTATED", 1)


def small(kind, dtype="float32"):
    shape = {"batch": 2, "heads": 4, "dim": 16, "dtype": dtype}
    return Task("t", "", kind, (LENGTH,), **shape, device="cuda")


def law_a_peer_answers_right(peer, task, spoiled=lambda x: x):
    length = 8 if task.kind == "decode" else LENGTH
    judge = Judge(task, length, 3)
    worker = LocalWorker()
    result = worker.prepare(peer, task, length, 3, judge.rows)
    assert judge.error(spoiled(result), peer.meaning) <= ALLOWED[task.dtype]
    assert worker.turn(0.0).seconds > 0
    assert worker.turn(0.0).by == "graph"


@pytest.mark.parametrize(("name", "kind", "dtype"), CASES)
def test_peers_answer_right(name, kind, dtype, request):
    peer = CUDA.peer(name)
    if "torch" in peer.needs:
        request.getfixturevalue("torch")
    law_a_peer_answers_right(peer, small(kind, dtype))


def test_timing_changes_no_answer(monkeypatch, torch):
    """Calls that add in place have a memory of their own."""
    task, peer = small("decode"), CUDA.peer("torch-in-place")
    monkeypatch.setattr(arrays, "_ROTATED", 3 * task.compulsory_bytes(8))
    judge, worker = Judge(task, 8, 3), LocalWorker()
    first = worker.prepare(peer, task, 8, 3, judge.rows)
    assert len(worker.prepared.calls) == 3
    worker.turn(0.0)
    worker.turn(0.0)
    again = worker.prepared.answer(judge.rows)
    np.testing.assert_array_equal(first, again)


FAULTS = {
    "heads exchanged": lambda result: [x[:, ::-1] for x in result],
    "one token late": lambda result: [np.roll(x, 1, axis=2) for x in result],
    "an array missing": lambda result: result[1:],
    "not a number": lambda result: [np.nan * x for x in result],
}


@pytest.mark.parametrize("kind", ["causal", "gradient", "delta-gradient", "decode"])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_answers_are_noticed(kind, fault):
    with pytest.raises(AssertionError):
        law_a_peer_answers_right(CUDA.peer(OURS), small(kind), FAULTS[fault])


def test_copying_copies_and_answers_nothing():
    ready = cupy_peers.copy(None, None)
    assert ready.answer([0]) == []
    for way in ready.ways.values():
        target = copied_by(way)
        assert target.nbytes == 1040
        assert (target == 1).all()
        target[...] = 0
    assert LIMIT.meaning == "limit"


def copied_by(way):
    """Call a way to copy once, and return where it copies to."""
    way.calls[0]()
    cells = dict(
        zip(
            way.calls[0].__code__.co_freevars,
            (cell.cell_contents for cell in way.calls[0].__closure__),
            strict=True,
        )
    )
    return cells["target"] if "target" in cells else cells["launch"].holds[1]


def test_neighbouring_heads_differ():
    task = small("causal", "float16")
    inputs = drawn(task, 5, 0)
    assert inputs.query.shape == (1, DISTINCT_HEADS, 5, 16)
    np.testing.assert_array_equal(inputs.key, inputs.key.astype("float16"))
    numbers = arrays.head_indices(task)
    for apart in (1, 2, 4):
        assert (numbers[apart:] != numbers[:-apart]).all()
    query = cupy_peers._set(inputs, task)[0]
    assert query.shape == (2, 4, 5, 16)
    np.testing.assert_array_equal(query[1, 3], inputs.query[0, 7 % 3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bits_are_numbers(dtype):
    x = np.asarray([[1.0, -2.5, 0.0, 3e-3]], np.float32)
    bits = arrays.as_bits(x, dtype)
    assert bits.dtype.kind == "i"
    back = arrays.from_bits(bits, dtype)
    np.testing.assert_allclose(back, x, 2**-8)


def test_compulsory_bytes():
    """By hand: arrays, heads, tokens, numbers, bytes."""
    by_name = {task.name: task for task in CUDA.tasks}
    assert by_name["causal"].compulsory_bytes(4096) == 4 * 128 * 4096 * 64 * 2
    assert by_name["float32"].compulsory_bytes(4096) == 4 * 128 * 4096 * 64 * 4
    rows = 4 * 128 * 4096 * 64 * 2
    assert by_name["delta"].compulsory_bytes(4096) == rows + 2 * 128 * 4096 * 4
    kda = 4 * 128 * 4096 * 128 * 2 + (128 + 1) * 128 * 4096 * 4
    assert by_name["kda-wide"].compulsory_bytes(4096) == kda
    assert by_name["gradient"].compulsory_bytes(16384) == 7 * 128 * 16384 * 64 * 2
    gradients = 7 * 128 * 4096 * 128 * 2 + 4 * 128 * 4096 * 4
    assert by_name["delta-gradient-wide"].compulsory_bytes(4096) == gradients
    state = 2048 * 128 * 129 * 4
    assert state > 100e6
    both_ways = 2 * state + 2048 * 4 * 128 * 2
    assert by_name["decode-2048"].compulsory_bytes(16) == both_ways


def test_sets_that_take_turns_are_larger_than_any_cache(monkeypatch):
    monkeypatch.setattr(arrays, "_ROTATED", 512 * 2**20)
    for task in CUDA.tasks:
        for length in task.lengths:
            count, size = arrays.rotation(task, length), task.compulsory_bytes(length)
            assert count * size >= 512 * 2**20
            assert count == 1 or (count - 1) * size < 512 * 2**20
    assert arrays.rotation(CUDA.task("decode-1024"), 16) == 4


def test_functions_of_peers_exist():
    for peer in (*CUDA.peers, LIMIT):
        function = peer.function()
        module = import_module(function.__module__)
        assert function.__name__ in module.__all__


def in_place_of_fla(monkeypatch, module):
    def imported(name):
        return module if name.startswith("fla") else import_module(name)

    monkeypatch.setattr(torch_peers, "import_module", imported)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_arguments_of_fla(monkeypatch, torch, normalize):
    """A textbook kernel replaces FLA's: shapes, features and scale must be right."""

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
    in_place_of_fla(monkeypatch, module)
    peer = replace(CUDA.peer("fla-chunk" if normalize else "fla-kernel"), needs=())
    for kind in peer.kinds:
        law_a_peer_answers_right(peer, small(kind))


@pytest.mark.parametrize(
    ("kind", "operator", "channels"),
    [("delta", "gated_delta_rule", ()), ("kda", "kda", (16,))],
)
def test_the_arguments_of_delta_rules(monkeypatch, torch, kind, operator, channels):
    """Linkern replaces FLA's kernel: the order, the layout and the scale are right."""

    def attend(q, k, v, g, beta):
        assert q.shape == (2, LENGTH, 4, 16)
        assert g.shape == (2, LENGTH, 4, *channels)
        assert beta.shape == (2, LENGTH, 4)
        inputs = (x.transpose(1, 2).double().numpy() for x in (q, k, v, g, beta))
        output = torch.from_numpy(getattr(linkern, operator)(*inputs).output)
        return output.transpose(1, 2).to(v.dtype), None

    module = SimpleNamespace(**{f"chunk_{operator}": attend})
    in_place_of_fla(monkeypatch, module)
    peer = replace(CUDA.peer(f"fla-{kind}"), needs=())
    for dtype in peer.dtypes:
        law_a_peer_answers_right(peer, small(kind, dtype))


def test_the_expected_gradient_is_without_the_output():
    judge = Judge(small("gradient"), 8, 0)
    inputs, judge.rows = drawn(judge.task, 8, 0), [0, 7]
    answers = reference.answers(inputs, "gradient", "attention", judge.rows)
    heads = [head % 3 for head in judge.task.judged_heads()]
    assert judge.error([x[:, heads] for x in answers[1:]], "attention") == 0
    assert judge.error([x[:, heads] for x in answers], "attention") == np.inf


def test_heads_that_are_judged_are_the_first_and_the_last():
    assert CUDA.task("causal").judged_heads() == [0, 1, 2, 125, 126, 127]
    assert replace(CUDA.task("causal"), device="cpu").judged_heads() == [*range(128)]
