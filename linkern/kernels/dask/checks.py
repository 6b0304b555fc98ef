"""Checks of a call on Dask arrays, before anything is computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np

from linkern import validate
from linkern.feature_maps import identity
from linkern.kernels.dask.layout import Layout
from linkern.kernels.dispatch import Operator
from linkern.state import State
from linkern.typing import Array

__all__ = ["checked", "filled_in", "fitting_state"]

# What `prepare` takes by name; everything else is an option of the one operator.
_COMMON = ("scale", "form", "chunk_size")


def checked(
    operator: Operator, plain: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Return the inputs as the operator prepares them, of arrays that hold nothing."""
    for name, x in plain.items():
        if isinstance(x, da.Array):
            validate.known_chunks(name, x.shape)
    inputs: dict[str, Any] = dict.fromkeys(operator.axes)
    inputs |= {name: _stand_in(x) for name, x in plain.items()}
    common = {name: options[name] for name in _COMMON if name in options}
    settings = {
        name: x
        for name, x in options.items()
        if name not in common and name != "initial_state"
    }
    feature_map = settings.get("feature_map", identity)
    if callable(feature_map) and feature_map is not identity:
        settings["feature_map"] = _features_of(feature_map)
    return operator.prepare(inputs, settings, **common)


def _empty(shape: Sequence[int], dtype: Any) -> Any:
    """Return an array of one chunk and of any size, which costs nothing to plan."""
    return da.broadcast_to(da.zeros((), dtype=dtype), shape, chunks=shape)


def _stand_in(x: Any) -> Any:
    return _empty(x.shape, x.dtype) if isinstance(x, da.Array) else x


def _features_of(feature_map: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a map of stand-ins to those of features, for a map of each token alone."""

    def features(x: Any) -> Any:
        random = np.random.default_rng(0).standard_normal((2, x.shape[-1]))
        rows = random.astype(x.dtype)
        both: Any = validate.features("query", rows, feature_map)
        alone = np.asarray(validate.features("query", rows[1:], feature_map))
        validate.token_by_token(np.allclose(both[1:], alone, 1e-2, equal_nan=True))
        return _empty((*x.shape[:-1], both.shape[-1]), both.dtype)

    return features


def filled_in(
    operator: Operator, plain: Mapping[str, Any], ready: Any, place: Layout
) -> dict[str, Any]:
    """Return the inputs that the operator filled in, in chunks like the others.

    Defaults may depend on the number of heads or of tokens, which no block knows.
    """
    filled = {}
    for name, letters in operator.axes.items():
        x = ready.inputs.get(name)
        if name in plain or x is None:
            continue
        if letters[:1] != "t":
            x = x[..., 0, :]
        if len(letters) < 1 + (letters[:1] == "t"):
            x = x[..., 0]
        core = [place.tokens if letter == "t" else -1 for letter in letters]
        lead = place.of_shape(x.shape[: x.ndim - len(core)])
        filled[name] = x.rechunk((*lead, *core))
    return filled


def fitting_state(state: State, ready: Any, place: Layout) -> None:
    """Check the chunks of an initial state."""
    for part, core in ready.state_shapes(ready.sizes).items():
        x = getattr(state, part)
        lead = place.of_shape(x.shape[: x.ndim - len(core)])
        for axis, chunks in enumerate((*lead, *((size,) for size in core))):
            last = axis - x.ndim
            name = f"initial_state.{part}"
            validate.chunks_alike(name, last, x.chunks[axis], "the inputs", chunks)
