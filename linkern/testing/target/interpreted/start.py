"""Start of Triton's interpreter in the process of a target, before the target is."""

import os
import sys
from importlib.util import find_spec
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.target import configurations
from linkern.testing.target.interpreted import (
    allocations,
    autotuners,
    bfloat16,
    corrections,
    devices,
    interception,
    launches,
    loops,
    shapes,
)
from linkern.testing.target.interpreted.accesses import Accesses

__all__ = ["start"]

_VARIABLE = "TRITON_INTERPRET"
# Inductor makes kernels by Triton, and needs its compiler: what `torch.compile` wraps
# runs as it is written.
_UNCOMPILED = "TORCH_COMPILE_DISABLE"
_started: Accesses | None = None


def start() -> Accesses:
    """Have all Triton kernels of this process interpreted; return what records them.

    Raises
    ------
    UsageError
        If Triton is not installed, or was imported as a compiler before.
    """
    global _started  # noqa: PLW0603 -- a process interprets, or it does not
    if _started is not None:
        return _started
    for library in ("torch", "triton"):
        if find_spec(library) is None:
            msg = (
                f"`interpret` needs {library}, which is not installed; run "
                f"`python -m pip install {library}`."
            )
            raise UsageError(msg)
    if "triton" in sys.modules and os.environ.get(_VARIABLE) != "1":
        msg = (
            "`interpret` must be set before Triton is imported; name the target, "
            '"package.module:function", so that it has a process of its own.'
        )
        raise UsageError(msg)
    os.environ[_VARIABLE] = "1"
    os.environ[_UNCOMPILED] = "1"
    if "torch._dynamo.config" in sys.modules:
        dynamo: Any = sys.modules["torch._dynamo.config"]
        dynamo.disable = True
    accesses = Accesses()
    loops.install()
    shapes.install()
    corrections.install()
    bfloat16.install()
    autotuners.install()
    configurations.install(compiled=False)
    devices.install()
    allocations.install()
    interception.install(accesses)
    launches.install(accesses)
    _started = accesses
    return accesses
