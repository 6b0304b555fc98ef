"""Forward pass through a stack of layers: encoder, decoder, decoder from a state."""

from typing import Any

from linkern import validate
from linkern.transformer.attention import multi_head_attention, read_memory
from linkern.transformer.layers import (
    LayerNorm,
    feed_forward,
    instance_norm,
    layer_norm,
)
from linkern.transformer.stack import Layer, LayerState, Stack
from linkern.typing import Array

__all__ = ["decoder", "encoder", "run"]

_NORMS = {"layer": layer_norm, "instance": instance_norm}


def encoder(
    parameters: Stack, x: Array, *, visible: Array | None = None, form: str = "auto"
) -> Array:
    r"""Return the output of an encoder: every token attends to all tokens.

    Parameters
    ----------
    parameters : Stack
        Its layers; their operator must not be causal by nature.
    x : array (N, T, width)
        Embedded tokens.
    visible : array (N, T) of bool, optional
        Which tokens are there, for a batch of different lengths. The others are looked
        at by nobody; their own rows are to be ignored.
    form : str
        Order of the sums of a recurrence.

    Returns
    -------
    array (N, T, width)
        One row for each token.

    Raises
    ------
    TypeError
        If `parameters` are no Stack, or an input is no floating-point array.
    ValueError
        If the operator only looks back, or shapes do not fit.

    Notes
    -----
    Each layer is :math:`T_l(x) = f_l(A_l(x) + x)` with residuals and norms around both
    parts. Source: Katharopoulos et al. 2020, "Transformers are RNNs", equation 1;
    Vaswani et al. 2017, figure 1.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> stack = transformer.Stack.create(8, depth=2, heads=2, rng=0)
    >>> transformer.encoder(stack, np.ones((1, 5, 8), np.float32)).shape
    (1, 5, 8)
    """
    validate.instance("parameters", parameters, Stack)
    if visible is not None and parameters.norm == "instance":
        msg = (
            "`visible` must be None with instance norm, whose mean takes in all tokens."
        )
        raise ValueError(msg)
    for layer in parameters.layers:
        looking, after = layer.norms[0], layer.norms[-1]
        inside = _sublayer_input(parameters, looking, x)
        seen, _ = multi_head_attention(
            layer.attention, inside, causal=False, visible=visible, form=form
        )
        x = _sublayer_output(parameters, looking, x, seen)
        x = _after_attention(parameters, layer, after, x)
    return _end(parameters, x)


def decoder(
    parameters: Stack,
    x: Array,
    memory: Array | None = None,
    *,
    visible: Array | None = None,
    form: str = "auto",
) -> Array:
    """Return the output of a decoder: causal, with attention to an encoder's output.

    Parameters
    ----------
    parameters : Stack
        Its layers, made with ``cross=True`` if there is an encoder.
    x : array (N, T, width)
        Embedded tokens.
    memory : array (N, S, width), optional
        Output of the encoder.
    visible : array (N, S) of bool, optional
        Which tokens of the encoder are there.
    form : str
        Order of the sums of a recurrence.

    Returns
    -------
    array (N, T, width)
        One row for each token.

    Raises
    ------
    TypeError
        If `parameters` are no Stack, or an input is no floating-point array.
    ValueError
        If there is a `memory` and no cross attention or the other way round, or shapes
        do not fit.

    Notes
    -----
    Source: Vaswani et al. 2017, figure 1.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> stack = transformer.Stack.create(8, depth=1, heads=2, cross=True, rng=0)
    >>> x, memory = np.ones((1, 5, 8), np.float32), np.ones((1, 3, 8), np.float32)
    >>> transformer.decoder(stack, x, memory).shape
    (1, 5, 8)
    """
    return run(parameters, x, memory=memory, visible=visible, form=form)[0]


def run(
    parameters: Stack,
    x: Array,
    states: tuple[LayerState, ...] | None = None,
    *,
    memory: Array | None = None,
    visible: Array | None = None,
    form: str = "auto",
    position: Array | None = None,
) -> tuple[Array, tuple[LayerState, ...]]:
    """Run a decoder on tokens from a state and return the output and next state."""
    validate.instance("parameters", parameters, Stack)
    if parameters.norm == "instance" and parameters.layers:
        msg = (
            '`norm` must be "layer" in a causal model: instance norm lets every token '
            "see all others."
        )
        raise ValueError(msg)
    if states is None:
        states = (LayerState(None, None),) * len(parameters.layers)
    after = []
    for layer, before in zip(parameters.layers, states, strict=True):
        looking, *across, last = layer.norms
        inside = _sublayer_input(parameters, looking, x)
        seen, state = multi_head_attention(
            layer.attention,
            inside,
            state=before.attention,
            form=form,
            position=position,
        )
        x = _sublayer_output(parameters, looking, x, seen)
        cross = before.cross
        _check_memory(layer, memory, cross)
        if layer.cross is not None:
            inside = _sublayer_input(parameters, across[0], x)
            if memory is None:
                seen = read_memory(layer.cross, inside, cross)
            else:
                seen, cross = multi_head_attention(
                    layer.cross, inside, memory, visible=visible
                )
            x = _sublayer_output(parameters, across[0], x, seen)
        x = _after_attention(parameters, layer, last, x)
        after.append(LayerState(state, cross))
    return _end(parameters, x), tuple(after)


def _sublayer_input(stack: Stack, norm: LayerNorm, x: Array) -> Array:
    """Return the input of a sublayer: normalised first if the layer is pre-norm."""
    return _NORMS[stack.norm](norm, x) if stack.norm_first else x


def _sublayer_output(stack: Stack, norm: LayerNorm, x: Array, made: Array) -> Array:
    """Return the output of a sublayer: the residual plus the sublayer's result."""
    return x + made if stack.norm_first else _NORMS[stack.norm](norm, x + made)


def _after_attention(stack: Stack, layer: Layer, norm: LayerNorm, x: Array) -> Array:
    made = feed_forward(layer.feed_forward, _sublayer_input(stack, norm, x))
    return _sublayer_output(stack, norm, x, made)


def _end(stack: Stack, x: Array) -> Array:
    norm = stack.final_norm
    return x if norm is None else _NORMS[stack.norm](norm, x)


def _check_memory(layer: Layer, memory: Array | None, state: Any) -> None:
    """Check that an encoder's output is given exactly if a layer attends to one."""
    if layer.cross is None and memory is not None:
        msg = "`memory` must be None for a stack made without `cross=True`."
        raise ValueError(msg)
    if layer.cross is not None and memory is None and state is None:
        msg = (
            "`memory` must be the output of an encoder for a stack made with "
            "`cross=True`, got None."
        )
        raise ValueError(msg)
