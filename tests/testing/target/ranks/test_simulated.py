"""Ranks in one process: they compute what processes do."""

import multiprocessing
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkern.testing import simulate_ranks
from linkern.testing.runner.opening import config_of, open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.target.protocol import Call
from linkern.testing.target.ranks.meeting import Meeting
from linkern.testing.target.ranks.messages import Messages
from linkern.testing.target.ranks.sharding import Sharding
from tests.marks import in_turn

EXAMPLES = Path(__file__).parents[4] / "examples" / "ranks"


@pytest.fixture(scope="module")
def examples(torch):
    """The three examples, which import each other."""
    del torch
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import all_gather
        import all_to_all
        import ring

        yield {"all_gather": all_gather, "ring": ring, "all_to_all": all_to_all}
        for name in ("all_gather", "all_to_all", "ring", "shard"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def target(torch):
    del torch
    target = open_target(plan_of("all_gather"))
    yield target
    target.close()


def plan_of(module, op="gla"):
    return Plan(f"{EXAMPLES}/{module}.py:{op}", op, ranks=(2, 3))


def inputs(op, length, seed=0, batch=2, heads=3):
    """The inputs of an operator, by name."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(size=(batch, heads, length, dim))
        for name, dim in {"query": 3, "key": 3, "value": 4}.items()
    }
    if op != "linear_attention":
        decays = -abs(rng.normal(size=(batch, heads, length, 3)))
        arrays["log_decay"] = decays if op == "gla" else decays[..., 0]
    if op == "gated_delta_rule":
        arrays["beta"] = rng.random((batch, heads, length))
    return arrays


@st.composite
def runs(draw):
    """Sizes of shards, a cut or the offsets of packed sequences, and a seed."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=2, max_size=3).filter(any))
    length = sum(sizes)
    ends = st.lists(st.integers(0, length), min_size=1, max_size=2).map(sorted)
    how = draw(st.sampled_from(["whole", "cut", "packed"]))
    offsets = (0, *draw(ends)) if how == "packed" else ()
    cuts = (draw(st.integers(0, length)),) if how == "cut" else ()
    return tuple(sizes), cuts, offsets, draw(st.integers(0, 99))


PAIRS = [("all_gather", "gated_delta_rule"), ("ring", "linear_attention")]
PAIRS += [("all_to_all", "gla")]


@pytest.mark.parametrize(
    ("module", "op"),
    in_turn(
        lambda *x: x in PAIRS,
        product(
            ("all_gather", "ring", "all_to_all"),
            ("gla", "gated_delta_rule", "linear_attention"),
        ),
    ),
)
def test_a_simulation_gives_the_bits_of_processes(module, op, examples, target, torch):
    target.reopen(config_of(plan_of(module, op)))
    function = getattr(examples[module], op)

    @settings(max_examples=12, deadline=None, database=None, derandomize=True)
    @given(runs())
    @example(((0, 7), (), (), 1))
    @example(((2, 0, 3), (2,), (), 1))
    @example(((3, 0, 2), (), (0, 3, 3, 4), 1))
    def agree(run):
        sizes, cuts, offsets, seed = run
        batch = 1 if offsets else 2
        arrays = inputs(op, sum(sizes), seed, batch)
        ends = np.cumsum(sizes)[:-1] / sum(sizes)
        call = Call(
            arrays,
            cuts=cuts,
            wants_state=True,
            segments=(offsets,) if offsets else (),
            sharding=Sharding(len(sizes), tuple(ends)),
        )
        cotangent = np.random.default_rng(seed).normal(size=arrays["value"].shape)
        replies = target.call(call), target.call(replace(call, cotangent=cotangent))
        simulated = in_threads(torch, function, call, cotangent)
        expected = replies[0].output, *replies[0].states, *replies[1].gradients
        for x, expected_x in zip(simulated, expected, strict=True):
            # A span is a view there and a copy here, on which functions of torch round
            # differently.
            within = 1e-12 if cuts else 0.0
            got = x.detach().numpy()
            np.testing.assert_allclose(got, expected_x, rtol=within, atol=within)

    agree()


def in_threads(torch, function, call, cotangent):
    """Output, final state and gradients of a call, span by span."""
    tensors = [torch.tensor(x, requires_grad=True) for x in call.inputs.values()]
    outputs, state = [], None
    for start, end in pairwise((0, *call.cuts, tensors[0].shape[2])):
        sizes, options = call.sharding.sizes(end - start), {}
        if call.segments:
            options = {"cu_seqlens": torch.tensor(call.segments[0])}
        part = [x[:, :, start:end] for x in tensors]
        output, state = simulate_ranks(function, sizes)(
            *part, initial_state=state, **options
        )
        outputs.append(output)
    output = torch.cat(outputs, 2)
    output.backward(torch.tensor(cotangent))
    states = state if isinstance(state, tuple) else (state,)
    return output, *states, *(x.grad for x in tensors)


def test_a_state_goes_in_and_out(examples, torch):
    tensors = [torch.tensor(x) for x in inputs("gla", 6).values()]
    state = torch.ones(2, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for module in examples.values():
        state.grad = None
        called = simulate_ranks(module.gla, 3)
        output, final = called(*tensors, initial_state=state)
        (output.sum() + (final**2).sum()).backward()
        results.append((output.detach(), final.detach(), state.grad.clone()))
    for one in results[1:]:
        for x, expected in zip(one, results[0], strict=True):
            np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def dist(torch):
    return torch.distributed


def test_ranks_that_call_different_collectives_are_named(torch, dist):
    def kernel(x):
        if dist.get_rank():
            dist.barrier()
        else:
            dist.all_reduce(x)
        return x

    expected = r"the same collective, got rank 0 all_reduce, rank 1 barrier"
    with pytest.raises(RuntimeError, match=expected):
        simulate_ranks(kernel, 2, dim=0)(torch.ones(4))


def test_a_rank_that_calls_none_is_named(torch, dist):
    def kernel(x):
        if dist.get_rank():
            msg = "odd"
            raise ValueError(msg)
        dist.barrier()
        return x

    with pytest.raises(ValueError, match="odd"):
        simulate_ranks(kernel, 2, dim=0)(torch.ones(4))


def test_only_sums_are_reduced(torch, dist):
    def kernel(x):
        dist.all_reduce(x, dist.ReduceOp.MAX)
        return x

    with pytest.raises(NotImplementedError, match="`op` must be SUM"):
        simulate_ranks(kernel, 2, dim=0)(torch.ones(4))


def test_one_rank_is_refused():
    with pytest.raises(ValueError, match="`ranks` must be at least 2, got 1"):
        simulate_ranks(print, 1)


def on_ranks(x, dist):
    """Use what is simulated: integers, that every backend adds up alike."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = x.new_empty(size * len(x), x.shape[1])
    first = dist.all_gather_into_tensor(gathered, x, async_op=True)
    left, right = empty_like(x), empty_like(x)
    around = [(rank - 1) % size, (rank + 1) % size]
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, left, around[0]),
            dist.P2POp(dist.isend, x, around[1]),
        ]
    )
    request = dist.irecv(right, around[1], tag=1)
    dist.isend(x + rank, around[0], tag=1).wait()
    for one in (*requests, request, first):
        one.wait()
    scattered = empty_like(x)
    dist.reduce_scatter_tensor(scattered, gathered * (rank + 1))
    part = empty_like(x)
    dist.reduce_scatter(part, [x * r for r in range(size)])
    exchanged = [empty_like(x) for _ in range(size)]
    total = x.clone()
    last = dist.all_reduce(total, async_op=True)
    dist.all_gather(exchanged, x + rank)
    last.wait()
    several = [gathered.sum(0).expand_as(x), left, right, scattered, part, total]
    return sum((i + 2) ** 5 * y for i, y in enumerate([*several, *exchanged]))


def empty_like(x):
    """Return zeros, on which no gradient is recorded."""
    return x.new_zeros(x.shape)


def on_ranks_in_processes(rank, file, x, results):
    """One process of `on_ranks`."""
    import torch.distributed as dist

    ranks = len(x) // 2
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    results.put((rank, on_ranks(x[2 * rank : 2 * rank + 2], dist).tolist()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_collectives_do_what_those_of_gloo_do(torch, dist, tmp_path):
    ranks = 3
    x = torch.arange(4.0 * ranks).reshape(-1, 2) + 1
    expected = simulate_ranks(partial(on_ranks, dist=dist), ranks, dim=0)(x)
    context = multiprocessing.get_context("spawn")
    results, file = context.Queue(), tmp_path / "meeting"
    processes = [
        context.Process(target=on_ranks_in_processes, args=(r, file, x, results))
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    rows = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    got = [row for rank in range(ranks) for row in rows[rank]]
    assert got == expected.tolist()


def test_a_function_that_was_imported_by_its_name_is_replaced(torch, monkeypatch):
    module = ModuleType("kernels_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = """
from torch.distributed import all_reduce as add, get_rank

def kernel(x):
    total = x.sum(0, keepdim=True)
    add(total)
    return total.expand_as(x) + get_rank()
"""
    exec(code, vars(module))
    result = simulate_ranks(module.kernel, 2, dim=0)(torch.ones(4, 1))
    assert result.tolist() == [[4.0], [4.0], [5.0], [5.0]]
    assert module.add is torch.distributed.all_reduce  # as it was


def test_what_nobody_waits_for_is_not_written(torch, dist):
    def kernel(x):
        total = x.clone()
        handle = dist.all_reduce(total, async_op=True)
        if dist.get_rank():
            handle.wait()
        return total

    result = simulate_ranks(kernel, 2, dim=0)(torch.ones(2))
    assert result.tolist() == [1.0, 2.0]


def test_a_message_that_nobody_sends_is_named(torch, dist, monkeypatch):
    monkeypatch.setattr("linkern.testing.target.ranks.messages.PATIENCE", 0.1)

    def kernel(x):
        if dist.get_rank():
            dist.recv(x.clone(), 0)
        return x

    expected = "rank 1 waits in recv, to which rank 0 sends none"
    with pytest.raises(RuntimeError, match=expected):
        simulate_ranks(kernel, 2, dim=0)(torch.ones(4))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_page_says_how_many_numbers_cross(ranks, examples, torch, monkeypatch):
    """Numbers that all ranks receive of a head: those of the table, times the ranks."""
    sent, length, key, value, heads = [], 4 * ranks, 3, 4, 4
    met, put = Meeting.exchanged, Messages.isend

    def exchanged(meeting, name, x):
        tensors = x if isinstance(x, tuple | list) else [x]
        if name == "all_gather" and x.is_floating_point():
            sent.extend((ranks - 1) * [x.numel()])
        elif name == "all_to_all_single":
            sent.extend(y.numel() for i, y in enumerate(tensors) if i != meeting.rank)
        return met(meeting, name, x)

    def isend(messages, tensor, *rest):
        sent.append(tensor.numel())
        return put(messages, tensor, *rest)

    monkeypatch.setattr(Meeting, "exchanged", exchanged)
    monkeypatch.setattr(Messages, "isend", isend)
    tokens = (ranks - 1) * length / ranks**2 * (2 * key + 2 * value + key)
    initial = key * value * (ranks - 1)  # of all ranks together, and the final one
    arrays = inputs("gla", length, batch=1, heads=heads)
    several = [torch.tensor(x, requires_grad=True) for x in arrays.values()]
    expected = {
        "all_gather": ranks * (ranks - 1) * key * (key + value),
        "ring": (ranks - 1) * key * value,  # the first rank receives none
        "all_to_all": ranks * tokens + 2 * initial / ranks,
    }
    backward = {
        "all_gather": ranks * (ranks - 1) * 2 * key * value,
        "ring": expected["ring"],
        "all_to_all": expected["all_to_all"],
    }
    for name, module in examples.items():
        for numbers, of_pass in ((expected, "forward"), (backward, "backward")):
            sent.clear()
            if of_pass == "forward":
                output, _ = simulate_ranks(module.gla, ranks)(*several)
            else:
                output.sum().backward()
            assert sum(sent) == heads * numbers[name], (name, of_pass)
