"""The examples that train: their arithmetic without PyTorch, their training with it."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import transformer

EXAMPLES = Path(__file__).parents[1] / "examples"
OPERATORS = ("linear_attention", "softmax_attention")
# A handful of float64 operations, each of relative error 2^-53.
ROUNDED = 1e-12


@pytest.fixture(scope="module")
def examples():
    """The examples as they are when they run: beside each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield SimpleNamespace(
            digits=importlib.import_module("digits"),
            copy_task=importlib.import_module("copy_task"),
        )


@pytest.fixture(scope="module")
def digits(examples):
    return examples.digits


@pytest.fixture(scope="module")
def copy_task(examples):
    return examples.copy_task


def images_of(rng, count=20, pixels=64):
    """Images whose neighbouring pixels are alike, so that there is a lot to learn."""
    return np.clip(8 + np.cumsum(rng.integers(-1, 2, (count, pixels)), axis=1), 0, 16)


def tiny(operator="linear_attention", seed=0):
    return transformer.LanguageModel.create(
        18,
        8,
        1,
        2,
        positions="learned",
        max_length=64,
        operator=operator,
        rng=seed,
    )


def fails(law, *given):
    with pytest.raises((AssertionError, ValueError)):
        law(*given)


# Splitting, shifting.


def law_every_image_is_in_one_part(split):
    images = np.arange(600)[:, None] * np.ones(3, int)
    parts = split(images, seed=1)
    assert set(parts) == {"train", "validation", "test"}
    whole = np.concatenate([*parts.values()])
    assert np.array_equal(np.sort(whole[:, 0]), np.arange(600))
    again = split(images, seed=1)
    assert all(np.array_equal(parts[name], again[name]) for name in parts)
    other = split(images, seed=2)
    assert not np.array_equal(parts["test"], other["test"])


def test_the_split(digits):
    def overlapping(images, seed):
        parts = digits.split(images, seed)
        return {**parts, "train": np.roll(images, seed, axis=0)[: len(parts["train"])]}

    def fresh(images, seed):
        return digits.split(images, None)

    law_every_image_is_in_one_part(digits.split)
    fails(law_every_image_is_in_one_part, overlapping)
    fails(law_every_image_is_in_one_part, fresh)
    fails(law_every_image_is_in_one_part, lambda x, seed: digits.split(x, 0))


def law_only_pixels_before_are_read(shifted):
    images = images_of(np.random.default_rng(0), 3)
    read = shifted(images)
    assert read.shape == images.shape
    assert np.all(read[:, 0] == 17)
    for place in range(64):
        changed = images.copy()
        changed[:, place] = (changed[:, place] + 1) % 17
        seen = np.any(shifted(changed) != read, axis=0)
        # It is read by the next prediction, and by no other.
        assert np.array_equal(np.flatnonzero(seen), [place + 1][: 63 - place])


def test_what_is_read(digits):
    law_only_pixels_before_are_read(digits.shifted)
    fails(law_only_pixels_before_are_read, lambda images: images)
    fails(law_only_pixels_before_are_read, lambda images: np.roll(images, 1, axis=1))
    two_behind = digits.shifted
    fails(law_only_pixels_before_are_read, lambda x: two_behind(two_behind(x)))


# Bits.


def law_probabilities_sum_to_one(bits, logits):
    levels = range(logits.shape[-1])
    shape = logits.shape[:-1]
    total = sum(2 ** -bits(logits, np.full(shape, level)) for level in levels)
    assert np.all(abs(total - 1) <= ROUNDED * logits.shape[-1])


def law_one_more_in_logits_is_e_times_as_likely(bits, logits):
    pixels = np.zeros(logits.shape[:-1], int)
    odds = bits(logits, pixels + 1) - bits(logits, pixels)
    due = (logits[..., 0] - logits[..., 1]) * np.log2(np.e)
    assert np.all(abs(odds - due) <= ROUNDED * (1 + abs(logits).max()))


@given(seed=st.integers(0, 2**16), spread=st.sampled_from([0.0, 1.0, 30.0]))
def test_bits(digits, seed, spread):
    logits = spread * np.random.default_rng(seed).normal(size=(3, 4, 18))
    law_probabilities_sum_to_one(digits.bits_of, logits)
    law_one_more_in_logits_is_e_times_as_likely(digits.bits_of, logits)


def test_faulty_bits(digits):
    logits = np.random.default_rng(0).normal(size=(3, 4, 18))

    def nats(logits, pixels):
        return digits.bits_of(logits, pixels) * np.log(2)

    def without_the_start_token(logits, pixels):
        return digits.bits_of(logits[..., :17], np.minimum(pixels, 16))

    def unlikely(logits, pixels):
        return digits.bits_of(-logits, pixels)

    fails(law_probabilities_sum_to_one, nats, logits)
    fails(law_probabilities_sum_to_one, without_the_start_token, logits)
    fails(law_one_more_in_logits_is_e_times_as_likely, nats, logits)
    fails(law_one_more_in_logits_is_e_times_as_likely, unlikely, logits)


def counted_one_by_one(train, test, *, by_position):
    """Bits of each pixel, from counts made by loops."""
    found = np.zeros(test.shape)
    for n, place in np.ndindex(test.shape):
        pool = [image[place] for image in train] if by_position else list(train.flat)
        times = pool.count(test[n, place])
        found[n, place] = -np.log2((times + 1) / (len(pool) + 17))
    return found


def law_counts_of_levels(frequency_bits, train, test):
    for by_position in (False, True):
        got = frequency_bits(train, test, by_position=by_position)
        due = counted_one_by_one(train, test, by_position=by_position)
        assert np.all(abs(got - due) <= ROUNDED * (1 + due))


@given(seed=st.integers(0, 2**16), count=st.integers(1, 5), pixels=st.integers(1, 6))
def test_frequencies(digits, seed, count, pixels):
    rng = np.random.default_rng(seed)
    train, test = images_of(rng, count, pixels), images_of(rng, 2, pixels)
    law_counts_of_levels(digits.frequency_bits, train, test)


def test_faulty_frequencies(digits):
    rng = np.random.default_rng(0)
    train, test = images_of(rng, 5, 6), images_of(rng, 5, 6)
    ours = digits.frequency_bits

    def counting_the_test(train, test, *, by_position):
        return ours(np.concatenate([train, test]), test, by_position=by_position)

    def always_by_position(train, test, *, by_position):
        return ours(train, test, by_position=True)

    def without_the_one(train, test, *, by_position):
        bits = ours(train, test, by_position=by_position)
        cells = len(train) * (1 if by_position else train.shape[1])
        return -np.log2(np.maximum(2**-bits * (cells + 17) - 1, 0) / cells)

    fails(law_counts_of_levels, counting_the_test, train, test)
    fails(law_counts_of_levels, always_by_position, train, test)
    with np.errstate(divide="ignore"):  # a level never seen costs infinitely many bits
        fails(law_counts_of_levels, without_the_one, train, test)


def law_error_shrinks_with_images_not_with_pixels(mean_and_error):
    rng = np.random.default_rng(0)
    # All pixels of an image are alike: 64 of them say no more than one does.
    bits = rng.normal(size=(400, 1)) * np.ones(64)
    mean, error = mean_and_error(bits)
    assert abs(mean - bits[:, 0].mean()) <= ROUNDED
    assert abs(error / (bits[:, 0].std(ddof=1) / 20) - 1) <= ROUNDED


def test_mean_and_error(digits):
    def over_pixels(bits):
        return np.mean(bits), np.std(bits, ddof=1) / bits.size**0.5

    def deviation(bits):
        return np.mean(bits), np.std(np.mean(bits, axis=1), ddof=1)

    law_error_shrinks_with_images_not_with_pixels(digits.mean_and_error)
    fails(law_error_shrinks_with_images_not_with_pixels, over_pixels)
    fails(law_error_shrinks_with_images_not_with_pixels, deviation)


# Decoding.


def law_decoding_gives_the_bits_of_the_forward_pass(digits, model):
    images = images_of(np.random.default_rng(0), 4)
    forward = digits.forward_bits(model, images)
    return digits.must_agree(forward, digits.decoded_bits(model, images))


@pytest.mark.parametrize("operator", OPERATORS)
def test_forward_and_decoded_bits_agree(digits, operator):
    law_decoding_gives_the_bits_of_the_forward_pass(digits, tiny(operator))


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_model_that_sees_what_it_predicts_is_caught(digits, operator, monkeypatch):
    monkeypatch.setattr(digits, "shifted", lambda images: images)
    with pytest.raises(ValueError, match="see the pixel that it predicts"):
        law_decoding_gives_the_bits_of_the_forward_pass(digits, tiny(operator))


def test_a_forgetful_decoder_is_caught(digits, monkeypatch):
    decode = transformer.decode

    def forgetful(model, state, tokens):
        logits, _ = decode(model, state, tokens)
        return logits, state

    monkeypatch.setattr(digits.transformer, "decode", forgetful)
    fails(law_decoding_gives_the_bits_of_the_forward_pass, digits, tiny())


def test_bits_that_are_not_numbers_do_not_agree(digits):
    bits = np.zeros((2, 64))
    with pytest.raises(ValueError, match="decoding must give"):
        digits.must_agree(bits, bits + np.nan)


def law_completions_know_the_given_pixels_only(completed, given):
    model = tiny()
    images = images_of(np.random.default_rng(0), 3)
    whole = completed(model, images, given)
    assert whole.shape == images.shape
    assert np.array_equal(whole[:, :given], images[:, :given])
    assert whole.min() >= 0
    assert whole.max() <= 16
    other = images.copy()
    other[:, given:] = 16 - other[:, given:]
    assert np.array_equal(completed(model, other, given), whole)
    if given:  # and they do know those
        other = images.copy()
        other[:, 0] = 16 - other[:, 0]
        assert not np.array_equal(completed(model, other, given)[:, given:], whole)


@pytest.mark.parametrize("given", [0, 32])
def test_completions(digits, given):
    def peeking(model, images, given, seed=0):
        drawn, _ = transformer.generate(
            model, digits.shifted(images)[:, : given + 2], 64 - given, rng=seed
        )
        kept = images[:, :given]
        return np.concatenate([kept, np.minimum(drawn, 16)], axis=1)

    def with_a_start_token(model, images, given):
        whole = digits.completed(model, images, given)
        whole[:, -1] = 17
        return whole

    law_completions_know_the_given_pixels_only(digits.completed, given)
    fails(law_completions_know_the_given_pixels_only, peeking, given)
    fails(law_completions_know_the_given_pixels_only, with_a_start_token, given)


# Pictures.


def law_each_image_is_at_its_place(mosaic):
    rows = [images_of(np.random.default_rng(i), 3) for i in range(2)]
    picture = mosaic(rows)
    assert picture.shape == (20, 30)
    for i, j in np.ndindex(2, 3):
        tile = picture[10 * i + 1 : 10 * i + 9, 10 * j + 1 : 10 * j + 9]
        assert np.array_equal(tile, rows[i][j].reshape(8, 8))
    assert np.isnan(picture).sum() == 20 * 30 - 6 * 64


def test_mosaic(digits):
    law_each_image_is_at_its_place(digits.mosaic)
    fails(law_each_image_is_at_its_place, lambda rows: digits.mosaic(rows[::-1]))
    fails(law_each_image_is_at_its_place, lambda rows: digits.mosaic(rows).T)


# The copy task.


def law_the_second_word_is_the_first(draw, count, length):
    sequences = draw(np.random.default_rng(0), count, length)
    assert sequences.shape == (count, 2 * length + 2)
    first, second = sequences[:, : length + 1], sequences[:, length + 1 :]
    assert np.array_equal(first, second)
    assert np.all(first[:, 0] == 0)
    symbols = np.unique(first[:, 1:])
    assert symbols.min() >= 1
    assert symbols.max() <= 10
    if count * length > 1000:
        assert len(symbols) == 10


def law_targets_follow_what_is_read(task, length):
    sequences = np.arange(2 * length + 2)[None, :]
    read, due = task(sequences)
    assert due.shape == (1, length)
    # What is predicted at a token is the token after it.
    assert np.array_equal(read[:, -length:] + 1, due)
    assert due[0, -1] == 2 * length + 1


@given(count=st.integers(1, 4), length=st.integers(1, 8))
def test_copy_sequences(copy_task, count, length):
    law_the_second_word_is_the_first(copy_task.draw_sequences, count, length)
    law_targets_follow_what_is_read(copy_task.task, length)


def test_faulty_copy_sequences(copy_task):
    draw = copy_task.draw_sequences
    law_the_second_word_is_the_first(draw, 200, 6)

    def another_word(rng, count, length):
        return np.where(np.arange(2 * length + 2) > length + 1, 1, 0) + 0 * draw(
            rng, count, length
        )

    def nine_symbols(rng, count, length):
        return np.minimum(draw(rng, count, length), 9)

    def in_place(sequences):
        _, due = copy_task.task(sequences)
        return sequences, due

    def late(sequences):
        read, due = copy_task.task(sequences)
        return read, due - 1

    fails(law_the_second_word_is_the_first, another_word, 200, 6)
    fails(law_the_second_word_is_the_first, nine_symbols, 200, 6)
    fails(law_targets_follow_what_is_read, in_place, 4)
    fails(law_targets_follow_what_is_read, late, 4)


def test_what_counts_as_copied(copy_task, monkeypatch):
    sequences = copy_task.draw_sequences(np.random.default_rng(0), 50, 6)

    def writing(write):
        def generate(model, prompts, steps, temperature):
            assert prompts.shape == (50, 8)  # 0 w 0: the second w is not shown
            return write(prompts[:, 1 : 1 + steps]), None

        monkeypatch.setattr(copy_task.transformer, "generate", generate)
        return copy_task.copied(None, sequences)

    assert writing(lambda word: word) == 1
    assert writing(lambda word: word * (np.arange(6) < 3)) == 0.5
    assert writing(lambda word: np.roll(word, 1, axis=1)) < 0.3
    assert writing(np.zeros_like) == 0


def test_the_table_of_the_copy_task(copy_task):
    def point(step, copied):
        return {"step": step, "loss": 1 / step, "copied": copied, "seconds": 0.0}

    curves = {
        "linear": [point(step, step / 500) for step in range(25, 501, 25)],
        "softmax": [point(25, 0.5), point(50, 0.992)],
    }
    assert copy_task.converged(curves["linear"]) == 500
    assert copy_task.converged(curves["softmax"]) == 50
    assert copy_task.converged(curves["softmax"][:1]) is None
    head, *rows = copy_task.table(curves).splitlines()
    assert head.split() == ["step", "linear", "softmax"]
    assert {"25", "50", "500"} <= {row.split()[0] for row in rows}
    assert "99.2%" in rows[1]


# With PyTorch.


def law_training_lowers_the_loss(fit):
    images = images_of(np.random.default_rng(0), 16)
    before = np.full((16, 1), 17)
    read = np.concatenate([before, images[:, :-1]], axis=1)
    model, losses = tiny(), []
    kept = {n: x.copy() for n, x in transformer.named_arrays(model).items()}

    def note(step, loss, _):
        losses.append(loss)

    trained = fit(model, lambda: (read, images), 30, 1e-2, note, 5)
    assert len(losses) == 6
    assert losses[-1] < 0.8 * losses[0]
    arrays = transformer.named_arrays(model)
    assert all(np.array_equal(kept[name], arrays[name]) for name in kept)
    found = transformer.language_model(trained, read)
    assert isinstance(found, np.ndarray)


def test_torch_training_lowers_the_loss(examples, torch):
    fit = importlib.import_module("training").fit

    def standing_still(model, draw, steps, rate, *rest):
        return fit(model, draw, steps, 1e-9, *rest)

    def in_place(model, draw, *rest):
        trained = fit(model, draw, *rest)
        for name, x in transformer.named_arrays(model).items():
            x[...] = transformer.named_arrays(trained)[name]
        return trained

    law_training_lowers_the_loss(fit)
    fails(law_training_lowers_the_loss, standing_still)
    fails(law_training_lowers_the_loss, in_place)


def test_torch_training_ends_when_told(examples, torch):
    fit = importlib.import_module("training").fit
    word = np.ones((2, 3), int)
    steps = []

    def note(step, loss, model):
        steps.append(step)
        return step == 4

    fit(tiny(), lambda: (word, word[:, -1:]), 100, 1e-3, note, 2)
    assert steps == [2, 4]


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_gradients_reach_every_parameter(digits, torch, operator):
    images = images_of(np.random.default_rng(0), 8)
    model = tiny(operator)
    weights = {
        name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for name, x in transformer.named_arrays(model).items()
    }
    read, due = torch.asarray(digits.shifted(images)), torch.asarray(images)
    logits = transformer.language_model(transformer.with_arrays(model, weights), read)
    torch.nn.functional.cross_entropy(logits.mT, due).backward()
    largest = {name: float(x.grad.abs().max()) for name, x in weights.items()}
    unreached = {name for name, gradient in largest.items() if gradient <= ROUNDED}
    # The same for all keys of a row of scores: a softmax does not see it.
    invisible = {"stack.layers.0.attention.inputs.key.bias"}
    assert unreached == (invisible if operator == "softmax_attention" else set())


def test_torch_a_model_trained_to_see_what_it_predicts_is_caught(
    digits, torch, monkeypatch
):
    images = {name: images_of(np.random.default_rng(0)) for name in ("train", "test")}
    images["validation"] = images["test"]
    size = {**digits.QUICK, "steps": 40}
    honest, _ = digits.train("linear_attention", size, images)
    law_decoding_gives_the_bits_of_the_forward_pass(digits, honest)
    fair = digits.forward_bits(honest, images["test"]).mean()

    monkeypatch.setattr(digits, "shifted", lambda images: images)
    cheat, _ = digits.train("linear_attention", size, images)
    assert digits.forward_bits(cheat, images["test"]).mean() < fair
    fails(law_decoding_gives_the_bits_of_the_forward_pass, digits, cheat)


def test_torch_the_whole_example_of_digits(
    digits, torch, sklearn, matplotlib, tmp_path, capsys
):
    digits.main(["--quick", "--out", str(tmp_path / "first")])
    told = capsys.readouterr()
    assert "bits per pixel" in told.out
    assert "softmax_attention  step" in told.err
    files = {path.name for path in (tmp_path / "first").iterdir()}
    parameters = {f"{operator}.safetensors" for operator in OPERATORS}
    assert files == {"digits.png", "results.json"} | parameters
    results = json.loads((tmp_path / "first" / "results.json").read_text())
    assert set(results["curves"]) == set(OPERATORS)
    bits = {name: found["mean"] for name, found in results["bits"].items()}
    assert bits["uniform"] == pytest.approx(np.log2(17), abs=ROUNDED)
    assert max(bits[name] for name in OPERATORS) < bits["uniform"]

    digits.main(
        ["--quick", "--load", str(tmp_path / "first"), "--out", str(tmp_path / "again")]
    )
    again = json.loads((tmp_path / "again" / "results.json").read_text())
    assert again["bits"] == results["bits"]


def law_words_are_learned(copy_task, folder):
    copy_task.main(["--length", "4", "--steps", "100", "--out", str(folder)])
    written = json.loads((folder / "copy-task.json").read_text())
    for operator in OPERATORS:
        curve = written["curves"][operator]
        assert curve[-1]["copied"] >= 0.99
        assert curve[-1]["step"] == copy_task.converged(curve)


def test_torch_the_whole_example_of_copying(
    copy_task, torch, tmp_path, capsys, monkeypatch
):
    law_words_are_learned(copy_task, tmp_path)
    assert "99% copied after" in capsys.readouterr().out

    def task(sequences):  # the token that is read, not the one after it
        return sequences[:, :-1], sequences[:, -5:-1]

    monkeypatch.setattr(copy_task, "task", task)
    fails(law_words_are_learned, copy_task, tmp_path)
    assert "not in 100 steps" in capsys.readouterr().out
