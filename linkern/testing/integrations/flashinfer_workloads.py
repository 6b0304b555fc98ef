"""Workloads of FlashInfer-Bench in the axes of an operator, and its definitions.

Published definitions of ``op_type`` ``gdn`` have raw gates, packed sequences or one
token for each row, and a state with the key dimension last. Those that `definition`
writes have the inputs of the operator, ``(batch, time, heads, dim)``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flashinfer_bench import AxisVar, Definition, TensorSpec
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.errors import UsageError
from linkern.testing.problems import expected
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS

__all__ = ["MOST_TOKENS", "Sequence", "definition", "op_of", "sequences"]

Real = NDArray[np.float64]
Arrays = Mapping[str, Any]
# Tokens of each sequence that are judged: as causal rows they depend on no later one.
MOST_TOKENS = 256
# A gate made from raw parameters is off by at most eight roundings of its own, and the
# bound counts at least one for each gate: nine times as many enlarge it ninefold.
RAW_GATE = 9.0
_TAG = "linkern:"


@dataclass(frozen=True)
class Sequence:
    """One sequence of a workload, and what a solution made of it.

    Parameters
    ----------
    op : str
        Its operator.
    inputs : dict of str to array
        Its inputs with the axes of the operator, ``(B, H, T, .)``.
    results : tuple of (str, array, str)
        ``output`` or ``state``, what it is, and the dtype that it is stored in.
    state : tuple of array
        The state before; empty for none.
    scale : float, optional
        Factor on the scores. Default: that of the operator.
    slack : float
        Factor on the bound.
    """

    op: str
    inputs: dict[str, Real]
    results: tuple[tuple[str, Real, str], ...]
    state: tuple[Real, ...] = ()
    scale: float | None = None
    slack: float = 1.0

    def bounds(self, dtype: str) -> dict[str, Bounded]:
        """Return the exact output and state with their bounds, by name."""
        contract = Contract(scale=self.scale, value_groups=True)
        call = expected.OracleCall(
            OPERATORS[self.op],
            contract,
            dtype,
            dict(self.inputs),
            initial_state=self.state or None,
        )
        exact = {"output": expected.output(call), "state": expected.states(call)[0]}
        return {n: Bounded(x.output, self.slack * x.bound) for n, x in exact.items()}


def op_of(definition: Definition) -> str | None:
    """Return the operator of a definition; None if linkern does not judge it."""
    if definition.op_type == "gdn":
        return "gated_delta_rule"
    tags = (tag.removeprefix(_TAG) for tag in definition.tags if tag.startswith(_TAG))
    return next((tag for tag in tags if tag in OPERATORS), None)


def definition(
    op: str, *, heads: int = 4, dtype: str = "bfloat16", **dims: int
) -> Definition:
    """Return the definition of an operator; its reference calls `linkern`.

    Parameters
    ----------
    op : str
        A key of `linkern.testing.OPERATORS`.
    heads : int
        Heads of queries, keys and values.
    dtype : str
        Dtype of the inputs and the output.
    **dims : int
        Constant sizes of axes by letter: ``k=128, v=128``, ``m=`` for slots.

    Raises
    ------
    UsageError
        If the operator is unknown.
    """
    if op not in OPERATORS:
        raise UsageError(nearest("operator", op, OPERATORS))
    operator = OPERATORS[op]
    sizes = {"h": heads, "g": heads, "k": 128, "v": 128, "m": 64, "p": 64, "r": 1}
    sizes |= dims
    letters = sorted({axis for one in operator.inputs for axis in one.axes} | {"v"})
    arguments = ", ".join(
        f"{one.name}.swapaxes(1, 2)" if _swaps(one.axes) else one.name
        for one in operator.inputs
    )
    shapes = {one.name: list(_bthd(one.axes)) for one in operator.inputs}
    reference = f"""\
import linkern


def run({", ".join(operator.names)}):
    return linkern.{operator.name}({arguments}).output.swapaxes(1, 2)
"""
    return Definition(
        name=f"{op}_h{heads}_k{sizes['k']}_v{sizes['v']}_{dtype}",
        op_type=op,
        tags=[f"{_TAG}{op}"],
        description=operator.summary,
        axes={
            a: {"type": "const", "value": sizes[a]} if a in sizes else AxisVar()
            for a in letters
        },
        inputs={n: TensorSpec(shape=s, dtype=dtype) for n, s in shapes.items()},
        outputs={"output": TensorSpec(shape=list("btgv"), dtype=dtype)},
        reference=reference,
    )


def _swaps(axes: str) -> bool:
    return len(axes) > 2 and axes[0] == "b"


def _bthd(axes: str) -> str:
    return axes[0] + axes[2] + axes[1] + axes[3:] if _swaps(axes) else axes


def sequences(
    definition: Definition, named: Arrays, outputs: Mapping[str, torch.Tensor]
) -> Iterator[Sequence]:
    """Yield the sequences of a workload, as far as they are judged."""
    if definition.op_type == "gdn":
        yield from _gdn(definition, named, outputs)
        return
    op = op_of(definition)
    assert op is not None
    arrays = {}
    for one in OPERATORS[op].inputs:
        x = _wide(named[one.name])
        x = np.swapaxes(x, 1, 2) if _swaps(one.axes) else x
        arrays[one.name] = x if one.token_axis is None else _first(x, one.token_axis)
    got = _first(np.swapaxes(_wide(outputs["output"]), 1, 2), 2)
    yield Sequence(op, arrays, (("output", got, _stored(definition)),))


def _gdn(
    definition: Definition, named: Arrays, outputs: Mapping[str, torch.Tensor]
) -> Iterator[Sequence]:
    """Yield the sequences of a workload with raw gates."""
    x = {name: _wide(a) for name, a in named.items() if a is not None}
    gates = -np.exp(x["A_log"]) * np.logaddexp(0.0, x["a"] + x["dt_bias"])
    tokens = {
        "query": x["q"],
        "key": x["k"],
        "value": x["v"],
        "log_decay": gates,
        "beta": 1 / (1 + np.exp(-x["b"])),
    }
    # The published reference takes a scale of zero for none.
    scale = float(x.get("scale", 0.0)) or 1 / math.sqrt(x["q"].shape[-1])
    rows: list[Any] = list(range(len(x["q"])))
    if "cu_seqlens" in x:
        rows = [slice(int(a), int(b)) for a, b in pairwise(x["cu_seqlens"])]
    for i, row in enumerate(rows):
        inputs = {n: _first(a[row].swapaxes(0, 1)[None], 2) for n, a in tokens.items()}
        if not inputs["query"].shape[2]:
            continue
        output = _first(_wide(outputs["output"])[row].swapaxes(0, 1)[None], 2)
        results = [("output", output, _stored(definition))]
        if len(x["q"][row]) <= MOST_TOKENS:
            after = _kv(definition, _wide(outputs["new_state"])[i])
            results.append(("state", after, "float32"))
        before = (_kv(definition, x["state"][i]),) if "state" in x else ()
        op = "gated_delta_rule"
        yield Sequence(op, inputs, tuple(results), before, scale, RAW_GATE)


def _kv(definition: Definition, state: Real) -> Real:
    """Return a state (1, H, K, V); (H, V, K) is published, but for ``v_last``."""
    swapped = "v_last" not in definition.name
    return (np.swapaxes(state, -1, -2) if swapped else state)[None]


def _first(x: Real, axis: int) -> Real:
    return x[(*(slice(None),) * axis, slice(MOST_TOKENS))]


def _stored(definition: Definition) -> str:
    return str(definition.outputs["output"].dtype.value)


def _wide(x: Any) -> Real:
    if isinstance(x, torch.Tensor):
        x = x.detach().double().cpu().numpy()
    return np.asarray(x, dtype=np.float64)
