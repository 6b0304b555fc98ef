"""Gradients of a row of the recurrence that read the memory at another time.

A row decays the memory, erases from it and writes to it. The gradient of each operand
is formed with the memory at one of these times, and a backward pass may hold another.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from linkern.oracle.calls import Call
from linkern.oracle.tape import Node
from linkern.testing.diagnosis.alternatives.changes import Change
from linkern.testing.diagnosis.alternatives.programs import with_program
from linkern.testing.problems.expected import OracleCall

__all__ = ["row_memories"]

# Words for the memory that the gradient of an operand reads, if it is right.
READ = {
    "log_decay": "the decayed one",
    "erase": "the one that is erased from",
    "query": "the one that is read",
}
# Words for a memory by its name in the oracle's adjoint, in the order of trying.
TIMES = {
    "token": "after the token's write",
    "after": "after the first of the token's writes",
    "decayed": "after the decay",
    "before": "before the decay",
}


def row_memories(call: OracleCall) -> Iterator[tuple[str, str, Change]]:
    """Yield changes of calls whose gradients read the memory at another time.

    Parameters
    ----------
    call : OracleCall
        A call of the operator that gradients are of.

    Yields
    ------
    words : str
        What is read in place of what.
    operand : str
        The operand of the recurrence whose gradient reads it.
    change : callable
        Returns the changed call.
    """
    times = dict(TIMES)
    if call.operator.micro_steps:
        times["after"] = "after the micro-step"
    elif call.operator.rows_per_token > 1:
        times["after"] = "after the erase"
    for operand, right in READ.items():
        for time, words in times.items():
            text = f"the memory {words} in place of {right}"
            yield text, operand, partial(_reading, operand, time)


def _reading(operand: str, time: str, call: OracleCall) -> OracleCall:
    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        reads = {**one.tape.adjoint_reads, operand: time}
        tape = replace(one.tape, adjoint_reads=reads)
        return call.operator.program(replace(one, tape=tape))

    return with_program(call, program)
