"""Softmax attention: the definition, order, masks, range, blocks, gradients, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.attention import softmax_attention
from tests.attention.calling import close, draw, softmax_rows, through

SEEDS = st.integers(0, 2**31)
LENGTHS = st.integers(1, 12)
few = settings(max_examples=12)


def wrong(fault=None):
    """Return a plain softmax attention with a fault."""

    def attention(
        query, key, value, *, causal=True, mask=None, scale=None, block_size=None
    ):
        length, source = query.shape[-2], key.shape[-2]
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        if fault == "scale forgotten":
            factor = 1.0
        if fault == "scale squared":
            factor = factor**2
        scores = factor * query @ np.swapaxes(key, -1, -2)
        offset = 0 if fault == "aligned at top left" else source - length
        offset += {"sees one token ahead": 1, "own token hidden": -1}.get(fault, 0)
        visible = np.tri(length, source, offset, dtype=bool) if causal else True
        if mask is not None and fault != "mask ignored":
            visible = visible & mask
        hidden = {"hidden by a large number": -1e4}.get(fault, -np.inf)
        if fault == "mask after softmax":
            late, visible = visible, True
        scores = np.where(visible, scores, hidden)
        size = block_size or source
        peak, total, weighted = -np.inf, 0.0, 0.0
        with np.errstate(all="ignore"):
            for start in range(0, source, size):
                part = scores[..., start : start + size]
                top = np.maximum(peak, part.max(-1, keepdims=True))
                finite = np.where(top == -np.inf, 0, top)
                if fault == "-inf minus -inf":
                    finite = top
                if fault == "no maximum subtracted":
                    finite = 0.0 * finite
                shrink = np.exp(peak - finite)
                if fault == "blocks not rescaled" and start:
                    shrink = 1.0
                weights = np.exp(part - finite)
                if fault == "no maximum subtracted":
                    shrink = 1.0
                total = total * shrink + weights.sum(-1, keepdims=True)
                if fault == "mask after softmax":
                    weights = weights * late[..., start : start + size]
                weighted = (
                    weighted * shrink + weights @ value[..., start : start + size, :]
                )
                peak = top
            if fault == "zero for nothing seen":
                total = np.where(total == 0, 1, total)
            return weighted / total

    return attention


def law_is_the_sum_of_the_definition(attention, seed, length, more, causal):
    query, key, value = draw(seed, (length, 3), (length + more, 3), (length + more, 2))
    source = length + more
    visible = np.ones((length, source), dtype=bool)
    if causal:
        last = np.arange(source - length, source)
        visible = np.arange(source)[None, :] <= last[:, None]
    mask = np.random.default_rng(seed).random((length, source)) < 0.7
    for scale in (None, 0.4):
        scores = query @ key.T * (3**-0.5 if scale is None else scale)
        options = {"causal": causal, "scale": scale}
        result = attention(query, key, value, **options)
        close(result, softmax_rows(scores, visible, value))
        result = attention(query, key, value, mask=mask, **options)
        close(result, softmax_rows(scores, visible & mask, value))


def law_a_cache_of_keys_changes_nothing(attention, seed, length, more, causal):
    query, key, value = draw(
        seed, (length + more, 3), (length + more, 3), (length + more, 2)
    )
    whole = attention(query, key, value, causal=causal)
    close(attention(query[more:], key, value, causal=causal), whole[more:])


def law_later_tokens_change_nothing(attention, seed, length, more, _causal):
    query, key, value = draw(
        seed, (length + more, 3), (length + more, 3), (length + more, 2)
    )
    whole = attention(query, key, value)
    close(attention(query[:length], key[:length], value[:length]), whole[:length])


def law_weights_sum_to_one(attention, seed, length, more, causal):
    query, key = draw(seed, (length, 3), (length + more, 3))
    mask = np.random.default_rng(seed).random((length, length + more)) < 0.5
    mask[:, 0] = True
    one = np.ones((length + more, 1))
    close(attention(query, key, one, causal=causal, mask=mask), np.ones((length, 1)))


def law_a_hidden_key_is_a_key_left_out(attention, seed, length, more, causal):
    query, key, value = draw(
        seed, (length, 3), (length + more + 1, 3), (length + more + 1, 2)
    )
    mask = np.ones((1, length + more + 1), dtype=bool)
    mask[0, 0] = False
    hidden = attention(query, 9 * key, value, causal=causal, mask=mask)
    close(hidden, attention(query, 9 * key[1:], value[1:], causal=causal))


def law_scores_may_be_huge(attention, seed, length, more, causal):
    """Scores are multiples of 1e30 in float32: the largest one has all the weight."""
    rng = np.random.default_rng(seed)
    source = length + more
    key = rng.permutation(source).astype("float32")[:, None] - source // 2
    value = rng.normal(size=(source, 2)).astype("float32")
    query = np.full((length, 1), 1e30, dtype="float32")
    result = attention(query, key, value, causal=causal)
    for i in range(length):
        seen = more + i + 1 if causal else source
        close(result[i], value[key[:seen, 0].argmax()], 0)


def law_blocks_change_rounding_alone(attention, seed, length, more, causal):
    query, key, value = draw(
        seed, (2, length, 3), (2, length + more, 3), (length + more, 2)
    )
    mask = np.random.default_rng(seed).random((length, length + more)) < 0.6
    whole = attention(4 * query, key, value, causal=causal, mask=mask)
    for size in (1, 2, 5, 100):
        options = {"causal": causal, "mask": mask, "block_size": size}
        close(attention(4 * query, key, value, **options), whole)


def law_seeing_nothing_is_nan_there_alone(attention, seed, length, more, causal):
    query, key, value = draw(seed, (length, 3), (length + more, 3), (length + more, 2))
    mask = np.ones((length, length + more), dtype=bool)
    whole = attention(query, key, value, causal=causal)
    mask[-1] = False
    for size in (None, 1, 2):
        result = attention(query, key, value, causal=causal, mask=mask, block_size=size)
        assert np.isnan(result[-1]).all()
        close(result[:-1], whole[:-1])


LAWS = {
    law_is_the_sum_of_the_definition: (
        "scale forgotten",
        "scale squared",
        "aligned at top left",
        "sees one token ahead",
        "own token hidden",
        "mask ignored",
        "mask after softmax",
    ),
    law_a_cache_of_keys_changes_nothing: ("aligned at top left",),
    law_later_tokens_change_nothing: ("sees one token ahead",),
    law_weights_sum_to_one: ("mask after softmax",),
    law_a_hidden_key_is_a_key_left_out: ("mask ignored", "mask after softmax"),
    law_scores_may_be_huge: ("no maximum subtracted", "own token hidden"),
    law_blocks_change_rounding_alone: ("blocks not rescaled", "-inf minus -inf"),
    law_seeing_nothing_is_nan_there_alone: (
        "zero for nothing seen",
        "hidden by a large number",
        "mask ignored",
    ),
}


@pytest.mark.parametrize("law", LAWS)
@few
@given(seed=SEEDS, length=LENGTHS, more=st.integers(0, 4), causal=st.booleans())
def test_law(law, eager_lib, seed, length, more, causal):
    law(through(eager_lib, softmax_attention), seed, length, more, causal)


@pytest.mark.parametrize("law", LAWS)
def test_law_holds_for_the_same_code_without_a_fault(law):
    law(wrong(), 3, 5, 2, True)


@pytest.mark.parametrize(
    ("law", "fault"), [(law, fault) for law, faults in LAWS.items() for fault in faults]
)
def test_law_fails_on(law, fault):
    def check_law():
        for seed in range(5):
            law(wrong(fault), seed, 5, 2, True)

    with pytest.raises(AssertionError):
        check_law()


@few
@given(SEEDS, LENGTHS)
def test_equals_scaled_dot_product_attention_of_torch(torch, seed, length):
    theirs = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.asarray(x) for x in draw(seed, *[(2, length, 4)] * 3)]
    close(softmax_attention(*inputs), theirs(*inputs, is_causal=True))
    close(softmax_attention(*inputs, causal=False), theirs(*inputs))
    mask = torch.asarray(np.random.default_rng(seed).random((length, length)) < 0.5)
    mask = mask | torch.eye(length, dtype=torch.bool)
    result = softmax_attention(*inputs, causal=False, mask=mask, scale=0.3)
    close(result, theirs(*inputs, attn_mask=mask, scale=0.3))


def test_is_aligned_at_the_last_token_and_torch_at_the_first(torch):
    theirs = torch.nn.functional.scaled_dot_product_attention
    query, key, value = map(torch.asarray, draw(0, (1, 2, 4), (1, 5, 4), (1, 5, 3)))
    result = softmax_attention(query, key, value)
    at_last = torch.ones((2, 5), dtype=torch.bool).tril(3)
    close(result, theirs(query, key, value, attn_mask=at_last))
    assert abs(result - theirs(query, key, value, is_causal=True)).max() > 1e-3


@pytest.mark.parametrize("block_size", [None, 2])
def test_torch_gradients_are_those_of_the_formula(torch, block_size):
    inputs = [
        torch.asarray(x).requires_grad_() for x in draw(1, (5, 3), (6, 3), (6, 2))
    ]
    mask = torch.ones((5, 6), dtype=torch.bool)
    mask[2, 1:3] = mask[4, 0] = False
    result = softmax_attention(*inputs, mask=mask, block_size=block_size)
    query, key, value = inputs
    seen = mask.tril(1)
    weights = (query @ key.mT / 3**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    cotangent = torch.asarray(draw(2, (5, 2))[0])
    ours = torch.autograd.grad(result, inputs, cotangent)
    expected = torch.autograd.grad(weights @ value, inputs, cotangent)
    for x, y in zip(ours, expected, strict=True):
        close(x, y)

    def masked(*x):
        return softmax_attention(*x, mask=mask, block_size=block_size)

    assert torch.autograd.gradcheck(masked, inputs)


def test_gradients_of_whole_hidden_blocks_are_not_nan(torch):
    inputs = [
        torch.asarray(x).requires_grad_() for x in draw(1, (6, 3), (6, 3), (6, 2))
    ]
    # The first block is hidden from all queries, the last from most: -inf as the peak.
    mask = torch.arange(6) > 1
    result = softmax_attention(*inputs, mask=mask[None, :], block_size=2)[2:]
    assert torch.isfinite(result).all()
    gradients = torch.autograd.grad(result.sum(), inputs)
    assert all(torch.isfinite(x).all() for x in gradients)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(torch, dtype):
    half = getattr(torch, dtype)
    inputs = [torch.asarray(x).to(half) for x in draw(0, *[(40, 4)] * 3)]
    result = softmax_attention(*inputs, block_size=7)
    assert result.dtype == half
    wide = softmax_attention(*(x.float() for x in inputs), block_size=7)
    assert torch.equal(result, wide.to(half))


def test_leading_axes_broadcast(eager_lib):
    call = through(eager_lib, softmax_attention)
    query, key, value = draw(0, (2, 3, 5, 4), (3, 5, 4), (2, 1, 5, 2))
    mask = np.random.default_rng(0).random((2, 1, 1, 5)) < 0.8
    mask[..., 0] = True
    result = call(query, key, value, mask=mask, block_size=2)
    assert result.shape == (2, 3, 5, 2)
    one = call(query[1, 2], key[2], value[1, 0], mask=mask[1, 0])
    close(result[1, 2], one)


def test_no_tokens(eager_lib):
    call = through(eager_lib, softmax_attention)
    query, key, value = draw(0, (0, 3), (0, 3), (0, 2))
    assert call(query, key, value).shape == (0, 2)
    assert call(query, np.ones((4, 3)), np.ones((4, 2))).shape == (0, 2)
    result = call(np.ones((2, 3)), key, value, causal=False)
    assert result.shape == (2, 2)
    assert np.isnan(result).all()


def test_the_device_is_kept():
    xp = pytest.importorskip("array_api_strict")
    device = xp.Device("device1")
    x = xp.asarray(draw(0, (7, 3))[0], device=device)
    assert softmax_attention(x, x, x, mask=x @ x.mT < 9, block_size=3).device == device


X = np.ones((2, 5, 4))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        ((X, X[:, :3], X[:, :3]), {}, ValueError, "`key` must be at least as long as"),
        ((X, X[..., :2], X), {}, ValueError, "must have the same key dimension"),
        ((X, X, [1.0]), {}, TypeError, "`value` must be an array of an array API"),
        ((X, X, X), {"causal": 1}, TypeError, "`causal` must be True or False"),
        ((X, X, X), {"scale": 0}, ValueError, "`scale` must be finite and not zero"),
        ((X, X, X), {"scale": "a"}, TypeError, "`scale` must be a real number"),
        ((X, X, X), {"block_size": 0}, ValueError, "`block_size` must be at least 1"),
        ((X, X, X), {"block_size": 2.0}, TypeError, "`block_size` must be an integer"),
        ((X, X, X), {"mask": [True]}, TypeError, "`mask` must be an array of the lib"),
        ((X, X, X), {"mask": X}, TypeError, "`mask` must be boolean, True where a que"),
        (
            (X, X, X),
            {"mask": np.ones((5, 4), dtype=bool)},
            ValueError,
            r"`mask` must have two axes or more and broadcast to \(2, 5, 5\), got",
        ),
        (
            (X, X, X),
            {"mask": np.ones(5, dtype=bool)},
            ValueError,
            r"`mask` must have two axes or more",
        ),
        (
            (X, X, X),
            {"mask": np.ones((3, 2, 5, 5), dtype=bool)},
            ValueError,
            r"`mask` must have two axes or more and broadcast to \(2, 5, 5\), got",
        ),
    ],
)
def test_errors(arguments, options, error, sentence):
    with pytest.raises(error, match=sentence):
        softmax_attention(*arguments, **options)


def test_a_mask_of_another_library_or_device_is_refused(torch):
    inputs = [torch.ones((5, 4))] * 3
    with pytest.raises(TypeError, match=r"library of `query` \(torch\), got ndarray"):
        softmax_attention(*inputs, mask=np.ones((5, 5), dtype=bool))
    mask = torch.ones((5, 5), dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match="must be on the device of `query`, cpu, got"):
        softmax_attention(*inputs, mask=mask)
