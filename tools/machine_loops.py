"""Loops of a kernel in a listing of its machine code, by the graph of its branches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
from kernel_instructions import Loop

__all__ = ["loops"]

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+)?\s*([A-Z0-9_.]+)\s*([^;]*);"
)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
# A comparison of a counter with a number, and its step.
_COMPARISON = re.compile(r"^(U?P\d), U?PT, (U?R\d+)(?:\.reuse)?, (0x[0-9a-f]+), ")
_STEP = re.compile(r"^(U?R\d+), (U?R\d+)(?:\.reuse)?, (-?0x[0-9a-f]+)")


class Instruction(NamedTuple):
    """An instruction: its predicate or "", its name, and its operands."""

    predicate: str
    name: str
    operands: str

    @property
    def kind(self) -> str:
        """The name without modifiers."""
        return self.name.partition(".")[0]


def parsed(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a listing, and where its labels are."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif match := _INSTRUCTION.match(line):
            instructions.append(Instruction(match[1] or "", match[2], match[3]))
    return instructions, labels


def flow(instructions: Sequence[Instruction], labels: Mapping[str, int]) -> nx.DiGraph:
    """Return the graph of basic blocks, named by their first instruction.

    Attributes of a block are its `last` instruction and `size`. Branches of warps whose
    lanes have parted (BRA.DIV) are left out.
    """
    leaves = {"BRA", "EXIT", "RET", "BSYNC"}
    ends = [i for i, one in enumerate(instructions) if one.kind in leaves]
    starts = sorted({0, *labels.values(), *(i + 1 for i in ends)})
    starts = [x for x in starts if x < len(instructions)]
    graph = nx.DiGraph()
    for start, end in pairwise([*starts, len(instructions)]):
        graph.add_node(start, last=end - 1, size=end - start)
        last = instructions[end - 1]
        target = _BRANCH_TARGET.search(last.operands)
        # A condition is a predicate, or an operand before the target.
        always = not last.predicate and (
            last.kind in {"EXIT", "RET"}
            or (last.kind == "BRA" and last.operands.startswith("`"))
        )
        if last.kind == "BRA" and target and last.name != "BRA.DIV":
            graph.add_edge(start, labels[target[1]])
        if not always and end < len(instructions):
            graph.add_edge(start, end)
    return graph.subgraph({0, *nx.descendants(graph, 0)}).copy()


def natural_loops(graph: nx.DiGraph) -> dict[int, set[int]]:
    """Return the blocks of each loop by its first block."""
    dominators = nx.immediate_dominators(graph, 0)

    def dominates(one: int, other: int) -> bool:
        while other != one and dominators.get(other) not in (None, other):
            other = dominators[other]
        return other == one

    loops_by_start: dict[int, set[int]] = {}
    for back, first in graph.edges:
        if dominates(first, back):
            before = graph.subgraph(set(graph) - {first})
            body = {back, *nx.ancestors(before, back)} if back != first else set()
            loops_by_start.setdefault(first, {first}).update(body)
    return loops_by_start


def fixed_rounds(
    instructions: Sequence[Instruction], graph: nx.DiGraph, own: set[int], first: int
) -> int | None:
    """Return how often a loop with a fixed number of rounds runs; None for others.

    The last block of such a loop compares a counter with a number. The counter starts
    at zero or, if threads share the rounds, below its step. `own` are the blocks of the
    loop that are in no loop inside.
    """

    def inside(blocks: Iterable[int]) -> Iterator[Instruction]:
        for block in blocks:
            yield from instructions[block : graph.nodes[block]["last"] + 1]

    steps = {
        match[1]: int(match[3], 16)
        for one in inside(own)
        if one.kind in {"VIADD", "IADD3", "UIADD3"}
        and (match := _STEP.match(one.operands))
        and match[1] == match[2]
    }
    for back in set(graph.predecessors(first)) & own:
        branch = instructions[graph.nodes[back]["last"]]
        for one in inside([back]):
            match = _COMPARISON.match(one.operands) if "ISETP" in one.kind else None
            if match and match[1] in branch.predicate + branch.operands:
                bound, step = int(match[3], 16), steps.get(match[2], 0)
                if step > 0 and bound > 1:
                    return -(-bound // step)
    return None


def loops(text: str) -> Loop:
    """Return the loops of the kernel in a listing, inside of the kernel itself."""
    instructions, labels = parsed(text)
    graph = flow(instructions, labels)
    loops_by_start = natural_loops(graph)
    # Inner loops first. Each becomes one block of the loops around it.
    weights = {block: graph.nodes[block]["size"] for block in graph}
    blocks = {block: block for block in graph}
    results: dict[int, Loop] = {}

    def joined(body: set[int], first: int | None) -> Loop:
        within = [x for x in sorted(results) if x in body]
        length = _longest_way(graph, body, first, weights, blocks)
        return Loop(length, tuple(results.pop(x) for x in within))

    for first in sorted(loops_by_start, key=lambda x: len(loops_by_start[x])):
        body = loops_by_start[first]
        own = {x for x in body if blocks[x] == x and x not in loops_by_start} | {first}
        rounds = fixed_rounds(instructions, graph, own, first)
        loop = joined(body, first)
        if rounds is None:
            results[first] = loop
        weights[first] = 0 if rounds is None else rounds * loop.instructions
        blocks |= dict.fromkeys(body, first)
    return joined(set(graph), None)


def _longest_way(
    graph: nx.DiGraph,
    body: set[int],
    first: int | None,
    weights: Mapping[int, int],
    blocks: Mapping[int, int],
) -> int:
    """Return the weight of the longest way through blocks, from the first on."""
    joined = nx.DiGraph()
    joined.add_nodes_from({blocks[x] for x in body})
    joined.add_edges_from(
        (blocks[a], blocks[b])
        for a, b in graph.subgraph(body).edges
        if blocks[a] != blocks[b] and b != first
    )
    longest: dict[int, int] = {}
    for block in nx.topological_sort(joined):
        before = (longest[x] for x in joined.predecessors(block))
        longest[block] = weights[block] + max(before, default=0)
    return max(longest.values())
