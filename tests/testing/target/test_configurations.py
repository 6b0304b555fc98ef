"""Configurations of autotuned kernels on a device: chosen, too large, wrong in one."""

import sys
from itertools import chain

import pytest

from linkern.testing import Contract, verify
from linkern.testing.target import configurations

CONTRACT = Contract(feature_map="identity", normalize=False, gradients="none")
TILES, WARPS = (16, 32, 64), (1, 2)


class Launched:
    """A kernel on a device that holds no configuration with tiles of 64."""

    def __init__(self, fault="", *, everywhere=False):
        self.fault, self.everywhere = fault, everywhere
        self.taken, self.calls = [], 0

    @staticmethod
    def fn(q, k, v, o, last):
        """Be the function that Triton compiles."""

    def run(self, q, k, v, o, last, *, BT, num_warps, **_):
        from triton.runtime.errors import OutOfResources

        if BT == 64:
            raise OutOfResources(2**18, 2**17, "shared memory")
        tuned = (BT, num_warps) in self.taken
        self.taken.append((BT, num_warps))
        scores = (q @ k.mT).tril()
        o.copy_(scores @ v)
        last.copy_(k.mT @ v)
        if not (self.everywhere or (BT, num_warps) == (32, 2)):
            return
        self.calls += 1
        another = {"races": self.calls % 2, "leaks": v.flatten()[-1:].abs() > 1}
        if another.get(self.fault, False):
            # The same sums in another order, and rounded once.
            o.copy_(scores.double() @ v.double())
        if self.fault == "raises" and tuned:
            msg = "an illegal memory access was encountered"
            raise RuntimeError(msg)
        o += self.fault == "wrong"
        last += self.fault == "state"


class Second(Launched):
    """The same kernel by another name."""

    @staticmethod
    def second(q, k, v, o, last):
        """Be the function that Triton compiles."""

    fn = second


@pytest.fixture
def autotuned(triton, monkeypatch):
    """Return an attention by an autotuned kernel, which prefers few warps."""
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    monkeypatch.setattr(autotuner.Autotuner, "run", autotuner.Autotuner.run)
    monkeypatch.setattr(configurations, "_installed", False)
    pairs = chain.from_iterable([(t, w) for w in WARPS] for t in TILES)
    configs = [autotuner.Config({"BT": t}, num_warps=w) for t, w in pairs]

    def do_bench(call, quantiles):
        call()
        return [1.0] * len(quantiles)

    def autotuned(launched, *, stateful=False):
        names = ["q", "k", "v", "o", "last"]
        tuned = autotuner.Autotuner(
            launched, names, configs, [], None, None, do_bench=do_bench
        )

        def attention(query, key, value):
            out = value.new_empty(value.shape)
            last = value.new_empty((*key.shape[:2], key.shape[-1], value.shape[-1]))
            tuned[(1,)](query, key, value, out, last)
            return out, last

        def with_state(query, key, value, initial_state=None):
            out, last = attention(query, key, value)
            if initial_state is None:
                return out, last
            return out + query @ initial_state, last + initial_state

        return with_state if stateful else lambda *inputs: attention(*inputs)[0]

    return autotuned


def judged(function):
    return verify(
        function,
        op="linear_attention",
        framework="torch",
        device="cuda",
        dtypes=("float32",),
        checks=("every_configuration",),
        contract=CONTRACT,
        profile="quick",
    )


def test_each_configuration_can_be_chosen(torch, autotuned):
    launched = Launched()
    attention, x = autotuned(launched), torch.ones(1, 1, 3, 2)
    configurations.watch()
    attention(x, x, x)
    launched.taken.clear()
    seen = []
    for position in (None, *range(7)):
        configurations.begin(position)
        assert attention(x, x, x)[0, 0, 2, 0] == 6
        seen.append((*configurations.taken(), *configurations.refused()))
    first = "fn (BT=16, num_warps=1"
    assert [text.count(",") for text, *_ in seen] == [seen[0][0].count(",")] * 8
    assert all(seen[at][0].startswith(first) for at in (0, 1, 5, 6, 7))
    assert seen[4][0].startswith("fn (BT=32, num_warps=2")
    assert launched.taken == [(16, 1)] * 2 + [(16, 2), (32, 1), (32, 2)] + [(16, 1)] * 3
    assert [len(refusal) for _, *refusal in seen] == [0, 0, 0, 0, 0, 1, 1, 0]
    assert seen[5][1].startswith("fn (BT=64, num_warps=1")


def test_one_kernel_can_take_a_configuration_alone(torch, autotuned):
    launched, x = Launched(), torch.ones(1, 1, 3, 2)
    attention = autotuned(launched)
    configurations.watch()
    attention(x, x, x)
    for name in ("another", "fn"):
        configurations.begin(3, name)
        attention(x, x, x)
    assert launched.taken[-2:] == [(16, 1), (32, 2)]


def test_what_the_device_cannot_hold_is_left_out_and_counted(autotuned, played):
    report = judged(autotuned(Launched()))
    assert report.exit_code == 0
    (check,) = report.checks
    assert check.verdict == "passed"
    assert check.message.startswith("left out, as the device cannot hold them: 2 (fn (")
    assert check.message in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", "is wrong in a configuration of fn (BT=32, num_warps=2"),
        ("raises", "in configuration 4 of 6 of its autotuned kernels"),
    ],
)
def test_the_configuration_that_differs_is_named(autotuned, played, fault, words):
    (failure,) = judged(autotuned(Launched(fault))).failures
    assert words in failure.message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("state", "the memory is wrong in a"),
        ("races", "two calls with the same inputs differ in the output, in a"),
        ("leaks", "on changed an earlier output in a"),
    ],
)
def test_states_bits_and_causality_are_judged(autotuned, played, fault, words):
    (failure,) = judged(autotuned(Launched(fault), stateful=True)).failures
    named = f"{words} configuration of fn (BT=32, num_warps=2"
    assert named in failure.message


@pytest.mark.parametrize("fault", ["", "races", "leaks"])
def test_what_every_configuration_does_other_laws_say(autotuned, played, fault):
    kernel = autotuned(Launched(fault, everywhere=True), stateful=True)
    assert judged(kernel).exit_code == 0


@pytest.mark.parametrize("fault", ["wrong", "races"])
def test_of_two_kernels_the_one_to_blame_is_named(autotuned, played, fault):
    first, second = autotuned(Launched()), autotuned(Second(fault))

    def attention(query, key, value):
        return (first(query, key, value) + second(query, key, value)) / 2

    (failure,) = judged(attention).failures
    assert "configuration of second (BT=32, num_warps=2" in failure.message
    assert " and fn (" not in failure.message


def test_kernels_without_configurations_are_not_judged(torch, played):
    def attention(query, key, value):
        return (query @ key.mT).tril() @ value

    (check,) = judged(attention).checks
    assert check.verdict == "not_applicable"


def test_triton_is_not_imported_for_it(monkeypatch):
    monkeypatch.setattr(configurations, "_installed", False)
    monkeypatch.delitem(sys.modules, "triton.runtime.autotuner", raising=False)
    configurations.watch()
    assert not configurations._installed
