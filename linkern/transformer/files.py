"""Parameters and states as safetensors files: arrays and the tree they belong to.

The structure of the tree is in the header of the file, so that `load` needs to be told
nothing; a file from elsewhere can be loaded into parameters of the right structure.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np

from linkern.array import astype, device_of, dtype_name, namespace
from linkern.state import State
from linkern.transformer.parameters import (
    KINDS,
    children,
    named_arrays,
    statics,
    with_arrays,
)
from linkern.transformer.stack import LayerState

__all__ = ["load", "save"]

Tree = TypeVar("Tree")

KINDS.update(State=State, LayerState=LayerState)
_HEADER = "linkern"


def save(path: str | Path, tree: Any) -> None:
    """Write parameters, or a state, to a safetensors file.

    Parameters
    ----------
    path : str or path
        Where to.
    tree : LanguageModel, EncoderDecoder, DecodingState, ...
        Any tree of this package; arrays of any library whose arrays NumPy can read.

    Raises
    ------
    OSError
        If the file cannot be written. An older file of that name stays as it was.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from linkern import transformer
    >>> norm = transformer.LayerNorm.create(3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     transformer.save(Path(folder) / "norm.safetensors", norm)
    ...     transformer.load(Path(folder) / "norm.safetensors").scale
    array([1., 1., 1.], dtype=float32)
    """
    from safetensors.numpy import save as serialised  # noqa: PLC0415 -- stays light

    arrays = {name: _as_numpy(name, x) for name, x in named_arrays(tree).items()}
    header = {_HEADER: json.dumps(_structure(tree))}
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(serialised(arrays, metadata=header))
    beside.replace(path)


@overload
def load(path: str | Path) -> Any: ...
@overload
def load(path: str | Path, template: Tree) -> Tree: ...
def load(path: str | Path, template: Any = None) -> Any:
    """Read what `save` wrote.

    Parameters
    ----------
    path : str or path
        A safetensors file.
    template : tree, optional
        What the file must fit: a tree with the same names and shapes. Arrays then get
        its library, dtypes and devices. Default: as in the file, and NumPy.

    Returns
    -------
    same type as was saved, or as `template`
        The tree.

    Raises
    ------
    OSError
        If there is no such file.
    ValueError
        If the file is no safetensors file, holds no tree of this package and there is
        no `template`, or does not fit it.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 -- stays light

    try:
        with safe_open(str(path), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = (file.metadata() or {}).get(_HEADER)
    except SafetensorError as reason:
        msg = f"`path` must be a safetensors file, got {str(path)!r}: {reason}."
        raise ValueError(msg) from None
    if template is not None:
        return _into(template, arrays, path)
    if header is None:
        msg = (
            f"`path` must be a file that `save` wrote, got {str(path)!r}, which says "
            "nothing of a structure; pass parameters of that structure as `template`."
        )
        raise ValueError(msg)
    return _built(json.loads(header), arrays, "")


def _as_numpy(name: str, x: Any) -> Any:
    if hasattr(x, "detach"):  # PyTorch: whatever the device, and without its graph
        x = x.detach().cpu()
    try:
        # safetensors writes memory as it lies: strides of a view would be lost.
        return np.ascontiguousarray(np.asarray(x)).reshape(tuple(x.shape))
    except (TypeError, ValueError) as reason:
        msg = (
            f"`tree` must hold arrays that NumPy can read, got {dtype_name(x.dtype)} "
            f"for {name!r} ({reason}); convert it first."
        )
        raise TypeError(msg) from None


def _structure(node: Any) -> Any:
    """Return a tree as JSON: kinds, names and all fields that are not arrays."""
    if node is None:
        return None
    below = children(node)
    if below is None:
        return "array"
    structures: dict[str, Any] = {name: _structure(x) for name, x in below.items()}
    if type(node).__name__ in KINDS:
        return {"kind": type(node).__name__, "static": statics(node), "of": structures}
    if isinstance(node, tuple | list):
        return [structures[str(i)] for i in range(len(node))]
    return {"of": structures}


def _built(node: Any, arrays: Mapping[str, Any], path: str) -> Any:
    """Undo `_structure`."""
    if node is None:
        return None
    if node == "array":
        return arrays[path]
    prefix = f"{path}." if path else ""
    if isinstance(node, list):
        return tuple(_built(x, arrays, f"{prefix}{i}") for i, x in enumerate(node))
    below = {name: _built(x, arrays, prefix + name) for name, x in node["of"].items()}
    if "kind" not in node:
        return below
    if node["kind"] not in KINDS:
        msg = f"`path` must hold kinds of this package, got {node['kind']!r}."
        raise ValueError(msg)
    cls = cast(Any, KINDS[node["kind"]])
    if hasattr(cls, "tree_rebuilt"):
        return cls.tree_rebuilt(below)
    return cls(**below, **node["static"])


def _into(template: Tree, arrays: Mapping[str, Any], path: str | Path) -> Tree:
    """Return the arrays of a file as a tree like another."""
    expected = named_arrays(template)
    for name, x in expected.items():
        if name not in arrays or arrays[name].shape != tuple(x.shape):
            got = f"shape {arrays[name].shape}" if name in arrays else "nothing"
            msg = (
                f"`path` must hold {name!r} of shape {tuple(x.shape)}, got {got} in "
                f"{str(path)!r}; {_fitting(expected, arrays)}"
            )
            raise ValueError(msg)
    unknown = sorted(arrays.keys() - expected.keys())
    if unknown:
        msg = (
            f"`path` must hold the {len(expected)} arrays of `template`, got "
            f"{unknown[0]!r} besides in {str(path)!r}; {_fitting(expected, arrays)}"
        )
        raise ValueError(msg)
    placed = {
        name: astype(namespace(x).asarray(arrays[name], device=device_of(x)), x.dtype)
        for name, x in expected.items()
    }
    return with_arrays(template, placed)


def _fitting(due: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    common = sum(
        1
        for name, x in due.items()
        if name in got and got[name].shape == tuple(x.shape)
    )
    return f"{common} of {len(due)} arrays would fit."
