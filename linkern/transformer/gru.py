r"""The gated recurrent unit: a hidden state that each token partly overwrites.

h_t = (1 - z_t) * h_{t-1} + z_t * c_t

The update gate ``z`` is the share of the candidate ``c`` that is written, and ``1 - z``
the share of the old state that is kept. Cho et al. 2014 print the same unit with the
names exchanged (their ``z`` keeps), as PyTorch does; here a weight is read off a gate
without a detour, which is what `linkern.transformer.road` does with it.
"""

from typing import Any, NamedTuple

from linkern import validate
from linkern.array import astype, broadcast_to, concat, namespace, zeros
from linkern.core.logspace import sigmoid
from linkern.transformer.parameters import Source, kind, named_arrays
from linkern.typing import Array

__all__ = ["GRU", "GRUResult", "Gates", "gru", "gru_gates", "gru_step"]

# Where each of the three lies in the stacked parameters.
_UPDATE, _RESET, _CANDIDATE = range(3)


@kind
class GRU:
    """The parameters of a gated recurrent unit.

    Parameters
    ----------
    input_weight : array (3, width, hidden)
        What the update gate, the reset gate and the candidate take from the token.
    hidden_weight : array (3, hidden, hidden)
        What the same three take from the hidden state.
    bias : array (3, hidden)
        Added to the same three.
    hidden_bias : array (hidden,)
        Added to what the candidate takes from the hidden state, before the reset gate.

    Examples
    --------
    >>> parameters = GRU.create(3, 2, rng=0)
    >>> parameters.input_weight.shape, str(parameters.bias.dtype)
    ((3, 3, 2), 'float32')
    """

    input_weight: Array
    hidden_weight: Array
    bias: Array
    hidden_bias: Array

    @classmethod
    def create(
        cls, width: int, hidden: int, *, rng: Any = None, like: Array | None = None
    ) -> "GRU":
        """Return normal weights of variance ``1 / inputs``, and biases of zero.

        Parameters
        ----------
        width, hidden : int
            Entries of a token; channels of the hidden state.
        rng : optional
            Anything that `numpy.random.default_rng` takes.
        like : array, optional
            Gives the library, the dtype and the device. Default: NumPy, float32.

        Returns
        -------
        GRU
            The same numbers, but for rounding, in each library.

        Raises
        ------
        TypeError, ValueError
            If a size is no integer or negative, or `like` no floating-point array.
        """
        width = validate.dimension("width", width)
        hidden = validate.dimension("hidden", hidden)
        source = Source(rng, like)
        return cls(
            source.normal((3, width, hidden), max(width, 1) ** -0.5),
            source.normal((3, hidden, hidden), max(hidden, 1) ** -0.5),
            source.constant((3, hidden), 0.0),
            source.constant((hidden,), 0.0),
        )


class Gates(NamedTuple):
    """Gates and candidate of each token, in float32 or wider.

    Parameters
    ----------
    update : array (..., hidden)
        ``z``: the share of the candidate that is written, from 0 to 1.
    candidate : array (..., hidden)
        ``c``: what is written.
    """

    update: Array
    candidate: Array


class GRUResult(NamedTuple):
    """Result of `gru`.

    Parameters
    ----------
    output : array (..., T, hidden)
        The hidden state after each token, in the dtype of the tokens.
    last : array (..., hidden)
        The hidden state after the last token, in float32 or wider; pass it on as
        `initial_hidden`.
    gates : Gates
        Update gates and candidates of all tokens, ``(..., T, hidden)`` each.
    """

    output: Array
    last: Array
    gates: Gates


def gru_gates(parameters: GRU, hidden: Array, x: Array) -> Gates:
    r"""Return the gates and candidates of tokens `x` at the states `hidden`.

    Parameters
    ----------
    parameters : GRU
        Weights and biases.
    hidden : array (..., hidden)
        The hidden state that each token meets; same library and device as `x`.
    x : array (..., width)
        The tokens; float16, bfloat16, float32 or float64.

    Returns
    -------
    Gates
        ``update`` and ``candidate``, ``(..., hidden)`` each, in float32 or wider.

    Raises
    ------
    TypeError
        If an array is not of a real floating dtype, or libraries or dtypes mix.
    ValueError
        If shapes or devices do not fit.

    Notes
    -----
    .. math::

        z = \sigma(x W_z + h U_z + b_z), \quad r = \sigma(x W_r + h U_r + b_r), \quad
        c = \tanh(x W_c + b_c + r \odot (h U_c + b_h))

    The reset gate ``r`` acts after the matrix product with ``U_c``, as in PyTorch and
    cuDNN; Cho et al. 2014 have ``(r * h) U_c``.

    Examples
    --------
    >>> import numpy as np
    >>> parameters = GRU.create(3, 2, rng=0)
    >>> tokens, hidden = np.zeros((5, 3), "float32"), np.zeros((5, 2), "float32")
    >>> gru_gates(parameters, hidden, tokens).update.shape
    (5, 2)
    """
    wide, h, tokens = _checked(parameters, hidden, x, rank=1)
    return _gates(wide, h, tokens)


def gru_step(parameters: GRU, hidden: Array | None, x: Array) -> Array:
    r"""Return the hidden state of a GRU after one token.

    Parameters
    ----------
    parameters : GRU
        Weights and biases.
    hidden : array (..., hidden) or None
        The hidden state so far; None before the first token: zeros.
    x : array (..., width)
        The token; float16, bfloat16, float32 or float64.

    Returns
    -------
    array (..., hidden)
        The next hidden state, in float32 or wider.

    Raises
    ------
    TypeError, ValueError
        As `gru_gates`.

    Notes
    -----
    .. math:: h_t = (1 - z_t) \odot h_{t-1} + z_t \odot c_t

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder
    for Statistical Machine Translation", equations 5 to 8; the update gate as in Chung
    et al. 2014, "Empirical Evaluation of Gated Recurrent Neural Networks on Sequence
    Modeling", equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> parameters = GRU.create(3, 2, rng=0)
    >>> hidden = gru_step(parameters, None, np.ones(3, "float32"))
    >>> gru_step(parameters, hidden, np.ones(3, "float32")).shape
    (2,)
    """
    wide, h, token = _checked(parameters, hidden, x, rank=1)
    return _written(h, _gates(wide, h, token))


def gru(parameters: GRU, x: Array, initial_hidden: Array | None = None) -> GRUResult:
    """Run a GRU over a sequence, token by token: `gru_step` repeated.

    Parameters
    ----------
    parameters : GRU
        Weights and biases.
    x : array (..., T, width)
        The tokens; float16, bfloat16, float32 or float64.
    initial_hidden : array (..., hidden), optional
        Hidden state before the first token. Default: zeros.

    Returns
    -------
    GRUResult
        All hidden states, the last of them, and the gates that made them.

    Raises
    ------
    TypeError, ValueError
        As `gru_gates`.

    Notes
    -----
    The gates of a token need the hidden state before it, so the loop over the tokens
    cannot be avoided; `linkern.transformer.road` takes it apart.

    Examples
    --------
    >>> import numpy as np
    >>> result = gru(GRU.create(3, 2, rng=0), np.ones((4, 3), "float32"))
    >>> result.output.shape, result.last.shape
    ((4, 2), (2,))
    """
    wide, hidden, tokens = _checked(parameters, initial_hidden, x, rank=2)
    # Begun with no rows, so that a sequence without tokens needs no case of its own.
    states = [zeros((*hidden.shape[:-1], 0, hidden.shape[-1]), like=hidden)]
    updates, candidates = states[:], states[:]
    for t in range(tokens.shape[-2]):
        gates = _gates(wide, hidden, tokens[..., t, :])
        hidden = _written(hidden, gates)
        states.append(hidden[..., None, :])
        updates.append(gates.update[..., None, :])
        candidates.append(gates.candidate[..., None, :])
    output, update, candidate = (concat(x, -2) for x in (states, updates, candidates))
    return GRUResult(astype(output, x.dtype), hidden, Gates(update, candidate))


def _gates(parameters: GRU, hidden: Array, x: Array) -> Gates:
    """Return update gate and candidate of checked arrays."""

    def token(which: int) -> Array:
        weight, bias = parameters.input_weight, parameters.bias
        return x @ weight[which, ...] + bias[which, ...]

    def state(which: int) -> Array:
        return hidden @ parameters.hidden_weight[which, ...]

    update = sigmoid(token(_UPDATE) + state(_UPDATE))
    reset = sigmoid(token(_RESET) + state(_RESET))
    remembered = reset * (state(_CANDIDATE) + parameters.hidden_bias)
    return Gates(update, namespace(x).tanh(token(_CANDIDATE) + remembered))


def _written(hidden: Array, gates: Gates) -> Array:
    """Return the hidden state after the gates have acted on it."""
    return (1 - gates.update) * hidden + gates.update * gates.candidate


def _checked(
    parameters: GRU, hidden: Array | None, x: Array, *, rank: int
) -> tuple[GRU, Array, Array]:
    """Return everything widened; the last two with all leading axes of both."""
    validate.instance("parameters", parameters, GRU)
    arrays = named_arrays(parameters)
    wide = {name: validate.widened(name, array) for name, array in arrays.items()}
    tokens = validate.widened("x", x)
    width, channels = _sizes(wide)
    validate.last_axis("x", x, width, rank=rank)
    lead = tuple(x.shape[:-rank])
    if hidden is None:
        hidden = zeros((*lead, channels), like=tokens)
    name = "initial_hidden" if rank == 2 else "hidden"
    h = validate.widened(name, hidden)
    validate.last_axis(name, h, channels)
    validate.home({**wide, "x": tokens, name: h})
    lead = validate.leading(f"x and {name}", lead, tuple(h.shape[:-1]))
    tokens = broadcast_to(tokens, (*lead, *x.shape[x.ndim - rank :]))
    return GRU(**wide), broadcast_to(h, (*lead, channels)), tokens


def _sizes(wide: dict[str, Array]) -> tuple[int, int]:
    """Return the width of tokens and states after checking all parameters."""
    shape = tuple(wide["input_weight"].shape)
    if len(shape) != 3:
        msg = f"`input_weight` must have shape (3, width, hidden), got {shape}."
        raise ValueError(msg)
    _, width, hidden = shape
    expected = {
        "input_weight": (3, width, hidden),
        "hidden_weight": (3, hidden, hidden),
        "bias": (3, hidden),
        "hidden_bias": (hidden,),
    }
    for name, shape in expected.items():
        if tuple(wide[name].shape) != shape:
            msg = f"`{name}` must have shape {shape}, got {tuple(wide[name].shape)}."
            raise ValueError(msg)
    return width, hidden
