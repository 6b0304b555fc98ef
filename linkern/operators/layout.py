"""Layout of a call: all that follows from the libraries, shapes and dtypes of inputs.

The checks of these are one function of a signature. A step of decoding takes less time
than they do, so the layouts of the last calls on plain arrays of NumPy are kept: inputs
with the same signature have passed the same checks. Values are checked by every call.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from linkern import validate
from linkern.array import is_traced, of_same_heads, plain_numpy
from linkern.kernels.dispatch import backend_of
from linkern.operators.forms import Form
from linkern.typing import Array

if TYPE_CHECKING:
    from linkern.operators.definition import Definition

__all__ = ["Layout", "layout_of"]

Inputs = Mapping[str, Any]

# Inputs that several value heads may share.
_SHARED = ("query", "key", "auxiliary_key")


class Layout(NamedTuple):
    """All that follows from the libraries, shapes and dtypes of inputs.

    Parameters
    ----------
    definition : Definition
        The operator.
    sizes, batch : mapping of str to int, tuple of int
        As in `Prepared`.
    wide : dtype
        Dtype of the computation.
    as_given : bool
        True if a back end reads the inputs as they were given.
    repeats : mapping of str to int
        How many value heads share a head of an input, if several do.
    factor : float or None
        Factor on the query.
    """

    definition: "Definition"
    sizes: Mapping[str, int]
    batch: tuple[int, ...]
    wide: Any
    as_given: bool
    repeats: Mapping[str, int]
    factor: float | None


_LAYOUTS: dict[Any, Layout] = {}
_MOST_LAYOUTS = 64


def layout_of(
    definition: "Definition", passed: Inputs, form: Form, scale: float | None
) -> Layout:
    """Check the inputs against each other, but for their values.

    Parameters
    ----------
    definition : Definition
        The operator.
    passed : mapping of str to array
        Its inputs, without those that are None and may be.
    form : Form
        Order of the sums.
    scale : float or None
        Factor on the query, None for the default.
    """
    if not plain_numpy(*passed.values()):
        return _checked(definition, passed, form, scale)
    arrays = [(name, x.shape, x.dtype) for name, x in passed.items()]
    # The layout holds the definition, so that no other one gets its number.
    signature = (id(definition), form.name, scale, *arrays)
    layout = _LAYOUTS.get(signature)
    if layout is None:
        layout = _checked(definition, passed, form, scale)
        if len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.clear()
        _LAYOUTS[signature] = layout
    return layout


def _checked(
    definition: "Definition", passed: Inputs, form: Form, scale: float | None
) -> Layout:
    """Check the inputs against each other, but for their values."""
    likes = {name: validate.wide_like(name, x) for name, x in passed.items()}
    # Gates may be wider than the rest: float32 beside bfloat16 is common.
    main = {name: passed[name] for name in definition.required if name in passed}
    validate.home(main)
    validate.home(likes)
    sizes = validate.shapes(passed, definition.axes)
    repeats = _repeats(passed, definition.axes)
    batch = _batch(passed, repeats, definition, sizes.get("t"))
    if scale is not None and "query" not in definition.axes:
        msg = f"`scale` must be None for {definition.name}: there is no query to scale."
        raise ValueError(msg)
    factor = scale
    if factor is None and definition.inverse_root_scale:
        factor = max(sizes["k"], 1) ** -0.5
    as_given = _kernels_read(definition, form, main)
    dtype = next(iter(likes.values())).dtype
    return Layout(definition, sizes, batch, dtype, as_given, repeats, factor)


def _kernels_read(definition: "Definition", form: Form, main: Inputs) -> bool:
    """Return True if a back end reads the inputs as they were given."""
    if not definition.as_given or definition.growing:
        return False
    backend = backend_of(next(iter(main.values())))
    if backend is None or form.name not in backend.reads_as_given:
        return False
    return not is_traced(*main.values()) or of_same_heads(*main.values())


def _repeats(inputs: Mapping[str, Array], axes: Mapping[str, str]) -> dict[str, int]:
    """Return the number of value heads that share each head of queries and keys."""
    heads = {
        name: x.shape[-len(axes[name]) - 1]
        for name, x in inputs.items()
        if x.ndim > len(axes[name])
    }
    most = heads.get("value", 1)
    return {
        name: most // heads[name]
        for name in _SHARED
        if name in heads and 1 < heads[name] < most and most % heads[name] == 0
    }


def _batch(
    inputs: Mapping[str, Array],
    repeats: Mapping[str, int],
    definition: "Definition",
    length: int | None,
) -> tuple[int, ...]:
    """Return the leading axes that the main inputs share; gates must fit into them."""
    axes = definition.axes
    leads = {
        name: tuple(x.shape[: x.ndim - len(axes[name])]) for name, x in inputs.items()
    }
    for name, times in repeats.items():
        leads[name] = (*leads[name][:-1], leads[name][-1] * times)
    main = [name for name in definition.required if name in leads]
    batch = validate.leading(", ".join(main), *(leads[name] for name in main))
    for name, lead in leads.items():
        if name not in main:
            core = tuple(inputs[name].shape[inputs[name].ndim - len(axes[name]) :])
            validate.gate_fits(name, (*lead, *core), lead, batch, length)
    return batch
