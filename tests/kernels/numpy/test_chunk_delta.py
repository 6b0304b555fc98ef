"""The NumPy engine for channel decays, erases, early reads and transposed states.

The judge is the equation of one token, run in float64. Each law is a function of the
implementation, and is seen to fail on wrong ones.
"""

import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.core.chunkwise import chunks as array_chunks
from linkern.core.recurrence import Terms, token
from linkern.kernels.numpy import chunk_delta, intra_chunk, triangular
from linkern.kernels.numpy import chunkwise as driver
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.recurrent import _Steps, recurrent
from linkern.kernels.numpy.threads import thread_count
from linkern.operators.forms import Form

pytestmark = pytest.mark.usefixtures("no_kept_buffers")


EXAMPLES = settings(max_examples=150)
KINDS = [
    (decay, erases, early_erase, early_read, transpose_state)
    for decay in (None, "token", "channel")
    for erases in (False, True)
    for early_erase in ((False, True) if erases else (False,))
    for early_read in (False, True)
    for transpose_state in (False, True)
]


def laid_out(rng, x):
    """The same numbers in another layout; never writable."""
    way = rng.integers(5)
    if way == 1:
        x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    elif way == 2:
        x = np.repeat(x, 2, axis=-2)[..., ::-2, :][..., ::-1, :]
    elif way == 3:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -2, 0)), 0, -2)
    elif way == 4:
        x = np.concatenate([x, x], axis=-1)[..., : x.shape[-1]]
    x.flags.writeable = False
    return x


def made(kind, seed, *, length, features=4, values=3, heads=(2,), dtype="float64"):
    """A memory and terms of some kind. Keys and what they erase are shorter than 1."""
    decay, erases, early_erase, early_read, transpose_state = kind
    rng = np.random.default_rng(seed)

    def rows(dim):
        return rng.normal(size=(*heads, length, dim))

    key = rows(features)
    key = key / np.maximum(np.linalg.norm(key, axis=-1, keepdims=True), 1)
    log_decay = None
    if decay is not None:
        log_decay = -rng.exponential(
            0.3, rows(1 if decay == "token" else features).shape
        )
        log_decay[rng.random(log_decay.shape) < 0.05] = -np.inf
    erase = rng.uniform(0, 1, (*heads, length, 1)) * key + 0.1 * rows(features)
    arrays = (
        rows(values if transpose_state else features),
        key,
        rows(values),
        log_decay,
    )
    given_ = Terms(
        *arrays, erase if erases else None, early_erase, early_read, transpose_state
    )
    memory = laid_out(rng, rng.normal(size=(*heads, features, values)).astype(dtype))
    return memory, given_.mapped(lambda x: laid_out(rng, x.astype(dtype)))


@st.composite
def problems(draw, kinds=tuple(KINDS), **fixed):
    """Terms of any kind, any small shape, and a chunk size."""
    shape = {
        "length": draw(st.integers(0, 40) | st.sampled_from([63, 64, 65, 100])),
        "features": draw(st.sampled_from([1, 2, 5, 8])),
        "values": draw(st.sampled_from([1, 3, 8])),
        "heads": draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
    }
    kind = draw(st.sampled_from(kinds))
    memory, of = made(kind, draw(st.integers(0, 2**16)), **(shape | fixed))
    size = draw(st.sampled_from([1, 2, 3, 4, 8, 13, 16, 64, 100]))
    return memory, of, size


def one_by_one(memory, of):
    """The equation, token by token, in float64."""
    wide = of.mapped(lambda x: x.astype("float64"))
    return Form(token, 1)(memory.astype("float64"), wide)


def law_is_the_equation(form, memory, of, size):
    # The longest chain of sums has T (K + V) terms, each rounded to 1e-16 of what may
    # be some tens of times larger; 1e-12 leaves room for that and for nothing else.
    for want, got in zip(one_by_one(memory, of), form(memory, of, size), strict=True):
        bound = 1e-12 * (1 + np.max(np.abs(want), initial=0))
        assert got.shape == want.shape
        assert np.max(np.abs(got - want), initial=0) <= bound


@EXAMPLES
@given(problems())
def test_chunks_are_the_equation(problem):
    law_is_the_equation(chunks, *problem)


@settings(max_examples=30)
@given(problems())
def test_chunks_are_those_of_any_library(problem):
    """The array form, where it has the same meaning."""
    memory, of, size = problem
    of = of._replace(early_read=of.early_read and not of.transpose_state)
    want = array_chunks(memory, of, size)
    for x, y in zip(want, chunks(memory, of, size), strict=True):
        assert np.allclose(x, y, rtol=1e-12, atol=1e-12)


def everywhere(kinds, law, form, **shape):
    """Try a law on one problem of each kind."""
    for kind in kinds:
        law(form, *made(kind, 1, length=21, **shape), 8)


def flipped(flag):
    def form(memory, of, size):
        return chunks(memory, of._replace(**{flag: not getattr(of, flag)}), size)

    return form


def turned(memory, of, size):
    """Reads along the keys what should be read along the values."""
    output, after = chunks(memory.swapaxes(-1, -2), of, size)
    return output, after.swapaxes(-1, -2)


DECAYED = [k for k in KINDS if k[0] is not None]
MUTANTS = {
    "erases at the other time": (flipped("early_erase"), [k for k in DECAYED if k[1]]),
    "reads at the other time": (flipped("early_read"), KINDS),
    "reads along the other side": (flipped("transpose_state"), KINDS),
    "memory turned": (turned, KINDS),
    "forgets to forget": (
        lambda m, of, size: chunks(m, of._replace(log_decay=None), size),
        DECAYED,
    ),
    "forgets to erase": (
        lambda m, of, size: chunks(m, of._replace(erase=None), size),
        [k for k in KINDS if k[1]],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_terms_are_not_the_equation(name):
    form, kinds = MUTANTS[name]
    for kind in kinds:
        with pytest.raises(AssertionError):
            everywhere([kind], law_is_the_equation, form, features=4, values=4)


def without_decay_at_edges(block):
    """A carry that adds what chunks write and never loses anything."""
    block.steps = [step._replace(whole=None) for step in block.steps]
    gated_carry(block)


def without_last_level(inverse):
    """An inverse that stops before the largest blocks."""
    inverse._below, levels = inverse._below[:-1], inverse._below
    inverse._pairs, inverse._found = inverse._pairs[:-1], inverse._found[:-1]
    inverse_solve(inverse)
    levels[-1][...] = 0


def with_late_decays(decay, log_decay):
    """Decays of the token before."""
    by_channel_load(decay, np.roll(log_decay, 1, axis=-2))


gated_carry, inverse_solve = chunk_delta.carry, triangular.Inverse.solve
by_channel_load = intra_chunk.ByChannel.load


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "kinds"),
    [
        (chunk_delta, "carry", without_decay_at_edges, DECAYED),
        (
            triangular.Inverse,
            "solve",
            without_last_level,
            [k for k in KINDS if k[1]],
        ),
        (
            intra_chunk.ByChannel,
            "load",
            with_late_decays,
            [k for k in KINDS if k[0] == "channel"],
        ),
    ],
)
def test_broken_parts_are_not_the_equation(monkeypatch, owner, name, wrong, kinds):
    monkeypatch.setattr(owner, name, wrong)
    for kind in kinds:
        with pytest.raises(AssertionError):
            everywhere([kind], law_is_the_equation, chunks)


def test_levels_below_are_products_of_any_size(monkeypatch):
    """Small blocks are a shortcut, not another meaning."""
    monkeypatch.setattr(intra_chunk, "_FEW", 0)
    everywhere(KINDS, law_is_the_equation, chunks)


def bits(arrays):
    return [np.ascontiguousarray(x).tobytes() for x in arrays]


def law_threads_do_not_matter(form, monkeypatch, memory, of, size):
    found = []
    for count in (1, 2, 4):
        monkeypatch.setenv("LINKERN_NUM_THREADS", str(count))
        found.append(bits(form(memory, of, size)))
    assert found[0] == found[1] == found[2]


def law_heads_do_not_matter(form, memory, of, size):
    together = form(memory, of, size)
    for head in range(memory.shape[0]):
        here = slice(head, head + 1)
        alone = form(memory[here], of.mapped(lambda x, here=here: x[here]), size)
        assert bits(alone) == bits(x[here] for x in together)


def law_blocks_do_not_matter(form, monkeypatch, memory, of, size):
    found = []
    for most in (1, 2, 16):
        monkeypatch.setattr(driver, "_MOST_CHUNKS", most)
        found.append(bits(form(memory, of, size)))
    assert found[0] == found[1] == found[2]


def of_all_kinds(law, form, *args, dtype="float32"):
    for i, kind in enumerate(KINDS):
        shape = {"length": 75, "features": 9, "values": 7, "heads": (5,)}
        law(form, *args, *made(kind, i, dtype=dtype, **shape), 16)


@pytest.fixture
def eager_threads(monkeypatch):
    """Threads for anything, however small."""
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)


@pytest.mark.parametrize("heads", [(5,), (1,)])
@pytest.mark.usefixtures("eager_threads")
def test_threads_do_not_matter(monkeypatch, heads):
    for i, kind in enumerate(KINDS):
        memory, of = made(kind, i, length=75, heads=heads, dtype="float32")
        law_threads_do_not_matter(chunks, monkeypatch, memory, of, 4)


def test_threads_do_not_matter_token_by_token(monkeypatch):
    # `linkern.kernels.numpy` has a function of the name of this module.
    monkeypatch.setattr(sys.modules[_Steps.__module__], "_WORTH_THREADS", 1)
    for i, kind in enumerate(KINDS):
        memory, of = made(kind, i, length=70, heads=(3, 2), dtype="float32")

        def form(memory, of, _size):
            return recurrent(memory, of)

        law_threads_do_not_matter(form, monkeypatch, memory, of, None)


def test_heads_do_not_matter():
    of_all_kinds(law_heads_do_not_matter, chunks)


def test_blocks_do_not_matter(monkeypatch):
    of_all_kinds(law_blocks_do_not_matter, chunks, monkeypatch)


def test_chunks_cut_by_circumstance_are_noticed(monkeypatch):
    def by_threads(memory, of, size):
        return chunks(memory, of, size + thread_count())

    def by_heads(memory, of, size):
        return chunks(memory, of, size + len(memory))

    def by_blocks(memory, of, size):
        return chunks(memory, of, size + driver._MOST_CHUNKS)

    with pytest.raises(AssertionError):
        of_all_kinds(law_threads_do_not_matter, by_threads, monkeypatch)
    with pytest.raises(AssertionError):
        of_all_kinds(law_heads_do_not_matter, by_heads)
    with pytest.raises(AssertionError):
        of_all_kinds(law_blocks_do_not_matter, by_blocks, monkeypatch)


def law_later_chunks_do_not_matter(form, memory, of, size):
    """Nothing of a later chunk reaches an earlier one, not even what is no number."""
    edge = size * (of.key.shape[-2] // (2 * size))
    want, _ = form(memory, of, size)
    for bad in (np.nan, np.inf):
        spoiled = of.mapped(np.array)
        for x in spoiled[:5]:
            if x is not None:
                x[..., edge:, :] = -bad if x is spoiled.log_decay else bad
        with np.errstate(invalid="ignore", over="ignore"):
            got, _ = form(memory, spoiled, size)
        assert bits([got[..., :edge, :]]) == bits([want[..., :edge, :]])


def test_later_chunks_do_not_matter():
    of_all_kinds(law_later_chunks_do_not_matter, chunks)


def test_a_glance_ahead_is_noticed():
    def peeking(memory, of, size):
        output, after = chunks(memory, of, size)
        return output + 0 * np.sum(of.value), after

    with pytest.raises(AssertionError):
        of_all_kinds(law_later_chunks_do_not_matter, peeking)


@pytest.mark.parametrize("kind", [k for k in KINDS if not k[1] and not k[4]])
def test_what_is_not_seen_in_a_chunk_vanishes_even_if_infinite(kind):
    memory, of = made(kind, 3, length=16)
    want, _ = chunks(memory, of, 16)
    key = np.array(of.key)
    key[..., 9:, :] = np.inf
    with np.errstate(invalid="ignore"):
        got, _ = chunks(memory, of._replace(key=key), 16)
    assert np.all(np.isfinite(got[..., :9, :]))
    assert np.allclose(got[..., :9, :], want[..., :9, :], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("form", [chunks, recurrent])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrow_inputs_are_widened(form, narrow):
    narrow = pytest.importorskip("ml_dtypes").bfloat16 if narrow[0] == "b" else narrow
    size = {} if form is recurrent else {"size": 8}
    for i, kind in enumerate(KINDS):
        memory, of = made(kind, i, length=21, dtype="float32")
        of = of.mapped(lambda x: x.astype(narrow))
        wide = of.mapped(lambda x: x.astype("float32"))
        want, last = form(memory, wide, **size)
        got, after = form(memory, of, **size)
        assert (got.dtype, after.dtype) == (narrow, np.float32)
        assert bits([got, after]) == bits([want.astype(narrow), last])


def test_float32_is_as_good_as_its_digits():
    for i, kind in enumerate(KINDS):
        memory, of = made(kind, i, length=100, dtype="float32")
        for want, got in zip(
            one_by_one(memory, of), chunks(memory, of, 64), strict=True
        ):
            # 100 tokens of 4 channels, summed in any order, at 6e-8 each.
            assert np.max(np.abs(got - want)) <= 1e-5 * (1 + np.max(np.abs(want)))


def law_every_bit_is_the_token(form, memory, of):
    outputs, after = [], memory
    for t in range(of.key.shape[-2]):
        output, after = token(after, of.span(slice(t, t + 1)))
        outputs.append(output)
    got = form(memory, of)
    assert bits(got[1:]) == bits([after])
    if outputs:
        assert bits(got[:1]) == bits([np.concatenate(outputs, axis=-2)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_recurrent_form_is_the_token_to_the_last_bit(dtype):
    @EXAMPLES
    @given(problems(dtype=dtype))
    def law(problem):
        memory, of, _ = problem
        law_every_bit_is_the_token(recurrent, memory, of)

    law()


def signed_zeros(kind):
    """A problem full of zeros of both signs; the last token leaves nothing else."""
    rng = np.random.default_rng(5)
    memory, of = made(kind, 5, length=9)

    def emptied(x):
        signs = np.where(rng.random(x.shape) < 0.5, 0.0, -0.0)
        return np.where(rng.random(x.shape) < 0.7, signs, x)

    of = of.mapped(emptied)
    last = slice(of.key.shape[-2] - 1, None)
    of.key[..., last, :] = np.copysign(0.0, of.query[..., :1, :1])
    if of.log_decay is not None:
        of.log_decay[...] = -np.abs(of.log_decay)
        of.log_decay[..., last, :] = -np.inf
    return emptied(memory), of


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_have_the_sign_of_the_tokens(kind):
    law_every_bit_is_the_token(recurrent, *signed_zeros(kind))


def test_other_bits_are_noticed(monkeypatch):
    for i, kind in enumerate(KINDS):
        problem = made(kind, i, length=75, features=9, values=7)
        with pytest.raises(AssertionError):
            law_every_bit_is_the_token(partial(chunks, size=4), *problem)
    begin = _Steps.__init__

    def negative(self, memory):
        begin(self, memory)
        self.zero = -self.zero

    monkeypatch.setattr(_Steps, "__init__", negative)
    problem = signed_zeros(("channel", False, False, False, False))
    with pytest.raises(AssertionError):
        law_every_bit_is_the_token(recurrent, *problem)


@pytest.mark.parametrize("form", [partial(chunks, size=4), recurrent])
def test_arrays_broadcast_and_stay_as_they_are(form):
    for i, kind in enumerate(KINDS):
        memory, of = made(kind, i, length=10, heads=(1, 3))
        one = of._replace(query=of.query[:, :1], key=of.key[0, 0])
        full = one.mapped(lambda x: np.array(np.broadcast_to(x, (2, 3, *x.shape[-2:]))))
        large = np.array(np.broadcast_to(memory, (2, *memory.shape[1:])))
        before = bits([memory, *(x for x in one[:5] if x is not None)])
        wide = one._replace(value=np.broadcast_to(one.value, full.value.shape))
        got = form(memory, wide)
        for x, y in zip(got, form(large, full), strict=True):
            assert np.allclose(x, y, rtol=1e-13, atol=1e-13)
        assert bits([memory, *(x for x in one[:5] if x is not None)]) == before


@pytest.mark.parametrize("form", [partial(chunks, size=4), recurrent])
@pytest.mark.parametrize("heads", [(0,), (2, 0)])
def test_nothing_in_nothing_out(form, heads):
    for kind in KINDS:
        for length in (0, 5):
            memory, of = made(kind, 0, length=length, heads=heads)
            output, after = form(memory, of)
            assert output.shape[:-1] == (*heads, length)
            assert after.shape == memory.shape
