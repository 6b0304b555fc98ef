"""Time for one token: the step, a decoder, and softmax attention with a cache."""

import numpy as np

from .ground import DIM, HEADS, needed, ratio


def token(dim, batch):
    """Return query, key and value of one token: float32, 8 heads."""
    shape = (3, batch, HEADS, dim)
    return list(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


class LinearToken:
    """One token of linear attention on NumPy."""

    params = ([32, 64], [1, 64])
    param_names = ("dim", "batch")

    def setup(self, dim, batch):
        self.token = token(dim, batch)
        self.step = needed("linear_attention_step")
        self.state = self.step(None, *self.token).state

    def time_step(self, dim, batch):
        self.step(self.state, *self.token)


class Window:
    """As many tokens as a decoder keeps beside its memory: one of them folds."""

    params = ([32, 64], [1, 64])
    param_names = ("dim", "batch")

    def setup(self, dim, batch):
        self.token = token(dim, batch)
        state = needed("linear_attention_step")(None, *self.token).state
        self.decoder = needed("Decoder", "linkern.decoding")(state)
        self.out = np.empty((batch, HEADS, dim), "float32")

    def time_16_steps(self, dim, batch):
        for _ in range(16):
            self.decoder.step(*self.token, self.out)


class StepRatios:
    """How many times longer a step takes than a decoder, 8 heads, K = V = 64."""

    params = ["linear_attention", "gla", "delta_rule", "gated_delta_rule"]
    param_names = ("operator",)
    unit = "times"
    steps = 200

    def setup(self, operator):
        self.inputs = family_token(operator)
        self.call, self.step = needed(operator), needed("step")
        self.state = self.step(self.call, None, *self.inputs).state
        shape = {"batch_shape": (HEADS,), "key_dim": DIM, "value_dim": DIM}
        self.decoder = needed("Decoder", "linkern.decoding")(**shape, dtype="float32")

    def track_step_over_decoder(self, operator):
        def steps():
            for _ in range(self.steps):
                self.step(self.call, self.state, *self.inputs)

        def decode():
            for _ in range(self.steps):
                self.decoder.step(*self.inputs[:3])

        return ratio(steps, decode)


def family_token(operator):
    """Return the inputs of one token of an operator, float32."""
    rng = np.random.default_rng(0)
    shape = (HEADS, DIM)
    query, key, value, decay = (rng.normal(size=shape) for _ in range(4))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    gates = {
        "linear_attention": [],
        "gla": [-abs(decay)],
        "delta_rule": [rng.uniform(size=HEADS)],
        "gated_delta_rule": [-abs(decay[:, 0]), rng.uniform(size=HEADS)],
    }[operator]
    return [x.astype("float32") for x in (query, key, value, *gates)]


class FamilyToken:
    """One token of an operator with gates, float32, 8 heads, K = V = 64."""

    params = ["gla", "gated_delta_rule"]
    param_names = ("operator",)

    def setup(self, operator):
        self.token = family_token(operator)
        self.call, self.step = needed(operator), needed("step")
        self.state = self.step(self.call, None, *self.token).state

    def time_step(self, operator):
        self.step(self.call, self.state, *self.token)


class CachedToken:
    """One token of softmax attention over preallocated keys and values, on NumPy."""

    params = [256, 1024, 4096]
    param_names = ("length",)

    def setup(self, length):
        peers = needed("attention_alone", "linkern.bench.generation.one_layer")
        named = {peer.name: peer for peer in peers(heads=HEADS, dim=32)}
        self.peer = named["numpy-cache"]
        self.session = self.peer.start(length)

    def time_last_token(self, length):
        self.peer.generate(self.session, length - 1, length)
