"""Multi-head attention around every operator: plain loops, causality, cuts, masks."""

import numpy as np
import pytest

import linkern
import linkern.attention
from linkern import transformer
from linkern.transformer import attention, inputs
from linkern.transformer import operator_adapter as adapter
from linkern.transformer.layers import apart
from linkern.transformer.parameters import children

OPERATORS = inputs.known_operators()
QUADRATIC = {
    "lsh_attention": {"rounds": 2, "chunk_size": 4, "rng": 0},
    "sparse_attention": {"pattern": "local", "window": 3},
}
RECURRENT = [name for name in OPERATORS if name not in QUADRATIC]
BOTH_WAYS = ["linear_attention", "softmax_attention"]
# Outputs are of size 1 and a few hundred roundings of float64 lie behind them.
CLOSE = {"rtol": 0, "atol": 1e-11}


def layer_of(operator, lib=None, **options):
    return transformer.MultiHeadAttention.create(
        8,
        2,
        operator=operator,
        options=QUADRATIC.get(operator),
        rng=0,
        like=np.zeros(1) if lib is None else lib.array(np.zeros(1)),
        **options,
    )


def tokens(length, seed=0, sequences=2):
    return np.random.default_rng(seed).normal(size=(sequences, length, 8))


def run(layer, x, lib, **how):
    how = {k: lib.array(v) if isinstance(v, np.ndarray) else v for k, v in how.items()}
    return transformer.multi_head_attention(layer, lib.array(x), **how)


def plain(layer, x, attend):
    """Return the paper's sentence: heads on slices of the features, then joined."""
    projected = [x @ map_.weight + map_.bias for map_ in layer.inputs.values()]
    dim = 8 // layer.heads
    outputs = [
        attend(*(part[..., h * dim : (h + 1) * dim] for part in projected))
        for h in range(layer.heads)
    ]
    return np.concatenate(outputs, axis=-1) @ layer.output.weight + layer.output.bias


def softmax_of_one_head(query, key, value):
    scores = np.einsum("nik,njk->nij", query, key) / np.sqrt(query.shape[-1])
    weights = np.exp(scores) * np.tri(scores.shape[-1])
    return weights / weights.sum(-1, keepdims=True) @ value


def linear_of_one_head(query, key, value):
    query, key = linkern.elu_plus_one(query), linkern.elu_plus_one(key)
    weights = np.einsum("nik,njk->nij", query, key) * np.tri(query.shape[-2])
    return weights / weights.sum(-1, keepdims=True) @ value


def law_each_head_has_its_slice(lib, operator, one_head):
    layer, x = layer_of(operator), tokens(6)
    got = lib.numpy(run(layer_of(operator, lib), x, lib).output)
    np.testing.assert_allclose(got, plain(layer, x, one_head), **CLOSE)


@pytest.mark.parametrize(
    ("operator", "one_head"),
    [
        ("softmax_attention", softmax_of_one_head),
        ("linear_attention", linear_of_one_head),
    ],
)
def test_each_head_has_its_slice(eager_lib, operator, one_head):
    law_each_head_has_its_slice(eager_lib, operator, one_head)


def mixed_up(x, count):
    """Take every second feature for a head, not half of them side by side."""
    return apart(np.concatenate([x[..., h::count] for h in range(count)], -1), count)


@pytest.mark.parametrize(
    ("room", "name", "mutant"),
    [
        (inputs, "apart", mixed_up),
        (
            attention,
            "together",
            lambda x: np.concatenate(np.unstack(x[:, ::-1], axis=1), -1),
        ),
    ],
)
def test_heads_in_another_order_break_the_law(monkeypatch, room, name, mutant):
    monkeypatch.setattr(room, name, mutant)
    numpy = Numpy()
    with pytest.raises(AssertionError):
        law_each_head_has_its_slice(numpy, "linear_attention", linear_of_one_head)


# A softmax does not change when all scores of a row change by the same number.
INVARIANT = {
    ("abc", "inputs.key.bias"),
    ("abc", "inputs.slots.bias"),
    ("rwkv4", "inputs.key.bias"),
    ("softmax_attention", "inputs.key.bias"),
    ("sparse_attention", "inputs.key.bias"),
}


class Numpy:
    """NumPy, where a law is only to be seen to fail."""

    array = staticmethod(np.asarray)
    numpy = staticmethod(np.asarray)


def law_the_future_does_not_matter(lib, operator, length=9, cut=4):
    layer, x = layer_of(operator, lib), tokens(length)
    changed = x.copy()
    changed[:, cut:] = tokens(length, seed=1)[:, cut:]
    before = lib.numpy(run(layer, x, lib).output)
    after = lib.numpy(run(layer, changed, lib).output)
    np.testing.assert_allclose(after[:, :cut], before[:, :cut], **CLOSE)
    assert abs(after[:, cut:] - before[:, cut:]).max() > 1e-3


# The order in which LSH sorts depends on all tokens, so its past does.
@pytest.mark.parametrize("operator", [n for n in OPERATORS if n != "lsh_attention"])
def test_the_future_does_not_matter(eager_lib, operator):
    law_the_future_does_not_matter(eager_lib, operator)


@pytest.mark.parametrize("operator", BOTH_WAYS)
def test_attention_that_looks_ahead_breaks_the_law(monkeypatch, operator):
    true = adapter.mix
    blind = adapter.Call(causal=False)
    monkeypatch.setattr(
        attention, "mix", lambda mixer, given, _: true(mixer, given, blind)
    )
    with pytest.raises(AssertionError):
        law_the_future_does_not_matter(Numpy(), operator)


def law_cuts_do_not_matter(lib, operator, form="auto", cuts=(0, 1, 4, 5)):
    layer, x = layer_of(operator, lib), tokens(5)
    whole = run(layer, x, lib, form="parallel")
    state, outputs, first = None, [], 0
    for cut in cuts[1:]:
        position = np.full(2, first)
        result = run(
            layer, x[:, first:cut], lib, state=state, form=form, position=position
        )
        state, first = result.state, cut
        outputs.append(lib.numpy(result.output))
    got = np.concatenate(outputs, axis=1)
    np.testing.assert_allclose(got, lib.numpy(whole.output), **CLOSE)
    for a, b in zip(leaves(state), leaves(whole.state), strict=True):
        np.testing.assert_allclose(lib.numpy(a), lib.numpy(b), **CLOSE)


def leaves(state):
    return [x for x in (children(state) or {}).values() if x is not None]


@pytest.mark.parametrize("operator", RECURRENT)
def test_cuts_do_not_matter(eager_lib, operator):
    law_cuts_do_not_matter(eager_lib, operator)
    law_cuts_do_not_matter(eager_lib, operator, "recurrent", cuts=range(6))


@pytest.mark.parametrize("operator", RECURRENT)
def test_a_state_that_is_dropped_breaks_the_law(monkeypatch, operator):
    true = adapter.mix

    def forgetful(mixer, given, call):
        return true(mixer, given, adapter.Call(form=call.form, position=call.position))

    monkeypatch.setattr(attention, "mix", forgetful)
    with pytest.raises(AssertionError):
        law_cuts_do_not_matter(Numpy(), operator)


def law_what_is_not_visible_is_not_there(lib, operator):
    layer, x = layer_of(operator, lib), tokens(5)
    visible = np.asarray([[True] * 5, [True, False, True, False, True]])
    got = lib.numpy(run(layer, x, lib, causal=False, visible=visible).output)
    for n in range(2):
        own = x[n : n + 1, visible[n]]
        alone = lib.numpy(run(layer, own, lib, causal=False).output)
        np.testing.assert_allclose(got[n, visible[n]], alone[0], **CLOSE)


@pytest.mark.parametrize("operator", BOTH_WAYS)
def test_what_is_not_visible_is_not_there(eager_lib, operator):
    law_what_is_not_visible_is_not_there(eager_lib, operator)


@pytest.mark.parametrize("operator", BOTH_WAYS)
def test_a_mask_that_is_ignored_breaks_the_law(monkeypatch, operator):
    true, both = adapter.mix, adapter.Call(causal=False)
    monkeypatch.setattr(
        attention, "mix", lambda mixer, given, _: true(mixer, given, both)
    )
    with pytest.raises(AssertionError):
        law_what_is_not_visible_is_not_there(Numpy(), operator)


def law_reading_a_state_is_looking_at_the_memory(lib, operator):
    layer, x = layer_of(operator, lib), lib.array(tokens(3))
    memory = lib.array(tokens(6, seed=1))
    visible = lib.array(np.asarray([[True] * 6, [True] * 4 + [False] * 2]))
    whole = transformer.multi_head_attention(layer, x, memory, visible=visible)
    later = transformer.read_memory(layer, x, whole.state)
    np.testing.assert_allclose(lib.numpy(later), lib.numpy(whole.output), **CLOSE)


@pytest.mark.parametrize("operator", BOTH_WAYS)
def test_reading_a_state_is_looking_at_the_memory(eager_lib, operator):
    law_reading_a_state_is_looking_at_the_memory(eager_lib, operator)


@pytest.mark.parametrize("operator", BOTH_WAYS)
def test_reading_another_state_breaks_the_law(monkeypatch, operator):
    true = adapter.read

    def other(mixer, query, state):
        if operator == "softmax_attention":
            return true(mixer, query, adapter.Cache.of(state.key, state.value))
        return true(mixer, query, linkern.State(state.memory, 2 * state.normalizer))

    monkeypatch.setattr(attention, "read", other)
    with pytest.raises(AssertionError):
        law_reading_a_state_is_looking_at_the_memory(Numpy(), operator)


@pytest.mark.parametrize("operator", sorted({*OPERATORS} - {"linear_attention"}))
def test_gradients_reach_every_parameter(torch, operator):
    like = torch.zeros(1, dtype=torch.float64)
    layer = transformer.MultiHeadAttention.create(
        8, 2, operator=operator, options=QUADRATIC.get(operator), rng=0, like=like
    )
    arrays = {
        name: x.clone().requires_grad_()
        for name, x in transformer.named_arrays(layer).items()
    }
    x = torch.asarray(tokens(6))
    output = transformer.multi_head_attention(
        transformer.with_arrays(layer, arrays), x
    ).output
    weights = torch.asarray(tokens(6, seed=3))
    (output * weights).sum().backward()
    for name, array in arrays.items():
        assert array.grad is not None, name
        assert torch.isfinite(array.grad).all(), name
        if (operator, name) not in INVARIANT:
            assert array.grad.abs().max() > 1e-9, name


def test_the_operator_of_the_paper_reaches_every_parameter(torch):
    test_gradients_reach_every_parameter(torch, "linear_attention")


@pytest.mark.parametrize("name", adapter.FEATURE_MAPS)
def test_feature_maps_by_name(name):
    layer = layer_of("linear_attention", feature_map=name)
    x = tokens(4)
    if name in ("relu", "squared_relu"):
        x = abs(x) + 1
        positive = {n: abs(a) for n, a in transformer.named_arrays(layer).items()}
        layer = transformer.with_arrays(layer, positive)
    assert np.isfinite(run(layer, x, Numpy()).output).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"operator": "attention"},
            "`operator` must be one of abc, based, .*'attention'",
        ),
        ({"heads": 3}, r"`heads` must divide `width` \(8\): 1, 2, 4, 8; got 3"),
        ({"heads": 0}, "`heads` must be a positive integer, got 0"),
        ({"feature_map": "elu"}, "`feature_map` must be one of elu_plus_one, exp, "),
    ],
)
def test_a_layer_that_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        transformer.MultiHeadAttention.create(8, **{"heads": 2, **options})


def test_a_call_that_cannot_be():
    x = tokens(3)
    gla = layer_of("gla")
    with pytest.raises(
        ValueError, match=r"`operator` must be .* got 'gla', which only"
    ):
        transformer.multi_head_attention(gla, x, causal=False)
    with pytest.raises(ValueError, match="for cross attention, got 'gla'"):
        transformer.multi_head_attention(gla, x, x)
    with pytest.raises(ValueError, match=r"`x` must have shape \(..., T, 8\), got"):
        transformer.multi_head_attention(gla, x[..., :3])
    state = transformer.multi_head_attention(gla, x).state
    softmax = layer_of("softmax_attention")
    with pytest.raises(TypeError, match="`state` must be a Cache for 'softmax_att"):
        transformer.multi_head_attention(softmax, x, state=state)
    with pytest.raises(ValueError, match="must keep a state to decode with, got 'lsh"):
        transformer.multi_head_attention(layer_of("lsh_attention"), x, state=state)


def test_lsh_and_sparse_attention_are_called_with_their_options():
    x = tokens(6)
    for operator, options in QUADRATIC.items():
        layer = layer_of(operator)
        q, *rest = (
            apart(x @ map_.weight + map_.bias, 2) for map_ in layer.inputs.values()
        )
        due = getattr(linkern.attention, operator)(q, *rest, **options)
        joined = np.concatenate([due[:, 0], due[:, 1]], axis=-1)
        due = joined @ layer.output.weight + layer.output.bias
        np.testing.assert_allclose(run(layer, x, Numpy()).output, due, **CLOSE)


def test_a_state_to_read_that_is_none_is_named():
    layer = transformer.MultiHeadAttention.create(8, 2, rng=0)
    with pytest.raises(TypeError, match="`state` must be of the class State, got None"):
        transformer.read_memory(layer, np.ones((3, 8), np.float32), None)
