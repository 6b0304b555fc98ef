"""Targets in any language: a command that reads a safetensors file and writes one.

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
from linkern.testing.spec.raw_gates import PARAMETRIC_FORMS
from linkern.testing.target.answers import limits_of
from linkern.testing.target.arguments import state_axes
from linkern.testing.target.frameworks import framework_named
from linkern.testing.target.inference import Inferred
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import (
    Call,
    Reply,
    TargetConfig,
    from_layout,
    to_layout,
)
from linkern.testing.target.sandbox import Sandbox
from linkern.testing.target.segments import output_shape, per_query, scale_of
from linkern.testing.target.subprocess import (
    INPUTS,
    OUTPUTS,
    Tensors,
    Written,
    execute,
    tensor,
    useless,
)
from linkern.testing.target.worker import Opened

__all__ = ["CommandTarget", "metadata_of"]

STATE_NAMES = ("memory", "normalizer")
# Bytes of the header of a file of tensors, at most.
_FORMAT = 2**20


class CommandTarget:
    """A command that runs once for every call, each time in a new process.

    Parameters
    ----------
    command : str
        Program and arguments, split as a shell does but never given to one;
        ``{inputs}`` and ``{outputs}`` stand for the paths of the two files.
    config : TargetConfig
        Layout and scale of the inputs, and how much the command may allocate.
    timeout : float
        Seconds that one run may take.
    takes_state, differentiable : bool
        Declared abilities: a command has no signature that would tell.
    sandbox : Sandbox, optional
        What each of its processes runs in.

    Examples
    --------
    >>> from linkern.testing.errors import TargetRaised
    >>> lazy = CommandTarget("true {inputs} {outputs}", TargetConfig(""), 20.0)
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
        config: TargetConfig,
        timeout: float,
        *,
        takes_state: bool = False,
        differentiable: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        if config.interface == "step":
            msg = "`interface=step` is for functions; a command gets whole sequences."
            raise UsageError(msg)
        if config.decay_form in PARAMETRIC_FORMS:
            msg = (
                f"`decay_form={config.decay_form}` is for functions, not for commands."
            )
            raise UsageError(msg)
        self.interface = Interface(
            takes_state=takes_state, differentiable=differentiable
        )
        library = framework_named("numpy").library
        self.opened = Opened(self.interface, library, Inferred(library.name))
        self._words = _words_of(command)
        self._config = config
        self.timeout = timeout
        self._sandbox = sandbox
        self._operator = OPERATORS[config.op]
        self._axis = config.layout.index("t")

    def reopen(self, config: TargetConfig) -> None:
        """Run the command in another layout from now on."""
        self._config = config
        self._axis = config.layout.index("t")

    def call(self, call: Call) -> Reply:
        """Run the command: once, or once for each segment and thread of the call."""
        layout = self._config.layout
        inputs = {
            name: to_layout(x, layout, self._operator.input(name).axes)
            for name, x in call.inputs.items()
        }
        others = self._at_once(inputs, call) if call.threads > 1 else []
        results: dict[str, Any] = {"not_differentiable": self._refusal(call)}
        if call.cotangent is None or results["not_differentiable"]:
            pieces, written = self._spans(inputs, call)
        else:
            cotangent = to_layout(call.cotangent, layout)
            written = self._run({**inputs, "output_cotangent": cotangent}, call)
            pieces = [tensor(written, "output")]
            results = self._gradients(written, call)
        if "memory" in written or (call.wants_state and self.interface.takes_state):
            results |= self._states(written, call)
        output = self._joined(pieces)
        return Reply(
            output=from_layout(output, layout),
            dtype=pieces[-1].dtype.name,
            kind="numpy.ndarray",
            shape=output.shape,
            expected_shape=self._output_shape(call),
            other_outputs=tuple(from_layout(x, layout) for x in others),
            **results,
        )

    def restart(self) -> bool:
        """Return True: no process outlives its call."""
        return True

    def close(self) -> None:
        """Do nothing: no process outlives its call."""

    def _refusal(self, call: Call) -> str:
        """Return the reason why requested gradients are missing, or no text."""
        if call.cotangent is None:
            return ""
        if not self.interface.differentiable:
            return "the command is not declared to write gradients"
        return "a command gives gradients of whole sequences only" if call.cuts else ""

    def _spans(self, inputs: Tensors, call: Call) -> tuple[list[NDArray[Any]], Written]:
        """Run the command on each segment in turn, handing over the state."""
        if not call.cuts:
            written = self._run(inputs, call)
            return [tensor(written, "output")], written
        state: Tensors = {}
        pieces = []
        sizes = self._operator.sizes(call.inputs)
        for start, stop in pairwise((0, *call.cuts, sizes["t"])):
            span = {n: self._cut(n, x, start, stop, call) for n, x in inputs.items()}
            written = self._run({**span, **state}, call, position=start)
            piece, expected = (
                tensor(written, "output"),
                self._output_shape(call, stop - start),
            )
            if piece.shape != expected:
                useless(
                    f"an `output` of shape {piece.shape} for tokens {start} to {stop} "
                    f"alone, which must have {expected}"
                )
            pieces.append(piece)
            state = {"initial_memory": tensor(written, "memory")}
            if "normalizer" in written:
                state["initial_normalizer"] = tensor(written, "normalizer")
        return pieces, written

    def _cut(
        self, name: str, x: NDArray[Any], start: int, stop: int, call: Call
    ) -> NDArray[Any]:
        """Return the part of an input, in the layout of the command, in a segment."""
        declared = self._operator.input(name)
        if not declared.per_token:
            return x
        sizes = self._operator.sizes(call.inputs)
        each = per_query(sizes) if "s" in declared.axes else 1
        span = slice(start * each, stop * each)
        return x[(*(slice(None),) * self._axis, span)]

    def _output_shape(self, call: Call, length: int | None = None) -> tuple[int, ...]:
        """Return the required shape of an output of so many tokens."""
        sizes = self._operator.sizes(call.inputs)
        tokens = sizes["t"] if length is None else length
        return output_shape(sizes, self._config.layout, tokens)

    def _gradients(self, written: Written, call: Call) -> dict[str, Any]:
        gradients = {name: tensor(written, f"{name}_gradient") for name in call.inputs}
        layout, operator = self._config.layout, self._operator
        return {
            "gradients": tuple(
                from_layout(_wide(x), layout, operator.input(name).axes)
                for name, x in gradients.items()
            ),
            "gradient_dtypes": tuple(x.dtype.name for x in gradients.values()),
        }

    def _states(self, written: Written, call: Call) -> dict[str, Any]:
        """Return memory and normalizer in the axes of the operator, if they fit."""
        memory = tensor(written, "memory")
        states = [
            memory,
            *(tensor(written, n) for n in STATE_NAMES[1:] if n in written),
        ]
        sizes = self._operator.sizes(call.inputs)
        lead = state_axes(sizes, self._config.layout)
        kind = f"tensor `memory` of shape {memory.shape}"
        if self._config.state_layout == "vk":
            states[0] = np.swapaxes(memory, -1, -2)
        expected = [(*lead, *shape) for shape in self._operator.state_shapes(sizes)]
        if any(x.shape != shape for x, shape in zip(states, expected, strict=False)):
            return {"state_kind": kind}
        batch = (None,) * (2 - len(lead))
        return {"state_kind": kind, "states": tuple(_wide(x)[batch] for x in states)}

    def _at_once(self, inputs: Tensors, call: Call) -> list[NDArray[Any]]:
        """Run the command several times at once, every second run on other inputs."""
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
        config = self._config
        on_cpu = config.device == "cpu"
        return execute(
            self._words,
            tensors,
            metadata_of(call, config, position),
            timeout=self.timeout,
            # The driver of an accelerator may reserve far more than is used.
            memory_limit=config.memory_limit if on_cpu else None,
            most_bytes=_FORMAT + limits_of(call, config).arrays,
            sandbox=self._sandbox,
        )


def metadata_of(call: Call, config: TargetConfig, position: int = 0) -> dict[str, str]:
    """Return the metadata of a file of inputs."""
    metadata = {
        "format": "linkern",
        "op": config.op,
        "layout": config.layout,
        "dtype": call.inputs["value"].dtype.name,
        "scale": repr(float(scale_of(config, call))),
        "wants_state": "true" if call.wants_state or call.cuts else "false",
    }
    return metadata | ({"position": str(position)} if position else {})


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
