"""Clip factors, and the grid on which clipped gradients are added: see gradients.py for what this is part of.

A clipped gradient is rounded to whole steps of a grid that is fixed by C: C is 2^30 steps, or up to twice that. Whole
numbers of steps are added exactly, in whatever order and chunks.

    >>> grid_of(1.0) == 2.0**-30, grid_of(0.75) == 2.0**-31
    (True, True)
    >>> clip_factors(torch.tensor([0.5, 2.0, math.inf]), clip_norm=1.0)
    tensor([1.0737e+09, 5.3682e+08, 0.0000e+00])
    >>> whole_sum(torch.tensor([[2.0**30], [1.25], [0.25]]))
    tensor([1.0737e+09], dtype=torch.float64)
"""

import math

import torch

GRID_BITS = 30  # C is 2^30 grid steps, or up to twice that
MARGIN = 1e-4  # of C, kept free for the rounding errors of norms: see gradients.py, unit_gradients.py and factored.py
RUN = 1024  # squares that are added in float32
HIGH = 1.5 * 2.0**35  # a float32 that is added to this, and loses it again, is rounded to 2^12
TOGETHER = 32  # numbers below 2^31, in multiples of 2^12, that float32 adds exactly


def grid_of(clip_norm: float) -> float:
    """A power of two, so that scaling by it is exact."""
    return 2.0 ** (math.floor(math.log2(clip_norm)) - GRID_BITS)


def clip_factors(norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """(units,): what brings a gradient of each norm to at most C, in grid steps; zero for one that is not finite."""
    factors = torch.clamp((1 - MARGIN) * clip_norm / norms, max=1.0) / grid_of(clip_norm)
    return torch.where(norms.isfinite(), factors, 0.0).float()


def whole_sum(scaled: torch.Tensor) -> torch.Tensor:
    """The sum over units (the first dimension) of what is rounded to whole numbers first, in float64.

    Each number, of at most 2^31, is split in two: a multiple of 2^12, and what is left, below 2^12, which is rounded.
    Float32 adds 32 of the first and 2^12 of the second without any error. That is three times as fast here as to
    truncate, and to add in float64. `scaled` is used up. Beyond 2^32, which no clipped number is, the sum is rounded.
    """
    if scaled.dtype == torch.float64:
        exact: torch.Tensor = scaled.round_().sum(0)
        return exact
    high = (scaled + HIGH).sub_(HIGH)
    low = scaled.sub_(high).round_()
    total = torch.zeros(scaled.shape[1:], dtype=torch.float64, device=scaled.device)
    for first in range(0, len(scaled), TOGETHER):
        total += high[first : first + TOGETHER].sum(0)
        total += low[first : first + TOGETHER].sum(0)
    return total


def square(flat: torch.Tensor) -> torch.Tensor:
    """(units,): squared norms. On a CPU short runs are added in the gradient's own precision, and those in float64.

    On a GPU all of it is added in float64.

    A run of 1,024 float32 squares is wrong by at most 1,025 * 2^-24 = 6e-5 of it, in whatever order it is added; the
    norm by half of that, 3e-5.
    """
    if flat.device.type != "cpu":
        norms: torch.Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
        return norms.square()
    flat = flat.float() if flat.dtype == torch.bfloat16 else flat
    whole = flat.shape[1] // RUN * RUN
    runs: torch.Tensor = torch.linalg.vector_norm(flat[:, :whole].reshape(len(flat), -1, RUN), dim=2)
    rest: torch.Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1, dtype=torch.float64)
    return runs.double().square().sum(1) + rest.square()
