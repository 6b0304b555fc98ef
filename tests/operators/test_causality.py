"""No token reaches an earlier one, whatever its numbers are: to the last bit.

What an infinity or a NaN may reach is what it reaches in the recurrent form, where a
token meets the memory of those before it and of no others.
"""

import importlib
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.core.causal import lower_product, upper_product
from linkern.feature_maps import identity
from linkern.operators.levels import _weights as weights_by_level
from linkern.operators.register import DEFINITIONS
from tests.conftest import library
from tests.marks import in_turn, slow_unless
from tests.operators.problems import NAMES, operator, problem

LENGTH, HEAD = 11, 1
RECURRENT, CHUNKS = {"form": "recurrent"}, {"chunk_size": 4}
FORMS = ({"form": "chunkwise", "chunk_size": 8}, {"form": "parallel"}, CHUNKS)
POISONS = (np.nan, np.inf, -np.inf)
# Rules about values refuse the others.
ALLOWED = {
    **dict.fromkeys(
        ("log_decay", "preconditioner_log_decay", "momentum_log_decay"),
        (np.nan, -np.inf),
    ),
    **dict.fromkeys(("dt", "preconditioner_beta", "momentum_beta"), (np.nan, np.inf)),
    **dict.fromkeys(("beta", "trapezoid"), (np.nan,)),
}
# Read the memory and write nothing: what they hold reaches their own row alone.
READING = {"query", "level_scales"}
LIBRARIES = ("numpy", "array_api_strict", "torch")
SWEEP = slow_unless(
    lambda name, op: name == "numpy" or op in ("linear_attention", "gla", "kda"),
    [(name, op) for name in LIBRARIES for op in NAMES],
)
# Nobody reads behind its last decay but the state. Forms that carry a cotangent of the
# state multiply by zero there; so does the recurrent form, if that zero is passed.
READS_BEFORE = "rwkv6"


def rows_of(op, key):
    """Rows of a token in an input; 0 if it has no axis of tokens."""
    return {"t": 1, "s": 2}.get(DEFINITIONS[op].axes[key][:1], 0)


def quietly(function, *args, **options):
    """NumPy warns of the NaN that these tests are about."""
    with np.errstate(all="ignore"):
        return function(*args, **options)


@st.composite
def poisoned(draw, op, *, cotangent=False):
    """Inputs, the same with numbers that are not finite, and where these are.

    Returns two dicts of arrays and a list of the names and tokens of what differs.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    clean = problem(op, rng, LENGTH)
    names = [key for key in clean if rows_of(op, key)]
    if cotangent:
        clean["cotangent"] = rng.normal(
            size=quietly(operator(op), **clean).output.shape
        )
        names.append("cotangent")
    bad, places = {key: x.copy() for key, x in clean.items()}, []
    for _ in range(draw(st.integers(1, 3))):
        key, token = draw(st.sampled_from(names)), draw(st.integers(0, LENGTH - 1))
        rows = 1 if key == "cotangent" else rows_of(op, key)
        entries = bad[key][0, HEAD, token * rows : (token + 1) * rows]
        entry = draw(st.integers(0, entries.size - 1))
        entries.flat[entry] = draw(st.sampled_from(ALLOWED.get(key, POISONS)))
        places.append((key, token))
    return clean, bad, places


def options_of(op, form):
    # With features there is one operator more to see: products of what is not finite.
    return {**form, "feature_map": identity} if op == "linear_attention" else form


def forward(lib, op, inputs, form):
    arrays = {key: lib.array(x) for key, x in inputs.items() if key != "cotangent"}
    result = quietly(operator(op), **arrays, **options_of(op, form))
    return lib.numpy(result.output)


def gradients(lib, op, inputs, form, *, zero_state=False):
    arrays = {key: lib.array(x) for key, x in inputs.items()}
    cotangent = arrays.pop("cotangent")
    options = options_of(op, form)
    result, pullback = quietly(linkern.vjp, operator(op), **arrays, **options)
    memory = result.state.memory
    state = linkern.State(lib.module.zeros_like(memory), None) if zero_state else None
    return {k: lib.numpy(x) for k, x in quietly(pullback, cotangent, state).items()}


def by_autograd(lib, op, inputs, form):
    """Gradients that PyTorch takes of the array code."""
    torch = importlib.import_module("torch")
    leaves = {k: torch.tensor(x, requires_grad=True) for k, x in inputs.items()}
    cotangent = leaves.pop("cotangent").detach()
    options = options_of(op, {"form": "chunkwise", **form})
    output = operator(op)(**leaves, **options).output
    output.backward(cotangent)
    nothing = torch.zeros(())
    return {
        k: lib.numpy((nothing if x.grad is None else x.grad).expand_as(x))
        for k, x in leaves.items()
    }


@cache
def compiled(op, form, way):
    """Return the gradients that JAX computes: by `linkern.vjp`, or on its own."""
    jax = importlib.import_module("jax")
    options = options_of(op, dict(form))

    def by_vjp(cotangent, inputs):
        return linkern.vjp(operator(op), **inputs, **options)[1](cotangent)

    def by_jax(cotangent, inputs):
        def output(inputs):
            return operator(op)(**inputs, **options).output

        return jax.vjp(output, inputs)[1](cotangent)[0]

    return jax.jit({"vjp": by_vjp, "grad": by_jax}[way])


def by_jax(way, lib, op, inputs, form):
    arrays = {key: lib.array(x) for key, x in inputs.items()}
    call = compiled(op, tuple(form.items()), way)
    return {k: lib.numpy(x) for k, x in call(arrays.pop("cotangent"), arrays).items()}


# Ways to gradients: `linkern.vjp`, and libraries that differentiate by themselves.
WAYS = {
    **{name: (name, gradients) for name in LIBRARIES},
    "torch autograd": ("torch", by_autograd),
    "jax": ("jax", partial(by_jax, "vjp")),
    "jax.grad": ("jax", partial(by_jax, "grad")),
}
EAGER = in_turn(
    lambda op, way: way == "numpy" or op in ("linear_attention", "gla", "kda"),
    [(op, way) for op in NAMES for way in WAYS if "jax" not in way],
)
# JAX compiles for each way and form, ten seconds each.
COMPILED = in_turn(
    lambda op, case: (op, *case) in (("simple_gla", "jax", 2), ("iplr", "jax.grad", 0)),
    [
        (op, (way, form))
        for op in NAMES
        for way in ("jax", "jax.grad")
        for form in range(len(FORMS))
    ],
    step=3,
)


def assert_no_wider(got, expected):
    """Whatever is finite in the recurrent form is finite."""
    leaked = np.isfinite(expected) & ~np.isfinite(got)
    assert not leaked.any(), np.argwhere(leaked)[:5]


def assert_same(got, clean):
    assert np.array_equal(got, clean, equal_nan=True)


def check_forward(got, clean, places):
    first = min((token for _, token in places), default=LENGTH)
    assert_same(got[:, HEAD, :first], clean[:, HEAD, :first])
    assert_same(got[:, :HEAD], clean[:, :HEAD])


@pytest.mark.parametrize(("name", "op"), SWEEP)
def test_no_row_of_the_output_sees_a_later_token(name, op):
    lib = library(name)

    @settings(max_examples=12)
    @given(poisoned(op), st.sampled_from(FORMS))
    def law(problem, form):
        clean, bad, places = problem
        got = forward(lib, op, bad, form)
        check_forward(got, forward(lib, op, clean, form), places)
        assert_no_wider(got, forward(lib, op, bad, RECURRENT))

    law()


@pytest.mark.parametrize(("op", "way"), EAGER)
def test_gradients_depend_on_the_tokens_of_the_recurrence_alone(op, way):
    law_gradients_depend_on_the_recurrence_alone(way, op, FORMS)


@pytest.mark.parametrize(("op", "case"), COMPILED)
def test_compiled_gradients_depend_on_the_recurrence_alone(jax, op, case):
    way, form = case
    law_gradients_depend_on_the_recurrence_alone(way, op, FORMS[form : form + 1])


def law_gradients_depend_on_the_recurrence_alone(way, op, forms):
    name, gradients_by = WAYS[way]
    lib = library(name)
    # What other libraries differentiate is the array code, so that is the measure.
    recurrent = lib if way in LIBRARIES else library("array_api_strict")

    @settings(max_examples=12)
    @given(poisoned(op, cotangent=True), st.sampled_from(forms))
    def law(problem, form):
        clean, bad, places = problem
        got, due = (gradients_by(lib, op, inputs, form) for inputs in (bad, clean))
        for key, x in got.items():
            if rows_of(op, key):
                assert_same(x[:, :HEAD], due[key][:, :HEAD])
        check_gradients(op, got, due, places)
        zero = op == READS_BEFORE
        expected = gradients(recurrent, op, bad, RECURRENT, zero_state=zero)
        for key, x in got.items():
            assert_no_wider(x, expected[key])

    law()


def check_gradients(op, got, due, places):
    """Compare what nothing that is not finite may reach, bit for bit.

    A query or a cotangent of token j reaches inputs up to j. Other inputs of token j
    reach the gradients of queries from j on; those of inputs they may reach all.
    """
    reading = [t for key, t in places if key in (*READING, "cotangent")]
    writing = [t for key, t in places if key not in (*READING, "cotangent")]
    for key, x in got.items():
        rows = rows_of(op, key)
        if key in READING:
            free = set(range(min(writing, default=LENGTH))) - set(reading)
        elif not writing and rows:
            free = range(max(reading, default=-1) + 1, LENGTH)
        else:
            continue
        for token in free:
            part = slice(token * rows, (token + 1) * rows)
            assert_same(x[:, HEAD, part], due[key][:, HEAD, part])


FORWARD = ("linear_attention", "simple_gla", "gla", "delta_rule")


@pytest.mark.parametrize("op", slow_unless("simple_gla".__eq__, FORWARD))
def test_a_compiled_form_holds_back_what_is_not_finite(jax, op):
    lib = library("jax")

    @jax.jit
    def attend(inputs):
        return operator(op)(**inputs, **options_of(op, CHUNKS)).output

    @settings(max_examples=15)
    @given(poisoned(op))
    def law(case):
        clean, bad, places = case
        due, got = (called(inputs) for inputs in (clean, bad))
        check_forward(got, due, places)
        assert_no_wider(got, forward(library("numpy"), op, bad, RECURRENT))

    def called(inputs):
        arrays = {key: lib.array(x) for key, x in inputs.items()}
        return lib.numpy(attend(arrays))

    law()


def test_a_dask_array_holds_back_what_is_not_finite(dask):
    importlib.import_module("dask.array")
    inputs = problem("simple_gla", np.random.default_rng(0), 6)
    due = forward(library("numpy"), "simple_gla", inputs, {"chunk_size": 3})
    inputs["value"][:, :, 4] = np.inf
    blocks = {key: dask.array.from_array(x) for key, x in inputs.items()}
    output = np.asarray(linkern.simple_gla(**blocks, chunk_size=3).output)
    assert np.allclose(output[..., :4, :], due[..., :4, :])
    assert not np.isfinite(output[..., 4:, :]).any()


def test_a_vectorised_call_of_torch_holds_back_what_is_not_finite(torch):
    x = torch.asarray(np.random.default_rng(0).normal(size=(3, 2, 6, 2)))
    x[:, :, 4] = float("nan")

    def attend(x):
        return linkern.linear_attention(x, x, x, feature_map=identity).output

    got, due = torch.vmap(attend)(x), attend(x)
    assert torch.allclose(got[..., :4, :], due[..., :4, :])
    assert torch.isfinite(got[..., :4, :]).all()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("product", [lower_product, upper_product])
def test_a_triangular_product_is_reached_by_the_rows_of_its_triangle(product, strict):
    rng = np.random.default_rng(0)
    matrix = np.tril(rng.normal(size=(6, 6)), k=-int(strict))
    rows = rng.normal(size=(6, 2))
    if product is upper_product:
        matrix = matrix.T
    bad = rows.copy()
    bad[3, 1] = np.inf
    got = quietly(product, matrix, bad, strict=strict)
    reached = np.zeros((6, 2), bool)
    reached[:, 1] = matrix[:, 3] != 0
    assert np.array_equal(~np.isfinite(got), reached)
    assert np.array_equal(got[~reached], (matrix @ rows)[~reached])


def test_weights_by_level_are_zero_for_later_tokens():
    scales = np.full((1, 8, 4), np.inf)
    above = np.triu(np.ones((8, 8), bool), k=1)
    assert (weights_by_level(scales, 8)[0][above] == 0).all()
