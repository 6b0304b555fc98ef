"""Arguments come from the names of parameters, tensors and axes."""

import re

import pytest

from linkern.testing.emulator.arguments import (
    Binding,
    binding,
    entry_of,
    evaluated,
    named_axes,
)
from linkern.testing.errors import UsageError

SOURCE = """
// void f(int commented);
void f(int declared);
template <class T>
__global__ void __launch_bounds__(64) k(const T* __restrict__ const x,
    int n /* of x */, float scale = 1.0f) {}
namespace n {
void f(torch::Tensor q, std::pair<int, int> p, float* out) { k<<<1, n>>>(q); }
}
void nothing() {}
"""


@pytest.mark.parametrize(
    ("name", "parameters", "kernel"),
    [
        ("k<float>", ("x", "n", "scale"), True),
        ("n::f", ("q", "p", "out"), False),
        ("nothing", (), False),
    ],
)
def test_the_parameters_of_an_entry(name, parameters, kernel):
    entry = entry_of(SOURCE, name)
    assert (entry.name, entry.parameters, entry.kernel) == (name, parameters, kernel)


def test_an_unknown_entry_is_refused_with_the_kernels_that_there_are():
    with pytest.raises(UsageError, match=r"got `g`; its kernels are: `k`"):
        entry_of(SOURCE, "g")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q=query[B,T]", Binding("q", "query", ("B", "T"))),
        ("q [ B, 2*T ]", Binding("q", "q", ("B", "2*T"))),
        ("q=query", Binding("q", "query", None)),
        ("s=initial_memory[]?", Binding("s", "initial_memory", (), optional=True)),
    ],
)
def test_a_binding(text, expected):
    assert binding("--read", text) == expected


def test_sizes_of_axes():
    bound = [binding("--read", text) for text in ("q[B,T]", "k[T,B]", "none[X]?")]
    assert named_axes(bound, {"q": [2, 3], "k": [3, 2]}) == {"B": 2, "T": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("B*H", 6),
        ("-(B + 1) ** 2 % 7", 5),
        ("ceil(H / B)", 2),
        ("min(B, H) // 2", 1),
        ("sqrt(4) ** -0.5", 2**-0.5),
    ],
)
def test_arithmetic_on_sizes(text, value):
    assert evaluated(text, {"B": 2, "H": 3}) == value


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: binding("--read", "q->x"), "`--read` must be PARAMETER=TENSOR[AXES]"),
        (lambda: evaluated("B.real", {"B": 1}), "`B.real` must be arithmetic"),
        (lambda: evaluated("X", {"B": 1}), "named sizes (B), but: KeyError 'X'"),
        (lambda: evaluated("1 / 0", {}), "ZeroDivisionError"),
        (lambda: evaluated("open('x')", {}), "must be arithmetic"),
        (lambda: evaluated("B if B else 1", {"B": 1}), "no arithmetic"),
        (
            lambda: named_axes([binding("--read", "q[B]")], {"q": [1, 2]}),
            "`q` must have the axes [B] that `--read` names, got the shape (1, 2)",
        ),
        (
            lambda: named_axes([binding("--read", "q[B,B]")], {"q": [1, 2]}),
            "axis B of `q` must have the size 1 as before, got 2",
        ),
    ],
)
def test_bad_input_is_one_sentence(function, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        function()
