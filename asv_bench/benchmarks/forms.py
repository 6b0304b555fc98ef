"""Time and memory of the forms on NumPy, and their error as a fraction of the bound."""

import numpy as np

import linkern

HEADS, DIM = 8, 64


class Forms:
    """Causal linear attention, float32, 8 heads, K = V = 64."""

    params = (["recurrent", "chunkwise", "parallel"], [512, 2048])
    param_names = ("form", "length")

    def setup(self, form, length):
        rng = np.random.default_rng(0)
        shape = (HEADS, length, DIM)
        self.inputs = [rng.normal(size=shape).astype("float32") for _ in range(3)]

    def time_forward(self, form, length):
        linkern.linear_attention(*self.inputs, form=form)

    def peakmem_forward(self, form, length):
        linkern.linear_attention(*self.inputs, form=form)

    def track_error_over_bound(self, form, length):
        from linkern import oracle

        query, key, value = (x[:1].astype("float64") for x in self.inputs)
        phi = oracle.FEATURE_MAPS["elu_plus_one"]
        u = oracle.unit_roundoff("float32")
        exact = oracle.evaluate(
            phi.value(query),
            phi.value(key),
            value,
            causal=True,
            query_error=phi.error(query, u),
            key_error=phi.error(key, u),
        )
        judged = oracle.bounded_output(
            exact, oracle.Quotient(), oracle.Precisions("float32")
        )
        result = linkern.linear_attention(*(x[:1] for x in self.inputs), form=form)
        return float((abs(result.output - judged.output) / judged.bound).max())


class Step:
    """Decoding: one token."""

    params = [1, 64]
    param_names = ("batch",)

    def setup(self, batch):
        rng = np.random.default_rng(0)
        shape = (batch, HEADS, DIM)
        self.token = [rng.normal(size=shape).astype("float32") for _ in range(3)]
        self.state = linkern.linear_attention_step(None, *self.token).state

    def time_step(self, batch):
        linkern.linear_attention_step(self.state, *self.token)
