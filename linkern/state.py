"""State of linear attention: the two memories of the paper, and their monoid."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from linkern import validate
from linkern.array import concat, is_array, zeros
from linkern.typing import Array, ArrayT, ArrayT_co

__all__ = ["AttentionResult", "State"]

Tuple = TypeVar("Tuple", bound=type)


def only_a_tuple(cls: Tuple) -> Tuple:
    """Return a generic named tuple without `Generic` among its bases.

    Tree utilities, such as those of PyTorch 2.5, know a named tuple by its one base.
    """
    cls.__bases__ = (tuple,)
    return cls


@only_a_tuple
class State(NamedTuple, Generic[ArrayT_co]):
    """The constant-size memory of all tokens seen so far.

    Parameters
    ----------
    memory : array (..., K, V)
        Attention memory, ``S = sum_j phi(k_j) v_j^T``; float32 or wider. ``K`` counts
        features, which is the key dimension unless the feature map changes it.
    normalizer : array (..., K) or None
        Normalizer memory, ``z = sum_j phi(k_j)``; None for operators that do not
        normalise.

    Notes
    -----
    Source: Katharopoulos et al. 2020, equations 18 and 19. Being a named tuple, a state
    passes through `jax.jit` and the tree utilities of JAX and PyTorch as it is.
    """

    memory: ArrayT_co
    normalizer: ArrayT_co | None

    @classmethod
    def zeros(
        cls,
        key_dim: int,
        value_dim: int,
        *,
        like: ArrayT,
        batch_shape: tuple[int, ...] = (),
        normalize: bool = True,
    ) -> "State[ArrayT]":
        """Return the state before the first token: the identity of `combine`.

        Parameters
        ----------
        key_dim, value_dim : int
            ``K`` (number of features) and ``V``.
        like : array
            Gives the library, the device and the dtype (float16 and bfloat16 give a
            float32 state).
        batch_shape : tuple of int
            Leading axes.
        normalize : bool
            Whether the state carries a normalizer.

        Returns
        -------
        State
            All zeros.

        Raises
        ------
        TypeError
            If `like` is not a floating-point array, a dimension is not an integer, or
            `normalize` is not a bool.
        ValueError
            If a dimension is negative.

        Examples
        --------
        >>> import numpy as np
        >>> State.zeros(2, 3, like=np.zeros(1)).memory.shape
        (2, 3)
        """
        wide = validate.wide_like("like", like)
        key_dim = validate.dimension("key_dim", key_dim)
        value_dim = validate.dimension("value_dim", value_dim)
        batch = validate.dimensions("batch_shape", batch_shape)
        normalize = validate.flag("normalize", normalize)
        normalizer = zeros((*batch, key_dim), like=wide) if normalize else None
        memory = zeros((*batch, key_dim, value_dim), like=wide)
        return cast("State[ArrayT]", State(memory, normalizer))

    def combine(self, later: "State[ArrayT_co]") -> "State[ArrayT_co]":
        """Return the state of both spans of tokens, this one and a `later` one.

        Parameters
        ----------
        later : State
            State of the span that follows, started from zeros.

        Returns
        -------
        State
            Sum of the memories and of the normalizers: associative, with `State.zeros`
            as identity.

        Raises
        ------
        TypeError
            If `later` is no state, or its arrays are of another library or dtype.
        ValueError
            If only one of the two carries a normalizer, or the shapes do not match.

        Examples
        --------
        >>> import numpy as np
        >>> zero = State.zeros(2, 3, like=np.zeros(1))
        >>> zero.combine(zero).normalizer
        array([0., 0.])
        """
        validate.combinable(self, later)
        normalizer = None
        if self.normalizer is not None and later.normalizer is not None:
            normalizer = self.normalizer + later.normalizer
        total = State(self.memory + later.memory, normalizer)
        return cast("State[ArrayT_co]", total)


@only_a_tuple
class AttentionResult(NamedTuple, Generic[ArrayT_co]):
    """Result of every operator: output and state.

    Parameters
    ----------
    output : array (..., T, V)
        One row per query, in the dtype of the query.
    state : State
        What the tokens seen so far leave behind; pass it on as `initial_state`.
    """

    output: ArrayT_co
    state: State[ArrayT_co]


def as_state(name: str, state: Any, *, normalizer: bool) -> Any:
    """Return an argument as a state: a plain array is one that is one memory.

    Parameters
    ----------
    name : str
        Name of the argument.
    state : State, array or None
        What is passed for it.
    normalizer : bool
        Whether the state has a normalizer; then a plain array is refused.
    """
    if isinstance(state, State) or not is_array(state):
        return state
    validate.one_memory(name, normalizer=normalizer)
    return State(state, None)


def mapped(function: Callable[[Any], Any], state: State) -> State:
    """Return a state with a function applied to each part that it has."""
    memory, normalizer = state.memory, state.normalizer
    return State(function(memory), None if normalizer is None else function(normalizer))


def with_normalizer_column(state: State) -> Array:
    """Return `state` as one memory: the normalizer is the last value column."""
    if state.normalizer is None:
        return state.memory
    return concat([state.memory, state.normalizer[..., None]], axis=-1)


def without_normalizer_column(memory: Array, *, normalize: bool) -> State:
    """Undo `with_normalizer_column`."""
    if not normalize:
        return State(memory, None)
    return State(memory[..., :-1], memory[..., -1])
