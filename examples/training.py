"""How the examples train: parameters on NumPy in, a PyTorch optimiser, NumPy out."""

import numpy as np
import torch

from linkern import transformer

__all__ = ["fit"]


def fit(model, draw, steps, rate, at_step, every=50):
    """Minimise the cross entropy of a model's predictions, and return the model.

    Parameters
    ----------
    model : LanguageModel
        Initial parameters, on NumPy; they stay as they are.
    draw : callable
        Returns the next batch: tokens that are read (N, T), and tokens that are to be
        predicted. Of these there may be fewer: then the last predictions count.
    steps : int
        How many batches.
    rate : float
        The largest learning rate: a tenth of the steps warm up to it, the others fall
        from it along a cosine.
    at_step : callable
        Called every `every` steps with the number of the step, the mean loss in bits
        per token since the last call, and the model. If it returns True, training ends.
    every : int
        See `at_step`.

    Returns
    -------
    LanguageModel
        Trained parameters, on NumPy.
    """
    start = transformer.named_arrays(model)
    weights = {name: torch.tensor(x, requires_grad=True) for name, x in start.items()}
    trained = transformer.with_arrays(model, weights)
    optimiser = torch.optim.AdamW(
        weights.values(), rate, betas=(0.9, 0.99), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False
    )
    losses = []
    for step in range(1, steps + 1):
        tokens, targets = map(torch.asarray, draw())
        logits = transformer.language_model(trained, tokens)[:, -targets.shape[1] :]
        loss = torch.nn.functional.cross_entropy(logits.mT, targets) / np.log(2)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if step % every == 0 or step == steps:
            mean, losses = float(np.mean(losses)), []
            if at_step(step, mean, _on_numpy(trained)):
                break
    return _on_numpy(trained)


def _on_numpy(model):
    arrays = transformer.named_arrays(model)
    copies = {name: x.detach().numpy().copy() for name, x in arrays.items()}
    return transformer.with_arrays(model, copies)
