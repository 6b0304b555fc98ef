"""Decoding on NumPy with a delayed update: the memory is written every few tokens.

A step of linear attention reads the memory once; writing it at every token would touch
it twice more. Here the features and values of the last ``W`` tokens wait in buffers,

    o = q (S + K_W^T V_W) = q S + (q K_W^T) V_W,

and one matrix product adds them to ``S`` when the buffers are full. They lie below the
memory as further rows, so that both terms are one product of ``[q, q K_W^T]``; the
normalizer is the last column, as everywhere.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern import _validate
from linkern._state import State, with_normalizer_column, without_normalizer_column
from linkern._typing import FeatureMapFunction
from linkern._validate import decoder as checks
from linkern.feature_maps import elu_plus_one

__all__ = ["Decoder"]

Real = NDArray[Any]


class _Slot(NamedTuple):
    """Where one token of the window is written, and what its query reads.

    Slicing costs as much as a small product, so all views are made beforehand.
    """

    key: Real  # (*batch, F): features of this token's key
    value: Real  # (*batch, V)
    keys: Real  # (N, F, j): features of the window up to this token
    scores: Real  # (N, 1, j): the query's scores with them
    weights: Real  # (N, 1, F + j): features of the query, then these scores
    rows: Real  # (N, F + j, V or V + 1): the memory, then the values of the window


class Decoder:
    r"""Causal linear attention token by token on NumPy, several times faster.

    The same outputs and states as `linear_attention_step` up to rounding, with the last
    `window` tokens kept beside the memory and added to it together.

    Parameters
    ----------
    state : State, optional
        State of the tokens before these, in the accumulation dtype; it is copied.
        Default: no tokens, and the next three say what the tokens will be.
    batch_shape : tuple of int
        Leading axes (batch, heads) that query, key and value all have.
    key_dim, value_dim : int
        ``F``, the number of features, and ``V``. ``F`` is the key dimension ``K``
        unless the feature map changes it.
    dtype : {"float16", "float32", "float64"}, optional
        Of the tokens and the outputs. float16 is accumulated in float32. Default: that
        of `state`, or float32.
    feature_map : callable
        As in `linear_attention`. `linkern.elu_plus_one` is evaluated in place.
    normalize : bool
        Divide by the sum of the weights.
    scale : float, optional
        Factor on the scores, dimensionless. Default 1. It cancels when `normalize`.
    window : int
        Tokens between two updates of the memory; 8 to 16 is fastest.

    Raises
    ------
    TypeError
        If an option has the wrong type, or `state` is not of NumPy arrays.
    ValueError
        If a shape or an option is out of range, or contradicts `state`.

    See Also
    --------
    linear_attention_step : the same on any array library, without mutable state.

    Notes
    -----
    With features :math:`\phi`, memory :math:`S` and the window's features and values
    :math:`K_W, V_W`, each with a row for each token,

    .. math::

        o = \frac{\phi(q)^T S + (\phi(q)^T K_W^T) V_W}
                 {\phi(q)^T z + (\phi(q)^T K_W^T) 1}, \qquad
        S \leftarrow S + K_W^T V_W \text{ every } W \text{ tokens}.

    A step makes no array but its output. An object is not safe in several threads;
    several objects in several threads are. A step that raises leaves the decoder as it
    was. `copy.copy`, `copy.deepcopy` and `pickle` give independent decoders.

    An infinite value on a feature that is exactly zero is ``inf * 0``, NaN, in the
    memory, and reaches the outputs when the window is added.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive
    Transformers with Linear Attention", equations 16 to 20.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> decoder = linkern.Decoder(key_dim=2, value_dim=1, dtype="float64")
    >>> x = np.zeros(2)
    >>> decoder.step(x, x, np.asarray([3.0]))
    array([3.])
    >>> decoder.step(x, x, np.asarray([6.0]))
    array([4.5])
    >>> decoder.state.normalizer
    array([2., 2.])
    """

    _memory: Real  # (N, F + W, V or V + 1): the memory, then the values of the window
    _keys: Real  # (N, F, W): features of the window
    _filled: int  # how many tokens of the window are taken in
    _features: int
    _written: Real

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
        normalize = _validate.flag("normalize", normalize)
        scale = _validate.scale(scale)
        window = checks.window(window)
        _validate.a_feature_map(feature_map)
        if state is None:
            sizes = checks.sizes(batch_shape, key_dim, value_dim)
            kind = checks.token_dtype(dtype, None)
        else:
            given = (batch_shape, key_dim, value_dim)
            sizes = checks.sizes_of(state, *given, normalize=normalize)
            kind = checks.token_dtype(dtype, state.memory.dtype)
        batch, features, values = sizes
        wide = np.result_type(kind, np.float32)
        cells = math.prod(batch)
        memory = np.zeros((cells, features + window, values + normalize), wide)
        if normalize:
            # The weight of a token of the window in the denominator is its score.
            memory[:, features:, values] = 1
        if state is not None:
            of_state: Any = with_normalizer_column(state)
            memory[:, :features] = of_state.reshape(cells, features, memory.shape[-1])
        self._options = (batch, values, kind, feature_map, normalize, scale)
        self._adopt(memory, np.zeros((cells, features, window), wide), 0)

    @property
    def state(self) -> State:
        """The state after the last token, exact at every step: a copy."""
        batch, _, _, _, normalize, _ = self._options
        features = self._features
        recent = slice(features, features + self._filled)
        with np.errstate(all="ignore"):
            written = self._keys[:, :, : self._filled] @ self._memory[:, recent]
            memory = self._memory[:, :features] + written
        memory = memory.reshape(*batch, features, memory.shape[-1])
        return without_normalizer_column(memory, normalize=normalize)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory and of all buffers: constant."""
        held = (self._memory, self._keys, self._weights, self._tokens, self._exps)
        return sum(x.nbytes for x in (*held, self._read, self._written))

    def copy(self) -> "Decoder":
        """Return a decoder that goes on from here on its own."""
        fork = object.__new__(type(self))
        fork.__setstate__(self.__getstate__())
        return fork

    def step(
        self, query: Real, key: Real, value: Real, out: Real | None = None
    ) -> Real:
        """Take in one token and return what its query reads.

        Parameters
        ----------
        query, key : array (..., K)
            NumPy arrays with exactly the leading axes of the decoder.
        value : array (..., V)
            Likewise.
        out : array (..., V), optional
            Where to write the output. It may be one of the inputs.

        Returns
        -------
        array (..., V)
            The output, in the dtype of the tokens: `out`, or a new array.

        Raises
        ------
        TypeError
            If an input is not a NumPy array of the decoder's dtype.
        ValueError
            If a shape is not the decoder's.
        """
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
        if self._filled == len(self._slots):
            self._fold()
        slot = self._slots[self._filled]
        if self._in_place:
            self._elu_plus_one(query, key, slot.key)
        else:
            self._mapped(query, key, slot.key)
        slot.value[...] = value
        np.matmul(self._query, slot.keys, out=slot.scores)
        np.matmul(slot.weights, slot.rows, out=self._read)
        if self._denominator is not None:
            np.divide(self._numerator, self._denominator, out=out)
        elif self._scale is not None:
            np.multiply(self._numerator, self._scale, out=out)
        else:
            out[...] = self._numerator
        # Last: whatever was raised above, the slot is free and the token not taken in.
        self._filled += 1
        return out

    def _look_closely(self, query: Any, key: Any, value: Any) -> None:
        """Raise what is wrong with a token, if anything is."""
        # What a feature map takes, only it knows; what it returns is checked.
        free = not self._in_place
        checks.token("query", query, self._dtype, self._key_shape, free=free)
        checks.token("key", key, self._dtype, self._key_shape, free=free)
        checks.token("value", value, self._dtype, self._value_shape)

    def _elu_plus_one(self, query: Real, key: Real, key_features: Real) -> None:
        """Write ``max(x + 1, exp(min(x, 0)))`` of both: `linkern.elu_plus_one`."""
        tokens, exps = self._tokens, self._exps
        self._tokens_query[...] = query
        self._tokens_key[...] = key
        np.minimum(tokens, self._zero, out=exps)
        np.exp(exps, out=exps)
        np.add(tokens, self._one, out=tokens)
        # Contiguous, then copied: faster than two maxima into strided places.
        np.maximum(tokens, exps, out=tokens)
        self._query_features[...] = self._tokens_query
        key_features[...] = self._tokens_key

    def _mapped(self, query: Real, key: Real, key_features: Real) -> None:
        """Write the features of both."""
        found = []
        for name, x in (("query", query), ("key", key)):
            mapped = _validate.features(
                name, _validate.widened(name, x), self._options[3]
            )
            if mapped.shape[-1] != self._features:
                msg = (
                    f"`{name}` must have {self._features} features, the `key_dim` of "
                    f"this decoder, got {mapped.shape[-1]} from its feature map."
                )
                raise ValueError(msg)
            found.append(mapped)
        self._query_features[...], key_features[...] = found

    def _fold(self) -> None:
        """Add the full window to the memory."""
        features = self._features
        memory, written = self._memory, self._written
        # Not to stop half-way where overflow is an error: it shows in the outputs.
        with np.errstate(all="ignore"):
            np.matmul(self._keys, memory[:, features:], out=written[:, :features])
            # Zero is added to the rows of the window: whole arrays are faster.
            np.add(memory, written, out=memory)
        self._filled = 0

    def __getstate__(self) -> dict[str, Any]:
        return {
            "options": self._options,
            "memory": self._memory.copy(),
            "keys": self._keys.copy(),
            "filled": self._filled,
        }

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._options = kept["options"]
        self._adopt(kept["memory"], kept["keys"], kept["filled"])

    def _adopt(self, memory: Real, keys: Real, filled: int) -> None:
        """Lay the buffers and views of a step around the memory and the window."""
        batch, values, dtype, feature_map, normalize, scale = self._options
        cells, features, window = keys.shape
        wide = memory.dtype
        self._memory = memory
        self._keys = keys
        self._filled = filled
        self._features = features
        # Pickling makes other objects of the same dtype; a step asks for identity.
        self._dtype = np.dtype(dtype.name)
        self._in_place = feature_map is elu_plus_one
        self._key_shape, self._value_shape = (*batch, features), (*batch, values)
        self._tokens, self._exps = np.empty((2, 2, *self._key_shape), wide)
        self._tokens_query, self._tokens_key = self._tokens[0], self._tokens[1]
        self._weights = np.empty((cells, 1, features + window), wide)
        self._query = self._weights[:, :, :features]
        self._query_features = self._query.reshape(self._key_shape, copy=False)
        self._read = np.empty((cells, 1, memory.shape[-1]), wide)
        read = self._read.reshape(*batch, memory.shape[-1], copy=False)
        self._numerator = read[..., :values]
        self._denominator = read[..., values:] if normalize else None
        self._written = np.zeros_like(memory)
        # Arrays without axes: NumPy takes them faster than its or Python's numbers.
        self._zero, self._one = np.zeros((), wide), np.ones((), wide)
        self._scale = None if scale is None else np.asarray(scale, wide)
        self._slots = tuple(
            _Slot(
                keys[:, :, i].reshape(self._key_shape, copy=False),
                memory[:, features + i, :values].reshape(self._value_shape, copy=False),
                keys[:, :, : i + 1],
                self._weights[:, :, features : features + i + 1],
                self._weights[:, :, : features + i + 1],
                memory[:, : features + i + 1],
            )
            for i in range(window)
        )
