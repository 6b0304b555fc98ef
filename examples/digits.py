"""Two small Transformers learn handwritten digits: linear attention beside softmax.

An image of 8 x 8 pixels is a sequence of 64 tokens, and a model predicts each pixel
from those before it. Training is PyTorch's; all that comes after, evaluation and
decoding as a recurrent network, are the same functions on NumPy arrays. About a minute
on two cores that have nothing else to do:

    python -m pip install '.[examples]' && python examples/digits.py

Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 4.2.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from linkern import transformer

OPERATORS = ("linear_attention", "softmax_attention")
SIDE, PIXELS = 8, 64
LEVELS = 17  # of grey: 0..16
START = LEVELS  # the token before the first pixel

FULL = {"width": 64, "depth": 2, "heads": 4, "steps": 500, "batch": 32, "rate": 2e-2}
QUICK = {"width": 16, "depth": 1, "heads": 2, "steps": 20, "batch": 16, "rate": 2e-2}


def load_images():
    """Return scikit-learn's digits as an integer array (1797, 64)."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 -- the rest runs without

    return load_digits().data.astype(np.int64)


def split(images, seed=0):
    """Return images to train on, to choose settings by, and to report on."""
    order = np.random.default_rng(seed).permutation(len(images))
    test, validation, train = np.split(images[order], [300, 500])
    return {"train": train, "validation": validation, "test": test}


def shifted(images):
    """Return what a model has read when it predicts each pixel: those before it."""
    start = np.full((len(images), 1), START)
    return np.concatenate([start, images[:, :-1]], axis=1)


def forward_bits(model, images):
    """Return the bits of each pixel (N, 64), all tokens of an image at once."""
    return bits_of(transformer.language_model(model, shifted(images)), images)


def decoded_bits(model, images):
    """Return the bits of each pixel (N, 64), predicted before the pixel is read."""
    logits, state = transformer.prefill(model, np.full((len(images), 1), START))
    bits = [bits_of(logits, images[:, 0])]
    for place in range(1, PIXELS):
        logits, state = transformer.decode(model, state, images[:, place - 1])
        bits.append(bits_of(logits, images[:, place]))
    return np.stack(bits, axis=1)


def bits_of(logits, pixels):
    """Return minus the base-2 logarithms of the probabilities of pixels."""
    chosen = np.take_along_axis(log_softmax(logits, axis=-1), pixels[..., None], -1)
    return -chosen[..., 0] / np.log(2)


def must_agree(forward, decoded, bound=1e-3):
    """Raise `ValueError` if two ways to compute the bits of each pixel differ.

    Float32 sums in another order are some 1e-5 bits apart. A model that saw the pixel
    it predicts would be far apart: decoding has no pixels yet that it could show.
    """
    apart = float(np.max(np.abs(forward - decoded)))
    if not apart <= bound:
        msg = (
            "decoding must give each pixel the bits of the forward pass, got "
            f"{apart:.2g} bits apart where {bound:.2g} is allowed; does the model see "
            "the pixel that it predicts?"
        )
        raise ValueError(msg)
    return apart


def frequency_bits(train, images, *, by_position):
    """Return the bits of each pixel for a model that only counts grey levels.

    One more is added to each count, so that no level is impossible.
    """
    counts = np.stack([np.sum(train == level, axis=0) for level in range(LEVELS)])
    if not by_position:
        counts = np.broadcast_to(np.sum(counts, axis=1, keepdims=True), counts.shape)
    frequencies = (counts + 1) / np.sum(counts + 1, axis=0)
    return -np.log2(frequencies[images, np.arange(images.shape[1])])


def mean_and_error(bits):
    """Return the mean over images, and its standard error from their spread."""
    each = np.mean(bits, axis=1)
    return float(np.mean(each)), float(np.std(each, ddof=1) / len(each) ** 0.5)


def train(operator, size, images, seed=0):
    """Return a trained model and its learning curve.

    Both operators begin with the same numbers and see the same batches.
    """
    from training import fit  # noqa: PLC0415 -- PyTorch: the rest runs without

    rng = np.random.default_rng(seed)
    began, curve = time.perf_counter(), []

    def draw():
        batch = images["train"][rng.integers(len(images["train"]), size=size["batch"])]
        return shifted(batch), batch

    def note(step, loss, model):
        validation, _ = mean_and_error(forward_bits(model, images["validation"]))
        seconds = time.perf_counter() - began
        point = {"step": step, "train": loss, "validation": validation}
        curve.append({**point, "seconds": round(seconds, 1)})
        print(
            f"{operator:18} step {step:3} of {size['steps']}: train {loss:.3f}, "
            f"validation {validation:.3f} bits per pixel, {seconds:.0f} s",
            file=sys.stderr,
        )

    start = transformer.LanguageModel.create(
        LEVELS + 1,
        *(size[name] for name in ("width", "depth", "heads")),
        positions="learned",
        max_length=PIXELS,
        operator=operator,
        rng=seed,
    )
    return fit(start, draw, size["steps"], size["rate"], note), curve


def completed(model, images, given, seed=0):
    """Return images whose first `given` pixels are kept and the others drawn."""
    prompts = shifted(images)[:, : given + 1]
    drawn, _ = transformer.generate(model, prompts, PIXELS - given, rng=seed)
    # A model that has learned little may draw the start token: shown as the last level.
    return np.concatenate([images[:, :given], np.minimum(drawn, LEVELS - 1)], axis=1)


def mosaic(rows):
    """Return rows of images, each (N, 64), as one picture; NaN is background."""
    frame = ((0, 0), (1, 1), (1, 1))
    lines = []
    for row in rows:
        images = np.reshape(np.asarray(row, float), (-1, SIDE, SIDE))
        lines.append(np.concatenate(np.pad(images, frame, constant_values=np.nan), 1))
    return np.concatenate(lines)


def draw_picture(path, models, images):
    """Write originals, their upper halves, completions and samples as a PNG."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- the rest runs without

    half = PIXELS // 2
    rows = {"original": images, "given": images.astype(float)}
    rows["given"][:, half:] = np.nan
    for name, given in (("completed", half), ("sampled", 0)):
        for operator, model in models.items():
            label = f"{name}, {operator.partition('_')[0]}"
            rows[label] = completed(model, images, given)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(mosaic(rows.values()), cmap="gray_r", vmin=0, vmax=LEVELS - 1)
    axes.set_facecolor("#dfe8f2")
    middles = (np.arange(len(rows)) + 0.5) * (SIDE + 2) - 0.5
    axes.set_yticks(middles, list(rows))
    axes.set_xticks([])
    axes.tick_params(length=0)
    figure.savefig(path, dpi=110)


def compare(models, images):
    """Print and return the bits per pixel of held-out images."""
    train, test = images["train"], images["test"]
    bits = {
        "uniform": np.full(test.shape, np.log2(LEVELS)),
        "frequencies": frequency_bits(train, test, by_position=False),
        "frequencies by position": frequency_bits(train, test, by_position=True),
    }
    for operator, model in models.items():
        bits[operator] = forward_bits(model, test)
        apart = must_agree(bits[operator], decoded_bits(model, test))
        print(f"{operator}: forward and decoded agree to {apart:.1e} bits")
    linear, softmax = (bits[operator] for operator in OPERATORS)
    bits["linear - softmax"] = linear - softmax
    print(f"\nbits per pixel of {len(test)} held-out images, and of their lower halves")
    found = {}
    for name, each in bits.items():
        mean, error = mean_and_error(each)
        lower, lower_error = mean_and_error(each[:, PIXELS // 2 :])
        found[name] = {"mean": mean, "error": error, "lower half": lower}
        print(f"  {name:24}{mean:7.3f} ± {error:.3f} {lower:8.3f} ± {lower_error:.3f}")
    return found


def main(arguments=None):
    """Train or load both models, compare them, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("digits-out"), help="folder")
    parser.add_argument(
        "--load", type=Path, help="folder of an earlier run: no training"
    )
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps")
    given = parser.parse_args(arguments)
    size = {**(QUICK if given.quick else FULL)}
    size["steps"] = given.steps or size["steps"]
    images = split(load_images())
    if given.quick:
        images = {name: part[:50] for name, part in images.items()}

    given.out.mkdir(parents=True, exist_ok=True)
    models, curves = {}, {}
    for operator in OPERATORS:
        file = f"{operator}.safetensors"
        if given.load:
            models[operator] = transformer.load(given.load / file)
            continue
        models[operator], curves[operator] = train(operator, size, images, given.seed)
        transformer.save(given.out / file, models[operator])
    settings = {**size, "seed": given.seed}
    results = {"settings": settings, "bits": compare(models, images), "curves": curves}
    (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw_picture(given.out / "digits.png", models, images["test"][:10])
    print(f"\nwritten to {given.out}")


if __name__ == "__main__":
    main()
