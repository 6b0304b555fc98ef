"""Problems for the backward pass on NumPy, and their gradients from the tape."""

from types import SimpleNamespace

import array_api_strict
import numpy as np
from hypothesis import strategies as st

import linkern
from linkern import State, feature_maps
from linkern.kernels.numpy.backward import Gradients
from linkern.kernels.numpy.features import in_place

MAPS = ("elu_plus_one", "exp", "relu", "identity")
# Every sum here has at most a few thousand terms, and magnitudes are within a few
# thousand of the largest result: 2^-52 times these is below 2^-40 of it.
CLOSE = 2.0**-40


class Problem(SimpleNamespace):
    """Inputs, cotangents and options of one call."""

    def arrays(self):
        return (*self.inputs, *self.cotangents)

    def options(self):
        function = in_place(getattr(feature_maps, self.map))
        return {
            "feature_map": function,
            "scale": self.scale,
            "size": self.size,
            "causal": self.causal,
        }


def problem(rng, *, length=37, keys=None, batch=(2,), dims=(3, 4), size=8, **choices):
    """Draw a problem; its state is one that earlier tokens could have written."""
    chosen = {"map": "elu_plus_one", "normalize": True, "decays": False, "scale": None}
    chosen |= {"causal": True, **choices}
    K, V = dims
    S = length if keys is None or chosen["causal"] else keys
    query, key = rng.normal(size=(*batch, length, K)), rng.normal(size=(*batch, S, K))
    value = rng.normal(size=(*batch, S, V))
    log_decay = None
    if chosen["decays"]:
        log_decay = -0.3 * rng.exponential(size=(*batch, length, 1))
        log_decay[rng.random(log_decay.shape) < 0.1] = -np.inf
        log_decay[rng.random(log_decay.shape) < 0.1] = 0
    memory = rng.normal(size=(*batch, K, V))
    normalizer = 1 + rng.random((*batch, K)) if chosen["normalize"] else None
    cotangents = [rng.normal(size=x) for x in ((*batch, length, V), memory.shape)]
    cotangents.append(rng.normal(size=(*batch, K)) if chosen["normalize"] else None)
    inputs = (query, key, value, log_decay, memory, normalizer)
    return Problem(inputs=inputs, cotangents=tuple(cotangents), size=size, **chosen)


def problems():
    """Draw any problem that has a finite result in array code."""

    @st.composite
    def drawn(draw):
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        # Weights of these maps can sum to 0, or close to it.
        name = draw(st.sampled_from(MAPS))
        normalize = name in ("elu_plus_one", "exp") and draw(st.booleans())
        causal = draw(st.booleans())
        result = problem(
            rng,
            length=draw(st.sampled_from([1, 2, 7, 8, 9, 33, 64, 150])),
            keys=draw(st.sampled_from([1, 5, 40])),
            batch=draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
            dims=draw(st.sampled_from([(1, 1), (3, 4), (5, 2)])),
            size=draw(st.sampled_from([1, 2, 7, 8, 64])),
            map=name,
            normalize=normalize,
            causal=causal,
            decays=causal and draw(st.booleans()),
            scale=draw(st.sampled_from([None, 0.25])),
        )
        kept = [None if draw(st.integers(0, 4)) == 0 else x for x in result.cotangents]
        result.cotangents = tuple(kept)
        return result

    return drawn()


def strict(x):
    return None if x is None else array_api_strict.asarray(x)


def plain(x):
    return None if x is None else np.asarray(x)


def from_tape(case):
    """Return the gradients of the array code, recorded on the tape."""
    query, key, value, log_decay, memory, normalizer = map(strict, case.inputs)
    arguments = {"query": query, "key": key, "value": value}
    arguments["initial_state"] = State(memory, normalizer)
    function = getattr(feature_maps, case.map)
    if log_decay is None:
        op = linkern.linear_attention
        arguments |= {
            "feature_map": function,
            "causal": case.causal,
            "scale": case.scale,
        }
        arguments["normalize"] = normalizer is not None
    else:
        op = decayed(function)
        arguments |= {"log_decay": log_decay, "scale": case.scale}
    _, back = linkern.vjp(op, **arguments)
    output, *state = map(strict, case.cotangents)
    if all(x is None for x in state):
        state = None
    result = back(
        output, None if state is None else state_cotangent(state, memory, normalizer)
    )
    state = result.pop("initial_state")
    names = ("query", "key", "value", "log_decay")
    return Gradients(
        *(plain(result.get(name)) for name in names), *(plain(x) for x in state)
    )


def state_cotangent(state, memory, normalizer):
    """Return a cotangent of a state, with zeros for a part that is None."""
    xp = array_api_strict
    arguments = zip(state, (memory, normalizer), strict=True)
    return State(
        *(
            x if x is not None or like is None else xp.zeros_like(like)
            for x, like in arguments
        )
    )


def decayed(feature_map):
    """Return attention with a decay for each token, normalized if the state is."""

    def op(query, key, value, log_decay, initial_state, scale):
        q, k = feature_map(query), feature_map(key)
        options = {"scale": 1.0}
        gate = log_decay[..., 0]
        memory, normalizer = initial_state
        if normalizer is None:
            options["scale"] = 1.0 if scale is None else scale
            options["initial_state"] = State(memory, None)
            return linkern.simple_gla(q, k, value, gate, **options)
        read = linkern.simple_gla(
            q, k, value, gate, initial_state=State(memory, None), **options
        )
        ones = value[..., :1] * 0 + 1
        weights = linkern.simple_gla(
            q,
            k,
            ones,
            gate,
            initial_state=State(normalizer[..., None], None),
            **options,
        )
        state = State(read.state.memory, weights.state.memory[..., 0])
        return linkern.AttentionResult(read.output / weights.output, state)

    return op


def near(result, expected, bound=CLOSE):
    for name, x, y in zip(Gradients._fields, result, expected, strict=True):
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.shape == y.shape, name
            assert abs(x - y).max(initial=0) <= bound * (1 + abs(y).max(initial=0)), (
                name
            )


KINDS = {
    "causal": {},
    "scaled": {"normalize": False, "scale": 0.5, "map": "exp"},
    "decays": {"normalize": False, "decays": True, "map": "identity"},
    "decays and weights": {"decays": True},
    "everything": {"causal": False, "keys": 29},
}
