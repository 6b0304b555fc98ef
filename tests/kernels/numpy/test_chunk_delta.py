"""NumPy forms for channel decays, erases, early reads and transposed states.

The reference is the equation of one token in float64. Each law is a function of the
implementation, and is shown to fail on wrong ones.
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
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.recurrent import _RecurrentWorkspace, recurrent
from linkern.kernels.numpy.threads import thread_count
from linkern.operators.forms import Form

pytestmark = pytest.mark.usefixtures("no_kept_buffers")
# The package has a function `chunkwise`, which hides the module of that name.
driver = sys.modules[chunks.__module__]


EXAMPLES = settings(max_examples=150)
KINDS = [
    (decay, erases, early_erase, early_read, transpose_state)
    for decay in (None, "token", "channel")
    for erases in (False, True)
    for early_erase in ((False, True) if erases else (False,))
    for early_read in (False, True)
    for transpose_state in (False, True)
]
# Pairs of memories, the first of which follows the second; with and without decays.
PAIRS = [
    (decay, erases, erases, False, False)
    for decay in ("pair", "pair without")
    for erases in (False, True)
]


# Log-decays of a token, one for each channel where None.
DECAYS = {"token": 1, "channel": None, "pair": 2}


def laid_out(rng, x):
    """Return a read-only copy in another memory layout."""
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
    """Return a memory and terms of some kind, with keys and erases shorter than 1."""
    decay, erases, early_erase, early_read, transpose_state = kind
    rng = np.random.default_rng(seed)

    def rows(dim):
        return rng.normal(size=(*heads, length, dim))

    key = rows(features)
    key = key / np.maximum(np.linalg.norm(key, axis=-1, keepdims=True), 1)
    log_decay = follow = None
    if decay in DECAYS:
        dim = features if DECAYS[decay] is None else DECAYS[decay]
        log_decay = -rng.exponential(0.3, rows(dim).shape)
        log_decay[rng.random(log_decay.shape) < 0.05] = -np.inf
    erase = rng.uniform(0, 1, (*heads, length, 1)) * key + 0.1 * rows(features)
    arrays = (
        rows(values if transpose_state else features),
        key,
        rows(values),
        log_decay,
    )
    height = features
    if str(decay).startswith("pair"):
        follow, height = rng.uniform(-1, 1, (*heads, length, 1)), 2 * features
    terms = Terms(
        *arrays, erase if erases else None, early_erase, early_read, transpose_state
    )._replace(follow=follow)
    memory = laid_out(rng, rng.normal(size=(*heads, height, values)).astype(dtype))
    return memory, terms.mapped(lambda x: laid_out(rng, x.astype(dtype)))


@st.composite
def problems(draw, kinds=tuple(KINDS), **fixed):
    """Draw a memory, terms of any kind and small shape, and a chunk size."""
    shape = {
        "length": draw(st.integers(0, 40) | st.sampled_from([63, 64, 65, 100])),
        "features": draw(st.sampled_from([1, 2, 5, 8])),
        "values": draw(st.sampled_from([1, 3, 8])),
        "heads": draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
    }
    kind = draw(st.sampled_from(kinds))
    memory, terms = made(kind, draw(st.integers(0, 2**16)), **(shape | fixed))
    size = draw(st.sampled_from([1, 2, 3, 4, 8, 13, 16, 64, 100]))
    return memory, terms, size


def one_by_one(memory, terms):
    """Return the result of the equation, token by token, in float64."""
    wide = terms.mapped(lambda x: x.astype("float64"))
    return Form(token, 1)(memory.astype("float64"), wide)


def law_is_the_equation(form, memory, terms, size):
    # The longest chain of sums has T (K + V) terms, each rounded to 1e-16 of what may
    # be some tens of times larger; 1e-12 leaves room for that and for nothing else.
    for expected, result in zip(
        one_by_one(memory, terms), form(memory, terms, size), strict=True
    ):
        bound = 1e-12 * (1 + np.max(np.abs(expected), initial=0))
        assert result.shape == expected.shape
        assert np.max(np.abs(result - expected), initial=0) <= bound


@EXAMPLES
@given(problems(tuple(KINDS + PAIRS)))
def test_chunks_are_the_equation(problem):
    law_is_the_equation(chunks, *problem)


@settings(max_examples=30)
@given(problems(tuple(KINDS + PAIRS)))
def test_chunks_are_those_of_any_library(problem):
    """The array code gives the same result wherever it has the same meaning."""
    memory, terms, size = problem
    terms = terms._replace(early_read=terms.early_read and not terms.transpose_state)
    expected = array_chunks(memory, terms, size)
    for x, y in zip(expected, chunks(memory, terms, size), strict=True):
        assert np.allclose(x, y, rtol=1e-12, atol=1e-12)


def everywhere(kinds, law, form, **shape):
    """Try a law on one problem of each kind."""
    for kind in kinds:
        law(form, *made(kind, 1, length=21, **shape), 8)


def flipped(flag):
    def form(memory, terms, size):
        return chunks(memory, terms._replace(**{flag: not getattr(terms, flag)}), size)

    return form


def transposed(memory, terms, size):
    """A wrong form: transposes the memory."""
    output, after = chunks(memory.swapaxes(-1, -2), terms, size)
    return output, after.swapaxes(-1, -2)


DECAYED = [k for k in KINDS + PAIRS if k[0] in DECAYS]
MUTANTS = {
    "erases at the other time": (
        flipped("early_erase"),
        [k for k in KINDS if k[0] and k[1]],
    ),
    "reads at the other time": (flipped("early_read"), KINDS),
    "reads along the other side": (flipped("transpose_state"), KINDS),
    "transposes the memory": (transposed, KINDS),
    "forgets to forget": (
        lambda m, terms, size: chunks(m, terms._replace(log_decay=None), size),
        DECAYED,
    ),
    "forgets to erase": (
        lambda m, terms, size: chunks(m, terms._replace(erase=None), size),
        [k for k in KINDS + PAIRS if k[1]],
    ),
    "follows all": (
        lambda m, terms, size: chunks(
            m, terms._replace(follow=np.ones_like(terms.follow)), size
        ),
        PAIRS,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_terms_are_not_the_equation(name):
    form, kinds = MUTANTS[name]
    for kind in kinds:
        with pytest.raises(AssertionError):
            everywhere([kind], law_is_the_equation, form, features=4, values=4)


def without_decay_at_edges(workspace):
    """A wrong state passing: no decay over chunks."""
    workspace.steps = [
        step._replace(chunk_decay=np.ones_like(step.chunk_decay))
        for step in workspace.steps
    ]
    state_passing(workspace)


def without_last_level(inverse):
    """A wrong inverse: stops before the largest blocks."""
    inverse._off_diagonal, levels = inverse._off_diagonal[:-1], inverse._off_diagonal
    inverse._diagonal_blocks = inverse._diagonal_blocks[:-1]
    inverse._scratch = inverse._scratch[:-1]
    inverse_solve(inverse)
    levels[-1][...] = 0


def with_late_decays(decay, log_decay):
    """A wrong load: the decays of the token before."""
    channel_decay_load(decay, np.roll(log_decay, 1, axis=-2))


def without_a_gain(workspace):
    """A wrong state passing: over a chunk, the first memory follows nothing."""
    workspace.steps = [
        step._replace(gained=np.zeros_like(step.gained)) for step in workspace.steps
    ]
    state_passing(workspace)


state_passing, inverse_solve = chunk_delta.state_passing, triangular.Inverse.solve
channel_decay_load = intra_chunk.ChannelDecay.load


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "kinds"),
    [
        (chunk_delta, "state_passing", without_decay_at_edges, DECAYED),
        (chunk_delta, "state_passing", without_a_gain, PAIRS),
        (
            triangular.Inverse,
            "solve",
            without_last_level,
            [k for k in KINDS if k[1]],
        ),
        (
            intra_chunk.ChannelDecay,
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
    """The shortcut for small blocks does not change the result."""
    monkeypatch.setattr(intra_chunk, "_FEW_ROWS", 0)
    everywhere(KINDS, law_is_the_equation, chunks)


def bits(arrays):
    return [np.ascontiguousarray(x).tobytes() for x in arrays]


def law_threads_do_not_matter(form, monkeypatch, memory, terms, size):
    results = []
    for count in (1, 2, 4):
        monkeypatch.setenv("LINKERN_NUM_THREADS", str(count))
        results.append(bits(form(memory, terms, size)))
    assert results[0] == results[1] == results[2]


def law_heads_do_not_matter(form, memory, terms, size):
    together = form(memory, terms, size)
    for head in range(memory.shape[0]):
        here = slice(head, head + 1)
        alone = form(memory[here], terms.mapped(lambda x, here=here: x[here]), size)
        assert bits(alone) == bits(x[here] for x in together)


def law_blocks_do_not_matter(form, monkeypatch, memory, terms, size):
    results = []
    for most in (1, 2, 16):
        monkeypatch.setattr(driver, "_MAX_CHUNKS", most)
        results.append(bits(form(memory, terms, size)))
    assert results[0] == results[1] == results[2]


def of_all_kinds(law, form, *args, dtype="float32"):
    for i, kind in enumerate(KINDS + PAIRS):
        shape = {"length": 75, "features": 9, "values": 7, "heads": (5,)}
        law(form, *args, *made(kind, i, dtype=dtype, **shape), 16)


@pytest.fixture
def eager_threads(monkeypatch):
    """Use threads for any amount of work."""
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)


@pytest.mark.parametrize("heads", [(5,), (1,)])
@pytest.mark.usefixtures("eager_threads")
def test_threads_do_not_matter(monkeypatch, heads):
    for i, kind in enumerate(KINDS + PAIRS):
        memory, terms = made(kind, i, length=75, heads=heads, dtype="float32")
        law_threads_do_not_matter(chunks, monkeypatch, memory, terms, 4)


def test_threads_do_not_matter_token_by_token(monkeypatch):
    # The package has a function `recurrent`, which hides the module of that name.
    monkeypatch.setattr(
        sys.modules[_RecurrentWorkspace.__module__], "_WORTH_THREADS", 1
    )
    for i, kind in enumerate(KINDS):
        memory, terms = made(kind, i, length=70, heads=(3, 2), dtype="float32")

        def form(memory, terms, _size):
            return recurrent(memory, terms)

        law_threads_do_not_matter(form, monkeypatch, memory, terms, None)


def test_heads_do_not_matter():
    of_all_kinds(law_heads_do_not_matter, chunks)


def test_blocks_do_not_matter(monkeypatch):
    of_all_kinds(law_blocks_do_not_matter, chunks, monkeypatch)


def test_chunks_cut_by_circumstance_are_noticed(monkeypatch):
    def by_threads(memory, terms, size):
        return chunks(memory, terms, size + thread_count())

    def by_heads(memory, terms, size):
        return chunks(memory, terms, size + len(memory))

    def by_blocks(memory, terms, size):
        return chunks(memory, terms, size + driver._MAX_CHUNKS)

    with pytest.raises(AssertionError):
        of_all_kinds(law_threads_do_not_matter, by_threads, monkeypatch)
    with pytest.raises(AssertionError):
        of_all_kinds(law_heads_do_not_matter, by_heads)
    with pytest.raises(AssertionError):
        of_all_kinds(law_blocks_do_not_matter, by_blocks, monkeypatch)


def law_later_chunks_do_not_matter(form, memory, terms, size):
    """Outputs do not depend on later chunks, even if those are NaN or infinite."""
    edge = size * (terms.key.shape[-2] // (2 * size))
    expected, _ = form(memory, terms, size)
    for bad in (np.nan, np.inf):
        spoiled = terms.mapped(np.array)
        for x in spoiled.arrays():
            x[..., edge:, :] = -bad if x is spoiled.log_decay else bad
        with np.errstate(invalid="ignore", over="ignore"):
            result, _ = form(memory, spoiled, size)
        assert bits([result[..., :edge, :]]) == bits([expected[..., :edge, :]])


def test_later_chunks_do_not_matter():
    of_all_kinds(law_later_chunks_do_not_matter, chunks)


def test_a_glance_ahead_is_noticed():
    def peeking(memory, terms, size):
        output, after = chunks(memory, terms, size)
        return output + 0 * np.sum(terms.value), after

    with pytest.raises(AssertionError):
        of_all_kinds(law_later_chunks_do_not_matter, peeking)


@pytest.mark.parametrize("kind", [k for k in KINDS + PAIRS if not k[1] and not k[4]])
def test_what_is_not_seen_in_a_chunk_vanishes_even_if_infinite(kind):
    memory, terms = made(kind, 3, length=16)
    expected, _ = chunks(memory, terms, 16)
    key = np.array(terms.key)
    key[..., 9:, :] = np.inf
    with np.errstate(invalid="ignore"):
        result, _ = chunks(memory, terms._replace(key=key), 16)
    assert np.all(np.isfinite(result[..., :9, :]))
    assert np.allclose(result[..., :9, :], expected[..., :9, :], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", PAIRS)
def test_shares_that_are_no_numbers_reach_no_token_before(kind, bad):
    memory, terms = made(kind, 3, length=16)
    expected, _ = chunks(memory, terms, 16)
    follow = np.array(terms.follow)
    follow[..., 9:, :] = bad
    with np.errstate(invalid="ignore"):
        result, last = chunks(memory, terms._replace(follow=follow), 16)
    assert bits([result[..., :9, :]]) == bits([expected[..., :9, :]])
    assert not np.isfinite(last[..., : last.shape[-2] // 2, :]).any()


@pytest.mark.parametrize("form", [chunks, recurrent])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrow_inputs_are_widened(form, narrow):
    narrow = pytest.importorskip("ml_dtypes").bfloat16 if narrow[0] == "b" else narrow
    size = {} if form is recurrent else {"size": 8}
    for i, kind in enumerate(KINDS):
        memory, terms = made(kind, i, length=21, dtype="float32")
        terms = terms.mapped(lambda x: x.astype(narrow))
        wide = terms.mapped(lambda x: x.astype("float32"))
        expected, last = form(memory, wide, **size)
        result, after = form(memory, terms, **size)
        assert (result.dtype, after.dtype) == (narrow, np.float32)
        assert bits([result, after]) == bits([expected.astype(narrow), last])


def test_float32_is_as_good_as_its_digits():
    for i, kind in enumerate(KINDS + PAIRS):
        memory, terms = made(kind, i, length=100, dtype="float32")
        for expected, result in zip(
            one_by_one(memory, terms), chunks(memory, terms, 64), strict=True
        ):
            # 100 tokens of 4 channels, summed in any order, at 6e-8 each.
            assert np.max(np.abs(result - expected)) <= 1e-5 * (
                1 + np.max(np.abs(expected))
            )


def law_every_bit_is_the_token(form, memory, terms):
    outputs, after = [], memory
    for t in range(terms.key.shape[-2]):
        output, after = token(after, terms.span(slice(t, t + 1)))
        outputs.append(output)
    result = form(memory, terms)
    assert bits(result[1:]) == bits([after])
    if outputs:
        assert bits(result[:1]) == bits([np.concatenate(outputs, axis=-2)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_recurrent_form_is_the_token_to_the_last_bit(dtype):
    @EXAMPLES
    @given(problems(dtype=dtype))
    def law(problem):
        memory, terms, _ = problem
        law_every_bit_is_the_token(recurrent, memory, terms)

    law()


def signed_zeros(kind):
    """Return a problem full of signed zeros; the last token leaves nothing else."""
    rng = np.random.default_rng(5)
    memory, terms = made(kind, 5, length=9)

    def emptied(x):
        signs = np.where(rng.random(x.shape) < 0.5, 0.0, -0.0)
        return np.where(rng.random(x.shape) < 0.7, signs, x)

    terms = terms.mapped(emptied)
    last = slice(terms.key.shape[-2] - 1, None)
    terms.key[..., last, :] = np.copysign(0.0, terms.query[..., :1, :1])
    if terms.log_decay is not None:
        terms.log_decay[...] = -np.abs(terms.log_decay)
        terms.log_decay[..., last, :] = -np.inf
    return emptied(memory), terms


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_have_the_sign_of_the_tokens(kind):
    law_every_bit_is_the_token(recurrent, *signed_zeros(kind))


def test_other_bits_are_noticed(monkeypatch):
    for i, kind in enumerate(KINDS):
        problem = made(kind, i, length=75, features=9, values=7)
        with pytest.raises(AssertionError):
            law_every_bit_is_the_token(partial(chunks, size=4), *problem)
    begin = _RecurrentWorkspace.__init__

    def added_to(self, memory):
        begin(self, memory)
        self.columns[..., 1:] = self.rows[:, 1:] = 2.0**-40

    monkeypatch.setattr(_RecurrentWorkspace, "__init__", added_to)
    problem = signed_zeros(("channel", False, False, False, False))
    with pytest.raises(AssertionError):
        law_every_bit_is_the_token(recurrent, *problem)


@pytest.mark.parametrize("form", [partial(chunks, size=4), recurrent])
def test_arrays_broadcast_and_stay_as_they_are(form):
    for i, kind in enumerate(KINDS):
        memory, terms = made(kind, i, length=10, heads=(1, 3))
        one = terms._replace(query=terms.query[:, :1], key=terms.key[0, 0])
        full = one.mapped(lambda x: np.array(np.broadcast_to(x, (2, 3, *x.shape[-2:]))))
        large = np.array(np.broadcast_to(memory, (2, *memory.shape[1:])))
        before = bits([memory, *(x for x in one[:5] if x is not None)])
        wide = one._replace(value=np.broadcast_to(one.value, full.value.shape))
        result = form(memory, wide)
        for x, y in zip(result, form(large, full), strict=True):
            assert np.allclose(x, y, rtol=1e-13, atol=1e-13)
        assert bits([memory, *(x for x in one[:5] if x is not None)]) == before


@pytest.mark.parametrize("form", [partial(chunks, size=4), recurrent])
@pytest.mark.parametrize("heads", [(0,), (2, 0)])
def test_nothing_in_nothing_out(form, heads):
    for kind in KINDS if form is recurrent else KINDS + PAIRS:
        for length in (0, 5):
            memory, terms = made(kind, 0, length=length, heads=heads)
            output, after = form(memory, terms)
            assert output.shape[:-1] == (*heads, length)
            assert after.shape == memory.shape
