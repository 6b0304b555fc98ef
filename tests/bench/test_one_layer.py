"""All generators of one layer compute their attention, and wrong ones are caught."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import linkern
from linkern.bench.generation.one_layer import attention_alone

LENGTH = 37
BASELINE = "linear"
NAMES = ["linear", "numpy-cache", "numpy-recompute", "torch-cache", "torch-recompute"]


@pytest.fixture(scope="module")
def generators():
    return {c.name: c for c in attention_alone(heads=3, dim=8, seed=5)}


def inputs_of(session_tokens):
    parts = (session_tokens.query, session_tokens.key, session_tokens.value)
    return [x.swapaxes(0, 1).astype("float64") for x in parts]


def tokens_of(generators):
    """Return the tokens that all generators share."""
    return generators[BASELINE].start(LENGTH).tokens


def softmax(query, key, value):
    """Causal softmax attention in float64, textbook."""
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    length = scores.shape[-1]
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value


def law_it_generates(generator, tokens, exact, pieces):
    """All tokens equal those of the parallel form, in any spans."""
    tokens.output[...] = np.nan
    session = generator.start(LENGTH)
    for start, stop in pieces:
        generator.generate(session, start, stop)
    # float32: some hundred roundings of averages of numbers about 1.
    assert np.max(abs(tokens.output - exact)) <= 1e-5


def exact_of(name, tokens):
    query, key, value = inputs_of(tokens)
    if name == BASELINE:
        exact = linkern.linear_attention(query, key, value, form="parallel").output
    else:
        exact = softmax(query, key, value)
    return exact.swapaxes(0, 1)


PIECES = {
    "at once": [(0, LENGTH)],
    "one by one": [(i, i + 1) for i in range(LENGTH)],
    "in spans": [(0, 16), (16, 32), (32, LENGTH)],
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", NAMES)
def test_generators_compute_their_attention(generators, name, pieces):
    if name not in generators:
        pytest.skip("PyTorch is not installed")
    tokens = tokens_of(generators)
    law_it_generates(generators[name], tokens, exact_of(name, tokens), PIECES[pieces])


def forgets_the_last_key(generator):
    def generate(session, start, stop):
        for i in range(start, stop):
            kept = session.tokens.key[i].copy()
            session.tokens.key[i] = 0
            generator.generate(session, i, i + 1)
            session.tokens.key[i] = kept

    return replace(generator, generate=generate)


def scales_twice(generator):
    def generate(session, start, stop):
        session.tokens.query[start:stop] *= 8**-0.5
        generator.generate(session, start, stop)
        session.tokens.query[start:stop] *= 8**0.5

    return replace(generator, generate=generate)


def writes_a_row_late(generator):
    def generate(session, start, stop):
        generator.generate(session, start, stop)
        session.tokens.output[start:stop] = np.roll(session.tokens.output, 1, 0)[
            start:stop
        ]

    return replace(generator, generate=generate)


@pytest.mark.parametrize("name", ["linear", "numpy-cache"])
@pytest.mark.parametrize(
    "mutant", [forgets_the_last_key, scales_twice, writes_a_row_late]
)
def test_wrong_generators_are_caught(name, mutant):
    generators = {c.name: c for c in attention_alone(heads=3, dim=8, seed=6)}
    tokens = tokens_of(generators)
    exact = exact_of(name, tokens)
    with pytest.raises(AssertionError):
        law_it_generates(mutant(generators[name]), tokens, exact, PIECES["in spans"])


def test_held_memory_is_constant_for_linear_and_grows_for_a_cache(generators):
    held = {
        name: [c.held(c.start(length)) for length in (16, 32, 64)]
        for name, c in generators.items()
    }
    assert len(set(held[BASELINE])) == 1
    for name in held.keys() - {BASELINE}:
        assert held[name][1:] == [2 * held[name][0], 4 * held[name][0]]
    # Keys and values, float32.
    assert held["numpy-cache"][0] == 2 * 16 * 3 * 8 * 4


@pytest.mark.parametrize("name", NAMES)
def test_the_last_token_can_be_generated_at_once(generators, name):
    if name not in generators:
        pytest.skip("PyTorch is not installed")
    chosen = generators[name]
    chosen.generate(chosen.start(LENGTH), LENGTH - 1, LENGTH)
    assert np.isfinite(tokens_of(generators).output[-1]).all()


def test_generators_are_named_only_where_they_are_installed(monkeypatch):
    assert ("torch-cache" in {c.name for c in attention_alone()}) == (
        find_spec("torch") is not None
    )
    monkeypatch.setattr(
        "linkern.bench.generation.one_layer.find_spec", lambda name: None
    )
    assert {c.name for c in attention_alone()} == set(NAMES[:3])


def test_the_seed_determines_the_tokens():
    first, again, other = (
        {c.name: c for c in attention_alone(seed=seed)}[BASELINE].start(4).tokens
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first.query, again.query)
    assert not np.array_equal(first.query, other.query)
