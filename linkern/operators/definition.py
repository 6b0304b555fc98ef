"""Operators as data: from the inputs of a user to terms of the recurrence, and back.

An operator is a `Definition`: the shapes of its inputs and of its state, and one
function from the inputs to `Terms`. Checking, widening, heads in groups, packed
sequences, the scale and the dtype of the output are the same for all, and live here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from linkern import validate
from linkern.array import astype, broadcast_to, plain_numpy, reshape, zeros
from linkern.kernels.dispatch import by_heads, whole_call
from linkern.operators.forms import FORM_NAMES, Form, form_named
from linkern.operators.layout import layout_of
from linkern.operators.varlen import run_packed
from linkern.state import AttentionResult, State, as_state
from linkern.typing import Array

__all__ = [
    "OPTIONS",
    "QKV",
    "Attend",
    "Definition",
    "Prepare",
    "Prepared",
    "check_values",
    "key_by_value",
    "prepare",
    "prepare_terms",
    "prepared",
    "run",
    "run_arrays",
    "scaled",
]

Inputs = Mapping[str, Any]
Attend = Callable[..., tuple[Array, State]]
# From the sizes of the lettered axes, or from their names, to axes of a state.
StateShape = Callable[[Mapping[str, Any]], tuple[Any, ...]]
Prepare = Callable[["Definition", Inputs, Inputs, Form, float | None], "Prepared"]

# Axes of the inputs that nearly all operators have.
QKV = {"query": "tk", "key": "tk", "value": "tv"}

# Options of every operator, and their defaults.
OPTIONS: dict[str, Any] = {
    "scale": None,
    "initial_state": None,
    "cu_seqlens": None,
    "form": "auto",
    "chunk_size": None,
}

# Signs and ranges of gates, besides `log_decay` and `beta`, which kernels look at too.
_RULES: dict[str, Callable[[str, Any], None]] = {
    "log_decay_rate": validate.not_positive,
    "preconditioner_log_decay": validate.not_positive,
    "momentum_log_decay": validate.not_positive,
    "dt": validate.zero_or_positive,
    "preconditioner_beta": validate.zero_or_positive,
    "momentum_beta": validate.zero_or_positive,
    "ridge": validate.positive,
    "trapezoid": partial(validate.within, low=0.0, high=1.0),
}


def key_by_value(sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the last axes of a memory ``(..., K, V)``."""
    return sizes["k"], sizes["v"]


@dataclass(frozen=True)
class Definition:
    """An operator as data.

    Parameters
    ----------
    name : str
        Name of the function.
    axes : mapping of str to str
        For each input, in order, the letters of its last axes: ``t`` tokens, ``s`` a
        multiple of them, and dimensions ``k v m l p``, one of them or two; none for one
        number a head.
    attend : callable
        ``attend(form, state, **inputs)`` returns the output and the next state. Inputs
        come widened, scaled, with all leading axes and two of their own: ``(..., T,
        1)`` for one number a token, ``(..., 1, K)`` for one a channel, ``(..., V, K)``
        for one an entry of the memory.
    memory : callable
        From the sizes of the letters to the last axes of the memory.
    normalizer : callable, optional
        The same for the normalizer; None for operators without one.
    empty : float
        What an empty normalizer holds: 0, or ``-inf`` if it is a logarithm.
    required : tuple of str
        Inputs that must not be None.
    inverse_root_scale : bool
        Whether the default scale is ``K^-0.5``; otherwise it is 1.
    transpose_state : bool
        Whether decay and erase act on the value side of the memory.
    affine : bool
        Whether a span of tokens is a matrix on the memory, and an increment.
    growing : bool
        Whether log-decays may be positive.
    as_given : bool
        Whether `attend` makes terms of its inputs as they are: then kernels may get
        them in the dtypes that they came in, and look at the values of gates.
    several_passes : bool
        Whether `attend` does much besides one recurrence: then back ends may call it
        for a few heads at a time, in threads.
    prepare : callable
        ``prepare(definition, inputs, options, form, scale)`` checks the inputs and
        returns them ready for `attend`; `options` are those that only this operator
        has. Default: `prepare_terms`.
    """

    name: str
    axes: Mapping[str, str]
    attend: Attend
    memory: StateShape = key_by_value
    normalizer: StateShape | None = None
    empty: float = 0.0
    required: tuple[str, ...] = ("query", "key", "value")
    inverse_root_scale: bool = True
    transpose_state: bool = False
    affine: bool = True
    growing: bool = False
    as_given: bool = False
    several_passes: bool = False
    prepare: Prepare | None = None


@dataclass(frozen=True)
class Prepared:
    """Inputs that have been checked, and all that follows from them.

    Parameters
    ----------
    definition : Definition
        The operator.
    inputs : mapping
        Its inputs, ready for `Definition.attend`.
    form : callable
        Order of the sums.
    sizes : mapping of str to int
        Sizes of the lettered axes.
    batch : tuple of int
        Leading axes, value heads included.
    dtype : dtype
        Of the output.
    like : array
        Its library, device and dtype are those of the computation.
    options : mapping
        Further arguments of `Definition.attend`.
    normalize : bool, optional
        The option of that name; None for operators without it.
    factor : float, optional
        What the query was multiplied by; None for nothing.
    """

    definition: Definition
    inputs: Mapping[str, Any]
    form: Form
    sizes: Mapping[str, int]
    batch: tuple[int, ...]
    dtype: Any
    like: Array
    options: Mapping[str, Any] = field(default_factory=dict)
    normalize: bool | None = None
    factor: float | None = None

    def initial_state(self, state: State | None) -> State:
        """Return the state that the first token meets, with all leading axes."""
        cores = self.state_shapes(self.sizes)
        if state is None:
            parts = {
                name: zeros((*self.batch, *shape), like=self.like)
                for name, shape in cores.items()
            }
            if self.definition.empty and "normalizer" in parts:
                parts["normalizer"] = parts["normalizer"] + self.definition.empty
            return State(parts["memory"], parts.get("normalizer"))
        if self.is_next(state, cores):
            return state
        shapes = validate.initial_state(
            state,
            self.state_shapes,
            self.sizes,
            self.batch,
            self.like,
            normalize=self.normalize,
        )
        wide = {
            name: broadcast_to(getattr(state, name), (*self.batch, *shape))
            for name, shape in shapes.items()
        }
        return State(wide["memory"], wide.get("normalizer"))

    def is_next(self, state: Any, cores: Mapping[str, tuple[Any, ...]]) -> bool:
        """Return True for a state of plain arrays that nothing has to be done with.

        That of the token before is one: its checks would take as long as the token.
        """
        if type(state) is not State:
            return False
        parts = {name: x for name, x in state._asdict().items() if x is not None}
        if parts.keys() != cores.keys():
            return False
        return plain_numpy(self.like, *parts.values()) and all(
            x.dtype == self.like.dtype and x.shape == (*self.batch, *cores[name])
            for name, x in parts.items()
        )

    @property
    def normalizer(self) -> StateShape | None:
        """Last axes of the normalizer from sizes; None if the state has none."""
        return None if self.normalize is False else self.definition.normalizer

    def state_shapes(self, sizes: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Return the last axes of each part of the state."""
        shapes = {"memory": self.definition.memory(sizes)}
        if self.normalizer is not None:
            shapes["normalizer"] = self.normalizer(sizes)
        return shapes

    def attend(self, state: State | None) -> AttentionResult:
        """Run the operator on one sequence, from a state or from the empty one."""
        before = self.initial_state(state)
        attend = partial(self.definition.attend, self.form, **self.options)
        if self.definition.several_passes:
            output, after = by_heads(attend, before, self.inputs)
        else:
            output, after = attend(before, **self.inputs)
        return AttentionResult(astype(output, self.dtype), after)

    def checked(self) -> "Prepared":
        """Return the same after a look at the values of gates."""
        if not self.form.unchecked:
            return self
        check_values(self.definition, self.inputs)
        return replace(self, form=replace(self.form, unchecked=False))

    def tokens(self, span: slice) -> "Prepared":
        """Return the same for a span of tokens."""
        length = span.stop - span.start
        steps = self.sizes.get("s", 0) // max(self.sizes["t"], 1)
        rows_of_token = {"t": 1, "s": steps}
        cut = dict(self.inputs)
        for name, x in self.inputs.items():
            rows = rows_of_token.get(self.definition.axes[name][:1])
            if x is not None and rows is not None:
                cut[name] = x[..., span.start * rows : span.stop * rows, :]
        changed = {letter: n * length for letter, n in rows_of_token.items()}
        sizes = {letter: changed.get(letter, n) for letter, n in self.sizes.items()}
        return replace(self, inputs=cut, sizes=sizes)


def run(
    definition: Definition, arguments: Inputs, form: Form | None = None
) -> AttentionResult:
    """Run an operator.

    Parameters
    ----------
    definition : Definition
        The operator.
    arguments : mapping
        Its inputs and options by name; `OPTIONS` may be missing.
    form : Form, optional
        Order of the sums, in place of the one that the options name.
    """
    if form is not None:
        arguments = {**arguments, "form": form}
    result = whole_call(definition.name, arguments)
    return run_arrays(definition, arguments) if result is None else result


def run_arrays(definition: Definition, arguments: Inputs) -> AttentionResult:
    """Run an operator on the arrays that it is given; `form` may be a `Form`."""
    ready = prepared(definition, arguments)
    state = as_state(
        "initial_state",
        arguments.get("initial_state"),
        normalizer=ready.normalizer is not None,
    )
    cu_seqlens = arguments.get("cu_seqlens")
    if cu_seqlens is None:
        return ready.attend(state)
    if not arguments.get("causal", True):
        msg = "`cu_seqlens` needs `causal=True`; call once for each sequence."
        raise ValueError(msg)
    # Kernels that look at gates are waited for: once is enough for all sequences.
    ready = ready.checked()
    return run_packed(
        cu_seqlens,
        ready.sizes["t"],
        state,
        lambda span, state: ready.tokens(span).attend(state),
    )


def prepared(definition: Definition, arguments: Inputs) -> Prepared:
    """Check the arguments of a call, but its state and its offsets."""
    inputs = {name: arguments.get(name) for name in definition.axes}
    common = {name: arguments.get(name, x) for name, x in OPTIONS.items()}
    settings = {
        name: x
        for name, x in arguments.items()
        if name not in inputs and name not in common
    }
    del common["initial_state"], common["cu_seqlens"]
    return prepare(definition, inputs, settings, **common)


def prepare(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs | None = None,
    *,
    scale: float | None = None,
    form: str | Form = "auto",
    chunk_size: int | None = None,
) -> Prepared:
    """Check all inputs against each other and bring them into the common shape."""
    scale = validate.scale(scale)
    if not isinstance(form, Form):  # `step` and `span_map` have forms of their own
        form = validate.form(form, FORM_NAMES)
        form = form_named(form, validate.chunk_size(chunk_size, form))
    make = definition.prepare or prepare_terms
    return make(definition, inputs, settings or {}, form, scale)


def prepare_terms(
    definition: Definition, inputs: Inputs, _: Inputs, form: Form, scale: float | None
) -> Prepared:
    """Return inputs that `attend` makes terms of: widened, scaled, of one batch."""
    passed = {
        name: x
        for name, x in inputs.items()
        if x is not None or name in definition.required
    }
    layout = layout_of(definition, passed, form, scale)
    if not layout.as_given:
        check_values(definition, passed)

    ready: dict[str, Any] = dict.fromkeys(definition.axes)
    like = validate.wide_like(*next(iter(passed.items())))
    for name, x in passed.items():
        rows = x if layout.as_given else astype(x, layout.wide)
        if name in layout.repeats:
            rows = _repeated(rows, layout.repeats[name])
        ready[name] = _common(rows, definition.axes[name], layout.batch)
    factor = layout.factor if "query" in ready else None
    factor = None if factor == 1 else factor
    if layout.as_given:
        form = replace(form, scale=factor, as_given=True, unchecked=True)
    elif factor is not None:
        ready["query"] = ready["query"] * factor
    dtype = passed[definition.required[0]].dtype
    return Prepared(
        *(definition, ready, form, layout.sizes, layout.batch, dtype, like),
        factor=factor,
    )


def _repeated(x: Array, times: int) -> Array:
    """Repeat each head: head h serves the value heads from ``h * times``."""
    *lead, heads, length, dim = x.shape
    apart = reshape(x, (*lead, heads, 1, length, dim))
    repeated = broadcast_to(apart, (*lead, heads, times, length, dim))
    return reshape(repeated, (*lead, heads * times, length, dim))


def check_values(definition: Definition, inputs: Inputs) -> None:
    """Check the rules about the values of gates."""
    log_decay, beta = map(inputs.get, ("log_decay", "beta"))
    validate.gates(None if definition.growing else log_decay, beta)
    for name, rule in _RULES.items():
        if inputs.get(name) is not None:
            rule(name, inputs[name])


def _common(x: Array, letters: str, batch: tuple[int, ...]) -> Array:
    """Return an input with all leading axes and two axes of its own."""
    if letters == "":
        x = x[..., None, None]
    elif letters in ("t", "s"):
        x = x[..., None]
    elif len(letters) == 1:
        x = x[..., None, :]
    return broadcast_to(x, (*batch, *x.shape[-2:]))


def scaled(factor: Array | None, x: Array) -> Array:
    """Return ``factor * x``, or `x` itself for a neutral factor."""
    return x if factor is None else factor * x
