"""The paper's Transformer around the operators: layers, models, decoding as an RNN.

Parameters are frozen dataclasses of arrays; every function is a pure function of
parameters and inputs, on any array library.
"""

from typing import TYPE_CHECKING

from linkern._lazy import attributes_of

__all__ = [
    "Affine",
    "Cache",
    "Decoded",
    "DecodingState",
    "Embedding",
    "EncoderDecoder",
    "FeedForward",
    "Generated",
    "LanguageModel",
    "Layer",
    "LayerNorm",
    "LayerOptions",
    "LayerState",
    "MultiHeadAttention",
    "Stack",
    "affine",
    "decode",
    "decoder",
    "encoder",
    "encoder_decoder",
    "feed_forward",
    "generate",
    "gru",
    "instance_norm",
    "language_model",
    "layer_norm",
    "load",
    "multi_head_attention",
    "named_arrays",
    "prefill",
    "read_memory",
    "road",
    "sample",
    "save",
    "sinusoidal_positions",
    "with_arrays",
]

if TYPE_CHECKING:
    from linkern.transformer import gru, road
    from linkern.transformer.attention import (
        MultiHeadAttention,
        multi_head_attention,
        read_memory,
    )
    from linkern.transformer.cache import Cache
    from linkern.transformer.decoding import (
        Decoded,
        Generated,
        decode,
        generate,
        prefill,
    )
    from linkern.transformer.embeddings import Embedding
    from linkern.transformer.files import load, save
    from linkern.transformer.forward import decoder, encoder
    from linkern.transformer.layers import (
        Affine,
        FeedForward,
        LayerNorm,
        affine,
        feed_forward,
        instance_norm,
        layer_norm,
    )
    from linkern.transformer.models import (
        EncoderDecoder,
        LanguageModel,
        encoder_decoder,
        language_model,
    )
    from linkern.transformer.parameters import named_arrays, with_arrays
    from linkern.transformer.positions import sinusoidal_positions
    from linkern.transformer.sampling import sample
    from linkern.transformer.stack import Layer, LayerOptions, LayerState, Stack
    from linkern.transformer.states import DecodingState
else:
    _HOMES = {
        "Affine": "layers",
        "Cache": "cache",
        "Decoded": "decoding",
        "DecodingState": "states",
        "Embedding": "embeddings",
        "EncoderDecoder": "models",
        "FeedForward": "layers",
        "Generated": "decoding",
        "LanguageModel": "models",
        "Layer": "stack",
        "LayerNorm": "layers",
        "LayerOptions": "stack",
        "LayerState": "stack",
        "MultiHeadAttention": "attention",
        "Stack": "stack",
        "affine": "layers",
        "decode": "decoding",
        "decoder": "forward",
        "encoder": "forward",
        "encoder_decoder": "models",
        "feed_forward": "layers",
        "generate": "decoding",
        "gru": "gru",
        "instance_norm": "layers",
        "language_model": "models",
        "layer_norm": "layers",
        "load": "files",
        "multi_head_attention": "attention",
        "named_arrays": "parameters",
        "prefill": "decoding",
        "read_memory": "attention",
        "road": "road",
        "sample": "sampling",
        "save": "files",
        "sinusoidal_positions": "positions",
        "with_arrays": "parameters",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
