"""Gradients on NumPy of channel decays, erases, early reads and transposed states.

The reference is the tape over the equation of one token, in float64. Each law is a
function of the implementation, and is shown to fail on wrong ones.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.autodiff.tape import Traced, cotangents
from linkern.core.chunkwise import chunks as array_chunks
from linkern.core.recurrence import Terms, token
from linkern.kernels.numpy import chunk_delta_bwd, chunkwise_bwd
from linkern.kernels.numpy.channel_grad import ChannelGrad
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.decay_grad import DecayGrad
from linkern.kernels.numpy.intra_chunk_grad import ScalarGrad
from linkern.operators.forms import Form
from linkern.operators.register import DEFINITIONS
from tests.kernels.numpy.test_chunk_delta import KINDS, bits, laid_out, made, problems
from tests.operators.problems import NAMES, operator, parts, problem

pytestmark = pytest.mark.usefixtures("no_kept_buffers")
NAMED = ("memory", "query", "key", "value", "log_decay", "erase")


def case_of(memory, terms, size, seed=0, *, without=()):
    """Add cotangents of the results, None for those `without`."""
    rng = np.random.default_rng(seed)
    results = chunks(memory, terms, size)
    drawn = [laid_out(rng, rng.normal(size=x.shape).astype(x.dtype)) for x in results]
    output, last = (None if i in without else x for i, x in enumerate(drawn))
    return SimpleNamespace(
        memory=memory, terms=terms, size=size, output=output, last=last
    )


@st.composite
def cases(draw):
    without = draw(st.sampled_from([(), (), (0,), (1,)]))
    return case_of(*draw(problems()), draw(st.integers(0, 99)), without=without)


def in_place(case):
    """Return the gradients by name."""
    *_, checkpoints = chunkwise_bwd.forward(case.memory, case.terms, case.size)
    memory, rest = chunkwise_bwd.pullback(
        case.terms, checkpoints, case.output, case.last
    )
    return {"memory": memory, **rest}


def from_tape(case, step=None, dtype="float64"):
    """Return the gradients of the tape over `step`, or over the equation of a token."""
    form = Form(token, 1) if step is None else step
    plain = (case.memory, *case.terms[:5])
    leaves = [None if x is None else Traced(x.astype(dtype), leaf=True) for x in plain]
    results = form(leaves[0], Terms(*leaves[1:], *case.terms[5:]))
    wide = [None if x is None else x.astype(dtype) for x in (case.output, case.last)]
    known = cotangents(results, wide)
    return {
        name: known.get(x.serial, np.zeros(x.shape))
        for name, x in zip(NAMED, leaves, strict=True)
        if x is not None
    }


def law_gradients(back, case):
    expected, result = from_tape(case), back(case)
    assert expected.keys() == result.keys()
    for name, x in expected.items():
        # Sums of T (K + V) terms, through up to T / C chunks: as for the results.
        bound = 1e-12 * (1 + abs(x).max(initial=0))
        assert result[name].shape == x.shape, name
        assert abs(result[name] - x).max(initial=0) <= bound, name


@settings(max_examples=120)
@given(cases())
def test_gradients_are_those_of_the_equation(case):
    law_gradients(in_place, case)


def everywhere(kinds, law, back, **shape):
    for kind in kinds:
        law(back, case_of(*made(kind, 1, length=21, **shape), 8))


# Mistakes, as patches of the modules.


def without_chunk_decay(patch):
    """State cotangents pass a chunk without its decay."""
    right = chunk_delta_bwd.grad_state_passing

    def wrong(ws):
        ws.forward.steps = [x._replace(chunk_decay=None) for x in ws.forward.steps]
        right(ws)

    patch.setattr(chunkwise_bwd, "grad_state_passing", wrong)


def without_erase_at_edges(patch):
    """State cotangents pass a chunk as if it erased nothing of the state before it."""
    right = chunk_delta_bwd.grad_state_passing

    def wrong(ws):
        ws.forward.erase[...] = 0
        right(ws)

    patch.setattr(chunkwise_bwd, "grad_state_passing", wrong)


def with_pairs_unmasked(patch):
    right = ScalarGrad.__init__

    def wrong(self, *args):
        right(self, *args)
        self.masks = [np.full_like(x, -1) for x in self.masks]

    patch.setattr(ScalarGrad, "__init__", wrong)


def with_every_read_late(patch):
    """Gradients of log-decays take every read to be after the decay of its token."""
    right = ScalarGrad.__init__

    def wrong(self, *args):
        right(self, *args)
        self._early = [False for _ in self._early]

    patch.setattr(ScalarGrad, "__init__", wrong)


def without_the_memory_before(patch):
    """Gradients of log-decays lack the state that passes the whole chunk."""
    right = DecayGrad.write

    def wrong(self, output):
        self.state_carried[...] = 0
        right(self, output)

    patch.setattr(DecayGrad, "write", wrong)


def without_decays_between_blocks(patch):
    """Gradients of log-decays lack the pairs of tokens in one chunk."""
    patch.setattr(ChannelGrad, "_sum", lambda self, rows, out: out.fill(0))


def without_tokens_themselves(patch):
    """A token neither decays nor is scored against itself."""
    patch.setattr(ChannelGrad, "_pull_diagonal", lambda self, kind: None)


ERASES = [k for k in KINDS if k[1]]
BY_TOKEN = [k for k in KINDS if k[0] == "token"]
BY_CHANNEL = [k for k in KINDS if k[0] == "channel"]
EARLY = [k for k in BY_TOKEN if k[2] or k[3]]
MUTANTS = {
    without_chunk_decay: [k for k in KINDS if k[0]],
    without_erase_at_edges: ERASES,
    with_pairs_unmasked: [k for k in KINDS if k[0] != "channel"],
    with_every_read_late: EARLY,
    without_the_memory_before: BY_TOKEN,
    without_decays_between_blocks: BY_CHANNEL,
    without_tokens_themselves: [
        k for k in BY_CHANNEL if not k[3] or (k[1] and not k[2])
    ],
}


@pytest.mark.parametrize("mistake", MUTANTS)
def test_mistakes_are_caught(monkeypatch, mistake):
    mistake(monkeypatch)
    for kind in MUTANTS[mistake]:
        with pytest.raises(AssertionError):
            everywhere([kind], law_gradients, in_place)


# Accuracy.


def errors(gradients, exact):
    return {
        name: abs(gradients[name] - x).max() / (1 + abs(x).max())
        for name, x in exact.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_as_accurate_as_the_array_code(kind):
    if kind[3] and kind[4]:
        return  # the array code reads a transposed state late
    shape = {"length": 200, "features": 16, "values": 16, "heads": (2,)}
    case = case_of(*made(kind, 2, dtype="float32", **shape), 64)

    def by_arrays(memory, terms):
        return array_chunks(memory, terms, 64)

    exact = from_tape(case)
    own = errors(in_place(case), exact)
    other = errors(from_tape(case, by_arrays, "float32"), exact)
    for name, error in own.items():
        # Another order of the same sums: within a few times the error, or a few units.
        assert error <= 4 * other[name] + 2.0**-21, name


@pytest.mark.parametrize("kind", [k for k in KINDS if k[0]])
@pytest.mark.parametrize("gate", [-np.inf, -1e30, -200.0])
def test_strong_gates_give_exact_gradients(kind, gate):
    """What a gate forgets has no gradient, and what it does not keeps all of it."""
    shape = {"length": 50, "features": 4, "values": 3, "heads": (2,)}
    memory, terms = made(kind, 4, **shape)
    log_decay = np.zeros(terms.log_decay.shape)
    log_decay[:, 10:12] = log_decay[:, 30] = gate
    case = case_of(memory, terms._replace(log_decay=log_decay), 16)
    law_gradients(in_place, case)
    narrow = case_of(
        memory.astype("float32"),
        terms._replace(log_decay=log_decay).mapped(lambda x: x.astype("float32")),
        16,
    )
    gradients = in_place(narrow)
    assert all(np.isfinite(x).all() for x in gradients.values())
    assert not gradients["log_decay"][log_decay < -1e3].any()


# Circumstances that must not matter.


@pytest.mark.parametrize("heads", [(5,), (1,), (2, 3)])
def test_threads_change_no_bit(monkeypatch, heads):
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    for i, kind in enumerate(KINDS):
        shape = {"length": 75, "heads": heads, "dtype": "float32"}
        case = case_of(*made(kind, i, **shape), 4)
        results = []
        for count in (1, 2):
            monkeypatch.setenv("LINKERN_NUM_THREADS", str(count))
            results.append(bits(in_place(case).values()))
        assert results[0] == results[1], kind


@pytest.mark.parametrize("most", [1, 16])
def test_any_number_of_chunks_in_a_block_will_do(monkeypatch, most):
    monkeypatch.setattr(chunkwise_bwd, "_CHUNKS", most)
    monkeypatch.setattr(chunkwise_bwd, "_TILES", 0)
    for i, kind in enumerate(KINDS):
        law_gradients(in_place, case_of(*made(kind, i, length=75), 4))


@settings(max_examples=50)
@given(problems())
def test_results_of_the_forward_pass_are_the_same_bits(case):
    *results, _ = chunkwise_bwd.forward(*case)
    assert bits(results) == bits(chunks(*case))


def test_inputs_stay_and_a_pullback_can_be_called_again():
    for i, kind in enumerate(KINDS):
        case = case_of(*made(kind, i, length=40), 8)
        plain = [x for x in (case.memory, *case.terms[:5]) if x is not None]
        kept = bits([*plain, case.output, case.last])
        *_, checkpoints = chunkwise_bwd.forward(case.memory, case.terms, 8)
        first, second = (
            chunkwise_bwd.pullback(case.terms, checkpoints, case.output, case.last)
            for _ in range(2)
        )
        assert bits([first[0], *first[1].values()]) == bits(
            [second[0], *second[1].values()]
        )
        assert bits([*plain, case.output, case.last]) == kept


# Operators.


# A quotient is as ill-conditioned as its denominator is small.
WITHOUT_QUOTIENT = [x for x in NAMES if DEFINITIONS[x].normalizer is None]


@pytest.mark.parametrize("name", WITHOUT_QUOTIENT)
def test_operators_have_the_gradients_of_their_recurrence(name):
    @settings(max_examples=6)
    @given(
        st.integers(0, 2**16).map(np.random.default_rng),
        st.sampled_from([1, 7, 64, 75]),
        st.sampled_from([8, 64, 5]),
        st.booleans(),
    )
    def law(rng, length, size, with_state):
        inputs = problem(name, rng, length, heads=2)
        result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=size)
        _, recurrent = linkern.vjp(operator(name), **inputs, form="recurrent")
        output = rng.normal(size=result.output.shape)
        state = None
        if with_state:
            drawn = [
                None if x is None else rng.normal(size=x.shape) for x in result.state
            ]
            state = linkern.State(*drawn)
        expected = recurrent(output, state)
        for key, x in pullback(output, state).items():
            bound = 2.0**-36 * (1 + abs(expected[key]).max(initial=0))
            assert (abs(x - expected[key]) <= bound).all(), key

    law()


def test_heads_that_share_keys_get_the_sum_of_their_gradients():
    rng = np.random.default_rng(6)
    inputs = problem("gated_delta_rule", rng, 30, heads=4)
    grouped = {**inputs, **{x: inputs[x][:, ::2] for x in ("query", "key")}}
    repeated = {
        **inputs,
        **{x: np.repeat(grouped[x], 2, axis=1) for x in ("query", "key")},
    }
    result, pullback = linkern.vjp(linkern.gated_delta_rule, **grouped)
    output = rng.normal(size=result.output.shape)
    gradients = pullback(output)
    expected = linkern.vjp(linkern.gated_delta_rule, **repeated)[1](output)
    for name, x in gradients.items():
        y = expected[name]
        if name in ("query", "key"):
            y = y.reshape(1, 2, 2, *y.shape[2:]).sum(axis=2)
        assert np.allclose(x, y, rtol=1e-12, atol=1e-12), name


def test_no_array_code_runs(monkeypatch):
    """Every operator of one recurrence of one memory has its gradients in place."""

    def refused(*_):
        raise AssertionError

    monkeypatch.setattr("linkern.autodiff.scan.recomputed", refused)
    rng = np.random.default_rng(7)
    for name in NAMES:
        if name in ("log_linear_attention", "momentum_delta_rule"):
            continue
        inputs = problem(name, rng, 9)
        result, pullback = linkern.vjp(operator(name), **inputs)
        gradients = pullback(np.ones(result.output.shape))
        assert all(np.isfinite(x).all() for x in gradients.values()), name
        assert parts(result.state)
