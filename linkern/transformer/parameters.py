"""Parameters as trees: frozen dataclasses, tuples and dicts whose leaves are arrays.

Every function of this package is a pure function of such a tree and of its inputs.
Frameworks that differentiate want flat collections instead: `named_arrays` gives one,
and `with_arrays` puts it back, so that ``lambda arrays: loss(with_arrays(parameters,
arrays), x)`` is what `jax.grad` and optimisers of PyTorch ask for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast, dataclass_transform

import numpy as np

from linkern import validate
from linkern.array import from_numpy, is_array
from linkern.typing import Array

__all__ = [
    "KINDS",
    "Source",
    "children",
    "kind",
    "named_arrays",
    "rebuilt",
    "static",
    "statics",
    "with_arrays",
]

Tree = TypeVar("Tree")
Class = TypeVar("Class", bound=type)

# Every class that can be a node of a tree, by the name it has in files.
KINDS: dict[str, type] = {}


def static(*, default: Any = ...) -> Any:
    """Return a dataclass field that is structure of a model, not a weight."""
    if default is ...:
        return field(metadata={"static": True})
    return field(default=default, metadata={"static": True})


@dataclass_transform(
    frozen_default=True, eq_default=False, field_specifiers=(field, static)
)
def kind(cls: Class) -> Class:
    """Make a class a frozen dataclass, and a node of parameter trees."""
    made = cast(Class, dataclass(frozen=True, eq=False)(cls))
    KINDS[made.__name__] = made
    return made


def statics(node: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not arrays, by name."""
    if not is_dataclass(node):
        return {}
    return {
        f.name: getattr(node, f.name) for f in fields(node) if f.metadata.get("static")
    }


def children(node: Any) -> dict[str, Any] | None:
    """Return the children of a node by name; None for an array or None."""
    if hasattr(node, "tree_children"):  # what it holds is not what it is made of
        return cast(dict[str, Any], node.tree_children())
    if hasattr(node, "_asdict"):
        return dict(node._asdict())
    if isinstance(node, tuple | list):
        return {str(i): x for i, x in enumerate(node)}
    if isinstance(node, Mapping):
        return dict(node)
    if is_dataclass(node) and not is_array(node):
        return {
            f.name: getattr(node, f.name)
            for f in fields(node)
            if not f.metadata.get("static")
        }
    return None


def rebuilt(node: Any, below: Mapping[str, Any]) -> Any:
    """Return a node with other children."""
    if hasattr(node, "tree_rebuilt"):
        return node.tree_rebuilt(below)
    if hasattr(node, "_replace"):
        return node._replace(**below)
    if isinstance(node, tuple | list):
        return tuple(below[str(i)] for i in range(len(node)))
    if isinstance(node, Mapping):
        return dict(below)
    return replace(node, **below)


def named_arrays(parameters: Any) -> dict[str, Array]:
    """Return all arrays of a tree of parameters, or of a state, by name.

    Parameters
    ----------
    parameters : LanguageModel, EncoderDecoder, DecodingState, ...
        Any tree of this package.

    Returns
    -------
    dict of str to array
        Names are the fields on the way, joined by dots:
        ``"stack.layers.0.norms.1.scale"``.
        The arrays are those of the tree, not copies.

    Examples
    --------
    >>> from linkern import transformer
    >>> norm = transformer.LayerNorm.create(3)
    >>> sorted(transformer.named_arrays(norm))
    ['offset', 'scale']
    """
    arrays: dict[str, Array] = {}

    def visit(node: Any, path: tuple[str, ...]) -> None:
        below = children(node)
        if below is None:
            if node is not None:
                arrays[".".join(path)] = node
            return
        for name, child in below.items():
            visit(child, (*path, name))

    visit(parameters, ())
    return arrays


def with_arrays(parameters: Tree, arrays: Mapping[str, Any]) -> Tree:
    """Return the same tree with other arrays.

    Parameters
    ----------
    parameters : LanguageModel, EncoderDecoder, DecodingState, ...
        Any tree of this package.
    arrays : mapping of str to array
        One for each name of ``named_arrays(parameters)``. They may be of another
        library, or being traced by one.

    Returns
    -------
    same type as `parameters`
        A new tree.

    Raises
    ------
    TypeError
        If `arrays` is no mapping.
    ValueError
        If names are missing or unknown, or a shape is another.

    Examples
    --------
    >>> from linkern import transformer
    >>> norm = transformer.LayerNorm.create(3)
    >>> doubled = {n: 2 * x for n, x in transformer.named_arrays(norm).items()}
    >>> transformer.with_arrays(norm, doubled).scale
    array([2., 2., 2.], dtype=float32)
    """
    validate.instance("arrays", arrays, Mapping)
    shapes = {name: tuple(x.shape) for name, x in named_arrays(parameters).items()}
    _same_names("arrays", shapes, arrays)
    for name, shape in shapes.items():
        if tuple(arrays[name].shape) != shape:
            msg = (
                f"`arrays` must have shape {shape} for {name!r}, got "
                f"{tuple(arrays[name].shape)}."
            )
            raise ValueError(msg)
    return cast(Tree, _filled(parameters, lambda path, _: arrays[path]))


def _same_names(name: str, due: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Check that a collection of arrays has exactly the expected names."""
    missing = sorted(due.keys() - got.keys())
    unknown = sorted(got.keys() - due.keys())
    if missing or unknown:
        first = f"no {missing[0]!r}" if missing else f"an unknown {unknown[0]!r}"
        msg = (
            f"`{name}` must have the {len(due)} names of these parameters, got {first} "
            f"({len(missing)} missing, {len(unknown)} unknown); see `named_arrays`."
        )
        raise ValueError(msg)


def _filled(node: Any, leaf: Callable[[str, Any], Any], path: str = "") -> Any:
    below = children(node)
    if below is None:
        return None if node is None else leaf(path, node)
    prefix = f"{path}." if path else ""
    return rebuilt(
        node, {name: _filled(x, leaf, prefix + name) for name, x in below.items()}
    )


class Source:
    """Source of initial parameters: a random generator, and an array to be like.

    Parameters
    ----------
    rng : int, numpy.random.Generator or None
        Anything that `numpy.random.default_rng` takes.
    like : array or None
        Gives the library, the dtype and the device. Default: NumPy and float32.
    """

    def __init__(self, rng: Any = None, like: Array | None = None) -> None:
        self.like: Array = np.zeros(0, np.float32) if like is None else like
        validate.wide_dtype("like", self.like)
        self.generator = validate.generator(rng)

    def normal(self, shape: tuple[int, ...], deviation: float) -> Array:
        """Return normal numbers of mean 0, the same for every array library."""
        drawn = self.generator.normal(scale=deviation, size=shape)
        return from_numpy(drawn, like=self.like)

    def constant(self, shape: tuple[int, ...], value: float) -> Array:
        """Return one number, repeated."""
        return from_numpy(np.full(shape, value), like=self.like)
