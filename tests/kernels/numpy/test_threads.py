"""Threads: each item runs once, errors are raised, the BLAS limit is restored."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import linkern
from linkern.kernels.numpy.threads import (
    parallel_for,
    single_threaded_blas,
    small_buffers,
    thread_count,
)
from tests.waiting import LONG


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("threads", [1, 2, 4, 5000])
def test_each_item_is_worked_on_once(count, threads):
    done = []

    def work(item):
        done.append(item)
        yield
        done.append(item)

    parallel_for(range(count), work, threads)
    assert sorted(done) == sorted([*range(count)] * 2)


def test_threads_work_side_by_side():
    both = threading.Barrier(2, timeout=LONG)

    def work(_):
        both.wait()  # would never return if items came one after the other
        yield

    parallel_for(range(2), work, 2)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_exception_ends_the_work_and_is_raised(threads):
    begun = []

    def work(item):
        begun.append(item)
        yield
        if item == 2:
            msg = "item 2"
            raise ArithmeticError(msg)
        yield

    with pytest.raises(ArithmeticError, match="item 2"):
        parallel_for(range(1000), work, threads)
    assert len(begun) < 1000
    parallel_for(range(3), work_nothing, threads)  # and the threads can be used again


def work_nothing(_):
    yield


def test_an_exception_of_a_helper_is_raised_here():
    here = threading.get_ident()
    both = threading.Barrier(2, timeout=LONG)

    def work(_):
        both.wait()
        if threading.get_ident() != here:
            msg = "not here"
            raise LookupError(msg)
        yield

    with pytest.raises(LookupError, match="not here"):
        parallel_for(range(2), work, 2)


def test_helpers_take_the_error_state_of_the_caller():
    rows = np.zeros((4, 4, 300, 2))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        linkern.linear_attention(*rows[:3], feature_map=linkern.relu)
    with np.errstate(all="ignore"):
        output = linkern.linear_attention(*rows[:3], feature_map=linkern.relu).output
    assert np.isnan(output).all()


@pytest.mark.parametrize("setting", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_threads_that_is_none(monkeypatch, setting):
    monkeypatch.setenv("LINKERN_NUM_THREADS", setting)
    x = np.ones((1, 3, 2))
    with pytest.raises(ValueError, match="`LINKERN_NUM_THREADS` must be a positive"):
        linkern.linear_attention(x, x, x)


def test_the_environment_says_how_many_threads(monkeypatch):
    monkeypatch.setenv("LINKERN_NUM_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.delenv("LINKERN_NUM_THREADS")
    assert 1 <= thread_count() <= (os.cpu_count() or 1)


def blas_threads():
    from threadpoolctl import threadpool_info

    return [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"]


def test_the_blas_is_held_to_one_thread_until_the_last_is_done():
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        assert before, "no BLAS that can be held"
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        assert set(blas_threads()) == {1}
        second.__enter__()
        first.__exit__(None, None, None)  # not the last one
        assert set(blas_threads()) == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


def test_several_threads_may_call_at_once(monkeypatch):
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    monkeypatch.setenv("LINKERN_NUM_THREADS", "4")
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(3, 5, 300, 8)) for _ in range(4)]
    expected = [linkern.linear_attention(*x).output for x in inputs]
    results = {}

    def call(i):
        for _ in range(5):
            results[i] = linkern.linear_attention(*inputs[i]).output

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(results[i], expected[i]) for i in range(4))


PROGRAM = """
import os, signal, threading
import numpy as np, linkern
x = np.ones((2, 2000, 64), "float32")
linkern.linear_attention(x, x, x)
{body}
"""


def ran(body):
    environment = {**os.environ, "LINKERN_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        timeout=LONG,
        env=environment,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_starts_threads_of_its_own():
    done = ran(
        """
child = os.fork()
if child == 0:
    linkern.linear_attention(x, x, x)
    print("child done", flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    )
    assert done.stdout.split() == ["child", "done", "0"], done.stderr


def test_an_interrupt_ends_a_long_run_at_once():
    """An interrupt stops a call that takes minutes, and later calls work."""
    done = ran(
        """
# A shell ignores interrupts in the background, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
long = np.broadcast_to(x[:, :1], (2, 2**23, 64))
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    linkern.linear_attention(long, long, long[..., :1])
except KeyboardInterrupt:
    print("interrupted")
print(linkern.linear_attention(x, x, x).output.shape == x.shape)
print(threading.active_count() <= 3)
"""
    )
    assert done.stdout.split() == ["interrupted", "True", "True"], done.stderr


def test_buffers_of_numpy_are_small_inside_alone():
    before = np.getbufsize()
    with np.errstate(over="raise"), small_buffers():
        assert np.getbufsize() < before
        assert np.geterr()["over"] == "raise"
    assert np.getbufsize() == before
    with pytest.raises(KeyError), small_buffers():
        raise KeyError
    assert np.getbufsize() == before
