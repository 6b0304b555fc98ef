"""The scope that all problems of a run share, and the sizes of one problem."""

from dataclasses import dataclass, field
from math import prod

from linkern.oracle import FEATURE_MAPS, FeatureMap
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Operator
from linkern.testing.target.loading import Interface

__all__ = ["Scope", "Shape"]


@dataclass(frozen=True)
class Scope:
    """Operator, contract, dtype and interface that all problems of a run share.

    Parameters
    ----------
    operator : Operator
        The claimed operator.
    contract : Contract
        The declarations of the target.
    dtype : str
        Dtype of the inputs.
    interface : Interface
        The keywords and inputs of the target.
    fixed : frozenset of str
        Keywords of the target that the plan has fixed, so that no check varies them.
    few_shapes : bool
        Whether each new shape is expensive, since it is compiled.
    styles : tuple of str
        The ways in which its arrays can lie in memory.
    differentiates : bool
        Whether its library differentiates.
    seed : int
        Seed of the run: no array can be known without it.
    interpreted : bool
        True if the target runs by Triton's interpreter.
    on_cuda : tuple of str
        Ways of calling that the device of the inputs has, from `accelerators.WAYS`.
    ranks : tuple of int
        The numbers of ranks that it runs on; empty for a target on one.
    """

    operator: Operator
    contract: Contract
    dtype: str
    interface: Interface = field(default_factory=Interface)
    fixed: frozenset[str] = frozenset()
    few_shapes: bool = False
    styles: tuple[str, ...] = ()
    differentiates: bool = False
    seed: int = 0
    interpreted: bool = False
    on_cuda: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def exposes(self) -> frozenset[str]:
        """Keywords that checks may vary, ``form`` and ``chunk_size`` among them."""
        return self.interface.keywords - self.fixed

    @property
    def omissible(self) -> tuple[str, ...]:
        """The optional inputs that a target has a parameter with a default for."""
        operator, interface = self.operator, self.interface
        taken = dict(zip(operator.names, interface.inputs, strict=False))
        return tuple(
            one.name
            for one in operator.inputs
            if one.optional
            and one.name in taken
            and taken[one.name] not in interface.needed
        )

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that a call can have: as declared, its own default, others."""
        interface, name = self.interface, self.interface.scale
        if name not in self.exposes or not {"query", "key"} <= {*self.operator.names}:
            return ("declared",)
        omitted = () if name in interface.needed else ("omitted",)
        others = ("halved", "tripled") if interface.vjp_takes_scale else ()
        return ("declared", *omitted, *others)

    @property
    def normalised(self) -> bool:
        """True if rows are averages of the values."""
        if self.operator.feature_map:
            return self.contract.normalize
        return self.operator.normalised

    @property
    def linear(self) -> tuple[str, ...]:
        """The inputs in each of which the output is linear."""
        kept = self.operator.linear
        if self.contract.l2norm is None:
            return kept
        return tuple(name for name in kept if name not in ("query", "key"))

    @property
    def output_dtype(self) -> str:
        """The dtype that an output must have."""
        return self.contract.output_dtype or self.dtype

    @property
    def query_map(self) -> FeatureMap:
        """The feature map of queries."""
        return FEATURE_MAPS[self.contract.feature_map]

    @property
    def key_map(self) -> FeatureMap:
        """The feature map of keys."""
        name = self.contract.key_feature_map or self.contract.feature_map
        return FEATURE_MAPS[name]

    @property
    def stages(self) -> set[str]:
        """The dtypes that a number goes through, from input to output."""
        stages = self.contract.precisions(self.dtype)
        declared = (stages.feature, stages.operand, stages.score)
        carried = (stages.state, stages.normalizer)
        names = (self.dtype, stages.accumulator, *declared, *carried)
        return {name for name in names if name}

    @property
    def narrowest_bits(self) -> int:
        """Significand bits of the narrowest stage that sums go through.

        Scores and the memory are sums, and operands of the second product.
        """
        stages = self.contract.precisions(self.dtype)
        names = (
            stages.accumulator,
            stages.operand,
            stages.score,
            stages.state,
            stages.normalizer,
        )
        return min(SIGNIFICAND_BITS[name] for name in names if name)

    @property
    def input_bits(self) -> int:
        """Significand bits of the narrowest stage that inputs go through."""
        stages = self.contract.precisions(self.dtype)
        names = (self.dtype, stages.feature, stages.operand)
        return min(SIGNIFICAND_BITS[name] for name in names if name)


@dataclass(frozen=True)
class Shape:
    """Sizes of one problem: inputs are ``(batch, heads, length or keys, dim)``.

    There are `groups` heads of values for each head of queries; slots, levels and rank
    are those of the operators that have any.
    """

    batch: int
    heads: int
    length: int
    keys: int
    key_dim: int
    value_dim: int
    groups: int = 1
    slots: int = 1
    levels: int = 1
    rank: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by the letter that operators know it by."""
        return {
            "b": self.batch,
            "h": self.heads,
            "g": self.heads * self.groups,
            "t": self.length,
            "s": self.keys,
            "k": self.key_dim,
            "v": self.value_dim,
            "m": self.slots,
            "l": self.levels,
            "p": self.key_dim // self.rank // 2,
            "r": self.rank,
        }

    def numbers_per_token(self, operator: Operator) -> tuple[int, int]:
        """Return how many features a token has, and how many numbers the memory."""
        memory = operator.state_shapes(self.sizes)[:1] or [(self.key_dim, 1)]
        heads = self.batch * self.sizes["g"]
        return heads * prod(memory[0][:-1]), heads * prod(memory[0])

    def of(self, axes: str) -> tuple[int, ...]:
        """Return the shape of an array with these axes."""
        sizes = self.sizes
        return tuple(sizes[axis] for axis in axes)

    @property
    def query(self) -> tuple[int, int, int, int]:
        """Shape of the query."""
        return (self.batch, self.heads, self.length, self.key_dim)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Shape of the key."""
        return (self.batch, self.heads, self.keys, self.key_dim)

    @property
    def value(self) -> tuple[int, int, int, int]:
        """Shape of the value."""
        return (self.batch, self.heads, self.keys, self.value_dim)
