"""Ranks in one process: they compute what processes do."""

import sys
from pathlib import Path

import numpy as np
import pytest

from linkern.testing import simulate_ranks
from linkern.testing.runner.opening import config_of, open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.target.protocol import Call
from linkern.testing.target.ranks.sharding import Sharding

EXAMPLES = Path(__file__).parents[4] / "examples" / "ranks"
NAMES = ("query", "key", "value", "log_decay")


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


def plan_of(module):
    return Plan(f"{EXAMPLES}/{module}.py:gla", "gla", ranks=(2, 3))


def inputs(length):
    rng = np.random.default_rng(length)
    dims = {"query": 3, "key": 3, "value": 4, "log_decay": 3}
    return {n: -abs(rng.normal(size=(2, 3, length, dims[n]))) for n in NAMES}


@pytest.mark.parametrize("sizes", [(4, 3), (0, 7), (2, 0, 5)])
@pytest.mark.parametrize("module", ["all_gather", "ring", "all_to_all"])
def test_a_simulation_gives_the_bits_of_processes(
    module, sizes, examples, target, torch
):
    target.reopen(config_of(plan_of(module)))
    arrays, length = inputs(sum(sizes)), sum(sizes)
    cotangent = np.random.default_rng(1).normal(size=arrays["value"].shape)
    edges = tuple(np.cumsum(sizes)[:-1] / length)
    sharding = Sharding(len(sizes), edges)
    reply = target.call(Call(arrays, cotangent=cotangent, sharding=sharding))
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays.values()]
    output, _ = simulate_ranks(examples[module].gla, sizes)(*tensors)
    output.backward(torch.tensor(cotangent))
    np.testing.assert_array_equal(reply.output, output.detach().numpy())
    for gradient, x in zip(reply.gradients, tensors, strict=True):
        np.testing.assert_array_equal(gradient, x.grad.numpy())


def test_a_state_goes_in_and_out(examples, torch):
    tensors = [torch.tensor(x) for x in inputs(6).values()]
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
