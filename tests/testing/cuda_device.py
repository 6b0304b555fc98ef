"""A CUDA device played on a CPU, and kernels of PyTorch for it and for a real one.

Launches on a side stream wait until it is synchronized, those on the default stream do
not. A captured graph replays its launches, and nothing that Python computed.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

from linkern.testing.target import configurations, frameworks
from linkern.testing.target.accelerators import Accelerator
from linkern.testing.target.interpreted import allocations


class Played:
    """Streams and graphs on a CPU; `entered` are the devices that were current."""

    def __init__(self):
        self.entered, self._waiting, self._recorded = [], None, None

    def launch(self, work, *, on_default=False):
        """Do some work now, at the end of a stream, or with each replay."""
        if self._recorded is not None:
            self._recorded.append(work)
        elif self._waiting is not None and not on_default:
            self._waiting.append(work)
        else:
            work()

    def current(self, device):
        self.entered.append(device)
        return nullcontext()

    def filled(self, _device, fill):
        return allocations.marking(fill)

    @contextmanager
    def side_stream(self, _device):
        self._waiting = queued = []
        yield
        self._waiting = None
        for work in queued:
            work()

    def captured(self, _device, call):
        call()
        self._recorded = recorded = []
        try:
            results = call()
        finally:
            self._recorded = None

        def replay():
            for work in recorded:
                work()

        return results, replay

    def framework(self):
        """Return PyTorch, whose CUDA device is this one."""
        real = frameworks.FRAMEWORKS["torch"]()
        return replace(
            real,
            to_native=lambda x, _device: real.to_native(x, "cpu"),
            # As good as another device: what is moved there is a copy.
            wrap=lambda view, base, _device: real.wrap(view, base, "cpu:0"),
            overwrite=lambda x, y: self.launch(lambda: real.overwrite(x, y)),
            accelerator=Accelerator(
                self.current,
                self.filled,
                self.side_stream,
                self.captured,
                configurations.watch,
            ),
        )


class Real:
    """Streams of a GPU."""

    def __init__(self, torch):
        self._cuda = torch.cuda

    def launch(self, work, *, on_default=False):
        """Launch on the current stream, or on the default one."""
        stream = self._cuda.default_stream() if on_default else None
        with self._cuda.stream(stream):
            work()


def kernel(torch, device, fault=""):
    """Return causal linear attention with elu + 1 and a normalizer, or a wrong one."""

    def feature_map(x):
        return torch.where(x > 0, x + 1, x.exp())

    def attention(query, key, value):
        out = torch.empty_like(value)
        on_host = feature_map(key.cpu()).to(key.device) if fault == "host" else None

        def work():
            features = feature_map(key) if on_host is None else on_host
            weights = (feature_map(query) @ features.mT).tril()
            result = weights @ value / weights.sum(-1, keepdim=True)
            rows = value.shape[-2] - (fault == "unwritten")
            out[..., :rows, :] = result[..., :rows, :]

        device.launch(work, on_default=fault == "stream")
        return out

    return attention
