"""Layers around attention: affine maps, norms, feed-forward."""

import math
from typing import Any, cast

from linkern import validate
from linkern.array import astype, namespace, reshape
from linkern.feature_maps import relu
from linkern.transformer.parameters import Source, kind, static
from linkern.typing import Array

__all__ = [
    "Affine",
    "FeedForward",
    "LayerNorm",
    "affine",
    "apart",
    "feed_forward",
    "instance_norm",
    "layer_norm",
    "together",
]


@kind
class Affine:
    """Parameters of ``x W + b``.

    Parameters
    ----------
    weight : array (in, out)
        ``W``; with a leading axis of heads for maps that each head has its own of.
    bias : array (out,) or None
        ``b``; (heads, 1, out) if heads have their own.
    """

    weight: Array
    bias: Array | None

    @classmethod
    def create(
        cls,
        inputs: int,
        outputs: int,
        *,
        heads: int | None = None,
        bias: float | None = 0.0,
        rng: Any = None,
        like: Array | None = None,
    ) -> "Affine":
        """Return normal weights of variance ``1 / inputs``, and a constant bias."""
        source = Source(rng, like)
        lead = () if heads is None else (heads,)
        weight = source.normal((*lead, inputs, outputs), max(inputs, 1) ** -0.5)
        row = (outputs,) if heads is None else (heads, 1, outputs)
        return cls(weight, None if bias is None else source.constant(row, bias))


def affine(parameters: Affine, x: Array) -> Array:
    """Return ``x W + b``.

    Parameters
    ----------
    parameters : Affine
        ``W`` and ``b``.
    x : array (..., in)
        Inputs, of the library and dtype of the parameters.

    Returns
    -------
    array (..., out)
        Outputs.

    Raises
    ------
    TypeError
        If `parameters` are of another class, or `x` is no array.
    ValueError
        If `x` has another width.

    Examples
    --------
    >>> import numpy as np
    >>> affine(Affine(2 * np.eye(2), np.ones(2)), np.asarray([1.0, 2.0]))
    array([3., 5.])
    """
    validate.instance("parameters", parameters, Affine)
    validate.last_axis("x", x, parameters.weight.shape[-2])
    product = x @ parameters.weight
    return product if parameters.bias is None else product + parameters.bias


@kind
class LayerNorm:
    """Parameters of a layer or an instance norm.

    Parameters
    ----------
    scale, offset : array (width,)
        Factor and summand of each feature.
    epsilon : float
        Added to the variance. It is part of what the field calls this layer.
    """

    scale: Array
    offset: Array
    epsilon: float = static(default=1e-5)

    @classmethod
    def create(cls, width: int, *, like: Array | None = None) -> "LayerNorm":
        """Return scale 1 and offset 0."""
        source = Source(None, like)
        return cls(source.constant((width,), 1.0), source.constant((width,), 0.0))


def layer_norm(parameters: LayerNorm, x: Array) -> Array:
    r"""Normalise each token over its features, then scale and shift.

    Parameters
    ----------
    parameters : LayerNorm
        Scale, offset, epsilon.
    x : array (..., T, width)
        Inputs.

    Returns
    -------
    array (..., T, width)
        :math:`(x - m) / \sqrt{s^2 + \epsilon} \cdot scale + offset` with the mean and
        the (biased) variance of each row.

    Raises
    ------
    TypeError
        If `parameters` are of another class, or `x` is no floating-point array.
    ValueError
        If `x` has another width.

    Notes
    -----
    Source: Ba et al. 2016, "Layer Normalization".

    Examples
    --------
    >>> import numpy as np
    >>> norm = LayerNorm(np.ones(2), np.zeros(2), epsilon=0.0)
    >>> layer_norm(norm, np.asarray([[1.0, 5.0]]))
    array([[-1.,  1.]])
    """
    return _normalised(parameters, x, axis=-1)


def instance_norm(parameters: LayerNorm, x: Array) -> Array:
    """Normalise each feature over the tokens, then scale and shift.

    Parameters
    ----------
    parameters : LayerNorm
        Scale, offset, epsilon.
    x : array (..., T, width)
        Inputs.

    Returns
    -------
    array (..., T, width)
        As `layer_norm`, with the mean and the variance over axis -2. Every token sees
        all others through them, so it has no place in a causal model.

    Raises
    ------
    TypeError
        If `parameters` are of another class, or `x` is no floating-point array.
    ValueError
        If `x` has another width.

    Notes
    -----
    Source: Ulyanov et al. 2016, "Instance Normalization".

    Examples
    --------
    >>> import numpy as np
    >>> norm = LayerNorm(np.ones(1), np.zeros(1), epsilon=0.0)
    >>> instance_norm(norm, np.asarray([[1.0], [5.0]]))
    array([[-1.],
           [ 1.]])
    """
    return _normalised(parameters, x, axis=-2)


def _normalised(parameters: LayerNorm, x: Array, *, axis: int) -> Array:
    validate.instance("parameters", parameters, LayerNorm)
    validate.last_axis("x", x, parameters.scale.shape[-1], rank=-axis)
    wide = validate.widened("x", x)
    xp = namespace(wide)
    centred = wide - xp.mean(wide, axis=axis, keepdims=True)
    variance = xp.mean(centred * centred, axis=axis, keepdims=True)
    unit = astype(centred / xp.sqrt(variance + parameters.epsilon), x.dtype)
    return unit * parameters.scale + parameters.offset


@kind
class FeedForward:
    """Parameters of the feed-forward layer ``f_l``.

    Parameters
    ----------
    inner, outer : Affine
        To the hidden width and back; with a leading axis of heads if each has its own.
    activation : {"relu", "gelu_tanh"}
        Between the two.
    """

    inner: Affine
    outer: Affine
    activation: str = static(default="relu")

    @classmethod
    def create(
        cls,
        width: int,
        hidden: int,
        *,
        heads: int | None = None,
        activation: str = "relu",
        rng: Any = None,
        like: Array | None = None,
    ) -> "FeedForward":
        """Return random parameters; `heads` gives each head its own smaller layer."""
        _known_activation(activation)
        source = Source(rng, like)
        parts = 1 if heads is None else heads
        for name, size in (("width", width), ("hidden", hidden)):
            if size % parts:
                msg = (
                    f"`{name}` must be a multiple of `heads` ({parts}) for a layer per "
                    f"head, got {size}."
                )
                raise ValueError(msg)
        sizes = width // parts, hidden // parts
        return cls(
            Affine.create(*sizes, heads=heads, rng=source.generator, like=source.like),
            Affine.create(
                *reversed(sizes), heads=heads, rng=source.generator, like=source.like
            ),
            activation,
        )


def feed_forward(parameters: FeedForward, x: Array) -> Array:
    r"""Apply the feed-forward layer to each token.

    Parameters
    ----------
    parameters : FeedForward
        Two affine maps, and what is between them.
    x : array (..., T, width)
        Inputs.

    Returns
    -------
    array (..., T, width)
        ``activation(x W_1 + b_1) W_2 + b_2``, for the whole width or for each head's
        part of it.

    Raises
    ------
    TypeError
        If `parameters` are of another class, or `x` is no array.
    ValueError
        If `x` has another width.

    Notes
    -----
    The :math:`f_l` of Katharopoulos et al. 2020, equation 1; Vaswani et al. 2017,
    section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> one = Affine(np.eye(2), None)
    >>> feed_forward(FeedForward(one, one), np.asarray([[-1.0, 2.0]]))
    array([[0., 2.]])
    """
    validate.instance("parameters", parameters, FeedForward)
    *heads, width, _ = parameters.inner.weight.shape
    per_head = len(heads) == 1
    validate.last_axis("x", x, width * math.prod(heads), rank=1 + per_head)
    parts = apart(x, parameters.inner.weight.shape[0]) if per_head else x
    hidden = _ACTIVATIONS[parameters.activation](affine(parameters.inner, parts))
    result = affine(parameters.outer, hidden)
    return together(result) if per_head else result


def apart(x: Array, heads: int) -> Array:
    """Return each head's part of the features: ``(..., H, T, width / H)``."""
    *lead, length, width = x.shape
    xp = namespace(x)
    split = reshape(x, (*lead, length, heads, width // heads))
    return xp.moveaxis(split, -2, -3)  # type: ignore[no-any-return]


def together(x: Array) -> Array:
    """Concatenate the features of the heads: inverse of `apart`."""
    *lead, heads, length, dim = x.shape
    joined = namespace(x).moveaxis(x, -3, -2)
    return reshape(joined, (*lead, length, heads * dim))


def _gelu_tanh(x: Array) -> Array:
    # Hendrycks and Gimpel 2016; the array API has no erf, so this is the tanh form.
    inner = (2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x)
    return cast(Array, 0.5 * x * (1 + namespace(x).tanh(inner)))


_ACTIVATIONS = {"relu": relu, "gelu_tanh": _gelu_tanh}


def _known_activation(name: str) -> None:
    if name not in _ACTIVATIONS:
        known = ", ".join(f'"{known}"' for known in _ACTIVATIONS)
        msg = f"`activation` must be one of {known}, got {name!r}."
        raise ValueError(msg)
