"""Every operator of the family on NumPy: its forms, and one form by the other.

Float32, 8 heads, K = V = 64 (K = 16 where features have K^2 channels), mild decays.
"""

from functools import partial

from .ground import needed, once, ratio
from .inputs import KINDS, OPERATORS, inputs_of

# Operators, and the one whose recurrence they are with something before or behind it.
RELATIVES = {
    "mamba3": "simple_gla",
    "mlstm": "simple_gla",
    "momentum_delta_rule": "gated_delta_rule",
    "preconditioned_gated_delta_rule": "gated_delta_rule",
    "preconditioned_kda": "kda",
}


class Operators:
    """Forward, T = 4096."""

    params = (OPERATORS, ["chunkwise", "recurrent"])
    param_names = ("operator", "form")
    timeout = 300
    length = 4096

    def setup(self, operator, form):
        call = needed(operator)
        self.call = once(partial(call, **inputs_of(call, self.length), form=form))

    def time_forward(self, operator, form):
        self.call()

    def peakmem_forward(self, operator, form):
        self.call()


class Ratios:
    """How many times faster the chunkwise form is than the recurrent one, T = 4096."""

    params = OPERATORS
    param_names = ("operator",)
    unit = "times"
    timeout = 300
    length = 4096

    def setup(self, operator):
        call = needed(operator)
        self.call = partial(call, **inputs_of(call, self.length))

    def track_recurrent_over_chunkwise(self, operator):
        return ratio(partial(self.call, form="recurrent"), self.call)


class Relatives:
    """How many times longer an operator takes than that it is made of, T = 4096."""

    params = list(RELATIVES)
    param_names = ("operator",)
    unit = "times"
    timeout = 300
    length = 4096

    def setup(self, operator):
        calls = (needed(name) for name in (operator, RELATIVES[operator]))
        self.calls = [partial(x, **inputs_of(x, self.length)) for x in calls]

    def track_over_relative(self, operator):
        return ratio(*self.calls, pairs=15)


class Gradients:
    """Forward and back, T = 1024."""

    params = ["linear_attention", *KINDS]
    param_names = ("operator",)
    timeout = 300

    def setup(self, operator):
        vjp, op = needed("vjp"), needed(operator)
        inputs = inputs_of(op, 1024)

        def call():
            result, pullback = vjp(op, **inputs)
            return pullback(result.output)

        self.call = once(call)

    def time_vjp(self, operator):
        self.call()

    def peakmem_vjp(self, operator):
        self.call()


class GradientRatios:
    """How many times longer forward and back take than forward, T = 4096."""

    params = KINDS
    param_names = ("operator",)
    unit = "times"
    timeout = 300
    length = 4096

    def setup(self, operator):
        self.vjp, self.op = needed("vjp"), needed(operator)
        self.inputs = inputs_of(self.op, self.length)

    def track_both_over_forward(self, operator):
        forward = partial(self.op, **self.inputs)
        cotangent = forward().output

        def both():
            _, pullback = self.vjp(self.op, **self.inputs)
            pullback(cotangent)

        return ratio(both, forward)
