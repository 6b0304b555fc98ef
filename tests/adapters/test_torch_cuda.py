"""Tensors through CuPy: what can be known of it without a GPU, and on one."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import linkern
from linkern.adapters.torch_cuda import through_cupy


class FakeTensor:
    """As much of a CUDA tensor as the hand-over asks for."""

    def __init__(self, x, device="cuda:0", requires_grad=False):
        kind, _, index = device.partition(":")
        self.array, self.requires_grad = x, requires_grad
        self.device = FakeDevice(kind, int(index or 0))


class FakeDevice(SimpleNamespace):
    def __init__(self, kind, index):
        super().__init__(type=kind, index=index)

    def __str__(self):
        return f"{self.type}:{self.index}"

    def __hash__(self):
        return hash(str(self))


@pytest.fixture(params=["13", "14"])
def log(monkeypatch, request):
    """Events in order, with stand-ins for PyTorch and a version of CuPy."""
    events = []

    @contextmanager
    def entered(*what):
        events.append(("in", *what))
        yield
        events.append(("out", *what))

    def from_tensor(x):
        events.append("to CuPy")
        return x.array

    torch = SimpleNamespace(
        Tensor=FakeTensor,
        from_dlpack=FakeTensor,
        cuda=SimpleNamespace(
            current_stream=lambda device: SimpleNamespace(cuda_stream=70 + device.index)
        ),
    )
    streams = {
        "13": {
            "Stream": SimpleNamespace(),
            "ExternalStream": lambda stream, i: entered("stream", stream),
        },
        "14": {
            "Stream": SimpleNamespace(
                from_external=lambda x: entered("stream", x.__cuda_stream__()[1])
            )
        },
    }
    cupy = SimpleNamespace(
        from_dlpack=from_tensor,
        cuda=SimpleNamespace(
            Device=lambda i: entered("device", i),
            **streams[request.param],
        ),
    )
    fakes = {"torch": torch, "cupy": cupy}
    monkeypatch.setattr("linkern.adapters.torch_cuda.import_module", fakes.__getitem__)
    return events


ONES = np.ones((3, 2))


def test_runs_on_the_stream_and_the_device_of_the_tensors(log):
    x = FakeTensor(ONES, "cuda:1")
    found = through_cupy(linkern.linear_attention)(x, x, value=x, form="recurrent")
    assert log == [
        ("in", "device", 1),
        ("in", "stream", 71),
        *3 * ["to CuPy"],
        ("out", "stream", 71),
        ("out", "device", 1),
    ]
    due = linkern.linear_attention(ONES, ONES, ONES, form="recurrent")
    np.testing.assert_array_equal(found.output.array, due.output)
    np.testing.assert_array_equal(found.state.normalizer.array, due.state.normalizer)


def test_states_are_handed_over_and_back(log):
    x, attend = FakeTensor(ONES), through_cupy(linkern.simple_gla)
    first = attend(x, x, x)
    assert first.state.normalizer is None
    second = attend(x, x, x, initial_state=first.state)
    due = linkern.simple_gla(*3 * [np.ones((6, 2))])
    np.testing.assert_allclose(second.output.array, due.output[3:])


@pytest.mark.parametrize(
    ("error", "rule", "tensors"),
    [
        (ValueError, "`value` must be on a CUDA device, got cpu:0", {"device": "cpu"}),
        (
            ValueError,
            "must be on one device, got .*cuda:0.*cuda:1",
            {"device": "cuda:1"},
        ),
        (ValueError, "`value` must not require a gradient", {"requires_grad": True}),
    ],
)
def test_what_is_refused(log, error, rule, tensors):
    x, value = FakeTensor(ONES), FakeTensor(ONES, **tensors)
    with pytest.raises(error, match=rule):
        through_cupy(linkern.linear_attention)(x, x, value=value)
    assert not log


def test_states_are_looked_at_too(log):
    state = linkern.State(FakeTensor(np.ones((2, 2)), "cpu"), None)
    with pytest.raises(ValueError, match=r"`initial_state\.memory` must be on a CUDA"):
        through_cupy(linkern.simple_gla)(*3 * [FakeTensor(ONES)], initial_state=state)


def test_arrays_are_no_tensors(log):
    with pytest.raises(TypeError, match="must be a tensor of PyTorch"):
        through_cupy(linkern.linear_attention)(ONES, ONES, ONES)


@pytest.mark.gpu
def test_on_a_gpu(torch):
    rows = torch.rand((2, 50, 8), device="cuda")
    found = through_cupy(linkern.linear_attention)(rows, rows, rows)
    due = linkern.linear_attention(*3 * [rows.double().cpu().numpy()])
    assert found.output.device == rows.device
    np.testing.assert_allclose(found.output.cpu().numpy(), due.output, rtol=1e-5)
