"""How far a result is from the exact one, as a part of what rounding allows."""

from .ground import needed, tokens


class Accuracy:
    """Causal linear attention on NumPy, one head, K = V = 64. Above 1 is a bug."""

    params = (
        ["recurrent", "chunkwise", "parallel"],
        ["float32", "float16"],
        [512, 2048],
    )
    param_names = ("form", "dtype", "length")
    unit = "error / bound"

    def setup(self, form, dtype, length):
        needed("bounded_output", "linkern.oracle")
        self.attention = needed("linear_attention")
        self.inputs = [x.astype(dtype) for x in tokens(length, heads=1)]

    def track_error_over_bound(self, form, dtype, length):
        from linkern import oracle

        query, key, value = (x.astype("float64") for x in self.inputs)
        phi = oracle.FEATURE_MAPS["elu_plus_one"]
        u = oracle.unit_roundoff("float32")  # in which all is accumulated
        exact = oracle.evaluate(
            phi.value(query),
            phi.value(key),
            value,
            causal=True,
            query_error=phi.error(query, u),
            key_error=phi.error(key, u),
        )
        judged = oracle.bounded_output(
            exact, oracle.Quotient(), oracle.Precisions(str(self.inputs[0].dtype))
        )
        result = self.attention(*self.inputs, form=form)
        return float((abs(result.output - judged.output) / judged.bound).max())
