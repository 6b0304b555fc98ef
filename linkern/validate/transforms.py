"""Refusals of transformations of PyTorch that a whole call cannot go through."""

from typing import NoReturn

__all__ = ["no_forward_mode", "something_to_map_over"]


def no_forward_mode() -> NoReturn:
    """Refuse derivatives in forward mode."""
    msg = (
        '`form` must be "chunkwise" or "parallel" for derivatives in forward mode '
        "(`torch.func.jvp`, `jacfwd`, dual tensors) of tensors on a CPU; the other "
        "forms run on NumPy and are differentiated backwards only."
    )
    raise TypeError(msg)


def something_to_map_over() -> NoReturn:
    """Refuse an empty axis under `torch.func.vmap`."""
    msg = (
        "`torch.func.vmap` must map over one entry at least, got an axis of size 0; "
        'pass `form="chunkwise"`.'
    )
    raise ValueError(msg)
