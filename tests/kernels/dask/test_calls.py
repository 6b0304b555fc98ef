"""Operators on Dask arrays: any chunks give what one call gives, block by block."""

import gc
import re
import time
import weakref
from importlib import import_module
from threading import Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State
from linkern.kernels.dask.spans import Span
from linkern.operators.register import DEFINITIONS
from tests.operators.problems import (
    NAMES,
    close,
    expected,
    operator,
    parts,
    problem,
)

LENGTH, STEPS = 9, 2
AFFINE = [name for name in NAMES if DEFINITIONS[name].affine]
SCANS = ["chain", "blelloch"]


@pytest.fixture(scope="module")
def da(dask):
    return import_module("dask.array")


@pytest.fixture(params=SCANS)
def scan(request, dask):
    """Both ways from the state before a block to the state before the next."""
    with dask.config.set({"linkern.scan": request.param}):
        yield request.param


def compositions(draw, total):
    """Draw chunks of an axis: positive numbers that add up."""
    chunks = []
    while total:
        chunks.append(draw(st.integers(1, total)))
        total -= chunks[-1]
    return tuple(chunks)


class Chunked:
    """Chunks of one call, drawn once, and its arrays in these chunks."""

    def __init__(self, da, draw, batch, heads):
        self.da = da
        self.sizes = {
            "batch": compositions(draw, batch),
            "heads": compositions(draw, heads),
            "t": compositions(draw, LENGTH),
        }

    def axis(self, letter, size):
        chunks = self.sizes.get({"s": "t"}.get(letter, letter))
        if chunks is None or size % sum(chunks):
            return (size,)
        return tuple(n * (size // sum(chunks)) for n in chunks)

    def array(self, x, letters):
        lead = ("batch", "heads")[2 - (x.ndim - len(letters)) :]
        names = (*lead, *letters)
        chunks = tuple(map(self.axis, names, x.shape))
        return self.da.from_array(x, chunks=chunks)

    def inputs(self, name, inputs):
        axes = DEFINITIONS[name].axes
        return {key: self.array(x, axes[key]) for key, x in inputs.items()}

    def state(self, state):
        return State(
            *(None if x is None else self.array(x, "." * (x.ndim - 2)) for x in state)
        )


def drawn(da, data, name, *, batch=2, heads=2):
    """Inputs, an initial state or None, and both in chunks."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    chunked = Chunked(da, data.draw, batch, heads)
    inputs = problem(name, rng, LENGTH, batch=batch, heads=heads)
    state = None
    if name != "log_linear_attention" and data.draw(st.booleans()):
        state = operator(name)(**problem(name, rng, 5, batch=batch, heads=heads)).state
    return inputs, state, chunked


@pytest.mark.parametrize("name", NAMES)
def test_any_chunks_give_what_the_paper_says(name, da, dask):
    @settings(max_examples=4)
    @given(st.data())
    def law(data):
        inputs, state, chunked = drawn(da, data, name)
        options = {}
        if state is not None:
            options["initial_state"] = chunked.state(state)
        due_output, due_state = expected(name, inputs, state and parts(state))
        for scan in SCANS if name in AFFINE else SCANS[:1]:
            with dask.config.set({"linkern.scan": scan}):
                got = operator(name)(**chunked.inputs(name, inputs), **options)
            assert got.output.chunks[-2] == chunked.sizes["t"]
            output, *state_of_call = da.compute(got.output, *parts(got.state))
            close(output, due_output)
            for x, due in zip(state_of_call, due_state, strict=True):
                close(x, due)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_any_chunks_give_the_gradients_of_one_call(name, da, dask):
    @settings(max_examples=3)
    @given(st.data())
    def law(data):
        inputs, state, chunked = drawn(da, data, name)
        rng = np.random.default_rng(1)
        plain = {**inputs, "initial_state": state}
        result, pullback = linkern.vjp(operator(name), **plain)
        of_output = rng.normal(size=result.output.shape)
        of_state = State(
            *(None if x is None else rng.normal(size=x.shape) for x in result.state)
        )
        dropped = data.draw(st.sampled_from([None, "output", "state"]))
        due = pullback(
            None if dropped == "output" else of_output,
            None if dropped == "state" else of_state,
        )
        blocks = chunked.inputs(name, inputs)
        if state is not None:
            blocks["initial_state"] = chunked.state(state)
        scan = data.draw(st.sampled_from(SCANS if name in AFFINE else SCANS[:1]))
        with dask.config.set({"linkern.scan": scan}):
            _, pullback = linkern.vjp(operator(name), **blocks)
        got = pullback(
            None if dropped == "output" else chunked.array(of_output, "tv"),
            None if dropped == "state" else chunked.state(of_state),
        )
        assert set(got) == set(due)
        if state is not None:
            for x, y in zip(
                parts(got.pop("initial_state")),
                parts(due.pop("initial_state")),
                strict=True,
            ):
                close(x.compute(), y)
        for key, x in due.items():
            assert got[key].chunks == blocks[key].chunks
            assert got[key].dtype == x.dtype
            close(got[key].compute(), x)

    law()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["linear_attention", "gated_delta_rule", "gsa"])
def test_blocks_are_calls_from_the_state_before_them_bit_for_bit(name, dtype, da):
    rng = np.random.default_rng(0)
    inputs = problem(name, rng, LENGTH, batch=1, heads=2)
    inputs = {key: x.astype(dtype) for key, x in inputs.items()}
    axes, state, outputs = DEFINITIONS[name].axes, None, []
    for tokens in (slice(0, 4), slice(4, 9)):
        block = {
            key: x[:, :, tokens] if axes[key][:1] == "t" else x
            for key, x in inputs.items()
        }
        output, state = operator(name)(**block, initial_state=state)
        outputs.append(output)
    got = operator(name)(
        **{
            key: da.from_array(x, chunks=(1, 2, (4, 5), *x.shape[3:]))
            for key, x in inputs.items()
        }
    )
    assert got.output.dtype == dtype
    np.testing.assert_array_equal(got.output.compute(), np.concatenate(outputs, 2))
    np.testing.assert_array_equal(got.state.memory.compute(), state.memory)
    assert got.state.memory.dtype == np.float32


@pytest.mark.usefixtures("scan")
def test_heads_in_groups_and_axes_of_one_entry(da):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 1, 2, 7, 3))
    value = rng.normal(size=(1, 4, 7, 2))
    log_decay = -rng.random(7)
    x = [
        *(da.from_array(x, chunks=(1, 1, 3, 3)) for x in (query, key)),
        da.from_array(value, chunks=(1, 2, 3, 2)),
        da.from_array(log_decay, chunks=3),
    ]
    due, pull = linkern.vjp(linkern.simple_gla, query, key, value, log_decay)
    got, pull_blocks = linkern.vjp(linkern.simple_gla, *x)
    close(got.output.compute(), due.output)
    cotangent = rng.normal(size=due.output.shape)
    gradients = pull_blocks(da.from_array(cotangent, chunks=got.output.chunks))
    for name, x in pull(cotangent).items():
        close(gradients[name].compute(), x)


@pytest.mark.usefixtures("scan")
def test_queries_of_several_heads_share_one_state(da):
    rng = np.random.default_rng(0)
    query = rng.normal(size=(4, 7, 3))
    key, value = rng.normal(size=(2, 1, 7, 3))
    initial, cotangent = rng.normal(size=(2, 1, 3, 3))
    options = {"normalize": False, "feature_map": linkern.feature_maps.identity}
    due, pull = linkern.vjp(
        linkern.linear_attention, query, key, value, initial_state=initial, **options
    )
    got, pull_blocks = linkern.vjp(
        linkern.linear_attention,
        da.from_array(query, chunks=(1, 3, 3)),
        *(da.from_array(x, chunks=(1, 3, 3)) for x in (key, value)),
        initial_state=da.from_array(initial),
        **options,
    )
    close(got.state.memory.compute(), due.state.memory)
    gradients = pull_blocks(None, da.from_array(cotangent))
    due_gradients = pull(None, cotangent)
    close(
        gradients.pop("initial_state").memory.compute(),
        due_gradients.pop("initial_state").memory,
    )
    for name, x in due_gradients.items():
        close(gradients[name].compute(), x)


def test_positions_go_on_from_block_to_block(da):
    rng = np.random.default_rng(0)
    inputs = problem("log_linear_attention", rng, LENGTH)
    del inputs["level_scales"]
    first = {key: x[:, :, :4] for key, x in inputs.items()}
    second = {key: x[:, :, 4:] for key, x in inputs.items()}
    scales = np.asarray([1.0, 2.0, 4.0, 8.0, 16.0])
    state = linkern.log_linear_attention(
        **first, level_scales=np.broadcast_to(scales, (4, 5))
    ).state
    scales = np.broadcast_to(scales, (5, 5))
    due = linkern.log_linear_attention(
        **second, level_scales=scales, position=4, initial_state=state
    )
    got = linkern.log_linear_attention(
        **{
            key: da.from_array(x, chunks=(1, 1, 2, *x.shape[3:]))
            for key, x in second.items()
        },
        level_scales=da.from_array(scales, chunks=(2, 5)),
        position=4,
        initial_state=da.from_array(state.memory, chunks=(1, 1, -1, -1, -1)),
    )
    close(got.output.compute(), due.output)


# Graphs

BLOCKS = 6


def loaded(da, seen, *, chunks=(1, 2, 4, 3), shape=(1, 2, 4 * BLOCKS, 3)):
    """An array that notes which of its blocks are made."""

    def block(block_info=None):
        where = block_info[None]
        seen.append(where["chunk-location"])
        rng = np.random.default_rng(where["chunk-location"])
        return rng.normal(size=where["chunk-shape"])

    chunks = da.core.normalize_chunks(chunks, shape)
    return da.map_blocks(
        block, chunks=chunks, dtype=float, meta=np.empty((0,) * 4), token=str(id(seen))
    )


def tasks(dask, *arrays):
    (*optimized,) = dask.optimize(*arrays)
    keys = {}
    for x in optimized:
        keys |= dict(x.dask)
    return keys


def planned(x):
    """Keys that an array needs, before Dask joins some of them in ways of its own."""
    graph, (*keys,) = (
        x.dask.to_dict(),
        import_module("dask.core").flatten(x.__dask_keys__()),
    )
    return set(import_module("dask.optimization").cull(graph, keys)[0])


def test_a_block_costs_at_most_three_tasks(da, dask):
    seen = []
    x = [loaded(da, seen) for _ in range(3)]
    result, pullback = linkern.vjp(linkern.delta_rule, *x)
    # One task more: the state before the first token.
    assert len(tasks(dask, result.output)) <= 3 * BLOCKS + 1
    gradients = pullback(loaded(da, seen))
    # The states: two each; then a pullback, what it carries on, and three gradients.
    assert len(tasks(dask, *gradients.values())) <= 7 * BLOCKS + 2
    assert not seen


def test_nothing_is_computed_early_and_nothing_is_kept(da, dask):
    seen, of_cotangent = [], []
    x = loaded(da, seen)
    result, pullback = linkern.vjp(linkern.delta_rule, x, x, x)
    gradients = pullback(loaded(da, of_cotangent))
    assert not seen
    result.output.compute(scheduler="sync")
    in_order = [(0, 0, n, 0) for n in range(BLOCKS)]
    assert seen == in_order  # once, though it is query, key and value
    seen.clear()
    da.compute(*gradients.values(), scheduler="sync")
    # Nobody needs the state after the last block.
    assert seen == [*in_order[:-1], *reversed(in_order)]
    assert of_cotangent == in_order[::-1]


class Alive:
    """Blocks in memory, and the most that there were."""

    def __init__(self):
        self.lock, self.now, self.most = Lock(), 0, 0

    def count(self, block):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        weakref.finalize(block, self._end)

    def _end(self):
        with self.lock:
            self.now -= 1

    def array(self, da, count, seed):
        """An array that counts its blocks."""

        def block(block_info=None):
            where = block_info[None]["chunk-location"]
            made = np.random.default_rng((seed, *where)).normal(size=(1, 2, 4, 3))
            self.count(made)
            return made

        return da.map_blocks(
            block,
            chunks=((1,), (2,), (4,) * count, (3,)),
            dtype=float,
            meta=np.empty((0,) * 4),
            token=f"{id(self)}-{seed}",
        )


class Kept:
    """A store that takes its time, and keeps no block."""

    def __setitem__(self, where, block):
        time.sleep(0.002)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_scan_holds_a_few_blocks_whatever_the_length(threads, da, dask, monkeypatch):
    alive, forward = Alive(), Span.forward

    def counted(*args):
        result = forward(*args)
        alive.count(result.output)
        return result

    monkeypatch.setattr(Span, "forward", counted)
    for count in (10, 30):
        x = [alive.array(da, count, seed) for seed in range(3)]
        with dask.config.set({"linkern.scan": "blelloch"}):
            output = linkern.simple_gla(*x).output
        options = {"scheduler": "threads", "num_workers": threads}
        da.store([output], [Kept()], lock=False, **options)
        gc.collect()
        assert alive.now == 0
    # Query, key, value and output of the block that each thread works on.
    assert 3 <= alive.most <= 4 * threads


def test_what_several_blocks_need_is_computed_once(da):
    seen = []
    x = loaded(da, seen)
    centred = x - x.mean(axis=-2, keepdims=True)
    got = linkern.simple_gla(centred, centred, x).output.compute(scheduler="sync")
    assert len(seen) == BLOCKS
    centred = x - x.mean(axis=-2, keepdims=True)
    graph = linkern.simple_gla(centred, centred, x).output.dask
    needs = graph.get_all_dependencies()
    # Its block, which the mean needs too, the mean, and the state.
    assert {len(needs[key]) for key in needs if "simple_gla-run" in key[0]} == {3}
    x = x.compute()
    centred = x - x.mean(axis=-2, keepdims=True)
    close(got, linkern.simple_gla(centred, centred, x).output)


def test_heads_are_independent_tasks(da, dask):
    seen = []
    x = loaded(da, seen, chunks=(1, 1, 4, 3))
    output = linkern.delta_rule(x, x, x).output
    output[:, :1, :4].compute(scheduler="sync")
    assert seen == [(0, 0, 0, 0)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12, 33])
def test_a_scan_is_a_tree_of_maps(count, da, dask):
    seen = []
    x = loaded(da, seen, shape=(1, 2, 4 * count, 3))
    with dask.config.set({"linkern.scan": "blelloch"}):
        result = linkern.delta_rule(x, x, x)
    keys = planned(result.output)
    composed = {key for key in keys if "-prefix-" in key[0]}
    # A map (not of the last block), a call and an output; the state before them all.
    assert len(keys) - len(composed) == 3 * count
    # Blelloch: fewer than two compositions for each map.
    assert len(composed) <= max(2 * (count - 1) - 2, 0)
    assert not seen
    needs, levels = result.output.dask.get_all_dependencies(), {}
    for key in dask.core.toposort(dict(needs), dependencies=needs):
        levels[key] = 1 + max((levels[need] for need in needs[key]), default=0)
    # The map, up and down the tree, the call, its output.
    assert max(levels.values()) <= 3 + 2 * (count - 1).bit_length()
    close(result.output.compute(), linkern.delta_rule(*[x.compute()] * 3).output)


def test_a_scan_reads_queries_once(da, dask):
    of_query, of_key = [], []
    query, key = loaded(da, of_query), loaded(da, of_key)
    with dask.config.set({"linkern.scan": "blelloch"}):
        output = linkern.simple_gla(query, key, key).output
    output.compute(scheduler="sync")
    assert len(of_query) == BLOCKS
    assert len(of_key) == 2 * BLOCKS - 1


def test_no_token_at_all(da):
    x = da.zeros((2, 0, 3))
    result = linkern.delta_rule(x, x, x)
    assert result.output.compute().shape == (2, 0, 3)
    np.testing.assert_array_equal(result.state.memory.compute(), np.zeros((2, 3, 3)))


# Bad input

ROWS = (2, 6, 4)


def rows(da, chunks=(2, 3, 4), shape=ROWS, dtype=float):
    return da.ones(shape, chunks=chunks, dtype=dtype)


def refused(da):
    """Calls that are refused, each with its sentence."""
    x = rows(da)
    unknown = x[:, da.ones(6) > 0]
    empty = rows(da, (2, (3, 3, 0), 4))
    beta, split = da.ones((2, 6), chunks=3), rows(da, (2, 3, 2))
    gated = linkern.gated_delta_rule
    cosine = linkern.feature_maps.cosine_reweighting(6)
    state = da.ones((2, 4, 4), chunks=(2, 2, 4))
    return {
        "`query` must have chunks of known sizes, got shape (2, nan, 4); call "
        "`query.compute_chunk_sizes()` first.": lambda: gated(unknown, x, x),
        "`query` must have chunks of at least one token (axis -2), got (3, 3, 0); "
        "rechunk it.": lambda: gated(empty, empty, empty),
        "`key` must have one chunk along axis -1, got (2, 2); call "
        "`key.rechunk({-1: -1})`.": lambda: gated(x, split, x),
        "`value` must have the chunks (3, 3) along axis -2, which fit those of "
        "`query`, got (2, 4); call `value.rechunk({-2: (3, 3)})`.": lambda: gated(
            x, x, rows(da, (2, (2, 4), 4))
        ),
        "`key` must have the chunks (2,) along axis -3, which fit those of `query`, "
        "got (1, 1); call `key.rechunk({-3: (2,)})`.": lambda: gated(
            x, rows(da, (1, 3, 4)), x
        ),
        "`beta` must have the chunks (2,) along axis -2": lambda: gated(
            x, x, x, None, da.ones((2, 6), chunks=(1, 3))
        ),
        "`query`, `key` and `value` must come from one array library, got dask, numpy, "
        "dask.": lambda: gated(x, np.ones(ROWS), x),
        "must come from one array library": lambda: gated(
            x, x, x, None, np.ones((2, 6))
        ),
        "`value` must have a real floating dtype": lambda: gated(
            x, x, rows(da, dtype=object)
        ),
        "`cu_seqlens` must be None for Dask arrays": lambda: gated(
            x, x, x, cu_seqlens=[0, 6]
        ),
        "`causal` must be True for Dask arrays": lambda: linkern.linear_attention(
            x, x, x, causal=False
        ),
        "`feature_map` must map each token alone": lambda: linkern.linear_attention(
            x, x, x, feature_map=cosine
        ),
        "`initial_state.memory` must have the chunks (4,) along axis -2": lambda: gated(
            x, x, x, initial_state=state
        ),
        "`output_cotangent` must have the chunks (3, 3) along axis -2": lambda: (
            linkern.vjp(gated, x, x, x, None, beta)[1](rows(da, (2, 2, 4)))
        ),
        "`value` must have one chunk along axis -3, got (3, 1)": lambda: gated(
            x, x, da.ones((4, 6, 4), chunks=((3, 1), 3, 4))
        ),
        '`linkern.scan` must be "chain" or "blelloch", got \'tree\'.': lambda: scanned(
            "tree", gated, x, x, x
        ),
    }


def scanned(scan, op, *inputs):
    dask = import_module("dask")
    with dask.config.set({"linkern.scan": scan}):
        return op(*inputs)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(AFFINE)))
def test_a_scan_of_what_is_no_affine_map_is_refused(name, da):
    inputs = problem(name, np.random.default_rng(0), LENGTH)
    blocks = {key: da.from_array(x) for key, x in inputs.items()}
    with pytest.raises(ValueError, match=f'must be "chain" for {name}, got'):
        scanned("blelloch", lambda: operator(name)(**blocks))


@pytest.mark.parametrize("number", range(16))
def test_what_does_not_fit_is_refused(number, da):
    cases = list(refused(da).items())
    assert len(cases) == 16
    sentence, call = cases[number]
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        call()


def test_rules_about_values_hold_in_the_blocks(da):
    x = rows(da)
    result = linkern.simple_gla(x, x, x, da.ones((2, 6), chunks=(2, 3)))
    with pytest.raises(ValueError, match="`log_decay` must be a natural logarithm"):
        result.output.compute(scheduler="sync")
