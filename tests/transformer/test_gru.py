"""The GRU is its equation, written out channel by channel, and PyTorch's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.transformer.gru import GRU, Gates, gru, gru_gates, gru_step
from linkern.transformer.parameters import named_arrays, with_arrays

# A step is a few dozen operations of relative error 2^-53, and six steps with weights
# of the size of 1 enlarge an error at most a few thousand times.
BOUND = 1e-12


def problem(rng, length=6, width=3, hidden=4, lead=()):
    """Return parameters with all biases drawn, tokens and an initial state."""
    drawn = GRU.create(width, hidden, rng=rng, like=np.zeros(1))
    arrays = {
        "input_weight": drawn.input_weight,
        "hidden_weight": drawn.hidden_weight,
        "bias": rng.normal(size=(3, hidden)),
        "hidden_bias": rng.normal(size=hidden),
    }
    x = rng.normal(size=(*lead, length, width))
    return arrays, x, rng.normal(size=(*lead, hidden))


def problems():
    return st.builds(
        problem,
        st.integers(0, 2**16).map(np.random.default_rng),
        length=st.integers(0, 6),
        width=st.integers(1, 4),
        hidden=st.integers(1, 4),
        lead=st.sampled_from([(), (2,), (2, 1)]),
    )


def sigmoid(x):
    return (1 + np.tanh(x / 2)) / 2  # cannot overflow


def written_out(parameters, x, first, wrong=""):
    """The equation on NumPy arrays, or one of the ways to get it `wrong`."""
    new, old, bias = (parameters[n] for n in ("input_weight", "hidden_weight", "bias"))
    hidden_bias = parameters["hidden_bias"]
    length = x.shape[-2]
    h, states = np.zeros_like(first) if wrong == "no initial state" else first, []
    for t in range(length):
        token = x[..., t, :]
        at = {"token before": max(t - 1, 0), "token after": min(t + 1, length - 1)}
        seen = x[..., at.get(wrong, t), :]
        z = sigmoid(token @ new[0] + h @ old[0] + bias[0])
        r = sigmoid(token @ new[1] + h @ old[1] + bias[1])
        c = seen @ new[2] + bias[2]
        if wrong == "reset before the product":
            c = c + (r * h) @ old[2] + hidden_bias
        elif wrong == "bias behind the reset gate":
            c = c + r * (h @ old[2]) + hidden_bias
        elif wrong == "no reset":
            c = c + h @ old[2] + hidden_bias
        else:
            c = c + r * (h @ old[2] + hidden_bias)
        c = c if wrong == "no tanh" else np.tanh(c)
        z = 1 - z if wrong == "gate exchanged" else z
        h = (1 - z) * h + z * c
        states.append(h)
    empty = np.zeros((*first.shape[:-1], 0, first.shape[-1]))
    return np.concatenate([empty, *(s[..., None, :] for s in states)], axis=-2)


def on(lib):
    """Our GRU as a function of NumPy arrays."""

    def run(parameters, x, first):
        ours = GRU(**{name: lib.array(a) for name, a in parameters.items()})
        return lib.numpy(gru(ours, lib.array(x), lib.array(first)).output)

    return run


def mutant(wrong):
    return lambda parameters, x, first: written_out(parameters, x, first, wrong)


def close(got, due, bound=BOUND):
    assert got.shape == due.shape
    assert np.all(abs(got - due) <= bound * (1 + abs(due)))


def law_equals_the_equation(run, given):
    close(run(*given), written_out(*given))


def law_shut_gates_keep_the_state(run, given):
    parameters, x, first = given
    bias = parameters["bias"].copy()
    bias[0] = -1e4  # the sigmoid underflows to 0, so nothing is rounded
    output = run({**parameters, "bias": bias}, x, first)
    assert np.array_equal(output, np.broadcast_to(first[..., None, :], output.shape))


def law_open_gates_forget_the_state(run, given):
    parameters, x, first = given
    bias = parameters["bias"].copy()
    bias[0] = 1e4
    cut = np.zeros_like(parameters["hidden_weight"])
    free = {**parameters, "bias": bias, "hidden_weight": cut}
    assert np.array_equal(run(free, x, first), run(free, x, first + 1))


def law_a_sequence_can_be_cut(run, given):
    parameters, x, first = given
    whole = run(parameters, x, first)
    rest = run(parameters, x[..., 2:, :], whole[..., 1, :])
    close(whole[..., 2:, :], rest)


def law_later_tokens_are_not_seen(run, given):
    parameters, x, first = given
    other = x.copy()
    other[..., 3:, :] += 1
    before = run(parameters, x, first)[..., :3, :]
    assert np.array_equal(before, run(parameters, other, first)[..., :3, :])


def law_states_are_averages_of_what_tanh_returns(run, given):
    parameters, x, first = given
    reach = max(1, abs(first).max(initial=0))
    assert np.all(abs(run(parameters, x, first)) <= reach * (1 + BOUND))


def law_equals_torch(run, given):
    torch = pytest.importorskip("torch")
    parameters, x, first = given
    hidden, width = first.shape[-1], x.shape[-1]
    theirs = torch.nn.GRU(width, hidden, batch_first=True, dtype=torch.float64)

    def stacked(of):
        # Reset, update, candidate; PyTorch's update gate is the share that is kept.
        return torch.asarray(np.concatenate([of(1), -of(0), of(2)]))

    old_bias = [np.zeros(hidden), np.zeros(hidden), parameters["hidden_bias"]]
    with torch.no_grad():
        theirs.weight_ih_l0[:] = stacked(lambda i: parameters["input_weight"][i].T)
        theirs.weight_hh_l0[:] = stacked(lambda i: parameters["hidden_weight"][i].T)
        theirs.bias_ih_l0[:] = stacked(lambda i: parameters["bias"][i])
        theirs.bias_hh_l0[:] = stacked(lambda i: old_bias[i])
        rows = torch.asarray(x).reshape(-1, x.shape[-2], width)
        output, _ = theirs(rows, torch.asarray(first).reshape(1, -1, hidden))
    close(run(*given), output.numpy().reshape(*x.shape[:-1], hidden))


ANY_LENGTH = (
    law_equals_the_equation,
    law_shut_gates_keep_the_state,
    law_open_gates_forget_the_state,
    law_states_are_averages_of_what_tanh_returns,
)
LAWS = (*ANY_LENGTH, law_a_sequence_can_be_cut, law_later_tokens_are_not_seen)
CAUGHT = {
    law_equals_the_equation: (
        "gate exchanged",
        "reset before the product",
        "bias behind the reset gate",
        "no reset",
        "no tanh",
        "token before",
        "token after",
        "no initial state",
    ),
    law_shut_gates_keep_the_state: ("gate exchanged", "no initial state"),
    law_open_gates_forget_the_state: ("gate exchanged",),
    law_a_sequence_can_be_cut: ("no initial state", "token before"),
    law_later_tokens_are_not_seen: ("token after",),
    law_states_are_averages_of_what_tanh_returns: ("no tanh",),
    law_equals_torch: (
        "gate exchanged",
        "reset before the product",
        "bias behind the reset gate",
        "no reset",
    ),
}


@pytest.mark.parametrize("law", ANY_LENGTH)
def test_laws_hold(eager_lib, law):
    @eager_lib.examples
    @given(problems())
    def holds(given):
        law(on(eager_lib), given)

    holds()


@pytest.mark.parametrize("law", LAWS[-2:])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_laws_of_parts_hold(eager_lib, law, lead):
    for seed in range(10):
        law(on(eager_lib), problem(np.random.default_rng(seed), lead=lead))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_equal_to_torch(torch, lead):
    for seed in range(10):
        numpy_library = type("NumPy", (), {"array": np.asarray, "numpy": np.asarray})
        given = problem(np.random.default_rng(seed), lead=lead)
        law_equals_torch(on(numpy_library), given)


@pytest.mark.parametrize(
    ("law", "wrong"), [(law, wrong) for law, names in CAUGHT.items() for wrong in names]
)
def test_laws_fail_on_mutants(law, wrong):
    given = problem(np.random.default_rng(1), lead=(2,))
    given = (*given[:2], given[2] * 0.5)  # small, so that `no tanh` stands out
    law(mutant(""), given)
    with pytest.raises(AssertionError):
        law(mutant(wrong), given)


@given(given=problems())
def test_steps_are_the_loop_bit_by_bit_and_gates_are_those_of_the_states(given):
    arrays, x, first = given
    parameters = GRU(**arrays)
    result = gru(parameters, x, first)
    hidden = first
    for t in range(x.shape[-2]):
        met, hidden = hidden, gru_step(parameters, hidden, x[..., t, :])
        assert np.array_equal(hidden, result.output[..., t, :])
        gates = gru_gates(parameters, met, x[..., t, :])
        for one, all_tokens in zip(gates, result.gates, strict=True):
            assert np.array_equal(one, all_tokens[..., t, :])
    assert np.array_equal(hidden, result.last)
    # All hidden states known, all gates follow at once: one matrix product.
    before = np.concatenate([first[..., None, :], result.output], axis=-2)[..., :-1, :]
    at_once = gru_gates(parameters, before, x)
    assert isinstance(at_once, Gates)
    close(at_once.update, result.gates.update)
    close(at_once.candidate, result.gates.candidate)


def test_no_initial_state_is_zeros(eager_lib):
    arrays, x, first = problem(np.random.default_rng(3), lead=(2,))
    parameters = GRU(**{name: eager_lib.array(a) for name, a in arrays.items()})
    none = gru(parameters, eager_lib.array(x)).output
    zeros = gru(parameters, eager_lib.array(x), eager_lib.array(0 * first)).output
    assert np.array_equal(eager_lib.numpy(none), eager_lib.numpy(zeros))


def test_half_precision_is_computed_in_float32(torch):
    parameters = GRU.create(3, 2, rng=0, like=torch.zeros(1, dtype=torch.bfloat16))
    x = torch.ones((4, 3), dtype=torch.bfloat16)
    result = gru(parameters, x)
    wide = {name: a.to(torch.float32) for name, a in named_arrays(parameters).items()}
    due = gru(with_arrays(parameters, wide), x.to(torch.float32))
    assert result.output.dtype == torch.bfloat16
    assert result.last.dtype == result.gates.update.dtype == torch.float32
    assert torch.equal(result.last, due.last)
    assert torch.equal(result.output, due.output.to(torch.bfloat16))


def test_gradients_of_torch_are_those_of_differences(torch):
    arrays, x, first = problem(np.random.default_rng(5), length=3)
    leaves = [torch.tensor(a, requires_grad=True) for a in (*arrays.values(), x, first)]

    def run(*tensors):
        *parameters, x, first = tensors
        return gru(GRU(*parameters), x, first).output

    assert torch.autograd.gradcheck(run, leaves)


def test_create_is_the_same_in_every_library(eager_lib):
    ours = GRU.create(3, 2, rng=7, like=eager_lib.array(np.zeros(1)))
    due = GRU.create(3, 2, rng=7, like=np.zeros(1))
    for name, a in named_arrays(ours).items():
        assert np.array_equal(eager_lib.numpy(a), named_arrays(due)[name])
    assert GRU.create(3, 2).bias.dtype == np.float32


def test_deviation_of_the_weights_is_the_inverse_root_of_their_inputs():
    drawn = GRU.create(100, 400, rng=0)
    # 1.2e5 and 4.8e5 numbers: the relative error of a deviation is about 2e-3.
    assert math.isclose(drawn.input_weight.std(), 0.1, rel_tol=0.01)
    assert math.isclose(drawn.hidden_weight.std(), 0.05, rel_tol=0.01)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": np.ones((4, 5))}, ValueError, r"`x` must have shape \(..., T, 3\)"),
        ({"x": np.ones(3)}, ValueError, r"`x` must have shape \(..., T, 3\)"),
        ({"x": [1.0]}, TypeError, "`x` must be an array"),
        ({"x": np.ones((4, 3), "float32")}, TypeError, "same dtype"),
        ({"x": np.ones((4, 3), "int64")}, TypeError, "real floating dtype"),
        ({"initial_hidden": np.ones(3)}, ValueError, "`initial_hidden` must have"),
        ({"bias": np.ones((2, 4))}, ValueError, r"`bias` must have shape \(3, 4\)"),
        ({"input_weight": np.ones((3, 4))}, ValueError, "`input_weight` must have"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, words):
    arrays, x, first = problem(np.random.default_rng(0))
    arguments = {"x": x, "initial_hidden": first}
    arguments.update({n: a for n, a in change.items() if n in arguments})
    arrays.update({n: a for n, a in change.items() if n not in arguments})
    with pytest.raises(error, match=words):
        gru(GRU(**arrays), **arguments)


@pytest.mark.parametrize(("width", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_sizes_of_parameters_are_checked(width, error):
    with pytest.raises(error, match="`width`"):
        GRU.create(width, 2)
