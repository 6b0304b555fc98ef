"""Every peer computes what it is judged by, and a wrong one would be noticed."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from linkern.bench import truth
from linkern.bench.peers import (
    LIMITS,
    OURS,
    PEERS,
    left_out,
    peer_named,
    takes_part,
)
from linkern.bench.tasks import TASKS, Inputs, Task
from linkern.bench.worker import Prepared, Worker

LENGTH = 128
# JAX and the compiler of PyTorch take seconds to start.
SLOW = {"jax-scan", "torch-compile"}
CASES = [
    (peer.name, kind, dtype)
    for peer in PEERS
    for kind in peer.kinds
    for dtype in peer.dtypes
    if peer.name not in SLOW and set(peer.needs) <= {"torch"}
]


def small(kind, dtype="float32"):
    return Task("t", "", kind, (LENGTH,), batch=2, heads=2, dim=16, dtype=dtype)


def law_a_peer_answers_right(prepare, peer, kind, dtype):
    task = small(kind, dtype)
    inputs = Inputs.drawn(task, LENGTH, 3)
    prepared = prepare(inputs, task, **peer.options)
    rows = truth.judged_rows(LENGTH)
    for _ in range(2):  # a second call starts from nothing, too
        found = [x[..., rows, :] for x in prepared.read(prepared.call())]
        assert {str(x.dtype) for x in found} == {dtype}
        due = truth.answers(inputs, kind, peer.meaning, rows)
        # As in a run; what is right is a hundred times closer.
        assert truth.largest_error(found, due) <= truth.ALLOWED[dtype]


def function_of(peer):
    module, _, name = peer.prepare.partition(":")
    return getattr(import_module(f"linkern.bench.peers.{module}"), name)


@pytest.mark.parametrize(("name", "kind", "dtype"), CASES)
def test_peers_answer_right(name, kind, dtype, request):
    peer = peer_named(name)
    if peer.needs:
        request.getfixturevalue("torch")
    law_a_peer_answers_right(function_of(peer), peer, kind, dtype)


def test_jax_answers_right(jax):
    peer = peer_named("jax-scan")
    law_a_peer_answers_right(function_of(peer), peer, "gradient", "float64")


def chunks_that_forget(peer):
    """Take each half as a sequence of its own."""

    def prepare(inputs, task, **options):
        half = LENGTH // 2
        parts = [
            function_of(peer)(
                Inputs(*(x[:, :, at] for x in vars(inputs).values())), task, **options
            )
            for at in (slice(0, half), slice(half, None))
        ]
        return Prepared(
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
        return function_of(peer)(replace(inputs, key=key), task, **options)

    return prepare


def keeps_its_state(peer):
    """Answer right the first time only."""

    def prepare(inputs, task, **options):
        made = function_of(peer)(inputs, task, **options)
        calls = []

        def call():
            calls.append(0)
            return made.call()

        return Prepared(call, lambda x: [y / len(calls) for y in made.read(x)])

    return prepare


@pytest.mark.parametrize("name", [OURS, "torch-loop-64"])
@pytest.mark.parametrize(
    "mutant", [chunks_that_forget, eyes_on_the_next_token, keeps_its_state]
)
def test_wrong_peers_are_caught(name, mutant, request):
    peer = peer_named(name)
    if peer.needs:
        request.getfixturevalue("torch")
    with pytest.raises(AssertionError):
        law_a_peer_answers_right(mutant(peer), peer, "causal", "float32")


def test_names_are_names():
    names = [peer.name for peer in (*PEERS, *LIMITS)]
    assert len(set(names)) == len(names)
    assert all(peer_named(name).name == name for name in names)
    assert peer_named("nobody") is None
    for peer in (*PEERS, *LIMITS):
        if all(find_spec(module) for module in ("torch",) if module in peer.needs):
            assert callable(function_of(peer))


def test_every_task_has_somebody_and_its_limits():
    for task in TASKS:
        able = {p.name for p in PEERS if task.kind in p.kinds}
        assert OURS in able
        assert len(able) > 3
        assert all(takes_part(limit, task) for limit in LIMITS)


def test_who_is_not_installed_takes_no_part(monkeypatch):
    monkeypatch.setattr("linkern.bench.peers.find_spec", lambda name: None)
    (causal,) = (task for task in TASKS if task.name == "causal")
    assert [p.name for p in PEERS if takes_part(p, causal)] == [OURS]


def test_who_cannot_is_left_out_with_a_reason():
    ours, parallel = peer_named(OURS), peer_named("torch-parallel-64")
    assert left_out(ours, 10**6 + 1) is None
    assert left_out(parallel, 640) is None
    assert "above 65536" in left_out(parallel, 2**20)
    assert left_out(parallel, 641) == "takes multiples of 64 tokens"
    assert "above 16384" in left_out(peer_named("torch-sdpa"), 16385)
    (doubles,) = (task for task in TASKS if task.name == "float64")
    assert not takes_part(peer_named("ft"), doubles)
    (alone,) = (task for task in TASKS if task.name == "one-head")
    assert takes_part(peer_named("linkern-one-thread"), alone)
    assert not takes_part(peer_named("linkern-one-thread"), replace(alone, name="x"))


def test_a_worker_prepares_reads_rows_and_lets_go():
    task, rows = small("causal"), [0, 5]
    worker = Worker()
    first = worker.prepare(peer_named(OURS), task, LENGTH, 3, rows)
    inputs = Inputs.drawn(task, LENGTH, 3)
    due = truth.answers(inputs, "causal", "attention", rows)
    assert truth.largest_error(first.rows, due) <= 1e-6
    assert first.returned_bytes == inputs.value.nbytes
    assert worker.turn(0.0).calls == 1
    assert worker.peak() >= first.returned_bytes
    worker.release()
    assert worker.prepared is None


def test_the_seed_says_what_inputs_are():
    first, again, other = (Inputs.drawn(small("gradient"), 9, x) for x in (1, 1, 2))
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
