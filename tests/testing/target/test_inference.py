"""The array library of a target, from its type, its annotations and its code."""

from functools import partial, wraps

import numpy as np
import pytest

from linkern.testing.target.inference import Inferred, infer


def plain(query, key, value):
    return value


def of_numpy(query, key, value):
    return np.tril(query @ key) @ value


def calls_another(query, key, value):
    return of_numpy(query, key, value)


def annotated(query: "np.ndarray", key, value) -> np.ndarray:
    return value


@wraps(of_numpy)
def wrapped(*arrays):
    return plain(*arrays)


class Kernel:
    def __call__(self, query, key, value):
        return np.tril(query @ key) @ value

    def method(self, query: "np.ndarray", key, value):
        return self(query, key, value)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (of_numpy, "of_numpy uses numpy"),
        (calls_another, "calls_another uses numpy"),
        (annotated, "the annotations of annotated"),
        (partial(partial(of_numpy), value=None), "of_numpy uses numpy"),
        (wrapped, "of_numpy uses numpy"),
        (Kernel(), "__call__ uses numpy"),
        (Kernel().method, "the annotations of method"),
        (np.matmul, "it is a numpy.ufunc"),
    ],
)
def test_the_evidence_is_named(target, reason):
    assert infer(target) == Inferred("numpy", reason)


def test_without_evidence_it_is_numpy_and_nothing_is_said():
    assert infer(plain) == Inferred("numpy")
    assert infer(len) == Inferred("numpy")


def made(source, **names):
    """A function of a module that holds the names."""
    held = dict(names)
    exec(source, held)
    return held["kernel"]


def test_two_libraries_in_one_kernel_are_left_to_the_first_call(torch):
    body = "def kernel(q, k, v):\n    return torch.tensor(np.asarray(q)) @ k @ v\n"
    assert infer(made(body, np=np, torch=torch)) == Inferred("numpy", "", ("torch",))
    unused = "def kernel(q, k, v):\n    return np.asarray(q) @ k @ v\n"
    of_one = infer(made(unused, np=np, torch=torch))
    assert of_one == Inferred("numpy", "kernel uses numpy")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def kernel(q: 'Float[Tensor, \"b h t d\"]', k, v): ...", ("Tensor",)),
        ("def kernel(q: Tensor | None, k, v): ...", ("Tensor",)),
        ("def kernel(q: list[Tensor], k, v): ...", ("Tensor",)),
        ("def kernel(q, k, v):\n    return relu(q)", ("relu",)),
        ("def kernel(q, k, v):\n    return [relu(x) for x in q]", ("relu",)),
    ],
)
def test_names_of_a_library_tell_it_too(source, names, torch):
    held = {"Tensor": torch.Tensor, "relu": torch.nn.functional.relu}
    known = {name: held[name] for name in names}
    assert infer(made(source, **known)).name == "torch"
