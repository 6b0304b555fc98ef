"""Trees of parameters: flattened, put back, written to files and read again."""

import numpy as np
import pytest

from linkern import transformer
from linkern.transformer.cache import Cache, Rows, stacked

TOKENS = np.asarray([[1, 2, 3]])


def model(**options):
    return transformer.LanguageModel.create(5, 8, 2, 2, **{"rng": 0, **options})


def same(a, b):
    first, second = transformer.named_arrays(a), transformer.named_arrays(b)
    assert list(first) == list(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
        assert first[name].dtype == second[name].dtype


def test_flattened_and_put_back_is_the_same_model():
    made = model(positions="learned", max_length=4)
    arrays = transformer.named_arrays(made)
    assert "stack.layers.1.attention.inputs.query.weight" in arrays
    assert "embedding.positions" in arrays
    again = transformer.with_arrays(made, arrays)
    same(made, again)
    np.testing.assert_array_equal(
        transformer.language_model(made, TOKENS),
        transformer.language_model(again, TOKENS),
    )


def test_every_array_of_a_model_matters():
    """A name that `language_model` did not use would be a weight that never learns."""
    made = model(norm_first=False, positions="learned", max_length=4, operator="kda")
    before = transformer.language_model(made, TOKENS)
    arrays = transformer.named_arrays(made)
    for name in arrays:
        noise = np.random.default_rng(0).normal(size=arrays[name].shape)
        other = {**arrays, name: arrays[name] + noise.astype(np.float32)}
        after = transformer.language_model(transformer.with_arrays(made, other), TOKENS)
        assert abs(after - before).max() > 1e-4, name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a.pop("readout.bias"), r"got no 'readout.bias' \(1 missing, 0 unk"),
        (lambda a: a.update(x=a["readout.bias"]), "got an unknown 'x'"),
        (
            lambda a: a.update({"readout.bias": np.zeros(6)}),
            r"must have shape \(5,\) for 'readout.bias', got \(6,\)",
        ),
    ],
)
def test_arrays_that_do_not_fit(change, sentence):
    made = model()
    arrays = transformer.named_arrays(made)
    change(arrays)
    with pytest.raises(ValueError, match=sentence):
        transformer.with_arrays(made, arrays)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention", "mesa"])
def test_files_bring_back_models_and_states(tmp_path, eager_lib, operator):
    made = model(operator=operator, like=eager_lib.array(np.zeros(1)))
    state = transformer.prefill(made, [[1, 2], [3]]).state
    for name, tree in (("model", made), ("state", state)):
        path = tmp_path / f"{name}.safetensors"
        transformer.save(path, tree)
        read = transformer.load(path)
        assert type(read) is type(tree)
        for key, x in transformer.named_arrays(tree).items():
            got = transformer.named_arrays(read)[key]
            np.testing.assert_array_equal(got, eager_lib.numpy(x))
        again = transformer.load(path, tree)
        for key, x in transformer.named_arrays(again).items():
            assert type(x) is type(transformer.named_arrays(tree)[key])
    tokens = eager_lib.array(np.asarray([4, 4]))
    restored = transformer.load(tmp_path / "state.safetensors", state)
    np.testing.assert_allclose(
        eager_lib.numpy(transformer.decode(made, restored, tokens).logits),
        eager_lib.numpy(transformer.decode(made, state, tokens).logits),
        rtol=1e-13,
        atol=1e-13,  # memory lies differently, so sums are taken in another order
    )


def test_a_view_is_saved_as_what_it_shows(tmp_path):
    x = np.arange(6.0).reshape(2, 3)
    norm = transformer.LayerNorm(x.T[0], x[:, ::2][1])
    transformer.save(tmp_path / "x", norm)
    same(norm, transformer.load(tmp_path / "x"))


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "model.safetensors"
    transformer.save(path, model())
    deeper = transformer.LanguageModel.create(5, 8, 3, 2)
    with pytest.raises(ValueError, match=r"`path` must hold .*37 of 53 arrays would"):
        transformer.load(path, deeper)
    shallower = transformer.LanguageModel.create(5, 8, 1, 2)
    with pytest.raises(ValueError, match=r"must hold the .* arrays of `template`"):
        transformer.load(path, shallower)
    wider = transformer.LanguageModel.create(5, 10, 2, 2)
    with pytest.raises(ValueError, match=r"of shape \(5, 10\), got shape \(5, 8\)"):
        transformer.load(path, wider)
    (tmp_path / "text").write_text("not at all")
    with pytest.raises(ValueError, match="`path` must be a safetensors file"):
        transformer.load(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        transformer.load(tmp_path / "nothing")


def test_a_file_from_elsewhere_needs_a_template(tmp_path):
    from safetensors.numpy import save_file

    made = model()
    path = tmp_path / "elsewhere.safetensors"
    save_file(transformer.named_arrays(made), path)
    with pytest.raises(ValueError, match="says nothing of a structure"):
        transformer.load(path)
    same(made, transformer.load(path, model(rng=1)))


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "norm.safetensors"
    transformer.save(path, transformer.LayerNorm.create(2))
    before = path.read_bytes()

    def full(*_):
        msg = "no space left on device"
        raise OSError(msg)

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        transformer.save(path, transformer.LayerNorm.create(3))
    assert path.read_bytes() == before


def grown(lib, pieces):
    rows = Rows.of(lib.array(pieces[0]))
    for piece in pieces[1:]:
        rows = rows.appended(lib.array(piece))
    return rows


def test_rows_appended_are_rows_joined(lib):
    rng = np.random.default_rng(0)
    pieces = [rng.normal(size=(2, n, 3)) for n in (2, 1, 0, 40, 1, 1)]
    got = lib.numpy(grown(lib, pieces).array)
    np.testing.assert_array_equal(got, np.concatenate(pieces, axis=1))


def law_forks_do_not_meet(lib, append):
    one, two = np.ones((1, 1, 1)), 2 * np.ones((1, 1, 1))
    common = append(Rows.of(lib.array(one)), lib.array(one))
    first = append(common, lib.array(one))
    second = append(common, lib.array(two))
    third = append(first, lib.array(one))
    assert lib.numpy(common.array).ravel().tolist() == [1, 1]
    assert lib.numpy(first.array).ravel().tolist() == [1, 1, 1]
    assert lib.numpy(second.array).ravel().tolist() == [1, 1, 2]
    assert lib.numpy(third.array).ravel().tolist() == [1, 1, 1, 1]


def test_states_that_fork_do_not_meet(lib):
    law_forks_do_not_meet(lib, lambda rows, x: rows.appended(x))


def test_rows_that_take_what_is_taken_break_the_law(eager_lib):
    def greedy(rows, x):
        rows.storage.taken = rows.length
        return rows.appended(x)

    with pytest.raises(AssertionError):
        law_forks_do_not_meet(eager_lib, greedy)


def test_appending_copies_rarely():
    rows, copies = Rows.of(np.zeros((1, 1, 4))), 0
    for _ in range(1000):
        longer = rows.appended(np.ones((1, 1, 4)))
        copies += longer.storage is not rows.storage
        rows = longer
    assert copies < 12
    assert rows.array.shape == (1, 1001, 4)


def test_the_array_that_rows_begin_with_is_never_written_to():
    x = np.zeros((1, 2, 1))
    Rows.of(x[:, :1]).appended(np.ones((1, 1, 1)))
    assert not x.any()


def test_torch_keeps_gradients_through_a_cache(torch):
    x = torch.ones((1, 1, 1), requires_grad=True)
    rows = Rows.of(x).appended(2 * x).appended(3 * x)
    rows.array.sum().backward()
    assert x.grad.item() == 6


def test_caches_side_by_side_are_padded_in_front(eager_lib):
    def cache(*numbers):
        x = eager_lib.array(np.reshape(np.asarray(numbers, float), (1, 1, -1, 1)))
        return Cache.of(x, 10 * x)

    joined = stacked([cache(1.0, 2.0, 3.0), cache(4.0)])
    visible = eager_lib.numpy(joined.visible).tolist()
    assert visible == [[True, True, True], [False, False, True]]
    assert eager_lib.numpy(joined.key)[:, 0, :, 0].tolist() == [[1, 2, 3], [0, 0, 4]]
    assert eager_lib.numpy(joined.value)[1, 0, :, 0].tolist() == [0, 0, 40]
    assert stacked([cache(1.0), cache(2.0)]).visible is None


def test_arrays_without_names_are_named():
    norm = transformer.LayerNorm.create(3)
    with pytest.raises(TypeError, match="`arrays` must be of the class Mapping, got l"):
        transformer.with_arrays(norm, [np.ones(3), np.ones(3)])
