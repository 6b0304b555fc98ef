"""Targets that are not Python: a command that reads a safetensors file and writes one.

It reads the inputs of its operator, ``query``, ``key`` and ``value`` among them, in its
own layout, and writes ``output``. A
command that takes a state also reads ``initial_memory`` and ``initial_normalizer``
where there are any, and writes ``memory`` and ``normalizer``; one that differentiates
reads ``output_cotangent`` where there is one, and then writes ``query_gradient``,
``key_gradient``, ``value_gradient`` and those of all other inputs too. The metadata of
what it reads say ``format`` (``linkern``), ``op``, ``layout``, ``dtype``, ``scale``,
``wants_state`` (``true`` or ``false``: whether its state will be read) and the
``position`` of the first token where that is not 0.
"""

import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import (
    Call,
    Environment,
    Reply,
    from_layout,
    to_layout,
)
from linkern.testing.target.segments import factor_of
from linkern.testing.target.subprocess import (
    INPUTS,
    OUTPUTS,
    Tensors,
    Written,
    execute,
    tensor,
    useless,
)

__all__ = ["CommandTarget", "metadata_of"]

STATE_NAMES = ("memory", "normalizer")


class CommandTarget:
    """A command that is run once for every call, each time in a process of its own.

    Parameters
    ----------
    command : str
        Program and arguments, split as a shell does but never given to one;
        ``{inputs}`` and ``{outputs}`` stand for the paths of the two files.
    environment : Environment
        Layout and scale of the inputs, and how much the command may allocate.
    timeout : float
        Seconds that one run may take.
    takes_state, differentiable : bool
        What it is declared to do besides: there is no signature that would tell.

    Examples
    --------
    >>> from linkern.testing.errors import TargetRaised
    >>> lazy = CommandTarget("true {inputs} {outputs}", Environment(""), 20.0)
    >>> x = np.ones((1, 1, 2, 1), np.float32)
    >>> try:
    ...     lazy.call(Call({"query": x, "key": x, "value": x}))
    ... except TargetRaised as error:
    ...     print("the target raised", error)
    the target raised nothing, but wrote no file to {outputs}
    """

    def __init__(
        self,
        command: str,
        environment: Environment,
        timeout: float,
        *,
        takes_state: bool = False,
        differentiable: bool = False,
    ) -> None:
        if environment.interface == "step":
            msg = "`interface=step` is for functions; a command gets whole sequences."
            raise UsageError(msg)
        self.interface = Interface(
            takes_state=takes_state, differentiable=differentiable
        )
        self._words = _words_of(command)
        self._environment = environment
        self._timeout = timeout
        self._operator = OPERATORS[environment.op]
        self._axis = environment.layout.index("t")

    def call(self, call: Call) -> Reply:
        """Run the command: once, or once for each span and thread of the call."""
        layout = self._environment.layout
        inputs = {
            name: to_layout(x, layout, self._operator.input(name).axes)
            for name, x in call.inputs.items()
        }
        others = self._at_once(inputs, call) if call.threads > 1 else []
        found: dict[str, Any] = {"not_differentiable": self._refusal(call)}
        if call.cotangent is None or found["not_differentiable"]:
            pieces, written = self._spans(inputs, call)
        else:
            cotangent = to_layout(call.cotangent, layout)
            written = self._run({**inputs, "output_cotangent": cotangent}, call)
            pieces = [tensor(written, "output")]
            found = self._gradients(written, call)
        if "memory" in written or (call.wants_state and self.interface.takes_state):
            found |= self._states(written, call)
        output = self._joined(pieces)
        return Reply(
            output=from_layout(output, layout),
            dtype=pieces[-1].dtype.name,
            kind="numpy.ndarray",
            shape=output.shape,
            expected_shape=self._due(call),
            other_outputs=tuple(from_layout(x, layout) for x in others),
            **found,
        )

    def close(self) -> None:
        """Nothing to let go of: no process outlives its call."""

    def _refusal(self, call: Call) -> str:
        """Say why there will be no gradients, if they are asked for."""
        if call.cotangent is None:
            return ""
        if not self.interface.differentiable:
            return "the command is not declared to write gradients"
        return "a command gives gradients of whole sequences only" if call.cuts else ""

    def _spans(self, inputs: Tensors, call: Call) -> tuple[list[NDArray[Any]], Written]:
        """Run the command on one span after the other, handing over the state."""
        if not call.cuts:
            written = self._run(inputs, call)
            return [tensor(written, "output")], written
        state: Tensors = {}
        pieces = []
        sizes = self._operator.sizes(call.inputs)
        for start, stop in pairwise((0, *call.cuts, sizes["t"])):
            span = {n: self._cut(n, x, start, stop, call) for n, x in inputs.items()}
            written = self._run({**span, **state}, call, position=start)
            piece, due = tensor(written, "output"), self._due(call, stop - start)
            if piece.shape != due:
                useless(
                    f"an `output` of shape {piece.shape} for tokens {start} to {stop} "
                    f"alone, which must have {due}"
                )
            pieces.append(piece)
            state = {"initial_memory": tensor(written, "memory")}
            if "normalizer" in written:
                state["initial_normalizer"] = tensor(written, "normalizer")
        return pieces, written

    def _cut(
        self, name: str, x: NDArray[Any], start: int, stop: int, call: Call
    ) -> NDArray[Any]:
        """Return what an input, in the layout of the command, holds of a span."""
        one = self._operator.input(name)
        if not one.per_token:
            return x
        sizes = self._operator.sizes(call.inputs)
        each = sizes["s"] // max(sizes["t"], 1) if "s" in one.axes else 1
        span = slice(start * each, stop * each)
        return x[(*(slice(None),) * self._axis, span)]

    def _due(self, call: Call, length: int | None = None) -> tuple[int, ...]:
        """Return the shape that an output must have, of so many tokens."""
        sizes = self._operator.sizes(call.inputs)
        tokens = sizes["t"] if length is None else length
        of = {"b": sizes["b"], "h": sizes["g"], "t": tokens, "d": sizes["v"]}
        return tuple(of[axis] for axis in self._environment.layout)

    def _gradients(self, written: Written, call: Call) -> dict[str, Any]:
        found = {name: tensor(written, f"{name}_gradient") for name in call.inputs}
        layout, operator = self._environment.layout, self._operator
        return {
            "gradients": tuple(
                from_layout(_wide(x), layout, operator.input(name).axes)
                for name, x in found.items()
            ),
            "gradient_dtypes": tuple(x.dtype.name for x in found.values()),
        }

    def _states(self, written: Written, call: Call) -> dict[str, Any]:
        """Return memory and normalizer in the order of the judge, if they are that."""
        memory = tensor(written, "memory")
        found = [memory, *(tensor(written, n) for n in STATE_NAMES[1:] if n in written)]
        sizes = self._operator.sizes(call.inputs)
        of = {"b": sizes["b"], "h": sizes["g"]}
        lead = tuple(of[axis] for axis in self._environment.layout if axis in of)
        kind = f"tensor `memory` of shape {memory.shape}"
        if self._environment.state_layout == "vk":
            found[0] = np.swapaxes(memory, -1, -2)
        due = [(*lead, *shape) for shape in self._operator.state_shapes(sizes)]
        if any(x.shape != shape for x, shape in zip(found, due, strict=False)):
            return {"state_kind": kind}
        batch = (None,) * (2 - len(lead))
        return {"state_kind": kind, "states": tuple(_wide(x)[batch] for x in found)}

    def _at_once(self, inputs: Tensors, call: Call) -> list[NDArray[Any]]:
        """Run the command several times at once, every second time on other inputs."""
        other = {**inputs, "value": -inputs["value"]}
        with ThreadPoolExecutor(call.threads) as pool:
            runs = [
                pool.submit(self._spans, other if i % 2 else inputs, call)
                for i in range(call.threads)
            ]
            results = [run.result()[0] for run in runs]
        return [self._joined(pieces) for pieces in results[::2]]

    def _joined(self, pieces: list[NDArray[Any]]) -> NDArray[Any]:
        wide = [_wide(piece) for piece in pieces]
        return wide[0] if len(wide) == 1 else np.concatenate(wide, self._axis)

    def _run(self, tensors: Tensors, call: Call, position: int = 0) -> Written:
        environment = self._environment
        on_cpu = environment.device == "cpu"
        return execute(
            self._words,
            tensors,
            metadata_of(call, environment, position),
            timeout=self._timeout,
            # The driver of an accelerator may reserve far more than is used.
            memory_limit=environment.memory_limit if on_cpu else None,
        )


def metadata_of(
    call: Call, environment: Environment, position: int = 0
) -> dict[str, str]:
    """Return what a file of inputs says besides its tensors."""
    said = {
        "format": "linkern",
        "op": environment.op,
        "layout": environment.layout,
        "dtype": call.inputs["value"].dtype.name,
        "scale": repr(float(factor_of(environment, call))),
        "wants_state": "true" if call.wants_state or call.cuts else "false",
    }
    return said | ({"position": str(position)} if position else {})


def _words_of(command: str) -> list[str]:
    """Split a command into words, and refuse one that could never work."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        msg = (
            f"`command` must be words as a shell reads them, got {command!r}: {error}."
        )
        raise UsageError(msg) from None
    missing = [p for p in (INPUTS, OUTPUTS) if not any(p in word for word in words)]
    if missing:
        msg = (
            f"`command` must contain {INPUTS} and {OUTPUTS}, got {command!r}; add "
            f"{' and '.join(missing)} where it takes the path of that file."
        )
        raise UsageError(msg)
    if shutil.which(words[0]) is None:
        state = "is not executable" if Path(words[0]).is_file() else "is not there"
        msg = (
            f'`command` must start with a program, but "{words[0]}" {state}; give its '
            "path, or one that is on the PATH."
        )
        raise UsageError(msg)
    return words


def _wide(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == np.float64 else x.astype(np.float32)
