"""Multi-head attention: input projections, an operator per head, output projection."""

from collections.abc import Mapping
from typing import Any

from linkern import validate
from linkern.transformer.inputs import (
    axes_of,
    definition_named,
    initial_inputs,
    inputs_of,
)
from linkern.transformer.layers import (
    Affine,
    LayerNorm,
    affine,
    apart,
    layer_norm,
    together,
)
from linkern.transformer.operator_adapter import (
    CROSSWISE,
    FEATURE_MAPS,
    Call,
    Mixed,
    Mixer,
    mix,
    read,
)
from linkern.transformer.parameters import Source, kind, static
from linkern.typing import Array

__all__ = ["MultiHeadAttention", "multi_head_attention", "read_memory"]


@kind
class MultiHeadAttention:
    """Parameters of multi-head attention.

    Parameters
    ----------
    inputs : dict of str to Affine or array
        For each input of the operator: its projection ``(width, H K)``, or an array
        ``(H, ...)`` where it does not depend on the token.
    output : Affine
        From all heads' outputs, side by side, to the width.
    head_norm : LayerNorm or None
        Of each head's output, for operators whose output is no weighted mean.
    operator : str
        Which attention: any operator, or `softmax_attention`,
        `lsh_attention`, `sparse_attention`.
    heads : int
        ``H``.
    feature_map : str
        Of `linear_attention`: the name of a map in `linkern.feature_maps`.
    options : dict
        Of `softmax_attention` (`block_size`), `lsh_attention` (`rounds`, `chunk_size`,
        `rng`, ...) and `sparse_attention` (`pattern`, `window`, ...).
    sizes : dict of str to int
        ``k`` and ``v``, dimensions of a head; ``m`` slots (`gsa`, `abc`), ``l`` levels
        (`log_linear_attention`), ``n`` steps for each token (`gated_delta_product`),
        ``p`` angles (`mamba3`), ``r`` keys and queries of a token (`mamba3_mimo`, whose
        ``k`` are those of all of them).
    """

    inputs: dict[str, Any]
    output: Affine
    head_norm: LayerNorm | None
    operator: str = static()
    heads: int = static()
    feature_map: str = static()
    options: dict[str, Any] = static()
    sizes: dict[str, int] = static()

    @classmethod
    def create(
        cls,
        width: int,
        heads: int,
        *,
        operator: str = "linear_attention",
        feature_map: str = "elu_plus_one",
        options: Mapping[str, Any] | None = None,
        slots: int = 16,
        levels: int = 20,
        steps: int = 2,
        rng: Any = None,
        like: Array | None = None,
    ) -> "MultiHeadAttention":
        """Return random parameters.

        Parameters
        ----------
        width, heads : int
            Of the tokens; each head has ``width / heads`` dimensions.
        operator, feature_map, options
            As above.
        slots, levels, steps : int
            Where the operator has them; `levels` allows ``2^(levels - 1) - 1`` tokens.
        rng : int, numpy.random.Generator or None
            Where the numbers come from.
        like : array or None
            Gives the library, the dtype and the device. Default: NumPy and float32.

        Raises
        ------
        ValueError
            If an operator or a feature map is unknown, or `heads` does not divide
            `width`.
        """
        axes = axes_of(operator)  # before anything else: is it one?
        if feature_map not in FEATURE_MAPS:
            known = ", ".join(FEATURE_MAPS)
            msg = f"`feature_map` must be one of {known}, got {feature_map!r}."
            raise ValueError(msg)
        heads = validate.positive_integer("heads", heads)
        width = validate.positive_integer("width", width)
        if width % heads:
            fits = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
            msg = f"`heads` must divide `width` ({width}): {fits}; got {heads}."
            raise ValueError(msg)
        dim = width // heads
        sizes = {"k": dim, "v": dim, "m": slots, "l": levels, "n": steps}
        sizes |= {"p": dim // 2, "r": steps}
        if any("r" in letters for letters in axes.values()):
            sizes["k"] = steps * dim
        source = Source(rng, like)
        like = source.like
        return cls(
            initial_inputs(operator, width, heads, sizes, source),
            Affine.create(width, width, rng=source.generator, like=like),
            LayerNorm.create(dim, like=like) if _grows(operator) else None,
            operator,
            heads,
            feature_map,
            dict(options or {}),
            sizes,
        )


def _grows(operator: str) -> bool:
    """Return True if the operator does not normalise its rows."""
    definition = definition_named(operator)
    return definition is not None and definition.normalizer is None


def multi_head_attention(
    parameters: MultiHeadAttention,
    x: Array,
    memory: Array | None = None,
    *,
    causal: bool = True,
    state: Any = None,
    visible: Array | None = None,
    form: str = "auto",
    position: Array | None = None,
) -> Mixed:
    r"""Return the attention of tokens to each other, or to another sequence.

    Parameters
    ----------
    parameters : MultiHeadAttention
        Projections, the operator, and the output projection.
    x : array (..., T, width)
        Tokens that ask.
    memory : array (..., S, width), optional
        Tokens that are looked at: cross attention, never causal. Default: `x` itself.
    causal : bool
        Whether token i sees tokens 0..i only; ignored with a `memory`.
    state : State or Cache, optional
        What earlier tokens left behind, from an earlier result; causal only.
    visible : array (N, S) of bool, optional
        Which of the tokens that are looked at are there, for a batch of different
        lengths; not causal only.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums of a recurrence.
    position : array (N,) of int, optional
        How many tokens came before; `log_linear_attention` counts them.

    Returns
    -------
    Mixed
        ``output (..., T, width)`` and ``state``: a `State` of fixed size, a growing
        `Cache` for `softmax_attention`, None for the other two that are quadratic.

    Raises
    ------
    ValueError
        If the operator cannot do what is asked, or shapes do not fit.
    TypeError
        If `parameters` are of another class, or `state` is of another kind of
        attention.

    Notes
    -----
    Each head h computes :math:`A_h = attention(x W^q_h, x W^k_h, x W^v_h)`, further
    inputs of the operator likewise, and the output is :math:`[A_1, \dots, A_H] W^o`.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> layer = transformer.MultiHeadAttention.create(8, 2, operator="gla", rng=0)
    >>> x = np.ones((1, 5, 8), np.float32)
    >>> result = transformer.multi_head_attention(layer, x)
    >>> result.output.shape, result.state.memory.shape
    ((1, 5, 8), (1, 2, 4, 4))
    """
    _width("x", x, parameters)
    if memory is None:
        asked = _inputs(parameters, x)
    else:
        _width("memory", memory, parameters)
        causal = False
        asked = _cross_inputs(parameters, x, memory)
    call = Call(causal, state, visible, form, position)
    output, after = mix(_mixer(parameters), asked, call)
    return Mixed(_joined(parameters, output), after)


def read_memory(parameters: MultiHeadAttention, x: Array, state: Any) -> Array:
    """Return the attention of tokens to the state of another sequence.

    Parameters
    ----------
    parameters : MultiHeadAttention
        Of cross attention.
    x : array (..., T, width)
        Tokens that ask.
    state : State or Cache
        From ``multi_head_attention(parameters, x, memory)``.

    Returns
    -------
    array (..., T, width)
        The output of that call for these tokens.

    Raises
    ------
    TypeError
        If `parameters` or `state` are of another class, or `x` is no floating-point
        array.
    ValueError
        If `x` has another width.
    """
    _width("x", x, parameters)
    query = _projected(parameters, "query", x)
    return _joined(parameters, read(_mixer(parameters), query, state))


def _mixer(parameters: MultiHeadAttention) -> Mixer:
    return Mixer(parameters.operator, parameters.feature_map, parameters.options)


def _inputs(parameters: MultiHeadAttention, x: Array) -> dict[str, Array]:
    return inputs_of(
        parameters.operator, parameters.inputs, x, parameters.heads, parameters.sizes
    )


def _projected(parameters: MultiHeadAttention, name: str, x: Array) -> Array:
    return apart(affine(parameters.inputs[name], x), parameters.heads)


def _cross_inputs(
    parameters: MultiHeadAttention, x: Array, memory: Array
) -> dict[str, Array]:
    """Return queries of one sequence, keys and values of another."""
    if parameters.operator not in CROSSWISE:
        msg = (
            "`operator` must be linear_attention or softmax_attention for cross "
            f"attention, got {parameters.operator!r}."
        )
        raise ValueError(msg)
    return {
        "query": _projected(parameters, "query", x),
        "key": _projected(parameters, "key", memory),
        "value": _projected(parameters, "value", memory),
    }


def _joined(parameters: MultiHeadAttention, output: Array) -> Array:
    if parameters.head_norm is not None:
        output = layer_norm(parameters.head_norm, output)
    return affine(parameters.output, together(output))


def _width(name: str, x: Array, parameters: MultiHeadAttention) -> None:
    validate.instance("parameters", parameters, MultiHeadAttention)
    validate.wide_dtype(name, x)
    validate.last_axis(name, x, parameters.output.weight.shape[-1], rank=2)
