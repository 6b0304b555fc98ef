"""Targets for the tests of the command line: good, bad and unusable."""

import ctypes
import os
import random
import sys
import threading
import time

import numpy as np

from linkern.testing.kernels.assembly import Parts, stateful

WHOLE = stateful(Parts())
KEPT = []


def good(query, key, value):
    wide = np.result_type(query.dtype, np.float32)
    q, k, v = (x.astype(wide) for x in (query, key, value))
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)


def loses_last_key(query, key, value):
    output = good(query, key, value)
    if query.shape[-2] > 1:
        output[..., -1, :] = good(
            query[..., 1:, :], key[..., :-1, :], value[..., :-1, :]
        )[..., -1, :]
    return output


def loses_and_overwrites(query, key, value):
    output = loses_last_key(query, key, value)
    key[...] = 0
    return output


def off_by_a_little(query, key, value):
    """Wrong in a way that nobody has a name for."""
    output = good(query, key, value)
    return output + np.sin(7 * output) * output.dtype.type(0.01)


def needs_a_switch(query, key, value, switch=False):
    output = good(query, key, value)
    return output if switch else output * 2


def leaves_a_sticky_error(query, key, value, broken=[]):  # noqa: B006
    """As a kernel that accesses memory out of bounds: all calls fail from then on."""
    if broken or query.shape[2] == 50:
        broken.append(True)
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)
    return good(query, key, value)


def segfaults(query, key, value):
    if query.shape[-2] > 40:
        ctypes.string_at(0)
    return good(query, key, value)


def hangs(query, key, value):
    while True:
        time.sleep(60)


def hangs_once_in_a_while(query, key, value):
    if query.shape[-2] > 40:
        time.sleep(3600)
    return good(query, key, value)


def exits(query, key, value):
    sys.exit(3)


def exits_hard(query, key, value):
    os._exit(7)


def exits_on_no_token(query, key, value):
    return good(query, key, value) if query.shape[2] else exits_hard(query, key, value)


def chatters(query, key, value):
    print("x" * 2_000_000)
    sys.stdout.flush()
    os.write(1, b"not a reply")
    return good(query, key, value)


def changes_the_process(query, key, value):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    np.seterr(all="raise")
    os.chdir("/")
    with np.errstate(all="ignore"):
        return good(query, key, value)


def returns_none(query, key, value):
    return None


def returns_scalar(query, key, value):
    return np.float32(1)


def returns_state_too(query, key, value):
    return good(query, key, value), "state"


def raises(query, key, value):
    message = "no such kernel image"
    raise RuntimeError(message)


def two_arguments(query, key):
    return query


def gradients_of_good(query, key, value, output_cotangent):
    return WHOLE.vjp(query, key, value, output_cotangent)[:3]


def wrong_gradients_of_good(query, key, value, output_cotangent):
    of_query, of_key, of_value = gradients_of_good(query, key, value, output_cotangent)
    return of_query, of_key, of_value / 2


good.gradients = gradients_of_good


def keeps(query, key, value):
    KEPT[:] = query, key, value
    return good(query, key, value)


def gradients_from_what_was_kept(query, key, value, output_cotangent):
    return gradients_of_good(*KEPT, output_cotangent)


class Layer:
    weight = 1.0

    def __call__(self, query, key, value):
        return good(query, key, value)


layer = Layer()
not_callable = 3


# -- wild targets: each does something to its process, and most return what is right


def writes_past_its_input(query, key, value):
    ctypes.memset(value.ctypes.data + value.nbytes, 1, 64)
    return good(query, key, value)


def leaves_a_fork(query, key, value):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    return good(query, key, value)


def leaves_a_fork_and_dies(query, key, value):
    leaves_a_fork(query, key, value)
    os._exit(9)


def leaves_a_daemon(query, key, value):
    """One child only: it leaves the group of its parent, and keeps its pipes open."""
    if not KEPT and os.fork() == 0:
        os.setsid()
        time.sleep(5)
        os._exit(0)
    KEPT[:] = [True]
    return good(query, key, value)


def forks_twice(query, key, value):
    os.fork()
    return good(query, key, value)


def prints_without_end(query, key, value):
    if not KEPT:
        for _ in range(200):
            sys.stdout.write("x" * 2**20)
        sys.stdout.flush()
    KEPT[:] = [True]
    return good(query, key, value)


def seeds_python(query, key, value):
    random.seed(0)
    return good(query, key, value)


def seeds_numpy(query, key, value):
    np.random.seed(0)  # noqa: NPY002
    return good(query, key, value)


def changes_error_handling(query, key, value):
    np.seterr(all="ignore")
    return good(query, key, value)


def changes_directory(query, key, value):
    os.chdir("/")
    return good(query, key, value)


def flushes_subnormals(query, key, value):
    """Set two bits of the control register, which follows 28 bytes of another unit."""
    library, held = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.fegetenv(held)
    control = int.from_bytes(held.raw[28:32], "little") | 0x8040
    held[28:32] = control.to_bytes(4, "little")
    library.fesetenv(held)
    return good(query, key, value)


def patches_numpy(query, key, value):
    np.array_equal = lambda *arrays, **options: True
    np.exp = np.sin
    return value


def wants_six_gib(query, key, value):
    if query.shape[-2] > 1:
        np.empty(6 * 2**30, np.uint8)[:: 2**20] = 1
    return good(query, key, value)


def leaks_a_gib(query, key, value):
    KEPT.append(np.empty(2**30, np.uint8))
    return good(query, key, value)


class Subclass(np.ndarray):
    pass


class Lazy:
    def __init__(self, inputs):
        self.inputs = inputs

    def __array__(self, dtype=None, copy=None):
        return good(*self.inputs)


def returns_a_subclass(query, key, value):
    return good(query, key, value).view(Subclass)


def returns_a_masked_array(query, key, value):
    return np.ma.masked_array(good(query, key, value))


def returns_a_matrix(query, key, value):
    return np.asmatrix(np.ones((2, 2), query.dtype))


def returns_something_lazy(query, key, value):
    return Lazy((query, key, value))


def returns_a_generator(query, key, value):
    return (x for x in good(query, key, value))


def returns_objects(query, key, value):
    return good(query, key, value).astype(object)


def holds_the_lock(query, key, value):
    ctypes.PyDLL(None).sleep(600)


def recurses(query, key, value):
    return recurses(query, key, value)


def interrupts(query, key, value):
    raise KeyboardInterrupt


def leaves_a_generator(query, key, value):
    raise GeneratorExit


def closes_all_files(query, key, value):
    os.closerange(0, 4096)
    return good(query, key, value)


def replaces_stdout(query, key, value):
    sys.stdout = sys.stderr = None
    return good(query, key, value)


def leaves_a_thread(query, key, value):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return good(query, key, value)


def empties_its_environment(query, key, value):
    os.environ.clear()
    return good(query, key, value)


def says_too_much(query, key, value):
    message = "x" * 10**7
    raise ValueError(message)
