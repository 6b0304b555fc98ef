"""Gradients: of every operator and input, in every form, against three other ways."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State, oracle
from linkern.autodiff.rules import BINARY, RULES, UNARY
from linkern.autodiff.tape import Traced, TracedNamespace, cotangents
from linkern.core.causal import (
    chained_product,
    lower_product,
    lower_scores,
    upper_product,
)
from linkern.core.triangular import inverse
from linkern.kernels.numpy import workspace
from tests.operators.problems import CLASSES, NAMES, operator, parts, problem

FORMS = ({"form": "recurrent"}, {"form": "parallel"}, {"chunk_size": 4}, {})
STEP = 2.0**-17


def drawn_like(rng, state):
    return State(*(None if x is None else rng.normal(size=x.shape) for x in state))


def initial_state(name, rng, like):
    """A state that a sequence could have left behind."""
    if name == "log_linear_attention":
        return None
    state = drawn_like(rng, like)
    if name == "mesa":
        half = rng.normal(size=(*like.memory.shape[:-2], 4, 4))
        memory = state.memory.copy()
        memory[..., :4] = half @ np.swapaxes(half, -1, -2)
        return State(memory, None)
    if name.startswith("preconditioned"):
        return State(state.memory, 0.1 + abs(state.normalizer))
    if name in ("based", "rebased"):
        return State(state.memory, 5 + abs(state.normalizer))
    return state


def pairing(result, of_output, of_state):
    total = (result.output * of_output).sum()
    for x, c in zip(parts(result.state), parts(of_state), strict=True):
        total = total + (x * c).sum()
    return total


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_slopes_in_every_form(name):
    @settings(max_examples=8)
    @given(st.integers(0, 2**16).map(np.random.default_rng), st.sampled_from(FORMS))
    def law(rng, form):
        inputs = problem(name, rng, 7, heads=2)
        state = initial_state(name, rng, operator(name)(**inputs).state)
        given_ = {**inputs, "initial_state": state}
        result, pullback = linkern.vjp(operator(name), **given_, **form)
        of_output = rng.normal(size=result.output.shape)
        of_state = drawn_like(rng, result.state)
        gradients = pullback(of_output, of_state)
        assert set(gradients) == {k for k, x in given_.items() if x is not None}
        for key, x in given_.items():
            if x is None:
                continue
            ends, along = moved(rng, x, gradients[key])
            up, down = (
                pairing(operator(name)(**{**given_, key: end}), of_output, of_state)
                for end in ends
            )
            slope = (up - down) / (2 * STEP)
            assert abs(slope - along) <= 2.0**-18 * (1 + abs(slope) + abs(along)), key

    law()


def shifted(state, by, direction):
    pairs = zip(state, direction, strict=True)
    return State(*(None if x is None else x + by * d for x, d in pairs))


def moved(rng, x, gradient):
    """Both ends of a step along a direction, and the gradient along it.

    Log-decays of 0 cannot grow: directions only point down where that is so.
    """
    if isinstance(x, State):
        direction = drawn_like(rng, x)
        ends = [shifted(x, s * STEP, direction) for s in (1, -1)]
        along = sum(
            (g * d).sum()
            for g, d in zip(parts(gradient), parts(direction), strict=True)
        )
        return ends, along
    direction = np.where(x == 0, 0.0, rng.normal(size=x.shape) * np.minimum(1, abs(x)))
    ends = [x + s * STEP * direction for s in (1, -1)]
    return ends, (gradient * direction).sum()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_torch_differentiates_the_forward_code_to_the_same(torch, name, form):
    rng = np.random.default_rng(1)
    inputs = problem(name, rng, 7)
    result, pullback = linkern.vjp(operator(name), **inputs, **form)
    of_output = rng.normal(size=result.output.shape)
    due = pullback(of_output)
    leaves = {k: torch.asarray(x).requires_grad_() for k, x in inputs.items()}
    (
        operator(name)(**leaves, **form).output * torch.asarray(of_output)
    ).sum().backward()
    for key, x in leaves.items():
        near(x.grad.numpy(), due[key])


@pytest.mark.parametrize("name", ["simple_gla", "kda", "rwkv4"])
def test_jax_differentiates_the_forward_code_to_the_same(jax, name):
    rng = np.random.default_rng(2)
    inputs = problem(name, rng, 7)
    result, pullback = linkern.vjp(operator(name), **inputs)
    of_output = rng.normal(size=result.output.shape)
    due = pullback(of_output)
    arrays = {k: jax.numpy.asarray(x) for k, x in inputs.items()}

    @jax.jit
    def gradients(arrays, cotangent):
        _, back = jax.vjp(lambda given_: operator(name)(**given_).output, arrays)
        return back(cotangent)[0]

    for key, x in gradients(arrays, jax.numpy.asarray(of_output)).items():
        near(np.asarray(x), due[key])


def near(got, due):
    """Equal but for rounding in float64."""
    assert (abs(got - due) <= 2.0**-36 * (1 + abs(due).max(initial=0))).all()


@pytest.mark.parametrize("name", CLASSES)
def test_every_array_library_goes_back(eager_lib, name):
    lib = eager_lib
    rng = np.random.default_rng(3)
    inputs = problem(name, rng, 7)
    result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=4)
    of_output = rng.normal(size=result.output.shape)
    due = pullback(of_output)
    _, back = linkern.vjp(
        operator(name), **{k: lib.array(x) for k, x in inputs.items()}, chunk_size=4
    )
    for key, x in back(lib.array(of_output)).items():
        near(lib.numpy(x), due[key])


@pytest.mark.parametrize("name", ["simple_gla", "kda"])
def test_jax_compiles_our_way_back(jax, name):
    rng = np.random.default_rng(3)
    inputs = problem(name, rng, 7)
    result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=4)
    of_output = rng.normal(size=result.output.shape)
    due = pullback(of_output)

    @jax.jit
    def gradients(arrays, cotangent):
        _, back = linkern.vjp(operator(name), **arrays, chunk_size=4)
        return back(cotangent)

    arrays = {k: jax.numpy.asarray(x) for k, x in inputs.items()}
    for key, x in gradients(arrays, jax.numpy.asarray(of_output)).items():
        near(np.asarray(x), due[key])


def test_packed_sequences_have_the_gradients_of_separate_calls():
    rng = np.random.default_rng(4)
    inputs = problem("kda", rng, 9)
    ends = [0, 4, 4, 9]
    result, pullback = linkern.vjp(linkern.kda, **inputs, cu_seqlens=np.asarray(ends))
    of_output = rng.normal(size=result.output.shape)
    packed = pullback(of_output)
    for start, stop in ((0, 4), (4, 9)):
        alone = {k: x[:, :, start:stop] for k, x in inputs.items()}
        _, back = linkern.vjp(linkern.kda, **alone)
        for key, x in back(of_output[:, :, start:stop]).items():
            near(packed[key][:, :, start:stop], x)


def test_linear_attention_and_its_feature_maps():
    rng = np.random.default_rng(5)
    inputs = {k: rng.normal(size=(2, 6, 3)) for k in ("query", "key", "value")}
    for feature_map in (linkern.elu_plus_one, linkern.exp):
        for causal in (True, False):
            options = {"feature_map": feature_map, "causal": causal}
            result, pullback = linkern.vjp(
                linkern.linear_attention, **inputs, **options
            )
            of_output = rng.normal(size=result.output.shape)
            for key, gradient in pullback(of_output).items():
                ends, along = moved(rng, inputs[key], gradient)
                up, down = (
                    (
                        linkern.linear_attention(**{**inputs, key: e}, **options).output
                        * of_output
                    ).sum()
                    for e in ends
                )
                assert abs((up - down) / (2 * STEP) - along) < 1e-7


def test_an_input_that_nothing_depends_on_has_gradient_zero():
    ones = np.ones((3, 2))
    result, pullback = linkern.vjp(linkern.gla, ones, ones, ones)
    assert not pullback(None, State(np.zeros((2, 2)), None))["query"].any()
    assert not pullback(np.zeros((3, 2)))["key"].any()
    assert pullback(result.output)["query"].any()  # and it can be called again


def test_gradients_have_the_dtype_of_their_inputs():
    x = np.ones((3, 2), np.float16)
    result, pullback = linkern.vjp(linkern.delta_rule, x, x / 2, x)
    assert {g.dtype for g in pullback(result.output).values()} == {x.dtype}


def test_bad_cotangents_and_feature_maps_are_named():
    x = np.ones((3, 2))
    _, pullback = linkern.vjp(linkern.gla, x, x, x)
    with pytest.raises(ValueError, match="`output_cotangent` must have shape"):
        pullback(np.ones((2, 2)))
    with pytest.raises(TypeError, match="`output_cotangent` must be an array of numpy"):
        pullback(np.ones((3, 2), np.float32))
    with pytest.raises(ValueError, match="given for something that is None"):
        pullback(None, State(np.ones((2, 2)), np.ones(2)))
    with pytest.raises(TypeError, match="no rule for `argsort`"):
        linkern.vjp(
            linkern.linear_attention,
            x,
            x,
            x,
            feature_map=lambda y: y.__array_namespace__().argsort(y),
        )


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
@pytest.mark.parametrize("name", CLASSES)
def test_options_that_are_numbers_of_numpy_are_those_of_python(name, kind):
    rng = np.random.default_rng(6)
    inputs = problem(name, rng, 6)
    options = {"chunk_size": 4}
    if "query" in inputs:
        options["scale"] = 0.5
    result, pullback = linkern.vjp(operator(name), **inputs, **options)
    expected = pullback(result.output)
    options = {k: kind(x) if k == "scale" else np.int64(x) for k, x in options.items()}
    again, back = linkern.vjp(operator(name), **inputs, **options)
    assert np.array_equal(again.output, result.output)
    gradients = back(result.output)
    assert gradients.keys() == expected.keys() == inputs.keys()
    for key, x in expected.items():
        assert np.array_equal(gradients[key], x), key


def test_an_input_that_is_a_number_of_numpy_has_a_gradient():
    x, decay = np.ones((3, 2)), np.float64(-0.5)
    result, pullback = linkern.vjp(linkern.retention, x, x, x, log_decay=decay)
    array = np.asarray(decay)
    plain, back = linkern.vjp(linkern.retention, x, x, x, log_decay=array)
    gradient = pullback(result.output)["log_decay"]
    assert gradient == back(plain.output)["log_decay"]
    assert gradient != 0


def test_a_scale_that_is_an_array_is_refused_as_in_the_call():
    x = np.ones((3, 2))
    for call in (linkern.gla, lambda *a, **k: linkern.vjp(linkern.gla, *a, **k)):
        with pytest.raises(TypeError, match=r"number or None, got array\(0.5\)"):
            call(x, x, x, scale=np.asarray(0.5))


def test_any_function_that_returns_a_result_is_differentiated():
    def gla(query, *, scale, factor, state=None):  # no operator, despite its name
        return linkern.gla(
            query, query, factor * query, scale=scale, initial_state=state
        )

    x, factor = np.arange(6.0).reshape(3, 2), np.asarray(2.0)
    state = State(np.ones((2, 2)), None)
    options = {"scale": np.float64(0.5), "factor": factor, "state": state}
    result, pullback = linkern.vjp(gla, x, **options)
    gradients = pullback(result.output)
    assert gradients.keys() == {"query", "factor", "state"}
    direct, back = linkern.vjp(linkern.gla, x, x, 2 * x, scale=0.5, initial_state=state)
    parts_ = back(direct.output)
    query = parts_["query"] + parts_["key"] + 2 * parts_["value"]
    near(gradients["query"], query)
    near(gradients["factor"], (parts_["value"] * x).sum())
    near(gradients["state"].memory, parts_["initial_state"].memory)


def reads_entries(query):
    """Compute with NumPy's own functions, which take no traced array."""
    return linkern.gla(np.exp(query), query, query)


def failing(query):
    message = "of the function itself"
    raise TypeError(message)


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        (None, "`op` must be an operator, such as `linkern.gla`, or a .*, got None"),
        ("gla", "`op` must be an operator, .*, got 'gla'"),
        (
            np.sum,
            "`op` must compute with functions of the array API, got <function sum",
        ),
        (reads_entries, "`op` must compute with .*, got <function reads_entries"),
        (linkern.exp, "`op` must return an `AttentionResult`, .* got ndarray from"),
        (lambda q: (q, q), "`op` must return an `AttentionResult`, .* got tuple from"),
        (lambda q: None, "`op` must return an `AttentionResult`, .* got NoneType from"),
        (
            lambda q: linkern.AttentionResult(q, None),
            "`op` must return an `AttentionResult`, .* got AttentionResult from",
        ),
        (failing, "^of the function itself$"),
    ],
)
def test_what_cannot_be_differentiated_is_named(op, sentence):
    with pytest.raises(TypeError, match=sentence):
        linkern.vjp(op, np.ones((3, 2)))


def slopes(function, *arrays):
    """Compare a traced function with differences of its own values."""
    rng = np.random.default_rng(0)
    leaves = [Traced(x, leaf=True) for x in arrays]
    made = function(TracedNamespace.over(np), *leaves)
    cotangent = rng.normal(size=made.shape)
    found = cotangents([made], [cotangent])
    for i, x in enumerate(arrays):
        ends, along = moved(rng, x, found[leaves[i].serial])
        up, down = (
            (function(np, *arrays[:i], e, *arrays[i + 1 :]) * cotangent).sum()
            for e in ends
        )
        assert abs((up - down) / (2 * STEP) - along) < 1e-7


@pytest.mark.parametrize("name", sorted(UNARY))
def test_rules_of_one_array(name):
    slopes(lambda xp, x: getattr(xp, name)(x), np.asarray([[0.3, 1.7], [2.5, 0.9]]))


@pytest.mark.parametrize("name", sorted(BINARY))
def test_rules_of_two_arrays_that_broadcast(name):
    slopes(
        lambda xp, x, y: getattr(xp, name)(x, y),
        np.asarray([[0.3, 1.7], [2.5, 0.9]]),
        np.asarray([0.5, 1.2]),
    )


X = np.random.default_rng(1).normal(size=(2, 3, 4))
OTHERS = {
    "max": lambda xp, x: xp.max(x, axis=-1, keepdims=True),
    "max without the axis": lambda xp, x: xp.max(x, axis=1),
    "mean": lambda xp, x: xp.mean(x, axis=(0, 2)),
    "sum": lambda xp, x: xp.sum(x, axis=1),
    "sum of all": lambda xp, x: (
        xp.sum(x)[None] if xp is np else xp.reshape(xp.sum(x), (1,))
    ),
    "flip": lambda xp, x: xp.flip(x, axis=-1),
    "tril": lambda xp, x: xp.tril(x, k=-1),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=-2),
    "where": lambda xp, x: xp.where(np.asarray(X > 0), x, 2.0 * x),
    "reshape": lambda xp, x: xp.reshape(x, (6, 4)),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[:, :1, :], (5, 2, 3, 4)),
    "concat": lambda xp, x: xp.concat([x, 3.0 * x[..., :2]], axis=-1),
    "getitem": lambda xp, x: x[1, None, ..., 1:3],
    "matmul": lambda xp, x: xp.matmul(x, xp.matrix_transpose(x)),
    "pow": lambda xp, x: x**2,
    "vecdot": lambda xp, x: xp.vecdot(x[..., :, None, :], 2.0 * x[..., None, :, :]),
    "reflected": lambda xp, x: 1.0 - (2.0 / (3.0 + x * x)) + (-x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules(name):
    slopes(OTHERS[name], X)


def test_every_rule_is_tested():
    tested = {name.split()[0] for name in OTHERS} | {"astype", "matrix_transpose"}
    named = {"solve"} | {name.split()[0] for name in TRIANGULAR}
    assert tested - {"reflected"} | UNARY.keys() | BINARY.keys() | named == set(RULES)


def test_the_rule_of_a_linear_system():
    rng = np.random.default_rng(2)
    matrix, x = rng.normal(size=(3, 3)) + 4 * np.eye(3), rng.normal(size=(2, 3, 1))
    slopes(lambda xp, a, b: xp.linalg.solve(a, b), matrix, x)


TRIANGULAR = {
    "lower_product": lambda xp, a, b: lower_product(xp.tril(a), b),
    "lower_product strictly": lambda xp, a, b: lower_product(
        xp.tril(a, k=-1), b, strict=True
    ),
    "upper_product": lambda xp, a, b: upper_product(xp.matrix_transpose(xp.tril(a)), b),
    "upper_product strictly": lambda xp, a, b: upper_product(
        xp.matrix_transpose(xp.tril(a, k=-1)), b, strict=True
    ),
    "lower_scores": lambda _, a, b: lower_scores(b, a @ b),
    "lower_scores strictly": lambda _, a, b: lower_scores(b, a @ b, strict=True),
    "inverse": lambda xp, a, b: inverse(xp.tril(a, k=-1)) @ b,
    "chained_product": lambda xp, a, b: chained_product(xp.tril(a), xp.tril(a * a)) @ b,
}


@pytest.mark.parametrize("name", TRIANGULAR)
def test_rules_of_triangular_products(name):
    rng = np.random.default_rng(3)
    matrix, rows = rng.normal(size=(2, 4, 4)), rng.normal(size=(2, 4, 3))
    slopes(TRIANGULAR[name], matrix, rows)


def test_slices_with_a_step_are_refused():
    with pytest.raises(TypeError, match="slices with a step"):
        Traced(X)[..., ::2]


@pytest.mark.parametrize("name", ["gla", "kda", "gsa"])
def test_the_memory_of_a_gradient_is_linear_in_the_length(name):
    """Four times the tokens take four times the memory, not sixteen times."""

    def peak(length):
        inputs = problem(name, np.random.default_rng(0), length, heads=1)
        workspace.clear()  # buffers of earlier calls would not be counted
        tracemalloc.start()
        result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=16)
        pullback(result.output)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1024)  # what is imported, cached and kept once
    assert peak(1024) < 5 * peak(256)  # of the parallel form: 14 times


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", ["simple_gla", "gla", "gated_delta_rule", "kda"])
def test_gradients_of_strong_decays_are_accurate_in_their_own_size(name, form):
    """Nothing cancels: the difference of sums that is often taken is off by 10^8 u."""
    rng = np.random.default_rng(6)
    inputs = {k: x.astype(np.float32) for k, x in problem(name, rng, 40).items()}
    inputs["log_decay"] = np.full_like(inputs["log_decay"], -20.0)
    result, pullback = linkern.vjp(operator(name), **inputs, **form)
    of_output = rng.normal(size=result.output.shape).astype(np.float32)
    wide = {k: x.astype(np.float64) for k, x in inputs.items()}
    cotangent = of_output.astype(np.float64)
    due = oracle.OPERATORS[name].gradients(wide, cotangent)["log_decay"]
    condition = oracle.condition(oracle.OPERATORS[name], wide, cotangent)["log_decay"]
    error = abs(pullback(of_output)["log_decay"] - due).max() / abs(due).max()
    assert error < 2 * condition * 2.0**-24
