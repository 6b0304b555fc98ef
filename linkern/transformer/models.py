"""Whole models: a causal language model, and an encoder-decoder."""

from typing import Any, Unpack

from linkern.array import is_array
from linkern.transformer.embeddings import Embedding, embedded
from linkern.transformer.forward import decoder, encoder, run
from linkern.transformer.layers import Affine, affine
from linkern.transformer.parameters import Source, kind, statics
from linkern.transformer.stack import LayerOptions, LayerState, Stack
from linkern.typing import Array

__all__ = [
    "EncoderDecoder",
    "LanguageModel",
    "Model",
    "continued",
    "described",
    "encode",
    "encoder_decoder",
    "generating_part",
    "language_model",
    "sequences",
]


@kind
class LanguageModel:
    """Parameters of a causal language model: the next token from those before it.

    Parameters
    ----------
    embedding : Embedding
        Of tokens and positions.
    stack : Stack
        The layers.
    readout : Affine
        From the width to a logit for each token of the vocabulary.
    """

    embedding: Embedding
    stack: Stack
    readout: Affine

    @classmethod
    def create(
        cls,
        vocabulary: int,
        width: int,
        depth: int,
        heads: int,
        *,
        positions: str | None = "sinusoidal",
        max_length: int | None = None,
        rng: Any = None,
        like: Array | None = None,
        **layer: Unpack[LayerOptions],
    ) -> "LanguageModel":
        """Return random parameters.

        Parameters
        ----------
        vocabulary, width, depth, heads : int
            How many tokens there are, length of their vectors, layers, heads.
        positions : {"sinusoidal", "learned", None}
            What is added to tell where a token stands.
        max_length : int
            How many positions are learned; "learned" only.
        rng : int, numpy.random.Generator or None
            Where the numbers come from: the same ones for every library.
        like : array or None
            Gives the library, the dtype and the device. Default: NumPy and float32.
        **layer
            Operator, widths, norms: see `LayerOptions`.

        Returns
        -------
        LanguageModel
            The parameters.

        Raises
        ------
        TypeError, ValueError
            If something is unknown or does not fit.
        """
        source = Source(rng, like)
        common: dict[str, Any] = {"rng": source.generator, "like": source.like}
        return cls(
            Embedding.create(
                vocabulary, width, positions=positions, max_length=max_length, **common
            ),
            Stack.create(width, depth, heads, **common, **layer),
            Affine.create(width, vocabulary, **common),
        )


@kind
class EncoderDecoder:
    """Parameters of an encoder-decoder.

    Parameters
    ----------
    source_embedding, target_embedding : Embedding
        Of the tokens of both.
    encoder, decoder : Stack
        The layers of both.
    readout : Affine
        From the width to a logit for each token of the target.
    """

    source_embedding: Embedding
    target_embedding: Embedding
    encoder: Stack
    decoder: Stack
    readout: Affine

    @classmethod
    def create(
        cls,
        source_vocabulary: int,
        target_vocabulary: int,
        width: int,
        depth: int,
        heads: int,
        *,
        positions: str | None = "sinusoidal",
        max_length: int | None = None,
        rng: Any = None,
        like: Array | None = None,
        **layer: Unpack[LayerOptions],
    ) -> "EncoderDecoder":
        """Return random parameters: as `LanguageModel.create`, `depth` layers each."""
        source = Source(rng, like)
        common: dict[str, Any] = {"rng": source.generator, "like": source.like}
        where: dict[str, Any] = {"positions": positions, "max_length": max_length}
        return cls(
            Embedding.create(source_vocabulary, width, **where, **common),
            Embedding.create(target_vocabulary, width, **where, **common),
            Stack.create(width, depth, heads, **common, **layer),
            Stack.create(width, depth, heads, cross=True, **common, **layer),
            Affine.create(width, target_vocabulary, **common),
        )


Model = LanguageModel | EncoderDecoder


def language_model(
    parameters: LanguageModel, tokens: Array, *, form: str = "auto"
) -> Array:
    """Return the logits of the next token after each token.

    Parameters
    ----------
    parameters : LanguageModel
        The model.
    tokens : integer array (N, T)
        Of the library of the parameters, each in ``0..vocabulary-1``.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums of a recurrence.

    Returns
    -------
    array (N, T, vocabulary)
        Row t depends on tokens 0..t only.

    Raises
    ------
    TypeError
        If `parameters` are no `LanguageModel`, or the tokens are not integers of their
        library.
    ValueError
        If a token is unknown, or there are more of them than learned positions.

    Notes
    -----
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> model = transformer.LanguageModel.create(10, 8, depth=1, heads=2, rng=0)
    >>> transformer.language_model(model, np.asarray([[1, 2, 3]])).shape
    (1, 3, 10)
    """
    _model(parameters, LanguageModel)
    sequences("tokens", tokens)
    x = embedded(parameters.embedding, tokens)
    return affine(parameters.readout, decoder(parameters.stack, x, form=form))


def encoder_decoder(
    parameters: EncoderDecoder,
    source: Array,
    target: Array,
    *,
    visible: Array | None = None,
    form: str = "auto",
) -> Array:
    """Return the logits of the next token after each token of the target.

    Parameters
    ----------
    parameters : EncoderDecoder
        The model.
    source : integer array (N, S)
        What is read at once.
    target : integer array (N, T)
        What is written from left to right.
    visible : array (N, S) of bool, optional
        Which tokens of `source` are there, for a batch of different lengths.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums of a recurrence.

    Returns
    -------
    array (N, T, target_vocabulary)
        Row t depends on the source and on tokens 0..t of the target.

    Raises
    ------
    TypeError, ValueError
        As `language_model`; also if the operator only looks back, as the encoder does
        not.

    Notes
    -----
    Source: Vaswani et al. 2017, "Attention Is All You Need", figure 1.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> model = transformer.EncoderDecoder.create(10, 7, 8, depth=1, heads=2, rng=0)
    >>> source, target = np.asarray([[1, 2, 3]]), np.asarray([[0, 1]])
    >>> transformer.encoder_decoder(model, source, target).shape
    (1, 2, 7)
    """
    memory = encode(parameters, source, visible=visible, form=form)
    sequences("target", target)
    x = embedded(parameters.target_embedding, target)
    x = decoder(parameters.decoder, x, memory, visible=visible, form=form)
    return affine(parameters.readout, x)


def encode(
    parameters: EncoderDecoder,
    source: Array,
    *,
    visible: Array | None = None,
    form: str = "auto",
) -> Array:
    """Return the encoder's output ``(N, S, width)`` for a source ``(N, S)``."""
    _model(parameters, EncoderDecoder)
    sequences("source", source)
    x = embedded(parameters.source_embedding, source)
    return encoder(parameters.encoder, x, visible=visible, form=form)


def continued(
    parameters: Model,
    tokens: Array,
    states: tuple[LayerState, ...] | None,
    position: Array,
    **how: Any,
) -> tuple[Array, tuple[LayerState, ...]]:
    """Return logits of tokens ``(N, T)`` that follow others, and the states after them.

    `position` is how many tokens there were, for each sequence ``(N,)``.
    """
    embedding, stack = generating_part(parameters)
    x = embedded(embedding, tokens, position)
    x, after = run(stack, x, states, position=position, **how)
    return affine(parameters.readout, x), after


def described(parameters: Model) -> str:
    """Return the structure of a model without its weights; equal ones share states."""
    embedding, stack = generating_part(parameters)
    parts = [
        type(parameters).__name__,
        f"vocabulary {embedding.tokens.shape[0]}",
        f"width {embedding.tokens.shape[1]}",
        f"depth {len(stack.layers)}",
    ]
    for layer in stack.layers[:1]:
        fields = statics(layer.attention)
        parts += [
            f"{name} {fields[name]}" for name in ("operator", "heads", "feature_map")
        ]
    return ", ".join(parts)


def generating_part(parameters: Model) -> tuple[Embedding, Stack]:
    """Return the part of a model that generates: the model itself, or its decoder."""
    _model(parameters, LanguageModel, EncoderDecoder)
    if isinstance(parameters, LanguageModel):
        return parameters.embedding, parameters.stack
    return parameters.target_embedding, parameters.decoder


def _model(parameters: Any, *kinds: type) -> None:
    """Check that parameters are those of a whole model."""
    if not isinstance(parameters, kinds):
        known = " or ".join(f"`{one.__name__}`" for one in kinds)
        got = type(parameters).__name__
        msg = f"`parameters` must be an instance of {known}, got {got}."
        raise TypeError(msg)


def sequences(name: str, tokens: Any) -> None:
    """Check that tokens are an array with an axis of sequences and one of tokens."""
    if not is_array(tokens) or tokens.ndim != 2:
        got = tuple(tokens.shape) if is_array(tokens) else type(tokens).__name__
        msg = f"`{name}` must be an integer array (N, T), got {got}."
        raise (ValueError if is_array(tokens) else TypeError)(msg)
