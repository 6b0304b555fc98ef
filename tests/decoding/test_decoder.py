"""The decoder: the step, several times faster, and nothing else different."""

import contextvars
import copy
import gc
import os
import pickle
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import oracle
from linkern.bench.memory import peak_by_tracing
from linkern.decoding import Decoder, cells
from linkern.decoding import numpy as decoder
from linkern.decoding import threads as helpers
from linkern.decoding.numpy import NumpyDecoder
from tests.waiting import LONG

# Both sides of a comparison are right to a few hundred units of rounding (a term meets
# at most tokens + features + 3 of them); the sums have positive weights, so errors are
# relative to the largest value.
FLOAT64 = 1e-12


def decoder_of(part):
    """Return a decoder that does its arithmetic with another kind of cells."""

    class Made(NumpyDecoder):
        def _adopt(self, *laid):
            with mock.patch.object(decoder, "Cells", part):
                super()._adopt(*laid)

    Made.__name__ = Made.__qualname__ = part.__name__
    globals()[part.__name__] = Made  # where pickle looks for it
    return Made


@contextmanager
def threads(count):
    """Share steps of any size by so many threads."""
    with (
        mock.patch.object(decoder, "_BYTES_PER_THREAD", 1),
        mock.patch.dict(os.environ, LINKERN_NUM_THREADS=str(count)),
    ):
        yield


def doubled(x):
    return np.concatenate([linkern.relu(x), linkern.relu(-x)], axis=-1) + 0.5


@st.composite
def problems(draw, dtype="float64"):
    """Draw tokens (T, *batch, dim), what a decoder is made with, and a moment."""
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0, 2)]))
    length = draw(st.integers(1, 20))
    key_dim, value_dim = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = tuple(
        rng.normal(size=(length, *batch, dim)).astype(dtype)
        for dim in (key_dim, key_dim, value_dim)
    )
    feature_map = draw(st.sampled_from([linkern.elu_plus_one, doubled]))
    options = {
        "feature_map": feature_map,
        "normalize": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.5])),
        "window": draw(st.integers(1, 9)),
    }
    sizes = {
        "batch_shape": batch,
        "key_dim": key_dim * (2 if feature_map is doubled else 1),
        "value_dim": value_dim,
        "dtype": dtype,
    }
    return tokens, sizes, options, draw(st.integers(0, length - 1))


def stepped(tokens, options, state=None):
    """Yield output and state of `linear_attention_step`, token by token."""
    options = {name: x for name, x in options.items() if name != "window"}
    for row in zip(*tokens, strict=True):
        output, state = linkern.linear_attention_step(state, *row, **options)
        yield output, state


def assert_close(got, expected, bound=FLOAT64):
    assert (got is None) == (expected is None)
    if got is not None:
        assert got.shape == expected.shape
        scale = max(1.0, float(abs(expected).max(initial=0)))
        assert np.max(abs(got - expected), initial=0) <= bound * scale


def assert_states_close(got, expected, bound=FLOAT64):
    assert_close(got.memory, expected.memory, bound)
    assert_close(got.normalizer, expected.normalizer, bound)


def same(left, right):
    return all(
        (x is None and y is None) or np.array_equal(x, y, equal_nan=True)
        for x, y in zip(left, right, strict=True)
    )


# The laws, each of an implementation.


def law_every_token_is_the_step(decoder, problem):
    """Outputs and states are those of the step, at every token."""
    tokens, sizes, options, _ = problem
    made = decoder(**sizes, **options)
    rows = zip(*tokens, strict=True)
    for row, (output, state) in zip(rows, stepped(tokens, options), strict=True):
        assert_close(made.step(*row), output)
        assert_states_close(made.state, state)


def law_reading_the_state_changes_nothing(decoder, problem):
    """With the state read at every token or never, outputs agree bit by bit."""
    tokens, sizes, options, _ = problem
    read, unread = decoder(**sizes, **options), decoder(**sizes, **options)
    for row in zip(*tokens, strict=True):
        read.state.memory[...] = np.nan  # a copy: may be written
        first = read.state
        assert same(first, read.state)
        assert np.array_equal(read.step(*row), unread.step(*row))
    assert same(read.state, unread.state)


def law_a_state_is_continued(decoder, problem):
    """A decoder of the state after some tokens goes on as the step does."""
    tokens, _, options, at = problem
    states = [state for _, state in stepped([x[: at + 1] for x in tokens], options)]
    later = [x[at + 1 :] for x in tokens]
    kept = [None if x is None else x.copy() for x in states[-1]]
    made = decoder(states[-1], **options)
    assert_states_close(made.state, states[-1], 0)
    expected = stepped(later, options, states[-1])
    for row, (output, state) in zip(zip(*later, strict=True), expected, strict=True):
        assert_close(made.step(*row), output)
        assert_states_close(made.state, state)
    assert same(states[-1], kept)


def law_forks_are_independent(decoder, problem):
    """A copy goes on bit by bit like the original, whatever happens to that one."""
    tokens, sizes, options, at = problem
    made = decoder(**sizes, **options)
    rows = list(zip(*tokens, strict=True))
    for row in rows[:at]:
        made.step(*row)
    forks = [made.copy(), copy.copy(made), copy.deepcopy(made)]
    forks.append(pickle.loads(pickle.dumps(made)))
    before = made.state
    for row in rows:  # the originals run away
        made.step(*(x + 1 for x in row))
    for fork in forks:
        assert same(fork.state, before)
    for row in rows[at:]:
        outputs = [fork.step(*row) for fork in forks]
        assert all(np.array_equal(outputs[0], x) for x in outputs)
    assert all(same(forks[0].state, fork.state) for fork in forks)
    unforked = decoder(**sizes, **options)
    for row in rows:
        unforked.step(*row)
    assert same(unforked.state, forks[0].state)


def law_outputs_go_where_they_are_sent(decoder, problem):
    """`out` is returned, holds what would have been returned, and may be an input."""
    tokens, sizes, options, _ = problem
    plain, sent = decoder(**sizes, **options), decoder(**sizes, **options)
    for query, key, value in zip(*tokens, strict=True):
        output = plain.step(query, key, value)
        kept = output.copy()
        out = value.copy()
        assert sent.step(query, key, out, out=out) is out
        assert np.array_equal(out, kept)
        assert same(plain.state, sent.state)
        plain.copy().step(query + 1, key, value)
        assert np.array_equal(output, kept)


LAWS = [
    law_every_token_is_the_step,
    law_reading_the_state_changes_nothing,
    law_a_state_is_continued,
    law_forks_are_independent,
    law_outputs_go_where_they_are_sent,
]


def run(law, decoder, examples=40):
    @settings(max_examples=examples, database=None, report_multiple_bugs=False)
    @given(problem=problems())
    def judged(problem):
        law(decoder, problem)

    judged()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law, count):
    with threads(count):
        run(law, Decoder, examples=40 if count == 1 else 12)


# Wrong decoders, and the law that each must break.


class WindowLost(cells.Cells):
    """Begins a new window without adding the old one to the memory."""

    def add_window(self):
        self.added += 1


class NormalizerTwice(cells.Cells):
    """Adds the window to the normalizer twice."""

    def add_window(self):
        for block in self._blocks:
            block.memory[..., -4:] += block.keys.sum(axis=-1)[..., None]
        super().add_window()


class LastTokenUnread(cells.Cells):
    """Reads before the token is written."""

    def step(self, before, i, query, key, value, out):
        super().step(before, i, query, key, value, out)
        kept = self._slots[i].key.copy()
        scores = self._slots[i].scores
        scores[..., -1] = 0
        np.matmul(self._slots[i].weights, self._slots[i].rows, out=self._read)
        out[...] = self._numerator / self._read.reshape(*out.shape[:-1], -1)[..., -1:]
        self._slots[i].key[...] = kept


class LastOfWindowLost(cells.Cells):
    """Leaves the last token of a full window out of the memory."""

    def add_window(self):
        self._slots[-1].key[...] = 0
        super().add_window()


class OldTokenRead(cells.Cells):
    """Reads the tokens of the last window that are not yet overwritten."""

    def step(self, before, i, query, key, value, out):
        last = self._slots[-1]
        full = self._slots[i]._replace(
            keys=last.keys, scores=last.scores, weights=last.weights, rows=last.rows
        )
        self._slots = (*self._slots[:i], full, *self._slots[i + 1 :])
        super().step(before, i, query, key, value, out)


class StateFolds(NumpyDecoder):
    """Reading the state adds the window to the memory, and does not empty it."""

    @property
    def state(self):
        found = super().state
        features = self._key_shape[-1]
        recent = slice(features, features + self._taken % self._window)
        keys = self._keys[..., : self._taken % self._window, :].swapaxes(-1, -2)
        self._memory[..., :features, :] += keys @ self._memory[..., recent, :]
        return found


class StateWithoutWindow(NumpyDecoder):
    """Gives the memory as the state, without what still waits."""

    def _add_full_window(self):
        super()._add_full_window()
        return 0


class SharedForks(NumpyDecoder):
    """Shares its memory with its copies."""

    def copy(self):
        fork = super().copy()
        fork._adopt(self._memory, fork._keys, fork._taken)
        return fork


class StateNotCopied(NumpyDecoder):
    """Writes into the memory that it was given."""

    def __init__(self, state=None, **options):
        super().__init__(state, **options)
        self._given = state

    def step(self, *token, **options):
        output = super().step(*token, **options)
        if self._given is not None:
            self._given.memory[...] += 1
        return output


KEPT = {}


class OutputKept(NumpyDecoder):
    """Returns the same array at every token."""

    def step(self, query, key, value, out=None):
        if out is None:
            out = KEPT.setdefault(value.shape, np.empty_like(value))
        return super().step(query, key, value, out)


class OutIgnored(NumpyDecoder):
    """Returns a new array whatever it is asked for."""

    def step(self, *token, **_):
        return super().step(*token)


MUTANTS = {
    decoder_of(WindowLost): law_every_token_is_the_step,
    decoder_of(NormalizerTwice): law_every_token_is_the_step,
    decoder_of(LastTokenUnread): law_every_token_is_the_step,
    decoder_of(LastOfWindowLost): law_every_token_is_the_step,
    decoder_of(OldTokenRead): law_every_token_is_the_step,
    StateFolds: law_reading_the_state_changes_nothing,
    StateWithoutWindow: law_every_token_is_the_step,
    SharedForks: law_forks_are_independent,
    StateNotCopied: law_a_state_is_continued,
    OutputKept: law_outputs_go_where_they_are_sent,
    OutIgnored: law_outputs_go_where_they_are_sent,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_decoders_are_caught(mutant):
    with pytest.raises(AssertionError):
        run(MUTANTS[mutant], mutant, examples=60)


# Precision.


def errors_over_bound(decoder, seed, window, dtype, length=40):
    """Return the largest error as a fraction of what the oracle proves."""
    rng = np.random.default_rng(seed)
    tokens = [rng.normal(size=(length, 2, d)).astype(dtype) for d in (4, 4, 3)]
    sizes = {"batch_shape": (2,), "key_dim": 4, "value_dim": 3, "dtype": dtype}
    made = decoder(**sizes, window=window)
    got = np.stack([made.step(*row) for row in zip(*tokens, strict=True)], axis=1)
    query, key, value = (np.swapaxes(x, 0, 1).astype("float64") for x in tokens)
    phi = oracle.FEATURE_MAPS["elu_plus_one"]
    u = oracle.unit_roundoff("float32")
    exact = oracle.evaluate(
        phi.value(query),
        phi.value(key),
        value,
        causal=True,
        query_error=phi.error(query, u),
        key_error=phi.error(key, u),
    )
    precisions = oracle.Precisions("float32")
    judged = oracle.bounded_output(exact, oracle.Quotient(), precisions)
    bound = judged.once_stored(dtype) if dtype == "float16" else judged.bound
    return float((abs(got - judged.output) / bound).max())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), window=st.integers(1, 9))
def test_errors_are_within_the_proved_bound(dtype, seed, window):
    assert errors_over_bound(Decoder, seed, window, dtype) <= 1


def test_features_that_were_rounded_to_half_are_not_within_it():
    class RoundedFeatures(cells.Cells):
        def _elu_plus_one(self, query, key, key_row):
            super()._elu_plus_one(query, key, key_row)
            key_row[...] = key_row.astype("float16")

    assert errors_over_bound(decoder_of(RoundedFeatures), 0, 8, "float32") > 10


def law_features_far_below_zero_keep_their_digits(decoder):
    """`expm1` would give zero there, and the quotient NaN."""
    low = np.full((3,), -40.0, "float32")
    made = decoder(key_dim=3, value_dim=1)
    made.step(low, low, np.asarray([2.0], "float32"))
    assert made.step(low, low, np.asarray([4.0], "float32")) == 3
    exact = 2 * np.exp(-40.0)
    assert_close(made.state.normalizer / exact, np.ones(3), 1e-6)


class Textbook(cells.Cells):
    """``elu(x) + 1``, as it is written."""

    def _elu_plus_one(self, query, key, key_row):
        for x, out in ((query, self._query_features), (key, key_row)):
            out[...] = np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_far_below_zero():
    law_features_far_below_zero_keep_their_digits(Decoder)
    with pytest.raises(AssertionError):
        law_features_far_below_zero_keep_their_digits(decoder_of(Textbook))


@pytest.mark.parametrize("feature_map", [linkern.elu_plus_one, linkern.exp])
def test_both_ways_of_evaluating_features_agree_bit_by_bit(feature_map):
    rng = np.random.default_rng(0)
    tokens = (10 * rng.normal(size=(20, 3, 6))).astype("float32")

    def renamed(x):
        return feature_map(x)

    own = Decoder(key_dim=6, value_dim=6, feature_map=feature_map)
    called = Decoder(key_dim=6, value_dim=6, feature_map=renamed)
    for row in tokens:
        assert np.array_equal(own.step(*row), called.step(*row))


def test_float16_is_accumulated_in_float32():
    half = np.ones(2, "float16")
    made = Decoder(key_dim=2, value_dim=2, dtype="float16")
    assert made.step(half, half, half).dtype == np.float16
    state = made.state
    assert state.memory.dtype == state.normalizer.dtype == np.float32
    assert Decoder(state, dtype="float16").step(half, half, half).dtype == np.float16


# NaN, and whatever else goes wrong.


def law_nan_spreads_as_in_the_step(decoder, input_, window):
    rng = np.random.default_rng(1)
    tokens = [rng.normal(size=(12, 2, d)) for d in (3, 3, 4)]
    tokens[input_][4, 1, 2] = np.nan
    sizes = {"batch_shape": (2,), "key_dim": 3, "value_dim": 4, "dtype": "float64"}
    made = decoder(**sizes, window=window)
    rows = zip(*tokens, strict=True)
    for row, (output, state) in zip(rows, stepped(tokens, {}), strict=True):
        assert np.array_equal(np.isnan(made.step(*row)), np.isnan(output))
        got = made.state
        assert np.array_equal(np.isnan(got.memory), np.isnan(state.memory))
        assert np.array_equal(np.isnan(got.normalizer), np.isnan(state.normalizer))


class NaNDropped(NumpyDecoder):
    """Takes NaN for zero."""

    def step(self, *token, **options):
        return super().step(*map(np.nan_to_num, token), **options)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("input_", range(3))
def test_nan(input_, window):
    law_nan_spreads_as_in_the_step(Decoder, input_, window)
    with pytest.raises(AssertionError):
        law_nan_spreads_as_in_the_step(NaNDropped, input_, window)


def test_weights_that_are_all_zero_give_nan():
    zero = np.full(2, -1.0)
    made = Decoder(key_dim=2, value_dim=2, dtype="float64", feature_map=linkern.relu)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert np.isnan(made.step(zero, zero, np.ones(2))).all()


def law_a_step_that_raises_does_not_count(decoder, window):
    """An error in the middle, too: here of a division that warns."""
    options = {"dtype": "float64", "feature_map": linkern.relu, "window": window}
    made = decoder(key_dim=2, value_dim=2, **options)
    one, zero = np.ones(2), np.zeros(2)
    for _ in range(5):
        made.step(one, one, one)
        before = made.state
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="invalid value"):
                made.step(zero, one, one)
        assert same(made.state, before)


class CountsFirst(NumpyDecoder):
    """Has taken the token in when it raises."""

    def step(self, *token, **options):
        try:
            return super().step(*token, **options)
        except RuntimeWarning:
            self._taken += 1
            raise


@pytest.mark.parametrize("window", [2, 8])
def test_a_step_that_raises(window):
    law_a_step_that_raises_does_not_count(Decoder, 1)
    law_a_step_that_raises_does_not_count(Decoder, window)
    with pytest.raises(AssertionError):
        law_a_step_that_raises_does_not_count(CountsFirst, window)


def law_an_overflow_does_not_stop_half_way(decoder):
    options = {"feature_map": linkern.identity, "normalize": False, "window": 2}
    made = decoder(key_dim=1, value_dim=1, dtype="float64", **options)
    big, one = np.asarray([1e300]), np.ones(1)
    with np.errstate(over="raise", invalid="ignore"):
        for _ in range(2):
            made.step(np.zeros(1), big, big)  # 1e600, once it is in the memory
        assert made.step(np.zeros(1), one, one).shape == (1,)


class FoldsAloud(cells.Cells):
    """Raises between the memory and the count."""

    def add_window(self):
        for block in self._blocks:
            block.memory[...] += block.keys @ block.values
        self.added += 1


def test_overflow():
    law_an_overflow_does_not_stop_half_way(Decoder)
    with pytest.raises(FloatingPointError):
        law_an_overflow_does_not_stop_half_way(decoder_of(FoldsAloud))


BAD_TOKENS = {
    "a list": (lambda q, k, v: ([0.0, 0.0], k, v), TypeError, "NumPy array"),
    "a shape": (
        lambda q, k, v: (q, k[:1], v),
        ValueError,
        r"`key` must have shape \(2",
    ),
    "an axis": (
        lambda q, k, v: (q, k, v[None]),
        ValueError,
        r"`value` must have shape",
    ),
    "a dtype": (
        lambda q, k, v: (q, k, v.astype("float64")),
        TypeError,
        "`value` must have the dtype of this decoder, float32, got float64",
    ),
    "a masked array": (
        lambda q, k, v: (q, np.ma.asarray(k), v),
        TypeError,
        "`key` must be an array .* got MaskedArray, whose mask would be ignored",
    ),
    "a matrix": (
        lambda q, k, v: (q, k, v.view(np.matrix)),
        TypeError,
        "`value` must be an array .* got matrix; convert it first",
    ),
    "no axis": (
        lambda q, k, v: (q.reshape(2, 1)[0, 0, ...], k, v),
        ValueError,
        "`query` must",
    ),
}
BAD_OUTS = {
    "out": (np.zeros(4, "float32"), ValueError, r"`out` must have shape \(3,\)"),
    "out dtype": (np.zeros(3), TypeError, "`out` must be a NumPy array of float32"),
    "out masked": (
        np.ma.zeros(3, "float32"),
        TypeError,
        r"array of float32, got a MaskedArray; pass np.asarray\(out\)",
    ),
    "out list": ([0.0] * 3, TypeError, "got list"),
}


@pytest.mark.parametrize("feature_map", [linkern.elu_plus_one, linkern.exp])
@pytest.mark.parametrize("bad", [*BAD_TOKENS, *BAD_OUTS, "out read-only"])
def test_bad_input_is_named_and_leaves_the_decoder_as_it_was(bad, feature_map):
    made = Decoder(key_dim=2, value_dim=3, feature_map=feature_map)
    token = [np.ones(d, "float32") for d in (2, 2, 3)]
    made.step(*token)
    before, out = made.state, None
    if bad in BAD_TOKENS:
        spoil, error, sentence = BAD_TOKENS[bad]
        token = spoil(*token)
    elif bad in BAD_OUTS:
        out, error, sentence = BAD_OUTS[bad]
    else:
        out, error, sentence = np.zeros(3, "float32"), ValueError, "writeable"
        out.flags.writeable = False
    if (bad, feature_map) == ("a shape", linkern.exp):
        sentence = "`key` must have 2 features"
    with pytest.raises(error, match=sentence):
        made.step(*token, out=out)
    assert same(made.state, before)


def test_other_libraries_are_sent_to_the_step(torch):
    x = torch.ones(2)
    with pytest.raises(TypeError, match="got torch; `linear_attention_step` takes"):
        Decoder(key_dim=2, value_dim=2).step(x, x, x)
    state = linkern.linear_attention_step(None, x, x, x).state
    with pytest.raises(TypeError, match=r"`state.memory` must be a NumPy array"):
        Decoder(state)


STATE = linkern.State(np.zeros((4, 2, 3)), np.zeros((4, 2)))
BAD_OPTIONS = {
    "`key_dim` must be given": {"value_dim": 1},
    "`value_dim` must be given": {"key_dim": 1},
    "`batch_shape` must be a tuple": {"key_dim": 1, "value_dim": 1, "batch_shape": 3},
    "`key_dim` must not be negative": {"key_dim": -1, "value_dim": 1},
    "`window` must be a positive integer": {"state": STATE, "window": 0},
    "`window` must be an integer": {"state": STATE, "window": 2.0},
    "`feature_map` must be a callable": {"state": STATE, "feature_map": "relu"},
    "`scale` must be finite": {"state": STATE, "scale": 0},
    "`normalize` must be True or False": {"state": STATE, "normalize": 1},
    "`dtype` must be one of": {"key_dim": 1, "value_dim": 1, "dtype": "int32"},
    "`state` must have dtype float32": {"state": STATE, "dtype": "float32"},
    "left out when `state` is given": {"state": STATE, "key_dim": 2},
    "`state` must be a `State` or None, got int": {"state": 3},
    r"`state.memory` must be an array .* got MaskedArray": {
        "state": STATE._replace(memory=np.ma.zeros((4, 2, 3)))
    },
    "exactly when `normalize` is True": {"state": STATE, "normalize": False},
    "got no normalizer": {"state": STATE._replace(normalizer=None)},
    r"`state.normalizer` must have shape \(4, 2\)": {
        "state": STATE._replace(normalizer=np.zeros((2, 2)))
    },
    r"`state.memory` must have shape \(..., K, V\)": {
        "state": linkern.State(np.zeros(2), None),
        "normalize": False,
    },
}


@pytest.mark.parametrize("sentence", BAD_OPTIONS)
def test_bad_options_are_named(sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        Decoder(**BAD_OPTIONS[sentence])


def test_a_gpu_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    with pytest.raises(
        ModuleNotFoundError, match=r"run `python -m pip install 'linkern"
    ):
        Decoder(key_dim=2, value_dim=3, device="cuda")


def test_a_feature_map_that_raises_leaves_the_decoder_as_it_was():
    def fails(x):
        if x[0] < 0:
            raise OverflowError
        return x

    made = Decoder(key_dim=1, value_dim=1, dtype="float64", feature_map=fails)
    one = np.ones(1)
    made.step(one, one, one)
    before = made.state
    with pytest.raises(OverflowError):
        made.step(one, -one, one)
    assert same(made.state, before)


def test_tokens_may_lie_in_memory_in_any_way():
    made, plain = (Decoder(key_dim=3, value_dim=3, batch_shape=(2,)) for _ in range(2))
    rng = np.random.default_rng(0)
    for rows in rng.normal(size=(10, 3, 3, 2)).astype("float32"):
        strided = [x.T for x in rows]
        dense = [np.ascontiguousarray(x) for x in strided]
        assert np.array_equal(made.step(*strided), plain.step(*dense))


def law_steps_allocate_nothing(decoder):
    """With `out`, and over several windows: no array.

    NumPy's iterators take up to two buffers of 8192 numbers for a moment, 64 KiB,
    whatever they iterate over; the least array of this step would be 256 KiB.
    """
    made = decoder(batch_shape=(128, 8), key_dim=64, value_dim=64)
    held, token = made.nbytes, np.ones((3, 128, 8, 64), "float32")
    out = np.empty((128, 8, 64), "float32")

    def steps():
        for _ in range(20):
            made.step(token[0], token[1], token[2], out)

    steps()
    assert peak_by_tracing(steps) < 2**17
    assert made.nbytes == held
    # The memory, a window of values and keys, of each a fourth, and some buffers.
    assert 1.5 <= held / (128 * 8 * 64 * 65 * 4) <= 1.75


class Allocates(NumpyDecoder):
    """Makes its output anew and copies it."""

    def step(self, query, key, value, out=None):
        out[...] = super().step(query, key, value)
        return out


def test_steps_allocate_nothing():
    with threads(1):
        law_steps_allocate_nothing(Decoder)
        with pytest.raises(AssertionError):
            law_steps_allocate_nothing(Allocates)


# Threads, and what may come between.


def law_threads_change_no_bit(decoder, problem):
    """Outputs and states are the same with any number of threads."""
    tokens, sizes, options, _ = problem
    found = []
    for count in (1, 2, 5):
        with threads(count):
            made = decoder(**sizes, **options)
            rows = zip(*tokens, strict=True)
            found.append([*(made.step(*row) for row in rows), *made.state])
    assert all(same(found[0], other) for other in found[1:])


class WindowByThreads(NumpyDecoder):
    """Takes a shorter window where there are more threads."""

    def __init__(self, *, window, **options):
        count = int(os.environ["LINKERN_NUM_THREADS"])
        super().__init__(window=window if count == 1 else 1, **options)


def test_threads_change_no_bit():
    run(law_threads_change_no_bit, Decoder, examples=12)
    with pytest.raises(AssertionError):
        run(law_threads_change_no_bit, WindowByThreads)


def shared(part=cells.Cells, batch=(2,), count=2, **options):
    """Return a decoder of the sum of all values over two threads."""
    options = {"feature_map": linkern.relu, "dtype": "float64", **options}
    with threads(count):
        return decoder_of(part)(batch_shape=batch, key_dim=1, value_dim=1, **options)


def law_the_callers_floating_point_state_holds(make):
    """Division by zero in another thread is treated as in this one, and not counted."""
    one, zero = np.ones((2, 1)), np.asarray([[1.0], [0.0]])
    for window in (1, 3):
        made = make(window=window)
        for _ in range(4):
            made.step(one, one, one)
            before = made.state
            with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
                made.step(zero, one, one)
            assert same(made.state, before)
            with np.errstate(invalid="ignore"):
                assert np.isnan(made.copy().step(zero, one, one)[1, 0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_callers_floating_point_state_holds():
    law_the_callers_floating_point_state_holds(shared)
    with (
        mock.patch.object(helpers, "copy_context", contextvars.Context),
        pytest.raises(pytest.fail.Exception),
    ):
        law_the_callers_floating_point_state_holds(shared)


def own_threads():
    return {x for x in threading.enumerate() if x.name == helpers.NAME}


def law_threads_end_with_the_decoder(make, patience=LONG):
    before, one = own_threads(), np.ones((2, 1))
    made = make()
    made.step(one, one, one)
    fork = made.copy()
    begun = own_threads() - before
    assert len(begun) == 1
    fork.step(one, one, one)  # alone
    del made
    gc.collect()
    for thread in begun:
        thread.join(patience)
    assert not any(thread.is_alive() for thread in begun)


def test_threads_end_with_the_decoder():
    law_threads_end_with_the_decoder(shared)
    kept = []

    def keeping():
        kept.append(shared())
        return kept[-1]

    with pytest.raises(AssertionError):
        law_threads_end_with_the_decoder(keeping, patience=0.1)


def law_a_fork_goes_on(make, patience=LONG):
    """A child of this process steps as this one would."""
    made, one = make(), np.ones((2, 1))
    made.step(one, one, one)
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, patience)  # a thread that waits forever
        try:
            os._exit(0 if np.array_equal(made.step(one, one, 3 * one), 2 * one) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_fork_goes_on():
    law_a_fork_goes_on(shared)
    with (
        mock.patch.object(helpers, "getpid", return_value=0),
        pytest.raises(AssertionError),
    ):
        law_a_fork_goes_on(shared, patience=0.5)


def law_an_interrupt_waits_for_all(run_jobs, seconds=0.05):
    """Nothing is written any more when it is raised, and the next call is its own."""
    done, judged = [], threading.Event()

    def slow():
        judged.wait(seconds)
        done.append("slow")

    def interrupted():
        raise KeyboardInterrupt

    own = helpers.Helpers()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(own, [interrupted, slow])
    done_by_then = list(done)
    judged.set()
    assert done_by_then == ["slow"]
    run_jobs(own, [lambda: done.append("here"), lambda: done.append("there")])
    assert sorted(done) == ["here", "slow", "there"]


def test_an_interrupt_waits_for_all():
    law_an_interrupt_waits_for_all(helpers.Helpers.run)

    def impatient(own, jobs):
        with mock.patch.object(threading.Thread, "join"):
            own.run(jobs)

    with pytest.raises(AssertionError):
        law_an_interrupt_waits_for_all(impatient, LONG)


class Interrupting:
    """NumPy, but behind the call of that number comes an interrupt."""

    def __init__(self, number):
        self.left = number

    def __getattr__(self, name):
        found = getattr(np, name)
        if not isinstance(found, np.ufunc):
            return found

        def called(*operands, **options):
            result = found(*operands, **options)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return result

        return called


def law_an_interrupt_changes_nothing(part):
    """It may come behind any call of a step, also one that adds the window."""
    rows = np.random.default_rng(0).uniform(size=(5, 3, 2, 1))

    def stepped_to(length):
        with mock.patch.object(cells, "_BLOCK_BYTES", 1):  # a block for each cell
            made = shared(part, count=1, window=2)
        for row in rows[:length]:
            made.step(*row)
        return made

    def interrupted(length, number):
        """Return a decoder of so many tokens, and whether the next was interrupted."""
        made = stepped_to(length)
        with mock.patch.object(cells, "np", Interrupting(number)):
            try:
                made.step(*rows[length])
            except KeyboardInterrupt:
                return made, True
        return made, False

    for length, row in enumerate(rows):
        plain, number = stepped_to(length), 1
        before, expected, after = plain.state, plain.step(*row), plain.state
        while interrupted(length, number)[1]:
            assert same(interrupted(length, number)[0].state, before)
            made, _ = interrupted(length, number)
            assert np.array_equal(made.step(*row), expected)
            assert same(made.state, after)
            number += 1
        assert number > 3


class AddsInPlace(cells.Cells):
    """Adds the window as one would."""

    def add_window(self):
        for keys, values, memory, sums in self._blocks:
            cells.np.matmul(keys, values, out=sums)
            cells.np.add(memory, sums, out=memory)
        self.added += 1


def test_an_interrupt_changes_nothing():
    law_an_interrupt_changes_nothing(cells.Cells)
    with pytest.raises(AssertionError):
        law_an_interrupt_changes_nothing(AddsInPlace)


def test_zero_threads_are_refused():
    with pytest.raises(ValueError, match="`LINKERN_NUM_THREADS` must be a positive"):
        shared(count=0)


def test_small_batches_have_no_threads():
    made = Decoder(batch_shape=(1, 8), key_dim=64, value_dim=64)
    before = own_threads()
    token = np.ones((1, 8, 64), "float32")
    made.step(token, token, token)
    assert own_threads() == before
