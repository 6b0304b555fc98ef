"""Answers to kernels that ask for a device: a small one, whose memory is the CPU's.

Launchers ask how many multiprocessors there are, enter the context of a device, and
require tensors on it. None of it changes a value; all of it fails without a driver.
"""

import contextlib
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

__all__ = ["install"]

# Few programs of a persistent kernel, but more than one, so that they share the work.
MULTIPROCESSORS = 4
# The architecture that most kernels support without instructions of its own.
CAPABILITY = (8, 0)
_PROPERTIES = {
    "multiprocessor_count": MULTIPROCESSORS,
    "max_shared_mem": 166912,
    "max_num_regs": 65536,
    "warpSize": 32,
}


def install() -> None:
    """Answer what PyTorch and Triton are asked about a device."""
    torch = import_module("torch")
    if not torch.cuda.is_available():
        _answer(torch)
    _install_driver()


def _answer(torch: Any) -> None:
    """Answer for `torch.cuda`; `is_available` still says that there is none."""
    properties = SimpleNamespace(
        name="Triton interpreter",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=MULTIPROCESSORS,
        shared_memory_per_block=_PROPERTIES["max_shared_mem"],
        shared_memory_per_block_optin=_PROPERTIES["max_shared_mem"],
        total_memory=2**34,
        warp_size=32,
    )
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "synchronize": lambda *_: None,
        "device": lambda *_: contextlib.nullcontext(),
        "device_of": lambda *_: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # Launchers that call their device "cpu", where Triton has no driver, enter it too.
    torch.cpu.device = answers["device"]
    torch.Tensor.is_cuda = property(lambda x: x.device.type in ("cpu", "cuda"))


def _install_driver() -> None:
    """Give Triton's driver properties of a device, where there is no driver."""
    module: Any = import_module("triton.runtime.driver")
    create = module._create_driver

    class Interpreted:
        """Driver without a target: it answers for the properties of a device."""

        utils = SimpleNamespace(get_device_properties=lambda _: _PROPERTIES)

        def get_current_device(self) -> int:
            """Return the number of the only device."""
            return 0

        def get_current_stream(self, _device: Any = None) -> int:
            """Return the default stream."""
            return 0

        def get_current_target(self) -> Any:
            """Raise, as Triton does: there is no target to compile for."""
            msg = "0 active drivers: the kernels are interpreted, without a device"
            raise RuntimeError(msg)

    def created() -> Any:
        try:
            return create()
        except RuntimeError:
            return Interpreted()

    module._create_driver = created
