"""Plans of steps: they change no bit, and no check of a value is lost in them."""

import numpy as np
import pytest

import linkern
from linkern import State
from linkern.operators import plans
from tests.operators.problems import NAMES, operator, parts, problem

PLANNED = ("linear_attention", "gla", "delta_rule", "gated_delta_rule", "kda")


@pytest.fixture
def kept(monkeypatch):
    """Plans that are kept in this test alone."""
    known = {}
    monkeypatch.setattr(plans, "_PLANS", known)
    return known


def tokens_of(name, dtype="float64", length=5):
    """Return the inputs of each token, without the axis of tokens."""
    inputs = problem(name, np.random.default_rng(0), length, heads=3)
    inputs = {key: x.astype(dtype) for key, x in inputs.items()}
    with_tokens = {key for key, x in inputs.items() if length in x.shape[2:3]}
    return [
        {key: x[:, :, t] if key in with_tokens else x for key, x in inputs.items()}
        for t in range(length)
    ]


def decoded(op, tokens, **options):
    """Return all numbers that steps give."""
    state, outputs = None, []
    for token in tokens:
        result = linkern.step(op, state, **token, **options)
        state = result.state
        outputs.append(result.output)
    return [*outputs, *parts(state)]


def law_plans_change_no_bit(kept, name, dtype):
    op, tokens = operator(name), tokens_of(name, dtype)
    planned = decoded(op, tokens)
    for _ in range(2):
        assert all(map(np.array_equal, decoded(op, tokens), planned))
    had = [plan for plan in kept.values() if plan is not None]
    alone, state = [], None
    for token in tokens:
        kept.clear()
        result = linkern.step(op, state, **token)
        state = result.state
        alone.append(result.output)
    assert all(map(np.array_equal, planned, [*alone, *parts(state)]))
    return had


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "gated_delta_product"])
def test_plans_change_no_bit(kept, name, dtype):
    assert law_plans_change_no_bit(kept, name, dtype) or name not in PLANNED


@pytest.mark.parametrize("name", PLANNED)
def test_decoding_on_plans_is_the_recurrent_form_bitwise(kept, name):
    op, length = operator(name), 40
    inputs = problem(name, np.random.default_rng(0), length, heads=2)
    inputs = {key: x.astype("float32") for key, x in inputs.items()}
    whole = op(**inputs, form="recurrent")
    state = None
    for t in range(length):
        output, state = linkern.step(op, state, *(x[:, :, t] for x in inputs.values()))
        assert np.array_equal(output, whole.output[:, :, t])
    assert all(map(np.array_equal, parts(state), parts(whole.state)))
    assert any(kept.values())


@pytest.mark.parametrize("name", PLANNED)
def test_narrow_tokens_are_widened(kept, name):
    assert not law_plans_change_no_bit(kept, name, "float16")


def test_an_overflow_of_plans_is_forgotten(kept):
    for size in range(1, 2 * plans._MOST_PLANS):
        x = np.ones(size)
        state = linkern.step(linkern.delta_rule, None, x, x, x).state
        linkern.step(linkern.delta_rule, state, x, x, x)
        assert len(kept) <= plans._MOST_PLANS


BAD = {
    "a decay above 1": ("log_decay", lambda x: -x, "natural logarithm"),
    "a beta above 2": ("beta", lambda x: x + 2, "must be in"),
    "a beta below 0": ("beta", lambda x: x - 2, "must be in"),
    "another width": ("query", lambda x: x[..., :-1], "key"),
    "another dtype": ("value", lambda x: x.astype("int64"), "floating dtype"),
    "a narrow dtype": ("value", lambda x: x.astype("float32"), "same dtype"),
    "a list": ("key", lambda x: x.tolist(), "must be an array"),
    "no tokens": ("beta", lambda x: x[:1, :1, None], "shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tokens_are_refused_after_good_ones(kept, case):
    name, change, message = BAD[case]
    op, [token, *_] = linkern.gated_delta_rule, tokens_of("gated_delta_rule")
    state = linkern.step(op, None, **token).state
    linkern.step(op, state, **token)
    linkern.step(op, state, *token.values())
    assert sum(map(callable, kept.values())) == 2
    bad = {**token, name: change(token[name])}
    for inputs, options in (((), bad), (tuple(bad.values()), {})):
        with pytest.raises((TypeError, ValueError), match=message):
            linkern.step(op, state, *inputs, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 2.0},
        {"scale": True},
        {"form": "recurrent"},
        {"form": "no form"},
        {"chunk_size": 0},
        {"initial_state": State(np.ones((2, 2)), None)},
        {"unknown": 1},
    ],
    ids=str,
)
def test_options_belong_to_a_signature(kept, options):
    def outcome():
        try:
            return linkern.step(op, state, **token, **options).output
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    op, [token, *_] = linkern.gated_delta_rule, tokens_of("gated_delta_rule")
    state = linkern.step(op, None, **token).state
    alone = outcome()
    for others in ({}, {"scale": 3.0}, {"form": "auto"}, {"initial_state": None}):
        linkern.step(op, state, **token, **others)
    after = outcome()
    assert np.array_equal(after, alone)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", [linkern.elu_plus_one, linkern.identity, abs])
def test_states_of_steps_may_be_changed_and_copied(kept, feature_map, normalize):
    rng = np.random.default_rng(0)
    options = {"feature_map": feature_map, "normalize": normalize, "scale": 2.0}
    states, tokens = [None, None], abs(rng.normal(size=(6, 3, 2, 4)))
    for token in tokens:
        results = [
            linkern.linear_attention_step(state, *token, **options) for state in states
        ]
        assert np.array_equal(results[0].output, results[1].output)
        for part in parts(results[0].state):
            np.multiply(part, 0.5, out=part)  # the next step reads what is there now
        copied = State(*(None if x is None else 0.5 * x for x in results[1].state))
        states = [results[0].state, copied]


def test_columns_in_another_order_are_no_array_of_a_step(kept):
    rng = np.random.default_rng(0)
    token, base = rng.normal(size=(3, 2, 4)), rng.uniform(size=(2, 4, 5))
    views = State(base[..., 1:], base[..., 0])
    copies = State(*(x.copy() for x in views))
    for _ in range(2):  # the second time on a plan
        one, other = (linkern.linear_attention_step(x, *token) for x in (views, copies))
        assert np.array_equal(one.output, other.output)


def test_parts_of_two_states_are_no_array_of_a_step(kept):
    rng = np.random.default_rng(0)
    tokens, state = rng.normal(size=(4, 3, 2, 4)), None
    states = []
    for token in tokens:
        state = linkern.linear_attention_step(state, *token).state
        states.append(state)
    mixed = State(states[-1].memory, states[-2].normalizer)
    copies = State(*(x.copy() for x in mixed))
    one, other = (linkern.linear_attention_step(x, *tokens[0]) for x in (mixed, copies))
    assert np.array_equal(one.output, other.output)
