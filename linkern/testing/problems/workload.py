"""Workloads: inputs of a call that a user brings as a safetensors file.

The tensors have the names of the inputs of the operator, or their names in the field
(`q`, `g`), and the declared layout; `output_cotangent` asks for gradients.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from linkern.testing.errors import UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS, Input, Operator
from linkern.testing.spec.raw_gates import RAW_FORMS
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.protocol import from_layout

__all__ = ["COTANGENT", "Part", "Workload", "parts", "read_workload"]

COTANGENT = "output_cotangent"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Bytes of a file: the referee holds it several times over, in float64.
LARGEST = 2**30
# Products of a key and a value that one exact result is computed from, in seconds, and
# tokens: beyond them the proved bound of a recurrence is wider than most results.
PRODUCTS, TOKENS = 2**24, 1024


@dataclass(frozen=True, eq=False)
class Workload:
    """Inputs of one call, with the axes of their operator.

    Parameters
    ----------
    name : str
        The file.
    dtype : str
        Dtype of all inputs.
    inputs : mapping of str to array
        The inputs by name, in the order of the operator.
    cotangent : array (B, H, T, V), optional
        Cotangent of the output.
    """

    name: str
    dtype: str
    inputs: Mapping[str, NDArray[Any]]
    cotangent: NDArray[Any] | None = None

    def problem(self, scope: Scope) -> Problem:
        """Return the problem that these inputs are."""
        inputs = dict(self.inputs)
        return Problem(
            scope, f"inputs of {self.name}", inputs, cotangent=self.cotangent
        )


@dataclass(frozen=True, eq=False)
class Part:
    """Part of a problem whose exact output is computed: heads, and the first tokens.

    Parameters
    ----------
    problem : Problem
        The part alone.
    where : tuple of slice
        Its entries in the output ``(B, H, T, V)`` of the whole.
    """

    problem: Problem
    where: tuple[slice, ...]


def parts(problem: Problem) -> Iterator[Part]:
    """Yield parts of a problem that cost no more than `PRODUCTS` together.

    All of it if that is so already. Else the first tokens, as many as one head affords;
    then heads from the first to the last, as far apart as they must be. Heads are not
    taken apart where the operator has a decay for each by its number.
    """
    shape, operator = problem.shape, problem.scope.operator
    length = min(shape.length, TOKENS) if operator.causal else shape.length
    each = max(shape.keys * shape.key_dim * shape.value_dim * shape.slots, 1)
    if operator.causal:
        afforded = max(PRODUCTS * shape.length // each, 1)
        length = min(length, afforded)
        each = max(each * length // max(shape.length, 1), 1)
    if length < shape.length:
        problem = problem.prefix(length)
    heads = shape.heads * shape.groups
    columns = 1 if operator.defaults else heads
    pairs = [divmod(i, columns) for i in range(shape.batch * columns)]
    number = max(PRODUCTS // (each * heads // columns), 1)
    step = -(-len(pairs) // number)
    for batch, head in pairs[::step] if step > 1 else pairs:
        one = slice(None) if operator.defaults else slice(head, head + 1)
        where = (slice(batch, batch + 1), one, slice(0, length), slice(None))
        inputs = {
            name: x[_index(operator.input(name), batch, one, shape.groups)]
            for name, x in problem.inputs.items()
        }
        yield Part(problem.with_inputs(**inputs), where)


def _index(one: Input, batch: int, heads: slice, groups: int) -> tuple[slice, ...]:
    """Return the entries of an input that belong to some heads of a batch entry."""
    index = {"b": slice(batch, batch + 1), "g": heads, "h": heads}
    if heads.start is not None:
        index["h"] = slice(heads.start // groups, heads.start // groups + 1)
    return tuple(index.get(axis, slice(None)) for axis in one.axes)


@lru_cache(maxsize=4)
def read_workload(name: str, op: str, contract: Contract) -> Workload:
    """Read and check a file of inputs; it is read once.

    Raises
    ------
    UsageError
        If there is no such file, or if its tensors are no inputs of the operator.
    """
    operator, path = OPERATORS[op], Path(name)
    stored = _read(path)
    names = {a: one.name for one in operator.inputs for a in (one.name, *one.aliases)}
    arrays: dict[str, NDArray[Any]] = {}
    for key, entry in stored.items():
        if key not in (*names, COTANGENT):
            _refuse(path, nearest(f"input of {op}", key, [*names, COTANGENT]))
        canonical = names.get(key, COTANGENT)
        if canonical in arrays:
            _refuse(path, f"`{canonical}` is there twice; name it once.")
        arrays[canonical] = _array(path, key, entry)
    for one in operator.inputs:
        if one.name not in arrays and not one.optional:
            _refuse(path, f"`{one.name}` of {op} is missing; add the tensor.")
    dtypes = sorted({x.dtype.name for x in arrays.values()})
    if len(dtypes) != 1:
        _refuse(path, f"all tensors must have one dtype, got {' and '.join(dtypes)}.")
    layout = contract.layout
    inputs = {
        one.name: _laid_out(path, one.name, arrays[one.name], layout, one.axes)
        for one in operator.inputs
        if one.name in arrays
    }
    _require_sizes(path, operator, inputs)
    cotangent = arrays.get(COTANGENT)
    if cotangent is not None:
        cotangent = _laid_out(path, COTANGENT, cotangent, layout, "bgtv")
        sizes = operator.sizes(inputs)
        expected = tuple(sizes[axis] for axis in "bgtv")
        if cotangent.shape != expected:
            _refuse(path, f"`{COTANGENT}` must be {expected}, got {cotangent.shape}.")
    for key, x in inputs.items():
        _require_numbers(path, key, x, contract)
    return Workload(path.name, dtypes[0], inputs, cotangent)


def _refuse(path: Path, why: str) -> NoReturn:
    msg = f"the inputs {path} cannot be used: {why}"
    raise UsageError(msg)


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the tensors of a file by name, each with its dtype, shape and bytes."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            _refuse(path, f"a file has at most {LARGEST} bytes, got {size}.")
        return dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except OSError as error:
        _refuse(path, f"{error.strerror}.")
    except SafetensorError as error:
        _refuse(path, f"it is no safetensors file ({error}).")


def _array(path: Path, key: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    if entry["dtype"] not in DTYPES:
        known = ", ".join(DTYPES)
        _refuse(path, f"`{key}` must have a dtype of {known}, got {entry['dtype']}.")
    dtype = numpy_dtype(DTYPES[entry["dtype"]])
    return np.frombuffer(entry["data"], dtype).reshape(entry["shape"])


def _laid_out(
    path: Path, key: str, x: NDArray[Any], layout: str, axes: str
) -> NDArray[Any]:
    """Return a tensor of the declared layout with the axes of the operator."""
    shown = [*axes]
    if layout == "bthd" and axes[0] == "b" and len(axes) > 2:
        shown[1], shown[2] = shown[2], shown[1]
    left_out = {"b"} - {*layout} | ({"h", "g"} if "h" not in layout else set())
    shown = [axis for axis in shown if axis not in left_out]
    if x.ndim != len(shown):
        described = ", ".join(axis.upper() for axis in shown)
        _refuse(path, f"`{key}` must have the axes ({described}), got {x.shape}.")
    return np.ascontiguousarray(from_layout(x, layout, axes))


def _require_sizes(
    path: Path, operator: Operator, inputs: Mapping[str, NDArray[Any]]
) -> None:
    """Require each letter of an axis to have one size, and none to be empty."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, x in inputs.items():
        if not x.size:
            _refuse(path, f"`{name}` is empty, got {x.shape}.")
        for axis, size in zip(operator.input(name).axes, x.shape, strict=True):
            known, first = sizes.setdefault(axis, (size, name))
            if known != size:
                what = f"as many {axis.upper()} as `{first}`, {known}"
                _refuse(path, f"`{name}` must have {what}, got {size}.")
    for axis, of in (("g", "h"), ("s", "t")):
        more, fewer = sizes.get(axis), sizes.get(of)
        if more is None or fewer is None:
            continue
        free = axis == "s" and not operator.causal
        steps = axis == "g" or operator.micro_steps
        if not free and (more[0] % fewer[0] if steps else more[0] != fewer[0]):
            rule = "a multiple of" if steps else "as many as"
            what = f"{axis.upper()} must be {rule} {of.upper()}, {fewer[0]}"
            _refuse(path, f"`{more[1]}`: {what}, got {more[0]}.")


def _require_numbers(
    path: Path, name: str, x: NDArray[Any], contract: Contract
) -> None:
    """Require finite numbers, and gates that forget."""
    wide = x.astype(np.float64)
    gate = name == "log_decay" and contract.decay_form not in RAW_FORMS
    if np.isnan(wide).any() or np.isinf(wide[wide > 0] if gate else wide).any():
        _refuse(path, f"`{name}` must have finite numbers.")
    if not gate:
        return
    low, high = (0.0, 1.0) if contract.decay_form == "factor" else (-np.inf, 0.0)
    if (wide < low).any() or (wide > high).any():
        got = f"{wide.min():g} to {wide.max():g}"
        _refuse(path, f"`{name}` must lie in [{low:g}, {high:g}], got {got}.")
