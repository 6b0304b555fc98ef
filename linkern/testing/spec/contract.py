"""The declarations of a kernel about itself; undeclared means the strictest.

A declaration relaxes or restricts what is asked of a target, so every one of them is
printed beside the verdict: it cannot hide a defect.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from linkern.oracle import Precisions, Quotient, unit_roundoff
from linkern.testing.errors import UsageError
from linkern.testing.spec.declarations import DECLARATIONS, as_text, nearest
from linkern.testing.spec.operators import Operator
from linkern.testing.spec.raw_gates import (
    LARGEST_RATE,
    PARAMETRIC_FORMS,
    RAW_FORMS,
    SOFTPLUS_THRESHOLD,
)

__all__ = ["Contract", "nearest"]

# Roundings with which a kernel makes a gate of a raw one: the exponential of `A_log`,
# the shifted argument, its exponential and logarithm, by approximate instructions; and
# a rate of a logit up to 16, whose exponential is off by the error of its argument.
_GATE_ROUNDINGS, _RATE_ROUNDINGS = 16.0, 24.0

# Declarations of operators with a feature map, and of all others.
_WITH_FEATURE_MAP = (
    "feature_map",
    "key_feature_map",
    "normalize",
    "eps",
    "eps_mode",
    "feature_error",
)
_WITHOUT_FEATURE_MAP = (
    "decay_log_base",
    "decay_form",
    "decay_floor",
    "gate_parameters",
    "beta_form",
    "l2norm",
    "value_groups",
)


@dataclass(frozen=True)
class Contract:
    """The declarations of one target.

    Parameters
    ----------
    feature_map, key_feature_map : str
        The map the target applies to queries and keys (to keys only, if the second is
        given): ``elu_plus_one``, ``relu``, ``exp``, ``identity``, ``softmax``.
    normalize : bool
        Whether rows are divided by the sum of their weights.
    scale : float or "K^-0.5", optional
        Factor on the scores if none is passed. Default: that of the operator.
    eps, eps_mode : float, str
        Epsilon in the quotient: added to the ``denominator``, added to every entry of
        the ``normalizer``, or the lower ``clamp`` of the denominator.
    constant_denominator : bool
        Whether its gradients hold the denominator constant, where a norm of each row
        follows, which no factor of a row changes.
    layout : str
        Order of the axes of inputs and output: ``bhtd``, ``bthd``, ``htd``, ``td``.
    accumulator_dtype, feature_dtype, operand_dtype, score_dtype : str, optional
        Precision of sums (default: float32, or float64 for float64 inputs), features,
        operands of products (``tfloat32``, say) and scores.
    state_dtype, normalizer_dtype : str, optional
        Precision in which the running memory and normalizer are carried.
    chunk_size : int, optional
        The target's chunk size: tightens the bound.
    min_length : int, optional
        The shortest sequence that it accepts. Default: 0, or 1 if its first call of no
        token raises an exception.
    max_length, length_multiple_of : int
        Which sequence lengths it accepts.
    key_dims, value_dims : tuple of int
        Which dimensions it accepts; empty for all.
    equal_dims, equal_lengths : bool
        Whether it needs ``K == V``; whether it needs ``T == S`` when not causal.
    mutates : tuple of str
        Inputs it overwrites, ``initial_state`` among them.
    interface : str
        Whether one call takes a ``sequence`` or is one ``step`` of a recurrence.
    vjp : str, optional
        Function that gives its gradients, in its own module or ``module:function``,
        called by name, as the target is: with the inputs, the ``output_cotangent``,
        and what else it has parameters for, ``scale`` or ``initial_state`` and
        ``state_cotangent``. It returns the gradients as a dict by name, or as a tuple
        in the order of its parameters, that of the state last. Default: the attribute
        ``vjp`` of the target, or the automatic differentiation of its library.
    gradients : str
        ``auto``: judged where there are any; ``required``; ``none``.
    strides : str
        ``any``, or ``contiguous`` if it accepts nothing else.
    nan_policy : str
        What becomes of a NaN in a value: ``propagate`` to every later row; ``strict``:
        and to no earlier one, not even as ``0 * NaN``; ``any``.
    rounding : str
        ``nearest``, or ``truncation``, as in the accumulators of tensor cores.
    feature_error : str
        ``absolute``: ``elu(x) + 1`` may lose what the textbook sum loses below zero;
        ``relative``: it may not.
    output_dtype : str, optional
        Dtype it returns. Default: that of the query.
    validates : bool
        Whether it promises to refuse shapes that do not fit.
    thread_safe : bool
        Whether it may be called from several threads at once.
    cuda_graphs : bool
        Whether its calls can be captured as CUDA graphs.
    batch_invariant : str
        Whether a sequence gives the same bits in any batch: ``false``; ``rows``: alone,
        at any place in a batch of any size, and packed; ``true``: and in parts as well,
        cut anywhere, or at multiples of a declared `chunk_size`.
    takes_state : bool, optional
        Whether a command reads and writes states: it has no signature that would tell.
        ``false`` of a function: it refuses states although it has parameters for them.
    returns_state : bool, optional
        Whether a function that takes no state returns the final one with its output.
        Default: it does if, on its first call, what follows the output has the shape
        of a state.
    decay_log_base : str
        ``e``, or ``2`` if the log-decays it takes are logarithms to base 2.
    decay_form : str
        ``log``, or ``factor`` if it takes the decays themselves, between 0 and 1. Of
        raw gates ``x`` it makes log-decays itself, and takes `A_log` and `dt_bias`:
        ``softplus``, ``-exp(A_log) softplus(x + dt_bias)``, or ``sigmoid``,
        ``decay_floor sigmoid(exp(A_log) (x + dt_bias))``; or it takes neither:
        ``logsigmoid``, ``log(sigmoid(x))``.
    decay_floor : float
        The least natural log-decay that it accepts besides 0.
    gate_parameters : str
        Which of `A_log` and `dt_bias` it takes with raw gates: ``both``; ``dt_bias``,
        if its rates are one; or ``A_log``, if it adds nothing to gates.
    beta_form : str
        ``rate``; of logits ``x`` it makes rates itself: ``sigmoid``, or
        ``twice_sigmoid`` for ``2 sigmoid(x)``.
    state_layout : str
        ``kv``, or ``vk`` if it keeps the transpose of the memory.
    l2norm : float, optional
        It divides queries and keys by their norms itself, with this epsilon under the
        square root.
    value_groups : bool, optional
        Whether it accepts more heads of values than of queries. Default: on a CPU, it
        does if its first calls give rows of all heads, and gradients of all inputs.
    cu_seqlens_dtype : str
        Dtype of the offsets of packed sequences: ``int64``, or ``int32``.
    packing : str
        ``any``, or ``full`` if packed sequences must fill the arrays: the last offset
        is the number of tokens.
    ranks_order : str
        Over ranks: ``contiguous``, rank r has the r-th piece of a sequence; or
        ``zigzag``, the r-th of twice as many, and the r-th from the end.
    ranks_even, ranks_empty : bool
        Whether it needs pieces of equal size; whether a rank may have no token.
    ranks_initial, ranks_final : str
        The ranks that are passed the initial state, ``first`` (all others get None) or
        ``every``; the ranks that return the final one, ``last`` or ``every``.
    ranks_cu_seqlens : str
        The offsets that a rank is passed: those of the ``whole`` packed batch, or, from
        its own first token on, those of its ``shard``.
    """

    feature_map: str = "elu_plus_one"
    key_feature_map: str | None = None
    normalize: bool = True
    scale: float | str | None = None
    eps: float = 0.0
    eps_mode: str = "denominator"
    constant_denominator: bool = False
    layout: str = "bhtd"
    accumulator_dtype: str | None = None
    feature_dtype: str | None = None
    operand_dtype: str | None = None
    score_dtype: str | None = None
    state_dtype: str | None = None
    normalizer_dtype: str | None = None
    chunk_size: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    length_multiple_of: int = 1
    key_dims: tuple[int, ...] = ()
    value_dims: tuple[int, ...] = ()
    equal_dims: bool = False
    equal_lengths: bool = False
    mutates: tuple[str, ...] = ()
    interface: str = "sequence"
    vjp: str | None = None
    gradients: str = "auto"
    strides: str = "any"
    nan_policy: str = "propagate"
    rounding: str = "nearest"
    feature_error: str = "absolute"
    output_dtype: str | None = None
    validates: bool = False
    thread_safe: bool = True
    cuda_graphs: bool = False
    batch_invariant: str = "false"
    takes_state: bool | None = None
    returns_state: bool | None = None
    decay_log_base: str = "e"
    decay_form: str = "log"
    decay_floor: float = -math.inf
    gate_parameters: str = "both"
    beta_form: str = "rate"
    state_layout: str = "kv"
    l2norm: float | None = None
    value_groups: bool | None = None
    cu_seqlens_dtype: str = "int64"
    packing: str = "any"
    ranks_order: str = "contiguous"
    ranks_even: bool = False
    ranks_empty: bool = True
    ranks_initial: str = "first"
    ranks_final: str = "last"
    ranks_cu_seqlens: str = "whole"

    def __post_init__(self) -> None:
        """Refuse combinations that no value could satisfy."""
        for several in ("key_dims", "value_dims", "mutates"):
            # Lists as well: what is drawn under a contract is kept by the contract.
            object.__setattr__(self, several, tuple(getattr(self, several)))
        if self.eps_mode != "denominator" and self.eps == 0:
            msg = f"`eps_mode={self.eps_mode}` needs an `eps`; declare it too."
            raise UsageError(msg)
        if self.eps and not self.normalize:
            msg = "`eps` is part of the quotient, so it needs `normalize=true`."
            raise UsageError(msg)
        if self.constant_denominator and not self.normalize:
            msg = "`constant_denominator` is for quotients: it needs `normalize=true`."
            raise UsageError(msg)
        if self.decay_form != "log" and self.decay_log_base != "e":
            form = f"`decay_form={self.decay_form}`"
            msg = f"`decay_log_base` is for logarithms, so not with {form}."
            raise UsageError(msg)
        if self.decay_form == "sigmoid" and math.isinf(self.decay_floor):
            msg = "`decay_form=sigmoid` needs its lower bound: declare `decay_floor`."
            raise UsageError(msg)
        if self.gate_parameters != "both" and self.decay_form not in PARAMETRIC_FORMS:
            msg = "`gate_parameters` are those of raw gates: declare `decay_form` too."
            raise UsageError(msg)
        if self.takes_state is False and self.interface == "step":
            msg = "`interface=step` needs a state, so not with `takes_state=false`."
            raise UsageError(msg)
        if self.ranks_order == "zigzag":
            self._require_zigzag()
        if self.max_length is not None and self.max_length < self.shortest:
            msg = (
                f"`max_length` must not be below `min_length`, got {self.max_length} "
                f"and {self.shortest}."
            )
            raise UsageError(msg)

    def _require_zigzag(self) -> None:
        """Refuse shards of two pieces whose ends a rank cannot know."""
        if not self.ranks_even:
            msg = "`ranks_order=zigzag` needs `ranks_even=true`; declare it too."
            raise UsageError(msg)
        if self.ranks_cu_seqlens == "shard":
            msg = (
                "`ranks_cu_seqlens=shard` needs shards of one piece, so "
                "`ranks_order=contiguous`."
            )
            raise UsageError(msg)

    @classmethod
    def from_mapping(cls, declared: Mapping[str, Any]) -> "Contract":
        """Read declarations given as text or TOML values."""
        values = {}
        for key, raw in declared.items():
            if key not in DECLARATIONS:
                raise UsageError(nearest("declaration", key, DECLARATIONS))
            values[key] = DECLARATIONS[key].values.parse(key, as_text(raw))
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> dict[str, Any]:
        """Return the declarations of a TOML file, for `from_mapping`."""
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or error
            msg = f"the contract {path} cannot be read: {reason}."
            raise UsageError(msg) from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            msg = f"the contract {path} is no TOML: {error}."
            raise UsageError(msg) from None

    def declared(self) -> dict[str, Any]:
        """Return what differs from the strictest contract."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def over(self, ranks: tuple[int, ...], *, alike: bool = False) -> "Contract":
        """Return the same, with the lengths that it allows over so many ranks.

        Ranks that are `alike` have shards of one shape, and each an initial state.
        """
        if alike:
            same = replace(
                self, ranks_even=True, ranks_empty=False, ranks_initial="every"
            )
            return same.over(ranks)
        pieces = [n * (2 if self.ranks_order == "zigzag" else 1) for n in ranks]
        multiple = self.length_multiple_of
        if self.ranks_even:
            multiple = math.lcm(multiple, *pieces)
        least = self.shortest if self.ranks_empty else max(self.shortest, *pieces)
        return replace(
            self, length_multiple_of=multiple, min_length=least or self.min_length
        )

    def factor(self, default: float | str, key_dim: int) -> float:
        """Return the factor on the scores, of an operator that has this default."""
        scale = default if self.scale is None else self.scale
        return key_dim**-0.5 if isinstance(scale, str) else scale

    def require_of(self, operator: Operator) -> None:
        """Refuse declarations that mean nothing for an operator."""
        mapped = operator.feature_map
        meaningless = {*(_WITHOUT_FEATURE_MAP if mapped else _WITH_FEATURE_MAP)}
        if not (mapped or operator.floored):
            meaningless |= {"constant_denominator"}
        if "log_decay" not in operator.names:
            meaningless |= {"decay_log_base", "decay_form", "decay_floor"}
            meaningless |= {"gate_parameters"}
        if "beta" not in operator.names:
            meaningless |= {"beta_form"}
        if not {"query", "key"} <= {*operator.names}:
            meaningless |= {"l2norm", "scale"}
        for key in self.declared():
            if key in meaningless:
                msg = f"`{key}` means nothing for {operator.name}; leave it out."
                raise UsageError(msg)
        if self.decay_form in RAW_FORMS and not operator.input("log_decay").per_token:
            form = f"`decay_form={self.decay_form}`"
            msg = f"{form} makes decays of tokens, but {operator.name} has fixed ones."
            raise UsageError(msg)

    def quotient(self, key_dim: int) -> Quotient:
        """Return how this target turns a read-out into an output."""
        return Quotient(
            self.normalize, self.factor(1.0, key_dim), self.eps, self.eps_mode
        )

    @property
    def shortest(self) -> int:
        """Number of tokens of the shortest sequence that is accepted."""
        return self.min_length or 0

    @property
    def narrows(self) -> bool:
        """True if the dtype of a stage is declared."""
        stages = (
            *(self.accumulator_dtype, self.feature_dtype, self.operand_dtype),
            *(self.score_dtype, self.state_dtype, self.normalizer_dtype),
        )
        return any(stage is not None for stage in stages)

    def precisions(self, dtype: str) -> Precisions:
        """Return the arithmetic of this target on inputs of `dtype`."""
        default = "float64" if dtype == "float64" else "float32"
        return Precisions(
            accumulator=self.accumulator_dtype or default,
            feature=self.feature_dtype,
            operand=self.operand_dtype,
            score=self.score_dtype,
            state=self.state_dtype,
            normalizer=self.normalizer_dtype,
            truncates=self.rounding == "truncation",
            gate_roundings=_GATE_ROUNDINGS if self.decay_form in RAW_FORMS else 0.0,
            gate_error=self._gate_error(self.accumulator_dtype or default),
            rate_roundings=0.0 if self.beta_form == "rate" else _RATE_ROUNDINGS,
        )

    def _gate_error(self, accumulator: str) -> float:
        """Return the absolute error of a log-decay that a kernel makes itself.

        The logarithm of a softplus is absolutely as good as its argument, which is a
        sum with one; and a sigmoid as its argument, of which it is flat at the ends.
        The logarithm of a sigmoid is the softplus of what is negated.
        """
        unit = unit_roundoff(accumulator)
        if self.decay_form in ("softplus", "logsigmoid"):
            largest = LARGEST_RATE if self.decay_form == "softplus" else 1.0
            return largest * (8 * unit + SOFTPLUS_THRESHOLD)
        return -4 * unit * self.decay_floor if self.decay_form == "sigmoid" else 0.0
