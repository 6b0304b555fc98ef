"""Targets of every kind: each interface has a kernel that passes and one that fails.

The kernels are all the same one, dressed up; the faults are those of the interface: a
state that is not used, parameters in another order, a gradient that stops halfway.
"""

import re
from functools import partial, wraps
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from linkern.testing import UsageError, run
from linkern.testing.api import plan_of
from linkern.testing.kernels.assembly import Backward, Parts, stateful
from linkern.testing.runner.loop import CheckFinished

KERNELS = Path(__file__).parents[1] / "targets.py"
WHOLE = stateful(Parts(chunk=16))
OF_STATES = ["inputs_untouched", "state_split", "state_value"]
OF_GRADIENTS = ["gradient_value", "gradient_of_state"]


def judge(kernel, *checks, **options):
    """Return verdict and message of each check."""
    options = {"profile": "quick", "dtypes": ("float64",), **options}
    quick = {"shrink": False, "diagnose": False}
    plan = plan_of(kernel, op="linear_attention", checks=checks, **quick, **options)
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return {result.name: (result.verdict, result.message) for result in results}


def verdicts(kernel, *checks, **options):
    return [verdict for verdict, _ in judge(kernel, *checks, **options).values()]


def passes(kernel, *checks, **options):
    found = judge(kernel, *checks, **options)
    assert {n: m for n, (verdict, m) in found.items() if verdict != "passed"} == {}
    return True


def fails(kernel, check, words="", **options):
    verdict, message = judge(kernel, check, **options)[check]
    assert (verdict, message) == ("failed", message)
    assert words in message
    return True


def without(kernel, name):
    """Return a kernel that takes an argument and ignores it."""

    @wraps(kernel)
    def forgetful(*args, **options):
        options.pop(name, None)
        return kernel(*args, **options)

    return forgetful


# -- states, whatever they are made of


class Memory(NamedTuple):
    memory: np.ndarray
    normalizer: np.ndarray


def with_named_tuple(query, key, value, initial_state=None):
    output, state = WHOLE(query, key, value, initial_state)
    return output, Memory(*state)


def with_tuple(q, k, v, state=None):
    return WHOLE(q, k, v, state)


def with_list(k, q, v, h0=None):
    output, state = WHOLE(q, k, v, h0)
    return [output, list(state)]


def with_dict(value, key, query, past_state=None):
    before = past_state and (past_state["memory"], past_state["z"])
    output, (memory, z) = WHOLE(query, key, value, before)
    return output, {"z": z, "memory": memory}


def with_three_items(query, key, value, init_state=None):
    output, state = WHOLE(query, key, value, init_state)
    return output, *state


def with_a_state_that_is_required(query, key, value, initial_state):
    return WHOLE(query, key, value, initial_state)


def with_one_array(query, key, value, initial_state=None):
    """The normalizer as one more column of the memory: a state of another form."""
    before = None
    if initial_state is not None:
        before = initial_state[..., :-1], initial_state[..., -1]
    output, (memory, z) = WHOLE(query, key, value, before)
    return output, np.concatenate([memory, z[..., None]], axis=-1)


STATEFUL = {
    with_named_tuple: "initial_state",
    with_tuple: "state",
    with_list: "h0",
    with_dict: "past_state",
    with_three_items: "init_state",
    with_a_state_that_is_required: None,
    with_one_array: "initial_state",
}


@pytest.mark.parametrize("kernel", STATEFUL)
def test_states_are_handed_over_as_they_come(kernel):
    found = judge(kernel, *OF_STATES)
    assert found["inputs_untouched"][0] == found["state_split"][0] == "passed"
    verdict, message = found["state_value"]
    if kernel is with_one_array:
        assert verdict == "skipped"
        assert "its state, a numpy.ndarray, is not a memory" in message
    else:
        assert verdict == "passed"


@pytest.mark.parametrize("kernel", [k for k, name in STATEFUL.items() if name])
def test_states_that_are_ignored_are_seen(kernel):
    assert fails(without(kernel, STATEFUL[kernel]), "state_split", "spans cut at")


def test_a_plain_memory_is_a_state():
    def kernel(query, key, value, initial_state=None):
        memory = np.zeros((1, 1)) if initial_state is None else initial_state
        output = np.tril(query @ key.mT) @ value
        if initial_state is not None:
            output = output + query @ initial_state
        return output, memory + key.mT @ value

    declared = {"feature_map": "identity", "normalize": "false"}
    assert passes(kernel, *OF_STATES, contract=declared)
    assert fails(without(kernel, "initial_state"), "state_split", contract=declared)


def test_a_state_that_is_overwritten_is_an_input_that_is_changed():
    def kernel(query, key, value, initial_state=None):
        if initial_state is not None:
            initial_state[0][...] += 1
            initial_state = (initial_state[0] - 1, initial_state[1])
        return WHOLE(query, key, value, initial_state)

    assert fails(kernel, "inputs_untouched", "overwrote its initial_state")
    declared = {"mutates": "initial_state"}
    assert passes(kernel, "inputs_untouched", contract=declared)


def test_a_target_that_takes_a_state_and_returns_none_is_not_asked_for_more():
    def kernel(query, key, value, initial_state=None):
        return WHOLE(query, key, value, initial_state)[0]

    verdict, message = judge(kernel, "state_split")["state_split"]
    assert (verdict, message) == (
        "skipped",
        "it returned no state besides its output",
    )


# -- recurrent steps

STEPWISE = {"interface": "step"}
STEP_CHECKS = ["value_on_integers", "state_split", "short_sequences"]


def step(query, key, value, state):
    """One token: ``(B, H, K)``, ``(B, H, K)``, ``(B, H, V)``."""
    one = (x[..., None, :] for x in (query, key, value))
    output, state = WHOLE(*one, state)
    return output[..., 0, :], state


def step_with_an_odd_name(carry, v, k, q):
    return step(q, k, v, carry)


class Decoder:
    def __call__(self, query, key, value, state=None):
        return step(query, key, value, state)


@pytest.mark.parametrize("kernel", [step, step_with_an_odd_name, Decoder()])
def test_steps(kernel):
    assert passes(kernel, *STEP_CHECKS, contract=STEPWISE)


def test_linkerns_own_step_has_its_state_first():
    target = "linkern:linear_attention_step"
    assert passes(target, *STEP_CHECKS, contract=STEPWISE, in_process=True)


def test_steps_in_another_layout():
    for layout in ("bthd", "htd", "td"):  # `step` takes any leading axes
        declared = {**STEPWISE, "layout": layout}
        assert passes(step, "value_on_integers", "state_value", contract=declared)


def test_steps_that_forget():
    def forgets_now_and_then(query, key, value, state):
        token = 0 if state is None else state[2]
        before = None if token in (0, 17) else state[:2]
        output, after = step(query, key, value, before)
        return output, (*after, token + 1)

    assert fails(without(Decoder(), "state"), "value_on_integers", contract=STEPWISE)
    assert fails(forgets_now_and_then, "value_on_integers", contract=STEPWISE)


def test_steps_without_a_state_are_refused():
    def no_step(query, key, value):
        return value

    with pytest.raises(UsageError, match="must take a state to be a step"):
        judge(no_step, "value_on_reals", contract=STEPWISE)


# -- parameters


def test_inputs_are_known_by_their_names():
    def keys_first(k, q, v):
        return WHOLE(q, k, v)[0]

    def mixed_up(k, q, v):
        return WHOLE(k, q, v)[0]

    def nameless(a, b, c):
        return WHOLE(a, b, c)[0]

    assert passes(keys_first, "value_on_reals", dtypes=("float32",))
    assert fails(mixed_up, "value_on_reals")
    assert passes(nameless, "value_on_reals")


def test_an_order_that_can_only_be_guessed_is_refused():
    def kernel(k, q, v, /):
        return WHOLE(q, k, v)[0]

    with pytest.raises(UsageError, match="by position only, in another order"):
        judge(kernel, "value_on_reals")


def test_what_is_required_can_be_an_option():
    def kernel(query, key, value, chunk):
        return stateful(Parts(chunk=chunk))(query, key, value)[0]

    with pytest.raises(UsageError, match="missing a required argument: 'chunk'"):
        judge(kernel, "value_on_reals")
    with pytest.raises(
        UsageError, match=r"unknown keyword .*; did you mean \"chunk\"?"
    ):
        judge(kernel, "value_on_reals", options={"chunks": 7})
    assert passes(kernel, "value_on_reals", options={"chunk": 7})


# -- layouts


def in_layout(layout, kernel=WHOLE):
    """Return a kernel with state and gradients that has its axes in another order."""

    def inside(x):
        x = x.swapaxes(1, 2) if layout == "bthd" else x
        return x[(None,) * (4 - len(layout))]

    def outside(x):
        x = x[(0,) * (4 - len(layout))]
        return x.swapaxes(1, 2) if layout == "bthd" else x

    def lead(state, to):
        axes = (
            (0,) * (4 - len(layout)) if to == "outside" else (None,) * (4 - len(layout))
        )
        return state and tuple(x[axes] for x in state)

    def moved(query, key, value, initial_state=None):
        inputs = (inside(x) for x in (query, key, value))
        output, state = kernel(*inputs, lead(initial_state, "inside"))
        return outside(output), lead(state, "outside")

    def vjp(query, key, value, cotangent, initial_state=None, state_cotangent=None):
        inputs = (inside(x) for x in (query, key, value, cotangent))
        states = (lead(s, "inside") for s in (initial_state, state_cotangent))
        *found, of_state = kernel.vjp(*inputs, *states)
        return *(outside(x) for x in found), lead(of_state, "outside")

    moved.vjp = vjp
    return moved


@pytest.mark.parametrize("layout", ["bhtd", "bthd", "htd", "td"])
def test_layouts_with_states_and_gradients(layout):
    checks = ["value_on_integers", *OF_STATES, *OF_GRADIENTS]
    assert passes(in_layout(layout), *checks, contract={"layout": layout})
    forgetful = without(in_layout(layout), "initial_state")
    assert fails(forgetful, "state_split", contract={"layout": layout})


def test_a_layout_that_is_not_the_one_declared():
    assert fails(in_layout("bthd"), "value_on_integers", contract={"layout": "bhtd"})


# -- signatures in the style of flash-linear-attention

FLA = {"feature_map": "identity", "normalize": "false", "layout": "bthd"}
FLA_CHECKS = ["value_on_reals", "state_split", "state_value"]


def fla_style(xp, default=None):
    """Return a kernel ``(B, T, H, D)`` with a default scale: ``K^-0.5`` if None."""

    def kernel(
        q,
        k,
        v,
        scale=None,
        initial_state=None,
        output_final_state=False,
        cu_seqlens=None,
    ):
        scale = default if scale is None else scale
        scale = k.shape[-1] ** -0.5 if scale is None else scale
        scores = xp.einsum("bihk,bjhk->bhij", q, k)
        output = xp.einsum("bhij,bjhv->bihv", xp.tril(scores), v)
        final = xp.einsum("bthk,bthv->bhkv", k, v)
        if initial_state is not None:
            output = output + xp.einsum("bthk,bhkv->bthv", q, initial_state)
            final = final + initial_state
        return scale * output, final if output_final_state else None

    return kernel


@pytest.mark.parametrize(
    ("scale", "default"), [("1", 1.0), ("K^-0.5", None), ("0.7", 0.7)]
)
def test_fla_signatures(scale, default):
    declared = {**FLA, "scale": scale}
    assert passes(fla_style(np, default), *FLA_CHECKS, contract=declared)
    another = fla_style(np)
    if scale != "K^-0.5":
        assert fails(another, "value_on_reals", contract=declared)
        assert fails(without(another, "scale"), "value_on_reals", contract=declared)


def test_fla_signatures_in_torch(torch):
    kernel = fla_style(torch)
    options = {"framework": "torch", "contract": {**FLA, "scale": "K^-0.5"}}
    assert passes(kernel, *FLA_CHECKS, *OF_GRADIENTS, **options)
    assert fails(without(kernel, "initial_state"), "state_split", **options)
    never = without(kernel, "output_final_state")
    assert verdicts(never, "state_split", **options) == ["skipped"]


# -- callables


class Layer:
    def __init__(self, kernel=WHOLE):
        self.kernel = kernel

    def __call__(self, query, key, value):
        return self.kernel(query, key, value)

    def attend(self, k, q, v):
        return self.kernel(q, k, v)


def configured(chunk, query, key, value, *, form="chunkwise"):
    assert form == "chunkwise"
    return stateful(Parts(chunk=chunk))(query, key, value)


@pytest.mark.parametrize(
    "target",
    [
        Layer(),
        Layer().attend,
        partial(configured, 7),
        partial(configured, 7, form="chunkwise"),
        WHOLE,
    ],
)
def test_callables(target):
    assert passes(target, "shape_and_dtype", "value_on_reals")


def test_what_a_partial_has_bound_is_not_varied():
    bound = partial(configured, 7, form="chunkwise")
    assert verdicts(bound, "parallel_equals_recurrent") == ["skipped"]


def test_callables_that_lose_a_key():
    lossy = stateful(Parts(chunk=16, mask=lambda scores: np.tril(scores, -1)))
    for target in (Layer(lossy), Layer(lossy).attend, partial(lossy)):
        assert fails(target, "value_on_integers")


# -- gradients that come with the target


def quadratic(query, key, value):
    return WHOLE(query, key, value)[0]


def gradients(query, key, value, output_cotangent):
    return WHOLE.vjp(query, key, value, output_cotangent)[:3]


def gradients_of_queries(query, key, value, output_cotangent):
    return gradients(query, key, value, output_cotangent)[:1]


def with_vjp(vjp):
    def kernel(query, key, value):
        return quadratic(query, key, value)

    kernel.vjp = vjp
    return kernel


def test_a_vjp_can_be_an_attribute():
    assert passes(with_vjp(gradients), "gradient_value")
    assert fails(stateful(Parts(backward=Backward(key_divisor=0))), "gradient_value")
    assert fails(
        with_vjp(gradients_of_queries), "gradient_value", "must return the grad"
    )


@pytest.mark.parametrize(
    "name", ["gradients_of_good", f"{KERNELS}:gradients_of_good", "gradients"]
)
def test_a_vjp_can_be_declared(name):
    declared = {"vjp": name}
    assert passes(f"{KERNELS}:good", "gradient_value", contract=declared)


def test_a_declared_vjp_can_be_wrong_or_missing():
    declared = {"vjp": "wrong_gradients_of_good"}
    assert fails(f"{KERNELS}:good", "gradient_value", contract=declared)
    with pytest.raises(UsageError, match='you mean "gradients_of_good"'):
        judge(f"{KERNELS}:good", "gradient_value", contract={"vjp": "gradient_of_good"})
    with pytest.raises(UsageError, match=re.escape("must name a function")):
        judge(f"{KERNELS}:good", "gradient_value", contract={"vjp": "not_callable"})


def test_a_vjp_shares_the_globals_of_its_target():
    """What a forward pass keeps for the backward pass is there when it is called."""
    declared = {"vjp": "gradients_from_what_was_kept"}
    assert passes(f"{KERNELS}:keeps", "gradient_value", contract=declared)


def test_gradients_pass_through_states():
    assert passes(WHOLE, *OF_GRADIENTS)
    forgetful = stateful(Parts(backward=Backward(final=False)))
    assert fails(forgetful, "gradient_of_state")
    assert verdicts(with_vjp(gradients), "gradient_of_state") == ["skipped"]


def test_gradients_that_are_required_and_missing():
    declared = {"gradients": "required"}
    assert fails(quadratic, "gradient_value", "has no gradients", contract=declared)
    assert verdicts(quadratic, "gradient_value") == ["skipped"]
    none = {"gradients": "none"}
    assert verdicts(WHOLE, "gradient_value", contract=none) == ["skipped"]


# -- gradients by automatic differentiation in PyTorch


def torch_quadratic(torch):
    def kernel(query, key, value):
        q, k = (
            torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))
            for x in (query, key)
        )
        scores = (q @ k.mT).tril()
        return (scores @ value) / scores.sum(-1, keepdim=True)

    return kernel


def torch_function(torch, backward=gradients):
    """Return the kernel with a backward pass of its own."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            ctx.save_for_backward(query, key, value)
            return torch_quadratic(torch)(query, key, value)

        @staticmethod
        def backward(ctx, cotangent):
            arrays = (x.numpy() for x in (*ctx.saved_tensors, cotangent))
            return tuple(torch.from_numpy(x) for x in backward(*arrays))

    return Attention.apply


def half_the_gradient_of_keys(*inputs):
    of_query, of_key, of_value = gradients(*inputs)
    return of_query, of_key / 2, of_value


def transposed_gradients(*inputs):
    return tuple(x.swapaxes(-1, -2).copy() for x in gradients(*inputs))


def raises(*inputs):
    message = "no such kernel image"
    raise RuntimeError(message)


def test_autograd(torch):
    options = {"framework": "torch"}
    assert passes(torch_quadratic(torch), "gradient_value", **options)
    assert passes(torch_function(torch), "gradient_value", **options)
    for wrong, words in (
        (half_the_gradient_of_keys, "gradient of the key is wrong"),
        (transposed_gradients, "invalid gradient at index"),
        (gradients_of_queries, "incorrect number of gradients"),
        (raises, "no such kernel image"),
    ):
        kernel = torch_function(torch, wrong)
        assert fails(kernel, "gradient_value", words, **options)


def test_autograd_that_stops_on_the_way(torch):
    whole = torch_quadratic(torch)

    def without_the_key(query, key, value):
        return whole(query, key.detach(), value)

    assert fails(
        without_the_key,
        "gradient_value",
        "no gradient reaches the key",
        framework="torch",
    )


def test_targets_that_autograd_cannot_differentiate(torch):
    whole = torch_quadratic(torch)

    def detached(query, key, value):
        return whole(query, key, value).detach()

    def through_numpy(query, key, value):
        return torch.from_numpy(quadratic(query.numpy(), key.numpy(), value.numpy()))

    for kernel, reason in (
        (detached, "its output carries no gradient"),
        (through_numpy, "requires grad"),
    ):
        found = judge(kernel, "gradient_value", framework="torch")
        verdict, message = found["gradient_value"]
        assert verdict == "skipped"
        assert reason in message
        required = {"gradients": "required"}
        options = {"framework": "torch", "contract": required}
        assert fails(kernel, "gradient_value", reason, **options)


def test_an_output_that_is_computed_in_place_has_no_gradient(torch):
    def in_place(query, key, value):
        query, key = query.clone(), key.clone()
        for x in (query, key):
            positive = x > 0
            x.clamp_(max=0).exp_()  # the gradient of exp needs its output
            x.add_(torch.where(positive, torch.ones_like(x), 0))
        scores = (query @ key.mT).tril()
        return (scores @ value) / scores.sum(-1, keepdim=True)

    found = judge(in_place, "gradient_value", framework="torch")
    verdict, message = found["gradient_value"]
    assert verdict == "skipped"
    assert "modified by an inplace operation" in message


def test_modules_and_compiled_functions_of_torch(torch):
    kernel = torch_quadratic(torch)

    class Attention(torch.nn.Module):
        def forward(self, k, q, v):
            return kernel(q, k, v)

    for target in (
        Attention(),
        torch.compile(kernel, backend="eager", dynamic=True),
        torch.compile(Attention(), backend="eager", dynamic=True),
    ):
        options = {"framework": "torch", "dtypes": ("float32",)}
        assert passes(target, "shape_and_dtype", "short_sequences", **options)


# -- JAX


def jax_quadratic(jax):
    def kernel(query, key, value):
        xp = jax.numpy
        q, k = (
            xp.where(x > 0, x + 1, xp.exp(xp.where(x > 0, 0, x))) for x in (query, key)
        )
        scores = xp.tril(q @ xp.swapaxes(k, -1, -2))
        return (scores @ value) / scores.sum(-1, keepdims=True)

    return kernel


def jax_function(jax, factor=1.0):
    plain = jax_quadratic(jax)
    function = jax.custom_vjp(plain)

    def forwards(query, key, value):
        return jax.vjp(plain, query, key, value)

    def backwards(pullback, cotangent):
        of_query, of_key, of_value = pullback(cotangent)
        return of_query, factor * of_key, of_value

    function.defvjp(forwards, backwards)
    return jax.jit(function)


def test_jax(jax):
    options = {"framework": "jax"}
    narrow = options | {"dtypes": ("float32",)}
    assert passes(jax_function(jax), "value_on_integers", **narrow)
    assert passes(jax_function(jax), "gradient_value", **options)
    words = "gradient of the key is wrong"
    assert fails(jax_function(jax, 0.5), "gradient_value", words, **options)

    def through_numpy(query, key, value):
        return jax.numpy.asarray(quadratic(*map(np.asarray, (query, key, value))))

    assert verdicts(through_numpy, "gradient_value", **options) == ["skipped"]


def test_outputs_wider_than_inputs_have_gradients_too(jax):
    pytest.importorskip("ml_dtypes")

    @jax.jit  # or every operation would be compiled by itself
    def kernel(query, key, value):
        wide = (x.astype(jax.numpy.float32) for x in (query, key, value))
        return jax_quadratic(jax)(*wide)

    declared = {"output_dtype": "float32"}
    options = {"framework": "jax", "dtypes": ("bfloat16",), "contract": declared}
    assert passes(kernel, "gradient_value", **options)
