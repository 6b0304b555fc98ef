"""Measure the error of Mamba-3's kernel in bfloat16, with angles and without.

    PYTHONPATH=mamba_ssm-2.3.2.post1 python tools/mamba3_angles.py

The kernel of mamba-ssm runs by Triton's interpreter on a CPU, for some seconds. Printed
are root mean squares of the error of the output, over those of the output that
`linkern.mamba3` gives in float64 for the same inputs.
"""

import sys

from linkern.testing.target.interpreted import start

start.start()

import torch  # Triton must be told to interpret first

import linkern
from linkern.adapters.mamba import mamba3

TOKENS, CHANNELS, ANGLES = 256, 32, 8


def error(output: torch.Tensor, exact: torch.Tensor) -> str:
    """Return the error in per cent of the exact output."""
    return f"{(output.double() - exact).norm() / exact.norm():.2%}"


def main() -> None:
    """Print the errors."""
    torch.manual_seed(0)
    shape = 1, 2, TOKENS
    inputs = [torch.randn(*shape, n) for n in (*(CHANNELS,) * 3, ANGLES)]
    inputs += [torch.rand(shape), -torch.rand(shape), torch.sigmoid(torch.randn(shape))]
    turned = [x.bfloat16() for x in inputs]
    still = [*turned[:3], torch.zeros_like(turned[3]), *turned[4:]]
    for words, call in (("with angles", turned), ("without", still)):
        exact = linkern.mamba3(*(x.double() for x in call)).output
        kernel, _ = mamba3(*call)
        ours = linkern.mamba3(*call).output
        errors = error(kernel, exact), error(ours, exact)
        sys.stdout.write(f"{words}: mamba-ssm {errors[0]}, linkern {errors[1]}\n")


if __name__ == "__main__":
    main()
