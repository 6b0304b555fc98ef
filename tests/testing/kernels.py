"""Targets for the tests of the command line: good, bad and unusable."""

import ctypes
import os
import random
import sys
import time

import numpy as np


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


class Layer:
    def __call__(self, query, key, value):
        return good(query, key, value)


layer = Layer()
not_callable = 3
