"""Decoding: a Transformer read token by token is the Transformer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern import transformer
from linkern.transformer import (
    decoding,
    inputs,
    models,
    operator_adapter,
    prompts,
    states,
)
from linkern.transformer.cache import Cache

STATELESS = ("lsh_attention", "sparse_attention")
OPERATORS = [name for name in inputs.known_operators() if name not in STATELESS]
# Logits are of size 1 and a few hundred roundings of float64 lie behind them.
CLOSE = {"rtol": 0, "atol": 1e-11}
TOKENS = np.random.default_rng(0).integers(0, 9, size=(3, 12))


class Numpy:
    """NumPy, where a law is only to be seen to fail."""

    array = staticmethod(np.asarray)
    numpy = staticmethod(np.asarray)


def model(operator="linear_attention", lib=None, **options):
    like = np.zeros(1) if lib is None else lib.array(np.zeros(1))
    options = {"positions": "learned", "max_length": 12, **options}
    return transformer.LanguageModel.create(
        9, 8, 2, 2, operator=operator, rng=0, like=like, **options
    )


def law_token_by_token_is_the_whole(lib, operator, prompt=3, length=6):
    made = model(operator, lib)
    tokens = lib.array(TOKENS[:, :length])
    whole = lib.numpy(transformer.language_model(made, tokens, form="parallel"))
    logits, state = transformer.prefill(made, tokens[:, :prompt])
    np.testing.assert_allclose(lib.numpy(logits), whole[:, prompt - 1], **CLOSE)
    for i in range(prompt, length):
        logits, state = transformer.decode(made, state, tokens[:, i])
        np.testing.assert_allclose(lib.numpy(logits), whole[:, i], **CLOSE)
    assert lib.numpy(state.position).tolist() == [length] * 3


@pytest.mark.parametrize("operator", OPERATORS)
def test_token_by_token_is_the_whole(eager_lib, operator):
    law_token_by_token_is_the_whole(eager_lib, operator)


def frozen(parameters, tokens, states, position, **how):
    return models.continued(parameters, tokens, states, position * 0, **how)


def one_state_for_all(parameters, tokens, states, position, **how):
    states = states and (states[0],) * len(states)
    return models.continued(parameters, tokens, states, position, **how)


def forgotten(parameters, tokens, _, position, **how):
    return models.continued(parameters, tokens, None, position, **how)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention", "kda"])
@pytest.mark.parametrize("mutant", [frozen, one_state_for_all, forgotten])
def test_a_faulty_decoder_breaks_the_law(monkeypatch, operator, mutant):
    monkeypatch.setattr(decoding, "continued", mutant)
    with pytest.raises(AssertionError):
        law_token_by_token_is_the_whole(Numpy(), operator)


def law_prompts_can_be_cut(made, cut):
    whole = transformer.prefill(made, TOKENS)
    first = transformer.prefill(made, TOKENS[:, :cut])
    second = transformer.prefill(made, TOKENS[:, cut:], state=first.state)
    np.testing.assert_allclose(second.logits, whole.logits, **CLOSE)
    arrays = transformer.named_arrays(whole.state)
    for name, x in transformer.named_arrays(second.state).items():
        np.testing.assert_allclose(x, arrays[name], **CLOSE)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention", "gsa"])
@settings(max_examples=11)
@given(cut=st.integers(1, 11))
def test_prompts_can_be_cut(operator, cut):
    law_prompts_can_be_cut(model(operator), cut)


def test_a_prompt_whose_state_is_dropped_breaks_the_law(monkeypatch):
    monkeypatch.setattr(decoding, "continued", forgotten)
    with pytest.raises(AssertionError):
        law_prompts_can_be_cut(model(), 5)


def law_each_prompt_is_alone(lib, operator):
    made = model(operator, lib)
    lengths, steps = (3, 1, 4), 2
    prompts = [TOKENS[n, :length] for n, length in enumerate(lengths)]
    logits, state = transformer.prefill(made, [lib.array(p) for p in prompts])
    assert lib.numpy(state.position).tolist() == list(lengths)
    wholes = [
        lib.numpy(transformer.language_model(made, lib.array(row[None])))[0]
        for row in TOKENS[:, : max(lengths) + steps]
    ]
    for step in range(steps):
        due = [wholes[n][length - 1 + step] for n, length in enumerate(lengths)]
        np.testing.assert_allclose(lib.numpy(logits), np.stack(due), **CLOSE)
        following = [TOKENS[n, length + step] for n, length in enumerate(lengths)]
        logits, state = transformer.decode(
            made, state, lib.array(np.asarray(following))
        )


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_prompt_is_alone(eager_lib, operator):
    law_each_prompt_is_alone(eager_lib, operator)


def unmasked(caches):
    joined = true_stacked(caches)
    return Cache.of(joined.key, joined.value)


def at_one_position(states):
    joined = true_side_by_side(states)
    if isinstance(joined, decoding.DecodingState):
        last = joined.position.max() + 0 * joined.position
        return decoding.DecodingState(joined.layers, last, joined.model)
    return joined


true_stacked, true_side_by_side = states.stacked, decoding.side_by_side


@pytest.mark.parametrize(
    ("operator", "room", "name", "mutant"),
    [
        ("softmax_attention", states, "stacked", unmasked),
        ("linear_attention", decoding, "side_by_side", at_one_position),
        ("log_linear_attention", decoding, "side_by_side", at_one_position),
    ],
)
def test_padding_that_matters_breaks_the_law(monkeypatch, operator, room, name, mutant):
    monkeypatch.setattr(room, name, mutant)
    with pytest.raises(AssertionError):
        law_each_prompt_is_alone(Numpy(), operator)


def law_the_state_does_not_grow(operator):
    made = model(operator)
    _, state = transformer.prefill(made, TOKENS[:, :2])

    def size(state):
        return sum(x.size for x in transformer.named_arrays(state).values())

    before = size(state)
    for i in range(2, 8):
        state = transformer.decode(made, state, TOKENS[:, i]).state
    assert size(state) == before


@pytest.mark.parametrize(
    "operator", [name for name in OPERATORS if name != "softmax_attention"]
)
def test_the_state_does_not_grow(operator):
    law_the_state_does_not_grow(operator)


def test_that_of_softmax_attention_does():
    with pytest.raises(AssertionError):
        law_the_state_does_not_grow("softmax_attention")


@pytest.mark.parametrize("operator", OPERATORS)
def test_states_can_be_kept_and_forked(operator):
    made = model(operator)
    _, state = transformer.prefill(made, TOKENS[:, :4])
    kept = {n: x.copy() for n, x in transformer.named_arrays(state).items()}
    first = transformer.decode(made, state, TOKENS[:, 4])
    other = transformer.decode(made, state, TOKENS[:, 5])
    for name, x in transformer.named_arrays(state).items():
        np.testing.assert_array_equal(x, kept[name])
    # The fork has not written into what the first one grew from.
    again = transformer.decode(made, first.state, TOKENS[:, 6])
    straight = transformer.prefill(made, TOKENS[:, [0, 1, 2, 3, 4, 6]])
    np.testing.assert_allclose(again.logits, straight.logits, **CLOSE)
    straight = transformer.prefill(made, TOKENS[:, [0, 1, 2, 3, 5]])
    np.testing.assert_allclose(other.logits, straight.logits, **CLOSE)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention"])
def test_an_encoder_is_read_once(eager_lib, operator, monkeypatch):
    made = transformer.EncoderDecoder.create(
        9,
        9,
        8,
        2,
        2,
        operator=operator,
        cross_operator=operator,
        rng=0,
        like=eager_lib.array(np.zeros(1)),
    )
    source, target = eager_lib.array(TOKENS[:, :7]), eager_lib.array(TOKENS[:, 7:])
    visible = eager_lib.array(np.arange(7)[None] < np.asarray([[7], [3], [5]]))
    whole = transformer.encoder_decoder(made, source, target, visible=visible)
    whole = eager_lib.numpy(whole)
    logits, state = transformer.prefill(
        made, target[:, :1], source=source, visible=visible
    )
    monkeypatch.setattr(prompts, "encode", None)
    for i in range(5):
        np.testing.assert_allclose(eager_lib.numpy(logits), whole[:, i], **CLOSE)
        logits, state = (
            transformer.decode(made, state, target[:, i + 1])
            if i < 4
            else (
                logits,
                state,
            )
        )
    ragged = [eager_lib.array(TOKENS[n, 7 : 8 + n]) for n in range(3)]
    monkeypatch.undo()
    logits, _ = transformer.prefill(made, ragged, source=source, visible=visible)
    due = np.stack([whole[n, n] for n in range(3)])
    np.testing.assert_allclose(eager_lib.numpy(logits), due, **CLOSE)


def law_greedy_is_the_most_likely(operator, generate):
    made = model(operator, max_length=24)
    got = generate(made, TOKENS[:, :3], 4, temperature=0).tokens
    tokens = TOKENS[:, :3]
    for _ in range(4):
        logits = transformer.language_model(made, tokens)[:, -1]
        tokens = np.concatenate([tokens, logits.argmax(-1)[:, None]], axis=1)
    np.testing.assert_array_equal(got, tokens[:, 3:])


@pytest.mark.parametrize("operator", OPERATORS)
def test_greedy_is_the_most_likely(operator):
    law_greedy_is_the_most_likely(operator, transformer.generate)


def test_a_generator_that_reads_a_token_twice_breaks_the_law(monkeypatch):
    true = decoding.decode

    def twice(made, state, tokens):
        return true(made, true(made, state, tokens).state, tokens)

    monkeypatch.setattr(decoding, "decode", twice)
    with pytest.raises(AssertionError):
        law_greedy_is_the_most_likely("linear_attention", transformer.generate)


def test_generation_is_the_same_in_every_library(eager_lib):
    made = model(lib=eager_lib)
    got = transformer.generate(made, [[1, 2], [3]], 6, rng=4, top_k=5).tokens
    due = transformer.generate(model(), [[1, 2], [3]], 6, rng=4, top_k=5).tokens
    assert due.shape == (2, 6)
    np.testing.assert_array_equal(eager_lib.numpy(got), due)


def test_generation_goes_on_from_its_state():
    made = model()
    whole = transformer.generate(made, [[1, 2]], 8, temperature=0)
    first = transformer.generate(made, [[1, 2]], 3, temperature=0)
    last = first.tokens[:, -1:]
    second = transformer.generate(made, last, 5, state=first.state, temperature=0)
    np.testing.assert_array_equal(
        np.concatenate([first.tokens, second.tokens], axis=1), whole.tokens
    )


def test_generation_stops():
    made = model()
    free = transformer.generate(made, [[1], [2]], 8, rng=0).tokens
    stop = int(free[0, 2])
    got = transformer.generate(made, [[1], [2]], 8, rng=0, stop=stop).tokens
    for row, before in zip(got, free, strict=True):
        places = np.flatnonzero(before[: len(row)] == stop)
        end = places[0] if len(places) else len(row)
        np.testing.assert_array_equal(row[:end], before[:end])
        assert (row[end:] == stop).all()
    alone = transformer.generate(made, [[1]], 8, temperature=0).tokens
    first = int(alone[0, 0])
    assert transformer.generate(
        made, [[1]], 8, temperature=0, stop=first
    ).tokens.tolist() == [[first]]
    assert transformer.generate(made, [[1]], 0).tokens.shape == (1, 0)


def test_a_long_run_shows_its_progress(capsys):
    transformer.generate(model(), [[1]], 3, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "decoding" in captured.err


def law_draws_follow_the_softmax(draw):
    logits = np.log(np.asarray([0.5, 0.3, 0.15, 0.05]))
    count = 20_000
    for temperature, top_k in ((1.0, None), (2.0, None), (1.0, 2)):
        weights = np.exp(logits / temperature)
        if top_k is not None:
            weights[top_k:] = 0
        due = weights / weights.sum()
        drawn = draw(
            np.tile(logits, (count, 1)), temperature=temperature, top_k=top_k, rng=1
        )
        seen = np.bincount(drawn, minlength=4) / count
        # Five standard deviations of a frequency.
        assert (abs(seen - due) <= 5 * np.sqrt(due * (1 - due) / count)).all()


def test_draws_follow_the_softmax():
    law_draws_follow_the_softmax(transformer.sample)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda x, *, temperature, top_k, rng: transformer.sample(
            x * temperature, top_k=top_k, rng=rng
        ),
        lambda x, *, temperature, top_k, rng: transformer.sample(
            x, temperature=temperature, rng=rng
        ),
        lambda x, *, temperature, top_k, rng: transformer.sample(
            x, temperature=0, top_k=top_k, rng=rng
        ),
        lambda x, *, temperature, top_k, rng: transformer.sample(
            x, temperature=temperature, top_k=top_k and top_k + 1, rng=rng
        ),
    ],
)
def test_other_draws_break_the_law(mutant):
    with pytest.raises(AssertionError):
        law_draws_follow_the_softmax(mutant)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda m: transformer.prefill(m, [[]]), ValueError, "at least one token"),
        (lambda m: transformer.prefill(m, [[1], []]), ValueError, r"`prompts\[1\]`"),
        (lambda m: transformer.prefill(m, []), ValueError, "at least one prompt"),
        (lambda m: transformer.prefill(m, "ab"), TypeError, "got str"),
        (lambda m: transformer.prefill(m, [[0.5]]), TypeError, "sequence of integers"),
        (lambda m: transformer.prefill(m, [[9]]), ValueError, r"must be in 0..8"),
        (lambda m: transformer.prefill(m, TOKENS[0]), ValueError, r"shape \(N, T\)"),
        (
            lambda m: transformer.prefill(m, [5, 6]),
            TypeError,
            r"`prompts\[0\]` must be a sequence of integers, got 5; one prompt",
        ),
        (
            lambda m: transformer.prefill(m, [[1], [1, [2]]]),
            TypeError,
            r"`prompts\[1\]` must be a sequence of integers, got \[1, \[2\]\]",
        ),
        (
            lambda m: transformer.prefill(m, [[[1]]]),
            TypeError,
            r"`prompts\[0\]` must be a sequence of integers, got \[\[1\]\]",
        ),
        (
            lambda m: transformer.prefill(m, [TOKENS]),
            ValueError,
            r"`prompts\[0\]` must have shape \(T,\), got \(3, 12\)",
        ),
        (
            lambda m: transformer.prefill(m, np.ma.asarray(TOKENS)),
            TypeError,
            "`prompts` must be an integer array .*, got MaskedArray",
        ),
        (
            lambda m: transformer.prefill(m, [np.ma.asarray([1])]),
            TypeError,
            r"`prompts\[0\]` must be a sequence of integers, got masked_array",
        ),
        (
            lambda m: transformer.prefill(None, [[1]]),
            TypeError,
            "instance of `LanguageModel` or `EncoderDecoder`, got NoneType",
        ),
        (
            lambda m: transformer.generate(m.stack, [[1]], 2, stop=1),
            TypeError,
            "`parameters` must be an instance of .*, got Stack",
        ),
        (
            lambda m: transformer.decode(
                None, transformer.prefill(m, [[1]]).state, np.asarray([1])
            ),
            TypeError,
            "`parameters` must be an instance of .*, got NoneType",
        ),
        (
            lambda m: transformer.language_model(None, TOKENS),
            TypeError,
            "`parameters` must be an instance of `LanguageModel`, got NoneType",
        ),
        (
            lambda m: transformer.encoder_decoder(m, TOKENS, TOKENS),
            TypeError,
            "`parameters` must be an instance of `EncoderDecoder`, got LanguageModel",
        ),
        *(
            (
                lambda m, stop=stop: transformer.generate(m, [[1]], 0, stop=stop),
                error,
                f"`stop` must {rule}, got {stop!r}",
            )
            for stop, error, rule in (
                ("x", TypeError, "be an integer"),
                (1.5, TypeError, "be an integer"),
                (True, TypeError, "be an integer"),
                (-1, ValueError, "not be negative"),
                (9, ValueError, "be in 0..8, the vocabulary"),
                (99, ValueError, "be in 0..8, the vocabulary"),
            )
        ),
        (
            lambda m: transformer.prefill(m, [list(range(9)) + [1] * 4]),
            ValueError,
            "at most 12 tokens, the number of learned positions, got 13",
        ),
        (
            lambda m: transformer.generate(m, [[1] * 10], 5),
            ValueError,
            "at most 12 tokens, the number of learned positions, got 13",
        ),
        (
            lambda m: transformer.generate(m, [[1]], 2, temperature=-1),
            ValueError,
            "`temperature` must be finite and not negative, got -1",
        ),
        (
            lambda m: transformer.generate(m, [[1]], 2, temperature="hot"),
            TypeError,
            "`temperature` must be a real number",
        ),
        (
            lambda m: transformer.generate(m, [[1]], 2, top_k=0),
            ValueError,
            "`top_k` must be a positive integer, got 0",
        ),
        (
            lambda m: transformer.generate(m, [[1]], -1),
            ValueError,
            "`steps` must not be negative",
        ),
        (
            lambda m: transformer.prefill(m, [[1]], source=TOKENS),
            ValueError,
            "`source` must be None for a model without an encoder",
        ),
        (
            lambda m: transformer.decode(m, transformer.prefill(m, [[1]]).state, [1]),
            TypeError,
            r"`tokens` must be an integer array \(1,\), got list",
        ),
        (
            lambda m: transformer.decode(m, None, np.asarray([1])),
            TypeError,
            "`state` must be a DecodingState, as `prefill` returns, got NoneType",
        ),
        (
            lambda m: transformer.decode(
                m,
                transformer.prefill(model("gla"), [[1]]).state,
                np.asarray([1]),
            ),
            ValueError,
            "`state` must be that of this model .*linear_attention.*got one of .*gla",
        ),
    ],
)
def test_bad_input_is_named(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(model())


@pytest.mark.parametrize("operator", STATELESS)
def test_attention_without_a_state_says_what_to_do(operator):
    options = {"pattern": "local", "window": 3} if "sparse" in operator else {"rng": 0}
    made = model(operator, options=options)
    assert transformer.language_model(made, TOKENS).shape == (3, 12, 9)
    with pytest.raises(ValueError, match="run `language_model` on the whole sequence"):
        transformer.prefill(made, TOKENS)


def test_an_encoder_needs_a_source():
    made = transformer.EncoderDecoder.create(9, 9, 8, 1, 2, rng=0)
    with pytest.raises(ValueError, match=r"`source` must be an integer array \(N, S\)"):
        transformer.prefill(made, TOKENS[:, :1])
    with pytest.raises(ValueError, match="a row for each of the 2 prompts, got 3"):
        transformer.prefill(made, TOKENS[:2, :1], source=TOKENS)
    for source, error in (([[1, 2]], TypeError), (TOKENS[0], ValueError)):
        with pytest.raises(error, match="`source` must be an integer array"):
            transformer.prefill(made, TOKENS[:1, :1], source=source)


@pytest.mark.parametrize("stop", [0, 8, np.int64(8)])
def test_each_token_of_the_vocabulary_may_stop(stop):
    made = transformer.generate(model(), [[1]], 3, stop=stop, rng=0)
    assert made.tokens.shape[0] == 1


def test_a_family_operator_sees_its_positions():
    assert operator_adapter._places(np.asarray([3, 1])) == [3, 1]
    assert operator_adapter._places(None) == []
