"""Workspaces kept between calls: few, private, without references to a caller."""

import weakref

import numpy as np
import pytest

import linkern
from linkern.kernels.numpy import chunk_linear, workspace
from linkern.kernels.numpy.workspace import WorkspacePool

pytestmark = pytest.mark.usefixtures("no_kept_buffers")


class Workspace:
    def release(self):
        pass


def inputs(features=3):
    return np.random.default_rng(features).uniform(0.1, 1, (3, 2, 70, features))


def test_the_next_call_uses_them_again():
    made = []

    def make(*shape_and_other):
        made.append(shape_and_other)
        return Workspace()

    for _ in range(2):
        with WorkspacePool("a kind", make).borrow(1) as [workspaces]:
            first = workspaces[1, 2, 3]
    assert len(made) == 1
    with WorkspacePool("another kind", make).borrow(1) as [workspaces]:
        assert workspaces[1, 2, 3] is not first
    assert len(made) == 2


def test_two_never_have_the_same():
    pool = WorkspacePool("a kind", lambda *_: Workspace())
    with pool.borrow(2) as (one, other), pool.borrow(1) as [third]:
        assert len({id(x[1, 1, 1]) for x in (one, other, third)}) == 3


def test_few_are_kept():
    for features in range(1, 30):
        linkern.linear_attention(*inputs(features))
    assert len(workspace._FREE) <= 8
    for length in range(1, 60):
        linkern.linear_attention(*inputs()[:, :, :length])
    assert all(len(workspaces) <= 3 for workspaces in workspace._FREE)


def test_nothing_is_kept_of_a_call_that_failed(monkeypatch):
    def failing(*_):
        msg = "half way"
        raise MemoryError(msg)

    monkeypatch.setattr(chunk_linear, "chunk_output", failing)
    with pytest.raises(MemoryError, match="half way"):
        linkern.linear_attention(*inputs())
    assert not workspace._FREE


def test_arrays_of_a_caller_are_let_go():
    rows, decay = inputs(), -np.ones((2, 70))
    result, pullback = linkern.vjp(linkern.simple_gla, *rows, decay)
    pullback(result.output)
    state = linkern.delta_rule(*rows, np.ones((2, 70))).state.memory
    seen = [weakref.ref(x) for x in (rows, decay, result.output, state)]
    del rows, decay, result, pullback, state
    assert workspace._FREE
    assert all(x() is None for x in seen)


def test_results_are_not_among_them():
    first = linkern.linear_attention(*inputs())
    kept = [np.array(x) for x in (first.output, *first.state)]
    linkern.linear_attention(*(-inputs()))
    for x, y in zip((first.output, *first.state), kept, strict=True):
        assert np.array_equal(x, y)


def test_buffers_begin_at_lines_of_their_own():
    buffers = workspace.Arena("float32")
    made = [buffers.empty(3, 5, size) for size in range(1, 65)]
    starts = {x.ctypes.data % 4096 for x in made}
    assert all(start % 64 == 0 for start in starts)
    assert len(starts) == 64
    assert all(x.flags.c_contiguous and x.flags.writeable for x in made)
    assert [x.shape for x in made] == [(3, 5, size) for size in range(1, 65)]


def test_buffers_share_memory_with_those_not_used_at_the_same_time():
    large = workspace.Arena("float32")
    mine = [large.empty(8, 8), large.empty(2)]
    small = workspace.Arena("float32", large)
    theirs = [small.empty(5, 3), small.empty(4), small.empty(1)]
    shared = [np.shares_memory(x, y) for x in mine for y in theirs]
    assert shared == [True, False, False, False, False, False]
    assert [x.shape for x in theirs] == [(5, 3), (4,), (1,)]
