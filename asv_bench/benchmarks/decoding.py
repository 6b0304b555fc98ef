"""Time for one token: a decoder, the step, and softmax attention with a cache."""

import numpy as np

import linkern
from linkern._decoder import Decoder
from linkern.bench.contestants import attention_alone

HEADS = 8


class LinearToken:
    """One token of linear attention, float32, 8 heads."""

    params = ([32, 64], [1, 64])
    param_names = ("dim", "batch")

    def setup(self, dim, batch):
        rng = np.random.default_rng(0)
        shape = (batch, HEADS, dim)
        self.token = [rng.normal(size=shape).astype("float32") for _ in range(3)]
        self.state = linkern.linear_attention_step(None, *self.token).state
        self.decoder = Decoder(self.state)
        self.out = np.empty(shape, "float32")

    def time_window_of_a_decoder(self, dim, batch):
        for _ in range(8):  # one of them folds
            self.decoder.step(*self.token, self.out)

    def time_step(self, dim, batch):
        linkern.linear_attention_step(self.state, *self.token)


class CachedToken:
    """One token of softmax attention over preallocated keys and values, on NumPy."""

    params = ([256, 1024, 4096],)
    param_names = ("length",)

    def setup(self, length):
        named = {c.name: c for c in attention_alone(heads=HEADS, dim=32)}
        self.contestant = named["numpy-cache"]
        self.session = self.contestant.prepare(length)

    def time_last_token(self, length):
        self.contestant.generate(self.session, length - 1, length)
