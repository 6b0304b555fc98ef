"""Parameters of Transformer layers, and of stacks of them."""

from typing import Any, NamedTuple, TypedDict, Unpack

from linkern import validate
from linkern.transformer.attention import MultiHeadAttention
from linkern.transformer.layers import FeedForward, LayerNorm
from linkern.transformer.parameters import Source, kind, static
from linkern.typing import Array

__all__ = ["Layer", "LayerOptions", "LayerState", "Stack"]


class LayerOptions(TypedDict, total=False):
    """Options that all layers of a model share.

    Parameters
    ----------
    operator : str
        Attention of the tokens to each other. Default "linear_attention".
    cross_operator : str
        Attention of a decoder to its encoder: "linear_attention" or
        "softmax_attention". Default: the former.
    feature_map : str
        Of `linear_attention`. Default "elu_plus_one".
    options : mapping
        Of the quadratic ones: see `MultiHeadAttention`.
    slots, levels, steps : int
        Of operators that have them.
    hidden : int
        Width between the two maps of the feed-forward layer. Default four times the
        width.
    feed_forward_heads : int
        Give each of so many heads a feed-forward layer of its own. Default: one for
        the whole width.
    activation : {"relu", "gelu_tanh"}
        Of the feed-forward layer.
    norm : {"layer", "instance"}
        "instance" is for encoders only: it looks at all tokens.
    norm_first : bool
        Normalise what goes into a sublayer, and the end (True, the default), or what
        comes out with the residual added (False, as in Vaswani et al. 2017).
    """

    operator: str
    cross_operator: str
    feature_map: str
    options: Any
    slots: int
    levels: int
    steps: int
    hidden: int
    feed_forward_heads: int | None
    activation: str
    norm: str
    norm_first: bool


@kind
class Layer:
    """Parameters of one Transformer layer.

    Parameters
    ----------
    attention : MultiHeadAttention
        Of the tokens to each other.
    cross : MultiHeadAttention or None
        To the tokens of an encoder.
    feed_forward : FeedForward
        The non-linear layer after.
    norms : tuple of LayerNorm
        One for each of these.
    """

    attention: MultiHeadAttention
    cross: MultiHeadAttention | None
    feed_forward: FeedForward
    norms: tuple[LayerNorm, ...]


class LayerState(NamedTuple):
    """State of one layer after the tokens so far.

    Parameters
    ----------
    attention : State or Cache
        Of the attention of the tokens to each other.
    cross : State, Cache or None
        Of the tokens of the encoder; it does not change.
    """

    attention: Any
    cross: Any = None


@kind
class Stack:
    """Parameters of an encoder or a decoder: a sequence of layers.

    Parameters
    ----------
    layers : tuple of Layer
        In order.
    final_norm : LayerNorm or None
        After the last layer, if norms come first.
    norm : {"layer", "instance"}
        Which norm.
    norm_first : bool
        Where it is.
    """

    layers: tuple[Layer, ...]
    final_norm: LayerNorm | None
    norm: str = static(default="layer")
    norm_first: bool = static(default=True)

    @classmethod
    def create(
        cls,
        width: int,
        depth: int,
        heads: int,
        *,
        cross: bool = False,
        rng: Any = None,
        like: Array | None = None,
        **layer: Unpack[LayerOptions],
    ) -> "Stack":
        """Return random parameters.

        Parameters
        ----------
        width, depth, heads : int
            Of the tokens, number of layers, number of heads.
        cross : bool
            Whether layers look at an encoder.
        rng : int, numpy.random.Generator or None
            Where the numbers come from.
        like : array or None
            Gives the library, the dtype and the device. Default: NumPy and float32.
        **layer
            See `LayerOptions`.

        Raises
        ------
        TypeError, ValueError
            If an option is unknown or out of range.
        """
        unknown = layer.keys() - LayerOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(sorted(LayerOptions.__annotations__))
            msg = f"unknown option {min(unknown)!r}; options of a layer are {known}."
            raise TypeError(msg)
        depth = validate.dimension("depth", depth)
        norm = layer.get("norm", "layer")
        if norm not in _NORMS:
            msg = f'`norm` must be "layer" or "instance", got {norm!r}.'
            raise ValueError(msg)
        first = validate.flag("norm_first", layer.get("norm_first", True))
        source = Source(rng, like)
        layers = [
            _layer(width, heads, layer, source, cross=cross) for _ in range(depth)
        ]
        final = LayerNorm.create(width, like=source.like) if first else None
        return cls(tuple(layers), final, norm, first)


_ATTENTION = ("feature_map", "options", "slots", "levels", "steps")
_NORMS = ("layer", "instance")


def _layer(
    width: int, heads: int, given: LayerOptions, source: Source, *, cross: bool
) -> Layer:
    """Return random parameters of one layer."""
    common: dict[str, Any] = {"rng": source.generator, "like": source.like}
    inside: dict[str, Any] = {n: x for n, x in given.items() if n in _ATTENTION}
    attention = MultiHeadAttention.create(
        width,
        heads,
        operator=given.get("operator", "linear_attention"),
        **inside,
        **common,
    )
    looking = None
    if cross:
        looking = MultiHeadAttention.create(
            width,
            heads,
            operator=given.get("cross_operator", "linear_attention"),
            feature_map=given.get("feature_map", "elu_plus_one"),
            **common,
        )
    after = FeedForward.create(
        width,
        validate.positive_integer("hidden", given.get("hidden", 4 * width)),
        heads=given.get("feed_forward_heads"),
        activation=given.get("activation", "relu"),
        **common,
    )
    norms = [LayerNorm.create(width, like=source.like) for _ in range(2 + cross)]
    return Layer(attention, looking, after, tuple(norms))
