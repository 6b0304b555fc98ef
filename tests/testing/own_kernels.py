"""linkern's operators with the gradients that it gives, as a kernel declares them."""

from functools import wraps

import linkern


def with_gradients(name):
    """An operator with an attribute `vjp` that takes whatever the operator takes."""
    operator = getattr(linkern, name)

    @wraps(operator)
    def kernel(*inputs, **options):
        return operator(*inputs, **options)

    def vjp(output_cotangent, initial_state=None, state_cotangent=None, **given):
        if initial_state is not None:
            given["initial_state"] = initial_state
        _, pullback = linkern.vjp(operator, **given)
        return pullback(output_cotangent, state_cotangent)

    kernel.vjp = vjp
    return kernel
