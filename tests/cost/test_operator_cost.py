"""The cost of operators against what counting arrays see of them."""

import inspect
import threading
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.cost import gradient_cost, linear_cost, operator_cost
from tests.cost.calls import ALL, call, calls
from tests.counting import TALLY, tally


def cost(of, cost_of=operator_cost, **changed):
    return cost_of(of.name, of.length, **{**of.asked, **changed})


# Each law takes the function that gives the cost, and the call whose work is counted.


def law_arithmetic(cost_of, run, of):
    seen, _ = tally(run, **of.inputs, **of.options)
    found = cost(of, cost_of)
    due = found.multiply_adds, found.elementwise, found.exponentials
    assert seen.counts() == due
    operations = 2 * seen.multiply_adds + seen.elementwise + seen.exponentials
    assert found.operations == operations


def law_bytes(cost_of, run, of):
    _, made = tally(run, **of.inputs, **of.options)
    found = cost(of, cost_of)
    parts = [x.value for x in made.state if x is not None]
    given_ = [x for x in of.inputs.values() if x is not None]
    assert found.read_bytes == sum(x.nbytes for x in given_)
    left = sum(x.nbytes for x in parts)
    assert found.written_bytes == made.output.value.nbytes + left
    assert found.state == sum(x.size for x in parts)
    all_of_them = found.read_bytes + found.written_bytes
    assert found.intensity == found.operations / all_of_them


def law_memory(cost_of, run, of, *memories):
    """Count the products that have the shape of what is added to a memory."""
    seen, made = tally(run, **of.inputs, **of.options)
    wide = made.state.memory.dtype.itemsize
    sizes = (x[0] * prod(x[1:3]) for x in seen.products if x[1:3] in memories)
    # Each write is read once before, and takes all levels along.
    levels = made.state.memory.shape[-3] if of.name == "log_linear_attention" else 1
    assert cost(of, cost_of).memory_bytes == 2 * wide * levels * sum(sizes)


LAWS = (law_arithmetic, law_bytes)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=6)
@given(data=st.data())
def test_laws_hold(name, data):
    of = data.draw(calls(name))
    for law in LAWS:
        law(operator_cost, of, of)


# Sizes that nothing else has: 4 or 1 tokens in a chunk, rows 11 and 17, columns 13.
MEMORIES = {
    "linear_attention": [(11, 14)],
    "simple_gla": [(11, 13)],
    "kda": [(11, 13)],
    "rwkv7": [(11, 13)],
    "gated_delta_product": [(11, 13)],
    "oja": [(13, 11)],
    "hgrn": [(13, 1)],
    "gsa": [(17, 11), (17, 13)],
    "based": [(133, 14)],
    "log_linear_attention": [(11, 13)],
}


@pytest.mark.parametrize(("form", "size"), [("recurrent", None), ("chunkwise", 4)])
@pytest.mark.parametrize("name", MEMORIES)
def test_the_memory_goes_to_and_fro_at_each_step(name, form, size):
    of = call(name, 9, 11, 13, 17, form=form, size=size, dtype="float32")
    law_memory(operator_cost, of, of, *MEMORIES[name])


def off_by_one(field):
    def wrong(*sizes, **options):
        found = operator_cost(*sizes, **options)
        return replace(found, **{field: getattr(found, field) + 1})

    return wrong


def changed(**options):
    """The cost of another call."""
    return lambda *sizes, **asked: operator_cost(*sizes, **{**asked, **options})


def one_chunk_more(name, length, **asked):
    return operator_cost(name, length + 4, **asked)


def once_for_all_batches(name, length, **asked):
    """Forgets that sequences of a batch cost each the same."""
    return operator_cost(name, length, **{**asked, "batch": 1})


def wasteful(of):
    """An implementation that computes the scores of all pairs beside everything."""

    def run(query, key, **inputs):
        _ = query @ query.__array_namespace__().matrix_transpose(key)
        return of(query=query, key=key, **inputs)

    return run


def recomputing(of):
    """An implementation that is called twice."""
    return lambda **inputs: of(**inputs) and of(**inputs)


CASES = [
    call(name, 9, form="chunkwise", size=4, batch=2, dtype="float32")
    for name in ("simple_gla", "gla", "kda", "gsa", "mesa", "log_linear_attention")
]
# Three chunks, the last one of a single token: blocks of powers of two have no padding.
PADDED = [x for x in CASES if x.name != "log_linear_attention"]
MUTANTS = {
    **{
        f"off_by_one_in_{field}": (law_arithmetic, off_by_one(field))
        for field in ("multiply_adds", "elementwise", "exponentials")
    },
    **{
        f"off_by_one_in_{field}": (law_bytes, off_by_one(field))
        for field in ("state", "read_bytes", "written_bytes")
    },
    "another_chunk_size": (law_arithmetic, changed(chunk_size=2)),
    "another_form": (law_arithmetic, changed(form="parallel", chunk_size=None)),
    "without_decay": (law_arithmetic, changed(without=("log_decay",))),
    "one_chunk_more": (law_arithmetic, one_chunk_more),
    "once_for_all_batches": (law_arithmetic, once_for_all_batches),
    "bytes_once_for_all_batches": (law_bytes, once_for_all_batches),
    "another_dtype": (law_bytes, changed(dtype="float64")),
}


@pytest.mark.parametrize("of", CASES, ids=lambda of: of.name)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_cost_is_caught(name, of):
    law, wrong = MUTANTS[name]
    law(operator_cost, of, of)
    with pytest.raises(AssertionError):
        law(wrong, of, of)


@pytest.mark.parametrize("of", PADDED, ids=lambda of: of.name)
def test_a_cost_without_padding_is_caught(of):
    with pytest.raises(AssertionError):
        law_arithmetic(changed(padded=False), of, of)


@pytest.mark.parametrize("of", CASES, ids=lambda of: of.name)
@pytest.mark.parametrize("waste", [wasteful, recomputing])
def test_an_implementation_that_computes_more_is_caught(waste, of):
    with pytest.raises(AssertionError):
        law_arithmetic(operator_cost, waste(of), of)


def test_a_memory_that_is_only_written_is_caught():
    of = call("simple_gla", 9, 11, 13, form="recurrent")

    def half(*sizes, **options):
        found = operator_cost(*sizes, **options)
        return replace(found, memory_bytes=found.memory_bytes // 2)

    with pytest.raises(AssertionError):
        law_memory(half, of, of, (11, 13))


# What counts, counted: by hand, and by PyTorch.


def test_the_counting_array_counts():
    x, y = np.ones((2, 3, 4)), np.ones((4, 5))

    def work(x, y):
        xp = x.__array_namespace__()
        product = x @ y  # 2 * 3 * 5 rows of 4
        total = xp.sum(xp.exp(product), axis=-1)  # 30 exponentials, 6 * 4 additions
        running = xp.cumulative_sum(total, axis=-1)  # 2 * 2 additions
        return -running / 2 + xp.where(running > 0, running, 0)  # 6 signs, 6, 6

    seen, _ = tally(work, x, y)
    assert seen.counts() == (120, 24 + 4 + 18, 30)
    assert seen.products == [(2, 3, 5, 4)]


def test_the_counting_array_counts_elimination():
    # Of 2 x 2: a factor, a multiply-add in the matrix; one down, one up; two pivots.
    def work(matrix, row):
        return matrix.__array_namespace__().linalg.solve(matrix, row)

    assert tally(work, np.eye(2), np.ones((2, 1)))[0].counts() == (3, 3, 0)


def test_the_counting_array_refuses_what_it_does_not_know():
    with pytest.raises(NotImplementedError, match="sinc is not counted"):
        tally(lambda x: x.__array_namespace__().sinc(x), np.ones(2))


def law_as_pytorch_counts(torch, of, seen):
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    inputs = {x: torch.asarray(y) for x, y in of.inputs.items()}
    with counter:
        of(**inputs, **of.options)
    assert seen == counter.get_total_flops() // 2


@pytest.mark.parametrize("name", ["kda", "oja", "gsa"])
def test_pytorch_counts_the_same_products(torch, name):
    import torch.utils.flop_counter

    of = call(name, 11, form="chunkwise", size=3)
    seen, _ = tally(of, **of.inputs, **of.options)
    law_as_pytorch_counts(torch, of, seen.multiply_adds)
    with pytest.raises(AssertionError):
        law_as_pytorch_counts(torch, of, seen.multiply_adds - 1)
    assert TALLY.counts() == seen.counts()


# On NumPy, chunks are as short as they are.


def law_on_numpy(cost_of, monkeypatch, name, length, size):
    real, lock, seen = np.matmul, threading.Lock(), [0]

    def counting(x, y, *arguments, **options):
        made = real(x, y, *arguments, **options)
        with lock:
            seen[0] += made.size * x.shape[-1]
        return made

    size = size or 32  # what NumPy takes if no size is asked for
    of = call(name, length, heads=3, form="chunkwise", size=size)
    with monkeypatch.context() as patch:
        patch.setattr(np, "matmul", counting)
        getattr(linkern, name)(**of.inputs, **of.options)
    assert cost(of, cost_of).multiply_adds == seen[0]


ADDITIVE = ("linear_attention", "simple_gla", "retention", "based")


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize(("length", "size"), [(1, None), (70, None), (64, 16), (53, 7)])
def test_the_count_without_padding_is_that_on_numpy(monkeypatch, name, length, size):
    law_on_numpy(changed(padded=False), monkeypatch, name, length, size)


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_count_with_padding_is_not_that_on_numpy(monkeypatch, name):
    with pytest.raises(AssertionError):
        law_on_numpy(changed(padded=True), monkeypatch, name, 53, 7)


def test_the_count_of_a_chunk():
    """Chunks of C take ``C C (K + V + 1) + 2 C K (V + 1)``, the last one as well."""
    for length, rest in ((64, 0), (100, 36)):
        found = linear_cost(length, features=48, value_dim=32, padded=False)
        due = sum(c * c * (48 + 33) + 2 * c * 48 * 33 for c in (64, rest))
        assert found.multiply_adds == due
    one = operator_cost("linear_attention", 100, key_dim=48, value_dim=32, padded=False)
    assert one.multiply_adds == due


SIZES = {"key_dim": 2, "value_dim": 2}


@pytest.mark.parametrize(
    ("asked", "error", "sentence"),
    [
        (("glaa", 3, SIZES), ValueError, "`op` must be one of abc, .*, got 'glaa'"),
        (([], 3, SIZES), ValueError, "`op` must be one of"),
        ((np.sum, 3, SIZES), ValueError, "the operator or its name, got <function sum"),
        (("gla", 0, SIZES), ValueError, "`length` must be a positive integer, got 0"),
        (("gla", 3, {"value_dim": 2}), TypeError, "`key_dim` must be an integer"),
        (("hgrn", 3, SIZES), ValueError, "`key_dim` must be None for hgrn, got 2"),
        (("gla", 3, {**SIZES, "slots": 2}), ValueError, "`slots` must be None for gla"),
        (("gla", 3, {**SIZES, "steps": 2}), ValueError, "`steps` must be 1 for gla"),
        (
            ("log_linear_attention", 8, {**SIZES, "levels": 4}),
            ValueError,
            "`levels` must be at least 5, got 4",
        ),
        (
            ("gla", 3, {**SIZES, "without": ("beta",)}),
            ValueError,
            r"`without` must name optional inputs of gla \(log_decay\), got 'beta'",
        ),
        (
            ("gla", 3, {**SIZES, "without": "log_decay"}),
            TypeError,
            "`without` must be a collection of names",
        ),
        (("gla", 3, {**SIZES, "dtype": "int8"}), ValueError, "`dtype` must be one of"),
        (("gla", 3, {**SIZES, "heads": 0}), ValueError, "`heads` must be a positive"),
        (("gla", 3, {**SIZES, "padded": 1}), TypeError, "`padded` must be True or"),
        (("gla", 3, {**SIZES, "form": "rnn"}), ValueError, "`form` must be one of"),
    ],
)
def test_errors(asked, error, sentence):
    name, length, sizes = asked
    with pytest.raises(error, match=sentence):
        operator_cost(name, length, **sizes)


@pytest.mark.parametrize("name", ALL)
def test_an_operator_costs_what_its_name_does(name):
    of, op = call(name, 5), getattr(linkern, name)
    for count in (operator_cost, gradient_cost):
        known = inspect.signature(count).parameters
        asked = {key: x for key, x in of.asked.items() if key in known}
        assert count(op, of.length, **asked) == count(name, of.length, **asked)


def test_a_function_with_the_name_of_an_operator_has_no_cost():
    def gla(query, key, value):
        return linkern.gla(query, key, value)

    with pytest.raises(ValueError, match=r"`op` must be one of abc, .* got <function"):
        operator_cost(gla, 3, **SIZES)


@pytest.mark.parametrize("levels", [None, 9])
def test_further_levels_are_counted(levels):
    of = call("log_linear_attention", 11, form="chunkwise", size=4)
    if levels is not None:
        scales = np.ones((1, 1, 11, levels))
        of = of._replace(
            inputs={**of.inputs, "level_scales": scales},
            asked={**of.asked, "levels": levels},
        )
    for law in LAWS:
        law(operator_cost, of, of)
