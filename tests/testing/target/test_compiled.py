"""Functions of JAX are compiled where they can be, and are the same function."""

import functools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from linkern.testing.api import plan_of
from linkern.testing.runner.first_call import UNDER_JIT
from linkern.testing.runner.loop import run
from linkern.testing.target import frameworks
from linkern.testing.target.compiled import (
    MOST_OPERATIONS,
    MOST_PROGRAMS,
    Compiled,
)
from linkern.testing.target.loading import reloaded, resolve

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


class Counted:
    """A function, and how often Python has executed it."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def compiled(function: Any) -> tuple[Compiled, Counted]:
    counted = Counted(function)
    return Compiled(counted, lambda: counted), counted


def test_a_shape_is_traced_once_and_a_number_is_part_of_the_program(jax: Any) -> None:
    jnp = jax.numpy
    function, counted = compiled(lambda x, scale=1.0, state=None: (scale * x, state))
    for _ in range(3):
        output, state = function(jnp.asarray(X), scale=2.0)
        np.testing.assert_array_equal(output, 2 * X)
        assert state is None
    assert counted.calls == 1
    output, _ = function(jnp.asarray(X), scale=3.0)
    np.testing.assert_array_equal(output, 3 * X)
    output, (memory, count) = function(jnp.asarray(X), state=(jnp.asarray(X), 4))
    np.testing.assert_array_equal(memory, X)
    assert (counted.calls, count) == (3, 4)


def test_what_cannot_be_traced_is_called_as_it_is(jax: Any) -> None:
    jnp = jax.numpy

    def kernel(x: Any, cu_seqlens: Any = None) -> Any:
        edges = [0, len(x)] if cu_seqlens is None else np.asarray(cu_seqlens).tolist()
        spans = enumerate(pairwise(edges))
        parts = [x[a:b] * (n + 1) for n, (a, b) in spans]
        return jnp.concatenate(parts)

    function, counted = compiled(kernel)
    for edges in ([0, 1, 2], [0, 0, 2]):
        output = function(jnp.asarray(X), cu_seqlens=jnp.asarray(edges))
        np.testing.assert_array_equal(output, kernel(jnp.asarray(X), np.asarray(edges)))
    assert counted.calls == 3  # one trace that failed, and two calls
    for _ in range(3):
        np.testing.assert_array_equal(function(jnp.asarray(X)), X)
    assert counted.calls == 4


def test_arguments_of_many_values_are_no_part_of_programs(jax: Any) -> None:
    jnp = jax.numpy
    function, counted = compiled(lambda x, position=0: x + position)
    for _ in range(2):
        for position in range(MOST_PROGRAMS + 2):
            output = function(jnp.asarray(X), position=position)
            np.testing.assert_array_equal(output, X + position)
    assert counted.calls == MOST_PROGRAMS + 2 * 2


def test_errors_are_those_of_the_function(jax: Any) -> None:
    jnp = jax.numpy

    def kernel(x: Any) -> Any:
        if x.shape[0] % 2:
            message = "an even length is needed"
            raise ValueError(message)
        return x + 1

    function, counted = compiled(kernel)
    with pytest.raises(ValueError, match="an even length"):
        function(jnp.asarray(X[:1]))
    for _ in range(2):
        np.testing.assert_array_equal(function(jnp.asarray(X)), X + 1)
    assert counted.calls == 3


def test_a_long_program_is_not_compiled_nor_longer_ones(jax: Any) -> None:
    jnp = jax.numpy

    def kernel(x: Any) -> Any:
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    function, counted = compiled(kernel)
    for length, calls in ((8, 1), (MOST_OPERATIONS + 1, 3), (MOST_OPERATIONS + 2, 4)):
        output = function(jnp.zeros(length))
        assert float(output[0]) == length
        assert counted.calls == calls


def test_gradients_are_those_of_the_function(jax: Any) -> None:
    function, _ = compiled(lambda x: jax.numpy.sin(x) * x)
    output, pullback = jax.vjp(function, jax.numpy.asarray(X))
    np.testing.assert_allclose(output, np.sin(X) * X, rtol=1e-6)
    (gradient,) = pullback(jax.numpy.ones_like(output))
    np.testing.assert_allclose(gradient, np.cos(X) * X + np.sin(X), rtol=1e-5)


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.10.2", "", "--xla_cpu_experimental_ynn_fusion_type="),
        ("0.10.2", "--a=1", "--a=1 --xla_cpu_experimental_ynn_fusion_type="),
        ("0.10.2", *["--xla_cpu_experimental_ynn_fusion_type=dot"] * 2),
        ("0.9.1", "--a=1", "--a=1"),
    ],
)
def test_fusions_that_return_any_memory_are_not_made(
    jax: Any,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    flags: str,
    expected: str,
) -> None:
    del jax
    environment = {"XLA_FLAGS": flags}
    monkeypatch.setattr(frameworks, "version", lambda _: version)
    monkeypatch.setattr(frameworks, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(frameworks, "os", SimpleNamespace(environ=environment))
    frameworks.keep_compiled("folder")
    assert environment["XLA_FLAGS"] == expected


KEEPS = """
import functools
import jax.numpy as jnp


@functools.cache
def ones(count):
    return jnp.ones(count)


def kernel(x):
    return x + ones(3)
"""


def test_a_function_that_keeps_arrays_is_loaded_again(jax: Any, tmp_path: Path) -> None:
    """Arrays made in a trace have no numbers: a later call must not meet them."""
    jnp = jax.numpy
    (tmp_path / "keeps_arrays.py").write_text(KEEPS)
    name = f"{tmp_path / 'keeps_arrays.py'}:kernel"
    function = Compiled(resolve(name), functools.partial(reloaded, name))
    for length in (1, 2, 4, 2, 1):
        x = jnp.zeros((length, 3))
        np.testing.assert_array_equal(function(x), np.ones((length, 3)))


TRACED = """
import jax
import jax.numpy as jnp


def kernel(query, key, value):
    assert isinstance(query, jax.core.Tracer)
    q, k = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
    scores = jnp.tril(q @ jnp.swapaxes(k, -1, -2))
    return (scores @ value) / scores.sum(-1, keepdims=True)
"""


def test_a_target_in_a_process_of_its_own_is_compiled(jax: Any, tmp_path: Path) -> None:
    del jax
    (tmp_path / "needs_a_trace.py").write_text(TRACED)
    name = f"{tmp_path / 'needs_a_trace.py'}:kernel"
    plan = plan_of(
        name, op="linear_attention", dtypes=["float32"], checks=["shape_and_dtype"]
    )
    opened, *_, last = run(replace(plan, profile="smoke"))
    assert UNDER_JIT in opened.notes
    assert last.result.verdict == "passed"
