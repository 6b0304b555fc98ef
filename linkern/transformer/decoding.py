"""A Transformer as a recurrent network: a state for each layer, one token at a time.

The same function of the model computes a whole prompt and a single token; what differs
is how many tokens it is given and in which order sums are taken. So a token's logits do
not depend on how the tokens before it were cut into calls.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from linkern import validate
from linkern.array import concat, is_array, namespace, zeros
from linkern.transformer.models import Model, continued, described, generating_part
from linkern.transformer.prompts import prompt_rows, source_memory
from linkern.transformer.sampling import (
    checked_temperature,
    checked_top_k,
    sample,
)
from linkern.transformer.states import (
    DecodingState,
    belongs,
    rows_of,
    side_by_side,
)
from linkern.typing import Array

__all__ = [
    "Decoded",
    "Generated",
    "decode",
    "generate",
    "prefill",
]


class Decoded(NamedTuple):
    """Logits ``(N, vocabulary)`` of the next token, and the state that led to them."""

    logits: Array
    state: DecodingState


class Generated(NamedTuple):
    """Result of `generate`.

    Parameters
    ----------
    tokens : integer array (N, steps)
        Behind a stop token, the stop token again.
    state : DecodingState
        After the last token but one: that has been chosen and not been read.
    """

    tokens: Array
    state: DecodingState


def prefill(
    parameters: Model,
    prompts: Any,
    *,
    source: Array | None = None,
    visible: Array | None = None,
    state: DecodingState | None = None,
    form: str = "auto",
) -> Decoded:
    """Read prompts at once and return the logits and state to decode from.

    Parameters
    ----------
    parameters : LanguageModel or EncoderDecoder
        The model.
    prompts : integer array (N, T), or sequence of N sequences of integers
        At least one token each. Prompts of different lengths are read one by one, so
        that none is padded, and their states are put side by side.
    source : integer array (N, S), optional
        What an encoder-decoder translates.
    visible : array (N, S) of bool, optional
        Which tokens of `source` are there.
    state : DecodingState, optional
        Of the tokens before the prompts. Default: none.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums of a recurrence. "auto" is "chunkwise".

    Returns
    -------
    Decoded
        ``logits (N, vocabulary)`` after the last token of each prompt, and the state.

    Raises
    ------
    TypeError
        If `parameters` are no model, or tokens are not integers.
    ValueError
        If a prompt is empty, a token is unknown, there are more tokens than learned
        positions, the operator keeps no state, or `state` is that of another model.

    Examples
    --------
    >>> from linkern import transformer
    >>> model = transformer.LanguageModel.create(10, 8, depth=1, heads=2, rng=0)
    >>> logits, state = transformer.prefill(model, [[1, 2, 3], [4]])
    >>> logits.shape, state.position
    ((2, 10), array([3, 1]))
    """
    rows = prompt_rows(parameters, prompts)
    if state is not None:
        belongs(parameters, state)
    memory = source_memory(parameters, source, visible, state, len(rows), form)
    if len({row.shape[0] for row in rows}) == 1:
        whole = concat([row[None, :] for row in rows], axis=0)
        return _read(parameters, whole, state, memory, visible, form)
    results = []
    for n, row in enumerate(rows):
        this = slice(n, n + 1)
        results.append(
            _read(
                parameters,
                row[None, :],
                None if state is None else rows_of(state, this),
                None if memory is None else memory[this, ...],
                None if visible is None else visible[this, ...],
                form,
            )
        )
    logits = concat([result.logits for result in results], axis=0)
    return Decoded(logits, side_by_side([result.state for result in results]))


def decode(parameters: Model, state: DecodingState, tokens: Array) -> Decoded:
    """Read the next token of each sequence.

    Parameters
    ----------
    parameters : LanguageModel or EncoderDecoder
        The model.
    state : DecodingState
        Of the tokens before; it stays as it is.
    tokens : integer array (N,)
        The next token of each sequence.

    Returns
    -------
    Decoded
        ``logits (N, vocabulary)`` of the token after, and the next state. With a
        recurrent operator, time and memory do not depend on how many tokens there were.

    Raises
    ------
    TypeError, ValueError
        As `prefill`.

    Notes
    -----
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.4.

    Examples
    --------
    >>> import numpy as np
    >>> from linkern import transformer
    >>> model = transformer.LanguageModel.create(10, 8, depth=1, heads=2, rng=0)
    >>> logits, state = transformer.prefill(model, [[1, 2, 3]])
    >>> logits, state = transformer.decode(model, state, np.asarray([4]))
    >>> whole = transformer.language_model(model, np.asarray([[1, 2, 3, 4]]))
    >>> bool(np.allclose(logits, whole[:, -1], atol=1e-5))
    True
    """
    belongs(parameters, state)
    sequences = state.position.shape[0]
    if not is_array(tokens) or tuple(tokens.shape) != (sequences,):
        got = tuple(tokens.shape) if is_array(tokens) else type(tokens).__name__
        msg = f"`tokens` must be an integer array ({sequences},), got {got}."
        raise (ValueError if is_array(tokens) else TypeError)(msg)
    return _read(parameters, tokens[:, None], state, None, None, "recurrent")


def generate(
    parameters: Model,
    prompts: Any,
    steps: int,
    *,
    source: Array | None = None,
    visible: Array | None = None,
    state: DecodingState | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop: int | None = None,
    rng: Any = None,
    progress: bool = False,
) -> Generated:
    """Continue prompts, token by token.

    Parameters
    ----------
    parameters : LanguageModel or EncoderDecoder
        The model.
    prompts, source, visible, state
        As in `prefill`.
    steps : int
        How many tokens to generate for each prompt.
    temperature : float
        What logits are divided by before they are drawn from; 0 is greedy.
    top_k : int, optional
        Draw from the `top_k` most likely tokens only.
    stop : int, optional
        The token of the vocabulary that ends a sequence; generation ends when every
        sequence has.
    rng : int, numpy.random.Generator or None
        Where randomness comes from: the same draws for every library.
    progress : bool
        Show a progress bar on standard error.

    Returns
    -------
    Generated
        ``tokens (N, steps)``, fewer if all sequences stopped, and the state.

    Raises
    ------
    TypeError, ValueError
        As `prefill`, or if an option is out of range.

    Examples
    --------
    >>> from linkern import transformer
    >>> model = transformer.LanguageModel.create(10, 8, depth=1, heads=2, rng=0)
    >>> tokens, state = transformer.generate(model, [[1, 2], [3]], 4, temperature=0)
    >>> tokens.shape, state.position
    ((2, 4), array([5, 4]))
    """
    steps = validate.dimension("steps", steps)
    temperature, top_k = checked_temperature(temperature), checked_top_k(top_k)
    generator = validate.generator(rng)
    stop = _checked_stop(stop, parameters)
    logits, state = prefill(
        parameters, prompts, source=source, visible=visible, state=state
    )
    chosen: list[Array] = []
    ended: Array | None = None
    with _shown(range(steps), progress) as counted:
        for step in counted:
            if step:
                logits, state = decode(parameters, state, chosen[-1])
            token = sample(logits, temperature=temperature, top_k=top_k, rng=generator)
            if stop is not None:
                token, ended = _stopping(token, ended, stop)
            chosen.append(token)
            if ended is not None and bool(namespace(token).all(ended)):
                break
    if not chosen:
        shape = (logits.shape[0], 0)
        return Generated(zeros(shape, like=state.position), state)
    return Generated(concat([token[:, None] for token in chosen], axis=1), state)


def _checked_stop(stop: Any, parameters: Model) -> int | None:
    """Check that the token that ends a sequence is one of the vocabulary."""
    if stop is None:
        return None
    embedding, _ = generating_part(parameters)
    token, vocabulary = validate.dimension("stop", stop), embedding.tokens.shape[0]
    if token >= vocabulary:
        msg = f"`stop` must be in 0..{vocabulary - 1}, the vocabulary, got {token}."
        raise ValueError(msg)
    return token


def _stopping(token: Any, ended: Any, stop: int) -> tuple[Any, Any]:
    """Return the next tokens, and which sequences have ended."""
    xp = namespace(token)
    if ended is not None:
        token = xp.where(ended, stop + xp.zeros_like(token), token)
    return token, token == stop


def _read(
    parameters: Model,
    tokens: Array,
    state: DecodingState | None,
    memory: Array | None,
    visible: Array | None,
    form: str,
) -> Decoded:
    """Read tokens ``(N, T)`` and return the logits after the last one."""
    if state is None:
        # A tensor of zeros in the library's own kind of integers for indices.
        position, before = zeros((tokens.shape[0],), like=tokens), None
        model = described(parameters)
    else:
        position, before, model = state.position, state.layers, state.model
    logits, after = continued(
        parameters, tokens, before, position, memory=memory, visible=visible, form=form
    )
    if any(layer.attention is None for layer in after):
        msg = (
            "the model must keep a state to decode with, and its operator keeps none; "
            "run `language_model` on the whole sequence again."
        )
        raise ValueError(msg)
    read = DecodingState(after, position + tokens.shape[1], model)
    return Decoded(logits[:, -1, :], read)


@contextmanager
def _shown(steps: range, progress: bool) -> Iterator[Iterable[int]]:
    """Count steps, with a bar on standard error if one is wanted."""
    if not progress:
        yield steps
        return
    from rich.console import Console  # noqa: PLC0415 -- importing linkern stays light
    from rich.progress import MofNCompleteColumn, Progress  # noqa: PLC0415

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield bar.track(steps, description="decoding")
