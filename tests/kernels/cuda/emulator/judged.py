"""Targets for the referee: operators on the CUDA back end, in the emulator."""

import numpy as np

import linkern
from linkern.kernels.cuda import backend
from linkern.kernels.dispatch import BACKENDS
from tests.kernels.cuda.emulator.device import Change, Emulator

__all__ = [
    "gated_delta_rule",
    "gla",
    "kda",
    "linear_attention",
    "rwkv6",
    "seeing_ahead",
    "simple_gla",
]

# In the process of a target all arrays of NumPy are the emulator's.
_DEVICE = Emulator(multiprocessors=8)
# A query sees the key after its own.
_FAULTY = Emulator(
    multiprocessors=8,
    changed=[
        Change("|| key <= group + 8 * down ?", "|| key <= group + 8 * down + 1 ?")
    ],
)
backend.device_of = lambda *_: _DEVICE
BACKENDS[np.ndarray] = backend.BACKEND

linear_attention = linkern.linear_attention
simple_gla = linkern.simple_gla
gated_delta_rule = linkern.gated_delta_rule
gla, kda, rwkv6 = linkern.gla, linkern.kda, linkern.rwkv6


def seeing_ahead(query, key, value):
    backend.device_of = lambda *_: _FAULTY
    return linear_attention(query, key, value)
