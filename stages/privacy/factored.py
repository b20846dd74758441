"""Clipped sums for matrices on fixed inputs, without the gradient of any unit.

Where the trained parameters are matrices W applied to inputs X that no parameter moves (a projection on a frozen
tower), the gradient of a unit is X^T D, with D = d loss / d (X W) of its records. Then

    || X^T D ||_F^2 = sum of (X X^T) * (D D^T)         inner products between the unit's records only
    sum over units of c_u X_u^T D_u = X^T (c D)        one product for all units, whatever their number

which is exact, and takes the memory of a batch instead of that of a gradient for each unit. It is done in float64: the
rounding errors of a sum of b clipped gradients are below b * 2^-50 C, and the sum is then rounded to the grid of
gradients.py, which moves each coordinate by at most half a step. Both are far inside that module's MARGIN.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.func import grad_and_value, vmap

from stages.privacy.gradients import (
    MARGIN,
    Diagnostics,
    Objective,
    Parameters,
    Records,
    chunks,
    grid_of,
    members_of,
    take,
)


@dataclass(frozen=True)
class Factor:
    """One trained matrix."""

    inputs: str  # the records' key of X: (b, inputs)
    probe: str  # a parameter of the objective's model that is added to X W, and is zero: its derivative is D
    transposed: bool  # whether the parameter is kept as (outputs, inputs)


class LinearObjective(Objective, Protocol):
    factors: Mapping[str, Factor]  # by the name of the parameter


def clipped_sum(
    objective: LinearObjective,
    parameters: Parameters,
    records: Records,
    units: np.ndarray,
    clip_norm: float,
    at_once: int,
) -> tuple[list[torch.Tensor], Diagnostics]:
    """As gradients.clipped_sum: sum over units of g * min(1, C / ||g||), in steps of the grid."""
    figures = Diagnostics(len(units), [], [])
    values = {name: p.detach() for name, p in parameters.items()}
    factors = {name: objective.factors[name] for name in parameters}
    totals = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in values.items()}
    for members, present in chunks(members_of(units), at_once):
        chunk = take(records, members)
        D, losses = _output_gradients(objective, values, factors, chunk, present)
        X = {name: chunk[f.inputs].double() for name, f in factors.items()}
        norms = sum(((X[n] @ X[n].mT) * (D[n] @ D[n].mT)).sum((1, 2)) for n in factors).clamp(min=0).sqrt()
        figures.norms += norms.tolist()
        figures.losses += losses.tolist()
        finite = norms.isfinite()
        scale = torch.where(finite, torch.clamp((1 - MARGIN) * clip_norm / norms, max=1.0), 0.0)
        for name, factor in factors.items():
            X[name][~finite], D[name][~finite] = 0.0, 0.0  # 0 * NaN is NaN
            clipped = X[name].flatten(0, 1).T @ (scale[:, None, None] * D[name]).flatten(0, 1)
            totals[name] += clipped.T if factor.transposed else clipped
    return [(total / grid_of(clip_norm)).round_() for total in totals.values()], figures


def _output_gradients(objective, values, factors, chunk, present):
    """D of each unit by the name of its parameter, (units, size, outputs) in float64, and the units' losses."""
    present = present.to(next(iter(chunk.values())).device)

    def width(name: str) -> int:
        return values[name].shape[0 if factors[name].transposed else 1]

    probes = {f.probe: values[n].new_zeros(*present.shape, width(n)) for n, f in factors.items()}

    def loss_of(probes, unit, there):
        return objective.loss(values, objective.features(values | probes, unit, merge=False), there)

    derivatives, losses = vmap(grad_and_value(loss_of))(probes, chunk, present)
    return {name: derivatives[f.probe].double() for name, f in factors.items()}, losses
