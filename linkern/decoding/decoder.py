"""The decoder of linear attention: one class, an engine for each kind of device."""

from collections.abc import Callable
from typing import Any

from linkern.array import on_cupy
from linkern.decoding.numpy import NumpyDecoder
from linkern.feature_maps import elu_plus_one
from linkern.state import State, as_state
from linkern.typing import Array, FeatureMapFunction
from linkern.validate import decoder as checks

__all__ = ["Decoder"]


class Decoder:
    r"""Causal linear attention token by token on NumPy, several times faster.

    And on the GPU of CuPy arrays, at the speed of its memory.

    The same outputs and states as `linear_attention_step` up to rounding, with the last
    `window` tokens kept beside the memory and added to it together.

    Parameters
    ----------
    state : State, optional
        State of the tokens before these, in the accumulation dtype; it is copied. A
        plain array is its memory if not `normalize`. Default: no tokens, and the next
        three say what the tokens will be.
    batch_shape : tuple of int
        Leading axes (batch, heads) that query, key and value all have.
    key_dim, value_dim : int
        ``F``, the number of features, and ``V``. ``F`` is the key dimension ``K``
        unless the feature map changes it.
    dtype : {"float16", "float32", "float64"}, optional
        Of the tokens and the outputs. float16 is accumulated in float32. Default: that
        of `state`, or float32.
    feature_map : callable
        As in `linear_attention`. `linkern.elu_plus_one` is evaluated in place.
    normalize : bool
        Divide by the sum of the weights.
    scale : float, optional
        Factor on the scores, dimensionless. Default 1. It cancels when `normalize`.
    window : int, optional
        Tokens between two updates of the memory; 8 to 16 is fastest. Default 16. Not on
        a GPU.
    device : {"cpu", "cuda"}, optional
        Where the tokens will be: in NumPy arrays, or in CuPy arrays on the current GPU.
        Default: where `state` is, or "cpu".

    Raises
    ------
    TypeError
        If an option has the wrong type, or `state` is not of the arrays that `device`
        asks for.
    ValueError
        If a shape or an option is out of range, or contradicts `state`.
    ModuleNotFoundError
        If `device` is "cuda" and CuPy is not installed.

    See Also
    --------
    linear_attention_step : the same on any array library, without mutable state.

    Notes
    -----
    With features :math:`\phi`, memory :math:`S` and the window's features and values
    :math:`K_W, V_W`, each with a row for each token,

    .. math::

        o = \frac{\phi(q)^T S + (\phi(q)^T K_W^T) V_W}
                 {\phi(q)^T z + (\phi(q)^T K_W^T) 1}, \qquad
        S \leftarrow S + K_W^T V_W \text{ every } W \text{ tokens}.

    A step makes no array but its output. Large batches are shared by as many threads as
    the process has cores, or the environment variable ``LINKERN_NUM_THREADS`` says when
    the decoder is made; outputs do not depend on it, bit by bit. An object is not safe
    in several threads; several objects in several threads are. A step that raises, or
    is interrupted, leaves the decoder as it was. `copy.copy`, `copy.deepcopy` and
    `pickle` give independent decoders.

    On a GPU, the memory is updated at every token, by one kernel and in place, and
    `captured` records a step as a CUDA graph. Feature maps are those that act on
    entries alone: `linkern.elu_plus_one`, `exp`, `identity` and `relu`. bfloat16 tokens
    are taken as well.

    An infinite value on a feature that is exactly zero is ``inf * 0``, NaN, in the
    memory, and reaches the outputs when the window is added.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive
    Transformers with Linear Attention", equations 16 to 20.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> decoder = linkern.Decoder(key_dim=2, value_dim=1, dtype="float64")
    >>> x = np.zeros(2)
    >>> decoder.step(x, x, np.asarray([3.0]))
    array([3.])
    >>> decoder.step(x, x, np.asarray([6.0]))
    array([4.5])
    >>> decoder.state.normalizer
    array([2., 2.])
    """

    def __init__(
        self,
        state: State | Array | None = None,
        *,
        batch_shape: tuple[int, ...] = (),
        key_dim: int | None = None,
        value_dim: int | None = None,
        dtype: Any = None,
        feature_map: FeatureMapFunction = elu_plus_one,
        normalize: bool = True,
        scale: float | None = None,
        window: int | None = None,
        device: str | None = None,
    ) -> None:
        checks.device(device)
        before = as_state("state", state, normalizer=normalize)
        options: dict[str, Any] = {
            "batch_shape": batch_shape,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "dtype": dtype,
            "feature_map": feature_map,
            "normalize": normalize,
            "scale": scale,
        }
        if window is not None:
            options["window"] = window
        on_gpu = device == "cuda" or (
            device is None and on_cupy(getattr(before, "memory", None))
        )
        make = _cuda if on_gpu else NumpyDecoder
        self._engine: Any = make(before, **options)
        self._step = self._engine.step

    @property
    def state(self) -> State:
        """The state after the last token, exact at every step: a copy."""
        state: State = self._engine.state
        return state

    @property
    def nbytes(self) -> int:
        """Bytes of the state and of all buffers: constant."""
        return int(self._engine.nbytes)

    def copy(self) -> "Decoder":
        """Return a decoder that goes on from here on its own."""
        return _over(self._engine.copy())

    def __copy__(self) -> "Decoder":
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return _over, (self._engine,)

    def step(self, query: Any, key: Any, value: Any, out: Any = None) -> Any:
        """Take in one token and return what its query reads.

        Parameters
        ----------
        query, key : array (..., K)
            Arrays of NumPy, or of CuPy on a GPU, with exactly the leading axes of the
            decoder; on a GPU, with contiguous entries on the last axis.
        value : array (..., V)
            Likewise.
        out : array (..., V), optional
            Where to write the output. It may be one of the inputs (on a GPU, `value`),
            and share memory with nothing else of them.

        Returns
        -------
        array (..., V)
            The output, in the dtype of the tokens: `out`, or a new array.

        Raises
        ------
        TypeError
            If an input is not such an array of the decoder's dtype.
        ValueError
            If a shape is not the decoder's.
        """
        return self._step(query, key, value, out)

    def captured(
        self, query: Any, key: Any, value: Any, out: Any
    ) -> Callable[[], None]:
        """Record a step as a CUDA graph, and return what takes it at each call.

        No token is taken in by recording. A replay reads what is then in the arrays,
        updates the state of this decoder and writes to `out`; it goes to the current
        stream and does not wait for it.

        Parameters
        ----------
        query, key, value, out : array
            As in `step`.

        Returns
        -------
        callable
            Without arguments. As long as it is there, so are the arrays and the state.

        Raises
        ------
        TypeError, ValueError
            As `step`; on a CPU, which has no graphs.
        """
        if isinstance(self._engine, NumpyDecoder):
            msg = "`captured` needs a decoder on a GPU; call `step`."
            raise TypeError(msg)
        replay: Callable[[], None] = self._engine.captured(query, key, value, out)
        return replay


def _over(engine: Any) -> Decoder:
    """Return a decoder with an engine that exists."""
    made = object.__new__(Decoder)
    made._engine, made._step = engine, engine.step
    return made


def _cuda(state: State | None, **options: Any) -> Any:
    """Return the engine of the GPU that the state is on, or of the current one."""
    # Only decoders on a GPU load the code of CUDA kernels.
    from linkern.decoding.cuda import CudaDecoder  # noqa: PLC0415
    from linkern.kernels.cuda.launch import CuPyDevice, device_of  # noqa: PLC0415

    device = device_of(getattr(state, "memory", None))
    if device is None:
        try:
            device = CuPyDevice()
        except ModuleNotFoundError as error:
            if error.name != "cupy":
                raise
            checks.needs_cupy()
    return CudaDecoder(device, state, **options)
