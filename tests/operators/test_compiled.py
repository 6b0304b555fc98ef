"""Operators on JAX: one step is compiled for all spans, with the results of a loop."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State
from linkern.core.recurrence import token
from linkern.operators.definition import QKV, run
from linkern.operators.forms import Form, form_named
from linkern.operators.register import definition_of
from tests.marks import in_turn
from tests.operators.problems import NAMES, close, operator, parts, problem

# Twice the tokens are one more sum by doubling, or one more level.
DOUBLING = ("abc", "rwkv4", "mlstm", "log_linear_attention")
LONGER = (256, 512, 1024)


def equations(jaxpr):
    """Number of equations of a jaxpr, those of its parts included."""
    inner = (
        part
        for equation in jaxpr.eqns
        for x in equation.params.values()
        for part in (x if isinstance(x, tuple | list) else (x,))
    )
    parts = (getattr(x, "jaxpr", x) for x in inner)
    return len(jaxpr.eqns) + sum(equations(x) for x in parts if hasattr(x, "eqns"))


def grows(jax, name, function):
    """Return how many equations more a function of the inputs has at each length."""
    counts = []
    for length in LONGER:
        inputs = problem(name, np.random.default_rng(0), length, heads=1)
        shapes = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in inputs.items()}
        counts.append(equations(jax.make_jaxpr(function)(shapes).jaxpr))
    return [int(n) for n in np.diff(counts)]


def gradient(name, inputs, **options):
    result, pullback = linkern.vjp(operator(name), **inputs, **options)
    return pullback(result.output, result.state)


FORWARD = ("forward", "recurrent", "gradient")


@pytest.mark.parametrize(
    ("name", "kind"),
    in_turn(
        lambda name, _: name in ("simple_gla", "mesa"),
        [(name, kind) for name in NAMES for kind in FORWARD],
    ),
)
def test_what_is_compiled_does_not_grow_with_the_length(jax, name, kind):
    functions = {
        "forward": lambda x: operator(name)(**x),
        "recurrent": lambda x: operator(name)(**x, form="recurrent"),
        "gradient": partial(gradient, name),
    }
    first, second = grows(jax, name, functions[kind])
    assert first == second
    if name not in DOUBLING:
        assert first == 0


def test_the_noncausal_sum_does_not_grow_with_the_length(jax):
    def function(inputs):
        return gradient("linear_attention", inputs, causal=False)

    assert grows(jax, "linear_attention", function) == [0, 0]


def on_jax(jax, inputs):
    return {k: jax.numpy.asarray(x) for k, x in inputs.items()}


def law_gradients_are_those_of_numpy_by_both_ways(jax, name):
    rng = np.random.default_rng(0)
    length = 66 if name == "mesa" else 9  # two chunks, and a token more
    inputs = problem(name, rng, length)
    result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=4)
    output = rng.normal(size=result.output.shape)
    state = State(
        *(None if x is None else rng.normal(size=x.shape) for x in result.state)
    )
    expected = pullback(output, state)

    @jax.jit
    def both(arrays, cotangent):
        options = {"chunk_size": 4}
        result, pullback = linkern.vjp(operator(name), **arrays, **options)
        _, back = jax.vjp(lambda arrays: operator(name)(**arrays, **options), arrays)
        return result, pullback(*cotangent), back(cotangent)[0]

    cotangent = linkern.AttentionResult(output, state)
    got, *gradients = both(
        on_jax(jax, inputs), jax.tree.map(jax.numpy.asarray, cotangent)
    )
    close(got.output, result.output)
    for one, other in zip(parts(got.state), parts(result.state), strict=True):
        close(one, other)
    for of_inputs in gradients:
        for key, x in expected.items():
            close(of_inputs[key], x)


def test_any_length_and_any_log_decay(jax):
    computed = [
        jax.jit(partial(gradient, "simple_gla", **options))
        for options in ({"form": "recurrent"}, {"chunk_size": 4})
    ]

    @settings(max_examples=8)
    @given(
        st.sampled_from(computed),
        st.sampled_from([0, 7, 8]),
        st.integers(0, 2**16).map(np.random.default_rng),
    )
    def law(compute, length, rng):
        inputs = problem("simple_gla", rng, length, heads=1)
        drawn = rng.choice([-np.inf, -0.0, -1.0, -700.0], inputs["log_decay"].shape)
        inputs["log_decay"] = drawn
        expected = gradient("simple_gla", inputs, form="recurrent")
        for key, x in compute(on_jax(jax, inputs)).items():
            close(x, expected[key])

    law()


def law_transformations_compose(jax, name):
    inputs = [problem(name, np.random.default_rng(n), 9, heads=1) for n in range(2)]
    operator_in_chunks = partial(operator(name), chunk_size=4)
    shared = {k: x for k, x in inputs[0].items() if x.ndim < 3}
    constant = on_jax(jax, shared)
    rows = {
        k: np.stack([x[k] for x in inputs]) for k in inputs[0].keys() - shared.keys()
    }

    def loss(rows):
        result = jax.checkpoint(lambda x: operator_in_chunks(**x, **fixed))(rows)
        return (result.output**2).sum() + sum((x**2).sum() for x in parts(result.state))

    arrays, fixed = on_jax(jax, rows), on_jax(jax, constant)
    each = jax.jit(jax.vmap(jax.value_and_grad(loss)))(arrays)
    tangents = jax.tree.map(jax.numpy.ones_like, arrays)
    slopes = jax.jit(jax.vmap(lambda x, t: jax.jvp(loss, (x,), (t,))[1]))(
        arrays, tangents
    )
    for n, x in enumerate(inputs):
        result, pullback = linkern.vjp(operator(name), **(x | shared), chunk_size=4)
        twice = State(*(None if x is None else 2 * x for x in result.state))
        expected = pullback(2 * result.output, twice)
        along = 0.0
        for key in rows:
            close(each[1][key][n], expected[key])
            along += expected[key].sum()
        assert abs(slopes[n] - along) <= 2.0**-30 * (1 + abs(along))


LAWS = {
    "both_ways": law_gradients_are_those_of_numpy_by_both_ways,
    "composed": law_transformations_compose,
}
SHORT = (("gated_delta_rule", "both_ways"), ("mesa", "both_ways"))


# JAX compiles both for seconds: one operator in three has one of them in turn.
@pytest.mark.parametrize(
    ("name", "law"),
    in_turn(
        lambda *case: case in (*SHORT, ("simple_gla", "composed")),
        [(name, law) for name in NAMES for law in LAWS],
        step=3,
    ),
)
def test_gradients_are_those_of_numpy(jax, name, law):
    LAWS[law](jax, name)


def test_eager_calls_trace_a_step_once_for_each_shape(jax):
    calls = []

    def counting(memory, terms):
        calls.append(terms)
        return token(memory, terms)

    form = Form(counting, 1)

    def function(query, key, value, log_decay):
        arguments = dict(zip(QKV, (query, key, value), strict=True))
        arguments["log_decay"] = log_decay
        return run(definition_of(linkern.simple_gla), arguments, form)

    arrays = on_jax(jax, problem("simple_gla", np.random.default_rng(0), 3))
    counts = []
    for factor in (1.0, 2.0, 3.0):
        scaled = {**arrays, "value": factor * arrays["value"]}
        result, pullback = linkern.vjp(function, **scaled)
        pullback(result.output)
        counts.append(len(calls))
    assert counts[0] == counts[1] == counts[2] > 0


def test_equal_forms_are_one_object():
    assert form_named("chunkwise", 32) is form_named("chunkwise", 32)
    assert form_named("chunkwise", 32).step is not form_named("chunkwise", 16).step
    assert form_named("recurrent", None).step is token


def test_gradients_keep_inputs_and_the_states_at_the_edges(jax):
    arrays = on_jax(jax, problem("simple_gla", np.random.default_rng(0), 64))

    def output(arrays):
        return linkern.simple_gla(**arrays, chunk_size=8).output

    back = jax.eval_shape(lambda x: jax.vjp(output, x)[1], arrays)
    kept = sum(x.size for x in jax.tree.leaves(back))
    state = linkern.simple_gla(**arrays, form="parallel").state.memory.size
    assert kept <= sum(x.size for x in arrays.values()) + 64 // 8 * state + 64


@pytest.mark.parametrize("options", [{"chunk_size": 4}, {"form": "recurrent"}])
def test_inside_of_shard_map(jax, options):
    inputs = on_jax(jax, problem("simple_gla", np.random.default_rng(0), 9))
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("heads",))
    spec = jax.sharding.PartitionSpec("heads")
    function = partial(gradient, "simple_gla", **options)
    sharded = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))
    expected = function({k: np.asarray(x) for k, x in inputs.items()})
    for key, x in sharded(inputs).items():
        close(x, expected[key])


def test_narrow_inputs_and_a_donated_state(jax):
    names = ("query", "key", "value", "log_decay", "beta")
    inputs = problem("gated_delta_rule", np.random.default_rng(0), 9)
    narrow = {k: jax.numpy.asarray(inputs[k], "bfloat16") for k in names}
    wide = {k: np.asarray(x, "float64") for k, x in narrow.items()}
    state = jax.numpy.ones(
        (1, 2, *linkern.gated_delta_rule(**wide).state.memory.shape[2:])
    )
    state = state.astype("float32")
    expected = linkern.gated_delta_rule(**wide, initial_state=np.ones(state.shape))
    call = jax.jit(
        lambda state, x: linkern.gated_delta_rule(
            **x, initial_state=state, chunk_size=4
        ),
        donate_argnums=0,
    )
    result = call(state, narrow)
    assert result.output.dtype == "bfloat16"
    assert result.state.memory.dtype == "float32"
    close_to = np.asarray(result.output, "float64") - expected.output
    assert abs(close_to).max() <= 2.0**-7 * abs(expected.output).max()


def test_packed_sequences_under_jit(jax):
    inputs = problem("simple_gla", np.random.default_rng(0), 9)
    offsets = (0, 4, 4, 9)
    expected = linkern.simple_gla(**inputs, cu_seqlens=offsets)
    call = jax.jit(lambda x: linkern.simple_gla(**x, cu_seqlens=offsets, chunk_size=2))
    result = call(on_jax(jax, inputs))
    close(result.output, expected.output)
    close(result.state.memory, expected.state.memory)


def test_the_example_of_the_page(jax):
    page = (Path(__file__).parents[2] / "docs" / "jax.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/jax.md", "exec"), {})
