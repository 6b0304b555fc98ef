"""Launches of interpreted kernels: one at a time, and failures in one sentence."""

import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from linkern.testing.target.interpreted.accesses import Accesses
from linkern.testing.target.interpreted.corrections import names_replaced

__all__ = ["LaunchFailed", "install"]

_OURS = str(Path(__file__).parent)
# Characters of a message of the interpreter that are passed on.
_LENGTH = 200


class LaunchFailed(RuntimeError):  # noqa: N818 -- it says what happened
    """A launch that failed, with the kernel, its line and the message."""


def install(accesses: Accesses) -> None:
    """Record the kernel of every launch, and describe the failure of one."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    errors: Any = import_module("triton.runtime.errors")
    call, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    # The interpreter keeps the grid and the patched language for the whole process.
    alone = threading.RLock()
    patched = set[int]()

    def patch_once(function: Any) -> Any:
        """Patch the language of a module; once a launch, for it takes milliseconds."""
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        names_replaced(function.__globals__)
        return patch(function)

    def launch(self: Any, *args: Any, **keywords: Any) -> Any:
        with alone:
            accesses.launch(self.fn.__name__)
            patched.clear()
            try:
                return call(self, *args, **keywords)
            except errors.InterpreterError as error:
                raise LaunchFailed(_described(self.fn.__name__, error)) from None

    interpreter.GridExecutor.__call__ = launch
    interpreter._patch_lang = patch_once


def _described(kernel: str, error: BaseException) -> str:
    """Return the kernel, the line that raised, and its message, in one sentence."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = traceback.format_exception_only(cause)[-1].strip().partition("\n")[0]
    triton = str(Path(import_module("triton").__file__ or "").parent)
    lines = [
        f" at {Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(cause.__traceback__)
        if not frame.filename.startswith((triton, _OURS))
    ]
    place = lines[-1] if lines else ""
    unsupported = isinstance(cause, NotImplementedError)
    what = (
        "uses what Triton's interpreter does not support" if unsupported else "failed"
    )
    return f"the kernel {kernel} {what}{place}: {said[:_LENGTH]}"
