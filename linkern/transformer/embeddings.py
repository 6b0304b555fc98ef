"""Embeddings: tokens to vectors, with their positions."""

from typing import Any

from linkern import validate
from linkern.array import any_true, is_array, namespace, reshape
from linkern.transformer.parameters import Source, kind, static
from linkern.transformer.positions import position_indices, sinusoidal_positions
from linkern.typing import Array

__all__ = ["Embedding", "embed", "embedded"]


@kind
class Embedding:
    """Parameters that turn tokens into vectors.

    Parameters
    ----------
    tokens : array (vocabulary, width)
        A vector for each token.
    positions : array (max_length, width) or None
        A vector for each position, if they are learned.
    sinusoidal : bool
        Whether sinusoidal positions are added.
    """

    tokens: Array
    positions: Array | None
    sinusoidal: bool = static()

    @classmethod
    def create(
        cls,
        vocabulary: int,
        width: int,
        *,
        positions: str | None = "sinusoidal",
        max_length: int | None = None,
        rng: Any = None,
        like: Array | None = None,
    ) -> "Embedding":
        """Return normal embeddings of deviation 1.

        Parameters
        ----------
        vocabulary, width : int
            How many tokens, and their vectors' length.
        positions : {"sinusoidal", "learned", None}
            What is added to tell where a token stands.
        max_length : int
            How many positions are learned; "learned" only.
        rng, like
            As in `LanguageModel.create`.
        """
        vocabulary = validate.positive_integer("vocabulary", vocabulary)
        width = validate.positive_integer("width", width)
        if positions not in ("sinusoidal", "learned", None):
            known = '"sinusoidal", "learned" or None'
            msg = f"`positions` must be {known}, got {positions!r}."
            raise ValueError(msg)
        if positions == "sinusoidal" and width % 2:
            msg = f"`width` must be even for sinusoidal positions, got {width}."
            raise ValueError(msg)
        if (positions == "learned") != (max_length is not None):
            msg = '`max_length` must be given exactly if `positions` is "learned".'
            raise ValueError(msg)
        source = Source(rng, like)
        tokens = source.normal((vocabulary, width), 1.0)
        learned = None
        if max_length is not None:
            rows = validate.positive_integer("max_length", max_length)
            learned = source.normal((rows, width), 1.0)
        return cls(tokens, learned, positions == "sinusoidal")


def embedded(parameters: Embedding, tokens: Array, start: Any = 0) -> Array:
    """Return tokens and positions as vectors; `start` is the first position."""
    x = embed("tokens", parameters.tokens, tokens)
    length, width = tokens.shape[-1], x.shape[-1]
    if parameters.positions is not None:
        table = parameters.positions
        places = position_indices(length, start, like=x)
        if any_true(places >= table.shape[0]):
            msg = (
                f"a sequence must have at most {table.shape[0]} tokens, the number of "
                f"learned positions, got {int(namespace(places).max(places)) + 1}."
            )
            raise ValueError(msg)
        x = x + embed("positions", table, places)
    if parameters.sinusoidal:
        x = x + sinusoidal_positions(length, width, like=x, start=start)
    return x


def embed(name: str, table: Array, indices: Array) -> Array:
    """Return the rows of a table.

    Parameters
    ----------
    name : str
        What an error calls the indices.
    table : array (N, width)
        Of embeddings.
    indices : integer array (...)
        Which rows.

    Returns
    -------
    array (..., width)
        The rows.

    Raises
    ------
    TypeError
        If the indices are not an integer array of the library of the table.
    ValueError
        If an index is not in ``0..N-1``. (Unknown while JAX traces.)

    Examples
    --------
    >>> import numpy as np
    >>> embed("tokens", np.asarray([[0.0], [1.0]]), np.asarray([1, 1, 0]))
    array([[1.],
           [1.],
           [0.]])
    """
    xp = namespace(table)
    if not is_array(indices) or not namespace(indices).isdtype(
        indices.dtype, "integral"
    ):
        got = indices.dtype if is_array(indices) else type(indices).__name__
        msg = f"`{name}` must be an array of integers, got {got}."
        raise TypeError(msg)
    if namespace(indices) is not xp:
        msg = (
            f"`{name}` must be an array of the library of the parameters "
            f"({xp.__name__}), got {namespace(indices).__name__}."
        )
        raise TypeError(msg)
    rows = table.shape[0]
    if any_true((indices < 0) | (indices >= rows)):
        msg = f"`{name}` must be in 0..{rows - 1}, got an entry outside."
        raise ValueError(msg)
    flat = xp.take(table, reshape(indices, (-1,)), axis=0)
    return reshape(flat, (*indices.shape, table.shape[1]))
