"""Gradients in place of others are named, and nothing else is."""

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest

from linkern.testing.diagnosis.alternatives.other_gradients import other_gradient
from linkern.testing.diagnosis.alternatives.other_states import of_other_states
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.replacements import replacements
from linkern.testing.diagnosis.alternatives.row_memories import row_memories
from linkern.testing.diagnosis.factors.factor import holds
from linkern.testing.diagnosis.localising import localise
from linkern.testing.influence.gradient_maps import gradient_maps
from linkern.testing.influence.gradient_scenes import every_row, one_pair, one_row
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import gradient_without
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import Reply

DENOMINATOR = "its part through the denominator"
AFTER_WRITE = "that with the memory after the token's write in place of the one that"
ERASE, WRITE = "its part through what an erase reads", "its part through the key that"


def of_tokens(operator: Any) -> bool:
    """Return True if tokens of an operator are calls, whatever their position."""
    return operator.causal and not any("l" in axes for axes in operator.state)


def maps_of(
    op: str,
    name: str,
    change: Any,
    *,
    batch: int = 1,
    lengths: tuple[int, int] = (41, 42),
    **declared: Any,
) -> list[InfluenceMap]:
    """Return maps of one gradient after a change, as if a target had made them."""
    scope, maps = Scope(OPERATORS[op], Contract(**declared), "float64"), []
    has_tokens = bool({*"ts"} & {*scope.operator.input(name).axes})
    scene = every_row if name in scope.linear else one_pair
    for seed, length in enumerate(lengths, 1):
        rng = np.random.default_rng(seed)
        if has_tokens:
            problem = scene(scope, (batch, 8, length, 5, 5), rng)
        else:
            problem = one_row(scope, (3, 8, length, 5, 5), "open", rng)
        exact = {n: x.output for n, x in problem.solve_gradients().items()}
        gradients = tuple((exact | {name: change(problem)}).values())
        dtypes = ("float64",) * len(gradients)
        reply = Reply(None, "", "numpy", (), (), gradients=gradients)
        made = gradient_maps(problem, replace(reply, gradient_dtypes=dtypes))
        maps += [one for one in made if one.tensor == f"gradient of {name}"]
    return maps


def without(name: str, part: str) -> Any:
    return lambda problem: gradient_without(
        problem.oracle_call, name, problem.cotangent, part
    )


@pytest.mark.parametrize(
    ("op", "name", "part", "words"),
    [
        ("delta_rule", "key", "erase", ERASE),
        ("delta_rule", "key", "key", WRITE),
        ("gated_delta_rule", "key", "erase", ERASE),
        ("kda", "key", "key", WRITE),
        ("rwkv7", "removal_key", "erase", ERASE),
        ("rwkv7", "removal_key", "key", WRITE),
        ("mlstm", "key", "denominator", DENOMINATOR),
        ("mlstm", "input_gate", "denominator", DENOMINATOR),
        ("gsa", "key", "denominator", DENOMINATOR),
        ("mesa", "key", "rows", "its part through the rows of the sums that are kept"),
        ("mesa", "key", "value", "its part through the value that is written"),
        ("abc", "slots", "sums", "its part through the sums of weights"),
    ],
)
def test_a_part_that_is_lost_is_named(
    op: str, name: str, part: str, words: str
) -> None:
    maps = maps_of(op, name, without(name, part))
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text.startswith(words)


def of_carried_memory(problem: Any, *, written: bool = False) -> Any:
    """Return gradients of log-decays by the memory that is carried on alone.

    That is the inner product of the memory after a decay, and of the gradient of the
    memory after the token: it lacks that an erase reads the decayed memory. If that is
    the memory after the write, there is a product of what is written as well.
    """
    x = {name: y.astype(np.float64) for name, y in problem.inputs.items()}
    groups = problem.shape.groups
    query, key = (np.repeat(x[name], groups, axis=1) for name in ("query", "key"))
    gradients = np.empty_like(x["log_decay"])
    for b, h in np.ndindex(gradients.shape[:2]):
        q, k, v, g, beta, d = (
            y[b, h]
            for y in (
                *(query, key, x["value"], x["log_decay"], x["beta"]),
                problem.cotangent,
            )
        )
        memory, decayed = np.zeros((k.shape[-1], v.shape[-1])), []
        decays = np.exp(g).reshape(len(g), -1, 1)
        for t in range(len(g)):
            decayed.append(decays[t] * memory)
            u = beta[t] * (v[t] - k[t] @ decayed[t])
            memory = decayed[t] + np.outer(k[t], u)
            if written:
                decayed[t] = memory
        carried = np.zeros_like(memory)
        for t in reversed(range(len(g))):
            carried = carried + np.outer(q[t], d[t]) * k.shape[-1] ** -0.5
            share = (carried * decayed[t]).sum(axis=-1)
            gradients[b, h, t] = share if g.ndim == 2 else share.sum()
            carried -= np.outer(beta[t] * k[t], k[t] @ carried)
            carried *= decays[t]
    return gradients


@pytest.mark.parametrize("op", ["gated_delta_rule", "kda"])
@pytest.mark.parametrize("groups", [False, True])
def test_a_decay_that_is_missing_in_what_an_erase_reads_is_named(
    op: str, groups: bool
) -> None:
    declared = {"value_groups": True} if groups else {}
    maps = maps_of(op, "log_decay", of_carried_memory, **declared)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert (factor.kind, factor.text) == ("partial", ERASE)
    assert all(holds(factor, one, ~one.silent) for one in maps)


def test_a_factor_of_one_part_is_named() -> None:
    """RWKV-7 writes the removal key times its rate: that factor is left out."""

    def changed(problem: Any) -> Any:
        exact = problem.solve_gradients()["removal_key"].output
        rest = without("removal_key", "key")(problem)
        return rest + (exact - rest) / problem.inputs["removal_rate"]

    maps = maps_of("rwkv7", "removal_key", changed)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.kind == "in a part"
    assert factor.text == f"1 / removal_rate[source] in {WRITE} is written"
    assert all(holds(factor, one, ~one.silent) for one in maps)


def of_whole_chunks(problem: Any) -> Any:
    kept = problem.cotangent.copy()
    kept[:, :, problem.length // 16 * 16 :] = 0
    return replace(problem, cotangent=kept).solve_gradients()["bonus"].output


def test_rows_that_a_sum_lacks_are_those_of_each_length() -> None:
    """There are 32 of them in one call, and 48 in the other."""
    maps = maps_of("rwkv6", "bonus", of_whole_chunks, lengths=(41, 60))
    factor = other_gradient(maps)
    assert factor is not None
    assert factor.text == "that of the whole chunks of 16 rows alone"
    assert all(holds(factor, one, ~one.silent) for one in maps)


@pytest.mark.parametrize(("words", "entry"), [("first", 0), ("last", -1)])
def test_a_sum_of_one_batch_entry_is_named(words: str, entry: int) -> None:
    def changed(problem: Any) -> Any:
        kept = np.zeros_like(problem.cotangent)
        kept[entry] = problem.cotangent[entry]
        return replace(problem, cotangent=kept).solve_gradients()["bonus"].output

    maps = maps_of("rwkv6", "bonus", changed)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == f"that of the {words} batch entry"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("its sum over heads h of values with the same h % H", None),
        ("that of the first head of every group", 0),
        ("that of the last head of every group", -1),
    ],
)
def test_a_sum_over_other_heads_than_a_group_is_named(
    words: str, kept: int | None
) -> None:
    def changed(problem: Any) -> Any:
        inputs, shape = problem.inputs, problem.shape
        repeated = (np.repeat(inputs[x], shape.groups, 1) for x in ("query", "key"))
        query, key = repeated
        alone = problem.with_inputs(query=query, key=key).solve_gradients()
        every = alone["query"].output
        if kept is None:
            return sum(np.split(every, shape.groups, axis=1))
        groups = every.reshape(1, shape.heads, shape.groups, *every.shape[2:])
        return groups[:, :, kept]

    maps = maps_of("simple_gla", "query", changed, value_groups=True)
    assert maps[0].problem.shape.groups > 1
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert (factor.kind, factor.text) == ("instead", words)


def test_a_part_that_is_lost_is_no_factor_of_some_entries() -> None:
    """With keys of one channel each, the lost part is a multiple of the rest."""
    first, second = maps_of("gated_delta_rule", "log_decay", of_carried_memory)
    finding = localise([first], lambda: [second])
    assert finding.words == ("everywhere", ERASE)


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("first 16 rows", np.s_[:16]),
        ("last chunk of 16 rows", np.s_[32:]),
        ("whole chunks of 16 rows", np.s_[:32]),
    ],
)
def test_a_sum_over_some_chunks_alone_is_named(words: str, rows: slice) -> None:
    def changed(problem: Any) -> Any:
        kept = np.zeros_like(problem.cotangent)
        kept[:, :, rows] = problem.cotangent[:, :, rows]
        return replace(problem, cotangent=kept).solve_gradients()["bonus"].output

    maps = maps_of("rwkv6", "bonus", changed)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == f"that of the {words} alone"


def test_a_residual_after_the_update_is_a_factor_of_the_gradient_of_the_rate() -> None:
    def changed(problem: Any) -> Any:
        beta, key = (problem.inputs[name] for name in ("beta", "key"))
        exact = problem.solve_gradients()["beta"].output
        return exact * (1 - beta * np.square(key).sum(axis=-1))

    first, second = maps_of("delta_rule", "beta", changed)
    finding = localise([first], lambda: [second])
    factor = "(1 - sum of beta key^2 over channels)[source]"
    assert finding.words == ("everywhere", factor)


def test_a_read_of_the_memory_after_the_write_is_named() -> None:
    """The residual of a token is read with its key from the memory after it."""

    def changed(problem: Any) -> Any:
        exact = {n: x.output for n, x in problem.solve_gradients().items()}
        rate = np.square(problem.inputs["beta"]) * exact["beta"]
        return exact["key"] - rate[..., None] * problem.inputs["key"]

    first, second = maps_of("delta_rule", "key", changed)
    place, factor = localise([first], lambda: [second]).words
    assert (place, factor) == (
        "everywhere",
        f"{AFTER_WRITE} is erased from, in {ERASE}",
    )


def test_numbers_in_place_of_zeros_round() -> None:
    """A removal key has no gradient in some rows, but has one by another memory."""

    def changed(problem: Any) -> Any:
        every = of_other_states(problem, "removal_key", ["erase"])
        after = next(x for words, part, x in every if part and "after it" in words)
        return after(problem, "removal_key").output * (1 + 2.0**-50)

    maps = maps_of("rwkv7", "removal_key", changed)
    assert any((one.wrong & (one.exact == 0)).any() for one in maps)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == f"{AFTER_WRITE} is erased from, in {ERASE}"


def of_written_memory(problem: Any) -> Any:
    """Return gradients of steps whose decays are differentiated by the memory after."""
    x = {name: y.astype(np.float64) for name, y in problem.inputs.items()}
    gradients = problem.solve_gradients()["dt"].output.copy()
    rate = np.swapaxes(x["log_decay_rate"], -1, -2)
    written = x["key"][..., None] * (x["dt"] * x["value"])[..., None, :]
    carried = np.zeros_like(written[:, :, 0])
    for t in reversed(range(problem.length)):
        read = x["query"][:, :, t, :, None] * problem.cotangent[:, :, t, None, :]
        carried = carried + problem.oracle_call.scale * read
        gradients[:, :, t] += (carried * written[:, :, t] * rate).sum(axis=-2)
        carried = carried * np.exp(x["dt"][:, :, t, None, :] * rate)
    return gradients


def test_a_memory_after_the_write_is_named_where_a_step_makes_the_decay() -> None:
    """It is in the part through the decay alone: a step is a factor of writes, too."""
    maps = maps_of("selective_scan", "dt", of_written_memory, batch=4)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    decay = "that with the memory after the token's write in place of the decayed one"
    assert factor.text == f"{decay}, in its part through the decay"
    assert all(holds(factor, one, ~one.silent) for one in maps)


@pytest.mark.parametrize("op", [x for x, y in OPERATORS.items() if y.causal])
def test_gradients_change_with_the_memory_that_is_read(op: str) -> None:
    """Operands that an operator has none of stay as they are, and all others do not."""
    scope = Scope(OPERATORS[op], Contract(), "float64")
    problem = every_row(scope, (1, 8, 9, 4, 3), np.random.default_rng(3))
    call, cotangent = problem.oracle_call, problem.cotangent.astype(np.float64)

    def gradients(asked: Any) -> Any:
        made = asked.operator.gradients(
            asked.meant, cotangent, asked.scale, options=asked.options()
        )
        return {name: x for name, x in made.items() if name != "initial_state"}

    exact = gradients(call)
    moved = {
        operand
        for _, operand, change in row_memories(call)
        for name, x in gradients(change(call)).items()
        if not np.allclose(x, exact[name])
    }
    erases = {"erase"} if scope.operator.erases else set()
    decays = {"log_decay"} if any("decay" in name for name in call.meant) else set()
    assert erases | decays <= moved <= {"query", *erases, *decays, "log_decay"}


def test_a_gradient_of_decays_by_the_memory_after_the_write_is_named() -> None:
    """A saved tensor is read that holds the memory after the token, not before it."""
    changed = partial(of_carried_memory, written=True)
    maps = maps_of("gated_delta_rule", "log_decay", changed, batch=2)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    product = "value times the gradient of value, summed over channels"
    assert factor.text == f"its sum with {product}"
    assert all(holds(factor, one, ~one.silent) for one in maps)


def in_meanings(problem: Any) -> tuple[Any, Any]:
    """Return gradients of normalised keys and of rates, and the norms of keys."""
    x = {name: y.astype(np.float64) for name, y in problem.inputs.items()}
    norms = {n: np.linalg.norm(x[n], axis=-1, keepdims=True) for n in ("query", "key")}
    inputs = {n: x[n] / norm for n, norm in norms.items()}
    inputs["beta"] = 1 / (1 + np.exp(-x["beta"]))
    scope = replace(problem.scope, contract=Contract())
    meant = replace(problem, scope=scope).with_inputs(**inputs)
    return meant.solve_gradients(), norms["key"]


@pytest.mark.parametrize(
    ("name", "text", "change"),
    [
        (
            "key",
            "that with the norm of key as a constant",
            lambda gradients, norm: gradients["key"].output / norm,
        ),
        (
            "key",
            "that of the normalised key",
            lambda gradients, _: gradients["key"].output,
        ),
        (
            "beta",
            "that of what beta means, without the derivative of its form",
            lambda gradients, _: gradients["beta"].output,
        ),
    ],
)
def test_gradients_of_what_inputs_mean_are_named(
    name: str, text: str, change: Any
) -> None:
    def changed(problem: Any) -> Any:
        return change(*in_meanings(problem))

    maps = maps_of("delta_rule", name, changed, l2norm=0.0, beta_form="sigmoid")
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == text
    assert all(holds(factor, one, ~one.silent) for one in maps)


def test_a_memory_at_the_end_of_a_chunk_is_named() -> None:
    """The gradient of a decay is the memory before it, times what comes back to it."""

    def changed(problem: Any) -> Any:
        chunk, length = 16, problem.length
        gradients = problem.solve_gradients()["log_decay"].output.copy()
        for first in range(0, length, chunk):
            end = problem.prefix(min(first + chunk, length)).solve_state()[0].output
            rest = replace(
                problem.span(first, length), cotangent=problem.cotangent[:, :, first:]
            )
            call = rest.oracle_call
            [back] = call.operator.gradients(
                call.meant, rest.cotangent, call.scale, options=call.options()
            )["initial_state"]
            gradients[:, :, first] = (back * end).sum(-1)
        return gradients

    maps = maps_of("gla", "log_decay", changed)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    memory = "that with the memory after its chunk of 16 in place of before the token"
    assert factor.text == memory


@pytest.mark.parametrize("op", [x for x, y in OPERATORS.items() if of_tokens(y)])
def test_another_memory_is_that_of_the_token_where_its_chunk_begins(op: str) -> None:
    """Calls of single tokens have the gradients of the whole, if nothing is changed."""
    scope = Scope(OPERATORS[op], Contract(), "float64")
    problem = every_row(scope, (2, 2, 18, 4, 3), np.random.default_rng(1))
    exact, changed = problem.solve_gradients(), False
    for name in problem.inputs:
        made = {words: x for words, part, x in of_other_states(problem, name, [])}
        one = problem.scope.operator.input(name)
        if not one.per_token:
            assert not made
            continue
        chunk = "with the memory before its chunk of 16 in place of before the token"
        other, own = made[chunk](problem, name).output, exact[name].output
        each = own.shape[one.token_axis] // problem.length
        by_token = (np.moveaxis(x, one.token_axis, 0) for x in (other, own))
        other, own = (x.reshape(-1, each, x[0].size) for x in by_token)
        same = {"rtol": 1e-9, "atol": 1e-9 * abs(own).max()}
        np.testing.assert_allclose(other[[0, 16]], own[[0, 16]], **same)
        changed |= not np.allclose(other, own, **same)
    assert changed


@pytest.mark.parametrize(
    ("op", "name", "change", "words"),
    [
        ("gla", "query", lambda x: x["key"], "the gradient of key"),
        (
            "simple_gla",
            "log_decay",
            lambda x: 0 * x["log_decay"] + x["log_decay"].sum(1, keepdims=True),
            "its sum over heads",
        ),
        (
            "linear_attention",
            "key",
            lambda x: 0 * x["key"] + x["key"].mean(1, keepdims=True),
            "its mean over heads",
        ),
    ],
)
def test_a_gradient_in_place_of_another_is_named(
    op: str, name: str, change: Any, words: str
) -> None:
    def changed(problem: Any) -> Any:
        exact = problem.solve_gradients()
        return change({n: x.output for n, x in exact.items()})

    factor = other_gradient([x for x in maps_of(op, name, changed) if x.wrong.any()])
    assert factor is not None
    assert factor.text == words


def of_other_call(name: str, text: str) -> Any:
    """Return the gradient of an input in a call of the oracle after a change."""

    def changed(problem: Any) -> Any:
        call = problem.oracle_call
        every = dict(chain(replacements(call), other_parts(call)))
        return gradient_without(every[text](call), name, problem.cotangent, "")

    return changed


@pytest.mark.parametrize(
    ("op", "name", "text"),
    [
        (
            "gated_delta_rule",
            "value",
            "log_decay of the next token in place of log_decay",
        ),
        ("gated_delta_rule", "key", "beta of head 0 in place of beta"),
        ("kda", "key", "key of the token before in place of key in the erase"),
        ("mlstm", "key", "0 in place of log_decay in the denominator"),
    ],
)
def test_the_gradient_with_another_input_is_named(
    op: str, name: str, text: str
) -> None:
    maps = maps_of(op, name, of_other_call(name, text))
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == f"that with {text}"


def test_parts_are_those_of_keys_that_the_target_normalises() -> None:
    maps = maps_of("delta_rule", "key", without("key", "erase"), l2norm=1e-6)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert factor is not None
    assert factor.text == ERASE


@pytest.mark.parametrize(("power", "kind"), [(1.0, "in a part"), (1.5, None)])
def test_nothing_is_said_of_gradients_that_are_wrong_in_another_way(
    power: float, kind: str | None
) -> None:
    """Half of a part is a factor of it; a power of it is none."""

    def changed(problem: Any) -> Any:
        rest = gradient_without(problem.oracle_call, "key", problem.cotangent, "erase")
        part = problem.solve_gradients()["key"].output - rest
        return rest + np.sign(part) * abs(part) ** power / 2

    maps = maps_of("delta_rule", "key", changed)
    factor = other_gradient([one for one in maps if one.wrong.any()])
    assert (None if factor is None else factor.kind) == kind


def test_a_lost_part_is_said_everywhere() -> None:
    first, second = maps_of("delta_rule", "key", without("key", "erase"))
    finding = localise([first], lambda: [second])
    assert finding.words == ("everywhere", ERASE)
