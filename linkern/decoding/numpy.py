"""Decoding on NumPy with a delayed update: the memory is written every few tokens.

A step of linear attention reads the memory once; writing it at every token would touch
it twice more. Here the features and values of the last ``W`` tokens wait in buffers,

    o = q (S + K_W^T V_W) = q S + (q K_W^T) V_W,

and one matrix product adds them to ``S`` when the buffers are full. They lie below the
memory as further rows, so that both terms are one product of ``[q, q K_W^T]``; the
normalizer is a further column, as everywhere.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern import validate
from linkern.decoding.cells import Cells, width
from linkern.decoding.threads import Helpers
from linkern.feature_maps import elu_plus_one
from linkern.kernels.numpy.threads import thread_count
from linkern.state import State, without_normalizer_column
from linkern.typing import FeatureMapFunction
from linkern.validate import decoder as checks

__all__ = ["NumpyDecoder"]

Real = NDArray[Any]

# What a thread has to read in a step, for about 150 microseconds, to be worth what two
# cost: 20 to hand the work over, and more where they wait for the interpreter's lock.
_BYTES_PER_THREAD = 1 << 21


class NumpyDecoder:
    """Decoding on the CPU. Parameters are those of `linkern.Decoder`, but `device`."""

    _memory: Real  # (*batch, F + W, C): the memory, then the values of the window
    _keys: Real  # (*batch, W, F): features of the window
    _window: int
    _taken: int  # how many tokens have been taken in, with those of the first window

    def __init__(
        self,
        state: State | None = None,
        *,
        batch_shape: tuple[int, ...] = (),
        key_dim: int | None = None,
        value_dim: int | None = None,
        dtype: Any = None,
        feature_map: FeatureMapFunction = elu_plus_one,
        normalize: bool = True,
        scale: float | None = None,
        window: int = 16,
    ) -> None:
        normalize = validate.flag("normalize", normalize)
        scale = validate.scale(scale)
        window = validate.positive_integer("window", window)
        validate.a_feature_map(feature_map)
        if state is None:
            sizes = checks.sizes(batch_shape, key_dim, value_dim)
            kind = checks.token_dtype(dtype, None)
        else:
            shape = (batch_shape, key_dim, value_dim)
            sizes = checks.sizes_of(state, *shape, normalize=normalize)
            kind = checks.token_dtype(dtype, state.memory.dtype)
        batch, features, values = sizes
        wide = np.result_type(kind, np.float32)
        columns = width(values, normalize=normalize)
        memory = np.zeros((*batch, features + window, columns), wide)
        # The weight of a token of the window in the denominator is its score.
        memory[..., features:, values:] = 1
        if state is not None:
            of_state: Any = state
            memory[..., :features, :values] = of_state.memory
            if normalize:
                memory[..., :features, values:] = of_state.normalizer[..., None]
        self._options = (batch, values, kind, feature_map, normalize, scale)
        self._adopt(memory, np.zeros((*batch, window, features), wide), 0)

    @property
    def state(self) -> State:
        """The state after the last token, exact at every step: a copy."""
        filled = self._add_full_window()
        _, values, _, _, normalize, _ = self._options
        features = self._key_shape[-1]
        columns, recent = slice(values + normalize), slice(features, features + filled)
        with np.errstate(all="ignore"):
            keys = self._keys[..., :filled, :].swapaxes(-1, -2)
            written = keys @ self._memory[..., recent, columns]
            memory = self._memory[..., :features, columns] + written
        return without_normalizer_column(memory, normalize=normalize)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory and of all buffers: constant."""
        own = self._memory.nbytes + self._keys.nbytes
        return own + sum(part.nbytes for _, part in self._parts)

    def copy(self) -> "NumpyDecoder":
        """Return a decoder that goes on from here on its own."""
        fork = object.__new__(type(self))
        fork.__setstate__(self.__getstate__())
        return fork

    def step(
        self, query: Real, key: Real, value: Real, out: Real | None = None
    ) -> Real:
        """Take in one token, as `linkern.Decoder.step`."""
        # Identities are enough for nearly all tokens; what fails them is looked at
        # with patience.
        if not (
            type(query) is type(key) is type(value) is np.ndarray
            and query.shape == key.shape == self._key_shape
            and value.shape == self._value_shape
            and query.dtype is self._dtype
            and key.dtype is self._dtype
            and value.dtype is self._dtype
        ):
            self._look_closely(query, key, value)
        if out is None:
            out = np.empty(self._value_shape, self._dtype)
        elif not (
            type(out) is np.ndarray
            and out.shape == self._value_shape
            and out.dtype is self._dtype
            and out.flags.writeable
        ):
            checks.output(out, self._dtype, self._value_shape)
        before, i = divmod(self._taken, self._window)
        if not self._in_place:  # a function of a user's stays in the user's thread
            query, key = self._mapped("query", query), self._mapped("key", key)
        if self._helpers is None:
            self._cells.step(before, i, query, key, value, out)
        else:
            arrays = (query, key, value, out)
            self._helpers.run(
                [
                    partial(cells.step, before, i, *(x[where] for x in arrays))
                    for where, cells in self._parts
                ]
            )
        # Last: whatever was raised above, the slot is free and the token not taken in.
        self._taken += 1
        return out

    def _look_closely(self, query: Any, key: Any, value: Any) -> None:
        """Raise what is wrong with a token, if anything is."""
        # What a feature map takes, only it knows; what it returns is checked.
        free = not self._in_place
        checks.token("query", query, self._dtype, self._key_shape, free=free)
        checks.token("key", key, self._dtype, self._key_shape, free=free)
        checks.token("value", value, self._dtype, self._value_shape)

    def _mapped(self, name: str, x: Real) -> Real:
        """Return the features of the queries or keys."""
        wide = validate.widened(name, x)
        mapped: Any = validate.features(name, wide, self._options[3])
        got, features = mapped.shape[-1], self._key_shape[-1]
        if got != features:
            msg = (
                f"`{name}` must have {features} features, the `key_dim` of this "
                f"decoder, got {got} from its feature map."
            )
            raise ValueError(msg)
        return mapped  # type: ignore[no-any-return]

    def _add_full_window(self) -> int:
        """Do now what the next step would begin with; return the tokens that wait."""
        before = self._taken // self._window
        for _, cells in self._parts:
            if cells.added != before:
                cells.add_window()
        return self._taken % self._window

    def __getstate__(self) -> dict[str, Any]:
        filled = self._add_full_window()
        return {
            "options": self._options,
            "memory": self._memory.copy(),
            "keys": self._keys.copy(),
            "filled": filled,
        }

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._options = kept["options"]
        self._adopt(kept["memory"], kept["keys"], kept["filled"])

    def _adopt(self, memory: Real, keys: Real, filled: int) -> None:
        """Divide memory and window among threads, and lay buffers around each part."""
        batch, values, dtype, feature_map, normalize, scale = self._options
        self._memory, self._keys, self._taken = memory, keys, filled
        self._window, features = keys.shape[-2:]
        self._key_shape, self._value_shape = (*batch, features), (*batch, values)
        # Pickling makes other objects of the same dtype; a step asks for identity.
        self._dtype = np.dtype(dtype.name)
        self._in_place = feature_map is elu_plus_one
        options: dict[str, Any] = {
            "normalize": normalize,
            "scale": None if scale is None else np.asarray(scale, memory.dtype),
            "mapped": not self._in_place,
        }
        self._parts = [
            (where, Cells(memory[where], keys[where], values, **options))
            for where in _division(batch, memory.nbytes)
        ]
        self._cells = self._parts[0][1]
        self._helpers = Helpers() if len(self._parts) > 1 else None


def _division(batch: tuple[int, ...], nbytes: int) -> list[tuple[slice, ...]]:
    """Return the cells that each thread takes, a part of the first axis that has any.

    Numbers do not depend on the division, so it may depend on the machine.
    """
    axis = next((i for i, size in enumerate(batch) if size > 1), 0)
    size = batch[axis] if batch else 1
    parts = min(thread_count(), size, nbytes // _BYTES_PER_THREAD)
    if parts < 2:
        return [()]
    bounds = [size * i // parts for i in range(parts + 1)]
    before = (slice(None),) * axis
    return [(*before, slice(*ends)) for ends in pairwise(bounds)]
