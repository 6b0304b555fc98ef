"""Transformations of PyTorch around calls: compiling, mapping, higher derivatives."""

import numpy as np
import pytest

import linkern
from linkern import State
from tests.kernels.torch.calls import Call, tensor_of
from tests.marks import every
from tests.operators.problems import NAMES, operator, problem

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def tensors(torch, name, length=9, **sizes):
    drawn = problem(name, np.random.default_rng(0), length, **sizes)
    # Away from decays of 1, which differences would take above it.
    return {
        k: torch.from_numpy(x - 0.1 if k == "log_decay" else x)
        for k, x in drawn.items()
    }


def of_tensors(name, names, **options):
    """A function of tensors alone, which returns tensors."""

    def function(*values):
        arguments = dict(zip(names, values, strict=True))
        if "initial_state" in arguments:
            arguments["initial_state"] = State(arguments["initial_state"], None)
        result = operator(name)(**arguments, **options)
        return tuple(x for x in (result.output, *result.state) if x is not None)

    return function


def delta(torch, **sizes):
    inputs = tensors(torch, "gated_delta_rule", **sizes)
    state = torch.ones(1, 1, 4, 3, dtype=torch.float64)
    inputs["initial_state"] = state
    return of_tensors("gated_delta_rule", list(inputs)), list(inputs.values())


def same(torch, ours, theirs):
    pairs = list(zip(ours, theirs, strict=True))
    return bool(pairs) and all(torch.equal(x, y) for x, y in pairs)


def test_second_derivatives_are_those_of_slopes(torch):
    function, values = delta(torch, length=3, heads=1)
    leaves = [x.requires_grad_() for x in values]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("name", every(4, ["linear_attention", "gsa", "mesa", "rwkv6"]))
def test_second_derivatives_of_other_operators(torch, name):
    inputs = tensors(torch, name, length=3, heads=1)
    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradgradcheck(of_tensors(name, list(inputs)), leaves)


def test_autocast_does_not_round_second_derivatives(torch):
    function, (query, key, *rest) = delta(torch, length=3, heads=1)
    key = key.float().requires_grad_()
    others = [x.float() for x in rest]

    def second():
        total = function(query.float(), key, *others)[0].pow(2).sum()
        (slope,) = torch.autograd.grad(total, key, create_graph=True)
        return torch.autograd.grad(slope.sum(), key)[0]

    plain = second()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(second(), plain)


def test_third_derivatives_exist(torch):
    function, (query, key, *rest) = delta(torch, length=3, heads=1)
    key = key.requires_grad_()
    total = function(query, key, *rest)[0].pow(2).sum()
    for _ in range(2):
        (slope,) = torch.autograd.grad(total, key, create_graph=True)
        total = slope.pow(2).sum()
    (third,) = torch.autograd.grad(total, key)
    assert third.isfinite().all()
    assert third.abs().max() > 0


def test_functional_gradients_are_those_of_autograd(torch):
    function, values = delta(torch)
    places = tuple(range(len(values)))

    def total(*x):
        return sum(part.sum() for part in function(*x))

    ours = torch.func.grad(total, argnums=places)(*values)
    leaves = [x.clone().requires_grad_() for x in values]
    assert same(torch, ours, torch.autograd.grad(total(*leaves), leaves))


def test_mapping_is_calling_one_by_one(torch):
    function, values = delta(torch)
    rows = [torch.stack([x, 0.5 * x, 0.25 * x], dim=1) for x in values]
    ours = torch.func.vmap(function, in_dims=1)(*rows)
    theirs = [function(*(x.select(1, i) for x in rows)) for i in range(3)]
    assert same(torch, ours, [torch.stack(x) for x in zip(*theirs, strict=True)])
    with pytest.raises(ValueError, match="must map over one entry at least"):
        torch.func.vmap(function, in_dims=1)(*(x[:, :0] for x in rows))


def test_mapping_and_gradients_nest_in_either_order(torch):
    function, values = delta(torch)
    rows = [torch.stack([x, 0.5 * x]) for x in values]
    slope = torch.func.grad(lambda *x: function(*x)[0].sum(), argnums=1)
    due = torch.stack([slope(*(x[i] for x in rows)) for i in range(2)])
    assert torch.equal(torch.func.vmap(slope)(*rows), due)
    outside = torch.func.grad(
        lambda *x: torch.func.vmap(function)(*x)[0].sum(), argnums=1
    )
    assert torch.equal(outside(*rows), due)


def test_jacobians_and_hessians_in_reverse_mode(torch):
    function, values = delta(torch, length=2, heads=1)

    def of_key(key):
        return function(values[0], key, *values[2:])[0].square().sum()

    ours = torch.func.jacrev(torch.func.jacrev(of_key))(values[1])
    slow = torch.autograd.functional.hessian(of_key, values[1])
    torch.testing.assert_close(ours, slow)
    assert ours.abs().max() > 0


def test_forward_mode_is_refused(torch):
    function, values = delta(torch)
    for tangents in (values, [torch.zeros_like(x) for x in values]):
        with pytest.raises(TypeError, match='`form` must be "chunkwise" or "parallel"'):
            torch.func.jvp(function, tuple(values), tuple(tangents))
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(values[0], values[0])
        with pytest.raises(TypeError, match="derivatives in forward mode"):
            function(dual, *values[1:])
    x = torch.rand(5, 2)
    made, _ = torch.func.jvp(
        lambda x: linkern.linear_attention(x, x, x, form="chunkwise").output, (x,), (x,)
    )
    assert made.shape == x.shape


def packed(torch):
    inputs = tensors(torch, "kda") | {"cu_seqlens": torch.tensor([0, 4, 9])}
    return of_tensors("kda", list(inputs)), list(inputs.values())


COMPILED = {
    "gates and a state": delta,
    "packed": packed,
    "chunks": lambda torch: (
        of_tensors("gla", list(tensors(torch, "gla")), chunk_size=4, scale=0.5),
        list(tensors(torch, "gla").values()),
    ),
    "features": lambda torch: (
        of_tensors(
            *("linear_attention", ["query", "key", "value"]),
            feature_map=linkern.exp,
            cu_seqlens=[0, 4, 9],
        ),
        list(tensors(torch, "linear_attention").values()),
    ),
    "narrow": lambda torch: (
        of_tensors("linear_attention", ["query", "key", "value"], causal=False),
        [x.bfloat16() for x in tensors(torch, "linear_attention").values()],
    ),
}


def law_compiled(torch, function, values, backend):
    """A compiled call has one graph, and the bits of the call, forward and backward."""
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in values]
    varying = [x for x in leaves if x.requires_grad]
    gradients = []
    for call in (compiled, function):
        made = call(*leaves)
        cotangents = [torch.linspace(-1, 1, x.numel()).view_as(x).to(x) for x in made]
        gradients.append(torch.autograd.grad(made, varying, cotangents))
    assert same(torch, compiled(*values), function(*values))
    assert same(torch, *gradients)


@pytest.mark.parametrize("case", COMPILED)
def test_a_compiled_call_is_the_call(torch, case):
    law_compiled(torch, *COMPILED[case](torch), "aot_eager")


def test_a_recorded_call_takes_results_without_cotangents(torch):
    function, values = delta(torch)
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    leaves = [x.requires_grad_() for x in values]
    for place in (0, 1):
        ours, theirs = (
            torch.autograd.grad(call(*leaves)[place].sum(), leaves[1:3])
            for call in (compiled, function)
        )
        assert same(torch, ours, theirs)


@pytest.mark.slow
def test_inductor_calls_it_as_well(torch):
    law_compiled(torch, *delta(torch), "inductor")


def test_a_compiled_call_takes_other_lengths(torch):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: linkern.linear_attention(x, x, x).output,
        *(),
        fullgraph=True,
        backend="aot_eager",
    )
    for length in (3, 5, 7, 8):
        x = torch.rand(length, 2)
        assert torch.equal(compiled(x), linkern.linear_attention(x, x, x).output)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
def test_the_array_code_compiles_into_operations(torch):
    inputs = tensors(torch, "gla")
    function = of_tensors("gla", list(inputs), form="chunkwise")
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for x, y in zip(
        compiled(*inputs.values()), function(*inputs.values()), strict=True
    ):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_shapes_are_those_of_results(torch, name):
    """Without numbers, with fake tensors, and with packed sequences."""
    from torch._subclasses import FakeTensorMode

    call = Call(name, problem(name, np.random.default_rng(0), 9))
    for options in ({}, {"cu_seqlens": [0, 2, 2, 9]}):
        call.options = options
        expected = call.run()
        with FakeTensorMode() as mode:
            made = call.run(
                lambda x: (
                    mode.from_tensor(tensor_of(torch)(x))
                    if isinstance(x, np.ndarray)
                    else x
                )
            )
        assert made.output.shape == expected.output.shape
        assert made.state.memory.shape == expected.state.memory.shape
        parts = (made.state.normalizer, expected.state.normalizer)
        assert (parts[0] is None) == (parts[1] is None)
        assert parts[0] is None or parts[0].shape == parts[1].shape


def test_a_recording_without_numbers_repeats_the_call(torch):
    from torch.fx.experimental.proxy_tensor import make_fx

    function, values = delta(torch)
    graph = make_fx(function)(*values)
    others = [0.5 * x for x in values]
    assert same(torch, graph(*others), function(*others))


def test_our_own_pullback_of_tensors_is_differentiated(torch):
    _, values = delta(torch, length=3, heads=1)
    names = ["query", "key", "value", "log_decay", "beta", "initial_state"]

    def slopes(key):
        arguments = dict(zip(names, (values[0], key, *values[2:]), strict=True))
        result, pullback = linkern.vjp(linkern.gated_delta_rule, **arguments)
        return pullback(torch.ones_like(result.output))["key"]

    assert torch.autograd.gradcheck(slopes, [values[1].requires_grad_()])
