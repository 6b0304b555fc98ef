"""Measure what a call on NumPy cannot do without, and what parts of it cost.

    python tools/cpu_costs.py              # all three tables, about three minutes
    python tools/cpu_costs.py floors       # calls beside their matrix products alone
    python tools/cpu_costs.py causal       # the price of causality to the last bit
    python tools/cpu_costs.py gradients    # gradients over forward passes

With LINKERN_NUM_THREADS=1 (and OPENBLAS_NUM_THREADS=1) times are those of the
processor, which other programs change less than those of a clock on the wall.
Contestants take turns, and ratios are medians over the rounds: a machine that is slow
for a while is slow for both. Batch 1, 8 heads, K = V = 64, float32 and 4096 tokens
(gradients: 1024), unless a row says otherwise.

floors
    "products" is the same call, on the same blocks and threads, with every function of
    NumPy left out that is no matrix product: no program that asks the same BLAS for
    these products is faster. "rest" leaves the products out as well: Python, threads,
    checks and memory. For decoding, "products" is the one product that reads the
    memories.
causal
    The call over the call that takes all numbers to be finite.
gradients
    `linkern.vjp` and its pullback over the call alone.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np

import linkern
from linkern.bench.machine import this_machine

Call = Callable[[], object]
ROUNDS = 9
# One thread is timed by the processor, which others do not slow down as much.
ALONE = os.environ.get("LINKERN_NUM_THREADS") == "1"
CLOCK = process_time if ALONE else perf_counter
# Modules whose elementwise functions are left out.
KERNELS = ("chunk_linear", "features", "chunk_bwd", "bwd_workspace", "decay")


def inputs_of(
    operator: str, length: int, dim: int = 64, dtype: str = "float32"
) -> dict[str, Any]:
    """Return inputs of an operator with 8 heads."""
    rng = np.random.default_rng(0)
    rows, token = (1, 8, length, dim), (1, 8, length)
    query, key, value = rng.normal(size=(3, *rows))
    inputs = {"query": query, "key": key, "value": value}
    if operator != "linear_attention":
        inputs["key"] = key / np.linalg.norm(key, axis=-1, keepdims=True)
    if operator in ("simple_gla", "gated_delta_rule"):
        inputs["log_decay"] = -abs(rng.normal(size=token)) / 10
    if operator in ("gla", "kda"):
        inputs["log_decay"] = -abs(rng.normal(size=rows)) / 10
    if operator in ("delta_rule", "gated_delta_rule", "kda"):
        inputs["beta"] = rng.uniform(size=token)
    return {name: x.astype(dtype) for name, x in inputs.items()}


def forward(operator: str, *sizes: Any, **options: Any) -> Call:
    """Return a call of an operator."""
    inputs = inputs_of(operator, *sizes)
    return partial(getattr(linkern, operator), **inputs, **options)


def gradient(operator: str, *sizes: Any) -> Call:
    """Return a call of an operator and of its pullback."""
    inputs = inputs_of(operator, *sizes)
    cotangent = np.ones_like(inputs["value"])

    def call() -> object:
        _, pullback = linkern.vjp(getattr(linkern, operator), **inputs)
        return pullback(cotangent)

    return call


def seconds(call: Call) -> float:
    """Return the time of the fastest of three calls."""
    times = []
    for _ in range(3):
        start = CLOCK()
        call()
        times.append(CLOCK() - start)
    return min(times)


def in_turns(calls: Sequence[Call], rounds: int = ROUNDS) -> list[list[float]]:
    """Return the times of each call, round by round."""
    for call in calls:
        call()
    times = [[seconds(call) for call in calls] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over the rounds."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


@contextmanager
def replaced(name: str, value: Any, modules: Sequence[str] = ()) -> Iterator[None]:
    """Replace a global of modules of linkern: those named, or all that have it."""
    places = [
        vars(module)
        for path, module in list(sys.modules.items())
        if path.startswith("linkern") and name in vars(module)
        if not modules or path.rpartition(".")[2] in modules
    ]
    before = [place[name] for place in places]
    for place in places:
        place[name] = value
    try:
        yield
    finally:
        for place, x in zip(places, before, strict=True):
            place[name] = x


def without(call: Call, context: Callable[[], Any]) -> Call:
    """Return a call in a context."""

    def changed() -> object:
        with context():
            return call()

    return changed


class Left:
    """NumPy without its functions that write into arrays, but for those named."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if name == "copyto":
            return lambda *_, **__: None
        if not isinstance(attribute, np.ufunc) or name in self._names:
            return attribute

        def nothing(*args: Any, out: Any = None, **options: Any) -> Any:
            return attribute(*args, **options) if out is None else out

        return nothing


def decoding() -> tuple[Call, Call]:
    """Return a window of 64 sequences, and as many products that read the memories."""
    batch, dim, window = (64, 8), 64, 16
    rng = np.random.default_rng(0)
    token = rng.normal(size=(3, *batch, dim)).astype("float32")
    shape: dict[str, Any] = {"batch_shape": batch, "key_dim": dim, "value_dim": dim}
    decoder = linkern.Decoder(**shape, dtype="float32")
    output = np.empty((*batch, dim), "float32")
    halves = [
        rng.normal(size=(256, rows, dim)).astype("float32") for rows in (dim, 1, dim, 1)
    ]
    memories, queries = halves[::2], halves[1::2]
    results = [np.empty_like(x) for x in queries]
    read = [
        partial(np.matmul, q, m, out=o)
        for q, m, o in zip(queries, memories, results, strict=True)
    ]
    from linkern.decoding.threads import Helpers  # noqa: PLC0415 -- for this one

    helpers = Helpers()

    def steps() -> None:
        for _ in range(window):
            decoder.step(*token, output)

    def reads() -> None:
        for _ in range(window):
            helpers.run(read)

    return steps, reads


def floors() -> Iterator[str]:
    """Yield the table of calls beside their matrix products."""
    yield "| call | call | products | rest | call / products |"
    yield "| --- | --- | --- | --- | --- |"
    one = "linear_attention"
    rows = [(f"causal, {t} tokens", forward(one, t)) for t in (512, 1024, 2048, 4096)]
    rows += [(f"K = V = 32, {t} tokens", forward(one, t, 32)) for t in (1024, 4096)]
    rows += [(f"K = V = 128, {t} tokens", forward(one, t, 128)) for t in (1024, 4096)]
    for t in (512, 4096):
        rows.append((f"float64, {t} tokens", forward(one, t, 64, "float64")))
    rows += [(f"gradient, {t} tokens", gradient(one, t)) for t in (512, 4096)]
    for name, call in rows:
        call()  # loads what is replaced
        products = without(call, partial(replaced, "np", Left("matmul"), KERNELS))
        nothing = without(call, partial(replaced, "np", Left(), KERNELS))
        with np.errstate(all="ignore"):  # what is left out is in no buffer
            times = in_turns([call, products, nothing])
        yield row(name, times)
    steps, reads = decoding()
    times = [[x / 16 for x in column] for column in in_turns([steps, reads])]
    yield row("decoding 64 sequences, a token", times)


def row(name: str, times: list[list[float]]) -> str:
    """Return a row of medians in milliseconds, and the ratio of the first two."""
    cells = [f"{1e3 * statistics.median(column):.2f} ms" for column in times]
    cells += [""] * (3 - len(cells))
    ratio = median_ratio(times[0], times[1])
    return f"| {name} | {' | '.join(cells)} | {ratio:.2f} |"


def causal() -> Iterator[str]:
    """Yield the table of causality to the last bit."""
    yield "| call | library | time | over a call that does not look |"
    yield "| --- | --- | --- | --- |"
    finite = partial(replaced, "all_finite", lambda _: True)
    for operator in ("linear_attention", "gla", "gated_delta_rule"):
        for name, make in (("forward", forward), ("gradient", gradient)):
            call = make(operator, 4096)
            call()
            times = in_turns([call, without(call, finite)])
            yield causal_row(f"{operator}, {name}", "NumPy", times)
    for library, calls in (("PyTorch", torch_calls), ("JAX", jax_calls)):
        for name, make_call in calls().items():
            call = make_call()
            call()
            with finite():
                other = make_call()
                other()  # compiled here, if it is
            times = in_turns([call, without(other, finite)])
            yield causal_row(f"linear_attention, {name}", library, times)


def causal_row(name: str, library: str, times: list[list[float]]) -> str:
    """Return a row of a call and what it takes more."""
    more = 100 * (median_ratio(*times) - 1)
    time = 1e3 * statistics.median(times[0])
    return f"| {name} | {library} | {time:.1f} ms | {more:+.1f} % |"


def torch_calls() -> dict[str, Callable[[], Call]]:
    """Return calls of array code on tensors."""
    import torch  # noqa: PLC0415 -- an extra

    arrays = inputs_of("linear_attention", 4096).values()
    rows = [torch.from_numpy(x) for x in arrays]
    leaves = [x.clone().requires_grad_() for x in rows]

    def run(inputs: Any) -> Any:
        return linkern.linear_attention(*inputs, form="chunkwise").output

    def back() -> object:
        return torch.autograd.grad(run(leaves).sum(), leaves)

    return {"forward": lambda: partial(run, rows), "gradient": lambda: back}


def jax_calls() -> dict[str, Callable[[], Call]]:
    """Return compiled calls of array code on JAX."""
    import jax  # noqa: PLC0415 -- an extra

    rows = [jax.numpy.asarray(x) for x in inputs_of("linear_attention", 4096).values()]

    def compiled(transform: Any) -> Call:
        def total(*inputs: Any) -> Any:
            return linkern.linear_attention(*inputs).output.sum()

        run = jax.jit(transform(total))
        return lambda: jax.block_until_ready(run(*rows))

    return {
        "forward": lambda: compiled(lambda f: f),
        "gradient": lambda: compiled(partial(jax.grad, argnums=(0, 1, 2))),
    }


def gradients() -> Iterator[str]:
    """Yield the table of gradients."""
    yield "| operator | forward | forward and gradient | ratio |"
    yield "| --- | --- | --- | --- |"
    for operator in (
        *("linear_attention", "simple_gla", "gla"),
        *("delta_rule", "gated_delta_rule", "kda"),
    ):
        times = in_turns([gradient(operator, 1024), forward(operator, 1024)])
        back, call = (f"{1e3 * statistics.median(x):.1f} ms" for x in times)
        yield f"| {operator} | {call} | {back} | {median_ratio(*times):.1f} |"


TABLES = {"floors": floors, "causal": causal, "gradients": gradients}


def main() -> None:
    """Write the tables to standard output."""
    names = sys.argv[1:] or list(TABLES)
    timed = "processor" if ALONE else "wall"
    for line in (*this_machine().lines(), f"times by the clock of the {timed}"):
        sys.stdout.write(f"{line}\n")
    for name in names:
        sys.stdout.write(f"\n{name}\n\n")
        for line in TABLES[name]():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
