"""A Transformer learns to copy: linear attention beside softmax, loss by step.

A sequence is `0 w 0 w`, where w are random symbols 1..10; the second w is to be
predicted. How much is copied is asked of the model as a recurrent network: it reads
`0 w 0` and writes the rest. Some 15 seconds on two cores:

    python -m pip install '.[torch]' && python examples/copy_task.py

`--length 63` gives sequences of 128 tokens, as in the paper, and takes 40 seconds.
Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 4.1.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from linkern import transformer

OPERATORS = ("linear_attention", "softmax_attention")
SEPARATOR, SYMBOLS = 0, 10
BATCH, RATE = 32, 1e-2
ENOUGH = 0.99  # of the symbols of a fresh batch


def draw_sequences(rng, count, length):
    """Return sequences ``0 w 0 w`` (count, 2 length + 2), w being `length` symbols."""
    word = rng.integers(1, SYMBOLS + 1, size=(count, length))
    separator = np.full((count, 1), SEPARATOR)
    return np.concatenate([separator, word, separator, word], axis=1)


def task(sequences):
    """Return what is read, and what is to be predicted at its end: the second w."""
    length = sequences.shape[1] // 2 - 1
    return sequences[:, :-1], sequences[:, -length:]


def copied(model, sequences):
    """Return which share of the second w a model writes after reading ``0 w 0``."""
    _, word = task(sequences)
    length = word.shape[1]
    written, _ = transformer.generate(
        model, sequences[:, :-length], length, temperature=0
    )
    return float(np.mean(written == word))


def train(operator, length, steps, every=25, seed=0):
    """Return a model, and its loss and how much it copies by step, up to `ENOUGH`."""
    from training import fit  # noqa: PLC0415 -- PyTorch: the rest runs without

    rng = np.random.default_rng(seed)
    began, curve = time.perf_counter(), []

    def draw():
        return task(draw_sequences(rng, BATCH, length))

    def note(step, loss, model):
        share = copied(model, draw_sequences(rng, 64, length))
        seconds = round(time.perf_counter() - began, 1)
        curve.append({"step": step, "loss": loss, "copied": share, "seconds": seconds})
        print(
            f"{operator:18} step {step:4}: {loss:.3f} bits per symbol, {share:6.1%} "
            f"copied, {seconds:.0f} s",
            file=sys.stderr,
        )
        return share >= ENOUGH

    start = transformer.LanguageModel.create(
        SYMBOLS + 1,
        width=64,
        depth=1,
        heads=4,
        positions="learned",
        max_length=2 * length + 1,
        operator=operator,
        rng=seed,
    )
    return fit(start, draw, steps, RATE, note, every), curve


def table(curves, rows=12):
    """Return the curves as text: loss in bits per symbol, and the share copied."""
    names = list(curves)
    lines = ["step".rjust(6) + "".join(name.rjust(26) for name in names)]
    at = [{point["step"]: point for point in curves[name]} for name in names]
    steps = sorted(set().union(*at))
    stride = max(1, len(steps) // rows)
    ends = {max(points) for points in at}
    for step in sorted(ends | set(steps[::stride])):
        cells = ""
        for points in at:
            here = points.get(step)
            text = f"{here['loss']:.3f} bits, {here['copied']:5.1%}" if here else ""
            cells += text.rjust(26)
        lines.append(f"{step:6}{cells}")
    return "\n".join(lines)


def converged(curve):
    """Return the number of the step at which enough is copied; None if at none."""
    return next((p["step"] for p in curve if p["copied"] >= ENOUGH), None)


def main(arguments=None):
    """Train both operators on the same sequences, and print how fast they learn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("copy-task-out"), help="folder"
    )
    parser.add_argument("--length", type=int, default=31, help="symbols in w")
    parser.add_argument("--steps", type=int, default=600, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of weights and sequences")
    given = parser.parse_args(arguments)
    curves = {}
    for operator in OPERATORS:
        _, curves[operator] = train(
            operator, given.length, given.steps, seed=given.seed
        )
    print(table(curves))
    for operator, curve in curves.items():
        step, seconds = converged(curve), curve[-1]["seconds"]
        when = f"after {step} steps" if step else f"not in {given.steps} steps"
        print(f"{operator}: {ENOUGH:.0%} copied {when}, {seconds:.0f} s")
    given.out.mkdir(parents=True, exist_ok=True)
    settings = {"length": given.length, "seed": given.seed, "batch": BATCH}
    results = {"settings": settings, "curves": curves}
    (given.out / "copy-task.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
