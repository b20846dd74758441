"""Clipped sums for matrices on fixed inputs, without the gradient of any unit.

Where the trained parameters are matrices W applied to inputs X that no parameter moves (a projection on a frozen
tower), the gradient of a unit is X^T D, with D = d loss / d (X W) of its records. Then

    || X^T D ||_F^2 = sum of (X X^T) * (D D^T)         inner products between the unit's records only
    sum over units of c_u X_u^T D_u = X^T (c D)        one product for all units, whatever their number

which takes the memory of a batch instead of that of a gradient for each unit. Both are rounded, in float64, and where
the records of a unit cancel each other the rounding is all that is left of the first: it may say 0 of a long gradient.
What is added before the clip, so that no unit is longer than it is taken for: let u = 2^-53, g_k = k u / (1 - k u), and
a_i = ||x_i|| ||d_i||; a unit of s records (padded), x_i of dx and d_i of dd numbers, F matrices.

    an inner product, added in any order, is wrong by at most g_dx ||x_i|| ||x_j||, and g_dd ||d_i|| ||d_j||
    their product by at most g_(dx+dd+1) a_i a_j
    the sum of s of these in a row, then of s rows, by g_(dx+dd+1 + 2(s-1)) S^2, with S = sum of a_i
    the sum over matrices, one after the other: with K = dx + dd + 2s + F, by g_K times the sum of their S^2

S comes from the same products (||x_i||^2 is x_i x_i), so S^2 is too small by at most a factor 1 - 2 g_K; K u < 10^-3
whatever fits into a computer, so 2 K u S^2 is above g_K S^2 and above the rounding of the few operations around it.
There is no overflow and no underflow: X and D have at most the range of float32, and a product of four such numbers
lies between 2^-596 and 2^512.

A unit with S > 16 max(N, C), N being that norm, cancels: X^T D itself is formed, and its own norm is the one that
counts. All others have c S <= 16 C. So their clip factor is smaller for the bound by K u 16^2 at most (10^-10 for K =
4,096), and the rounding of X^T (c D), which is relative to the sum of c S and not to C, stays small: over b records in
m units g_(2b) 16 m C, which is 2 * 10^-10 C for 512 records in 128 groups and 3 * 10^-5 C for 131,072 in 65,536. Last,
the sum is rounded to the grid of gradients.py: half a step for each of p numbers, 2^-31 sqrt(p) C, or 5 * 10^-7 C for a
million. Two neighbouring batches may have twice that; all of it is inside that module's MARGIN of 10^-4 C.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.func import grad_and_value, vmap

from stages.privacy.gradients import Diagnostics, Objective, Parameters, Records, take
from stages.privacy.grid import MARGIN, grid_of
from stages.privacy.mechanism import Expected, Places
from stages.privacy.passes import Pass, no_limit, passes
from stages.privacy.precision import full_precision

UNIT_ROUNDOFF = 2.0**-53
CANCELS = 16  # times longer than it or C are the terms of a gradient that is computed by itself
RANGE = (torch.float32, torch.bfloat16, torch.float16)  # what is proven above is of these


@dataclass(frozen=True)
class Factor:
    """One trained matrix."""

    inputs: str  # the records' key of X: (b, inputs)
    probe: str  # a parameter of the objective's model that is added to X W, and is zero: its derivative is D
    transposed: bool  # whether the parameter is kept as (outputs, inputs)
    columns: tuple[int, int | None] = (0, None)  # of them, from and to: those that the matrix is applied to


Matrices = dict[str, torch.Tensor]  # (units, size, width) in float64, by the name of the parameter


def clipped_sum(
    objective: Objective,
    parameters: Parameters,
    records: Records,
    units: Places,
    clip_norm: float,
    at_once: int,
    expected: Expected | None = None,
) -> tuple[list[torch.Tensor], Diagnostics]:
    """As gradients.clipped_sum: sum over units of g * min(1, C / ||g||), in steps of the grid."""
    figures, grid = Diagnostics(len(units)), grid_of(clip_norm)
    values = {name: p.detach() for name, p in parameters.items()}
    factors = factors_by_name(objective, parameters)
    shapes = {name: p.T.shape if factors[name].transposed else p.shape for name, p in values.items()}
    total, apart = ({n: values[n].new_zeros(shapes[n], dtype=torch.float64) for n in factors} for _ in range(2))
    for each in passes(units, at_once, units_at_once(objective), expected):
        X, D, losses = factors_of(objective, values, factors, take(records, each.members), each)
        with full_precision():
            norms, lengths = bounded_norms(X, D)
            cancels = lengths > CANCELS * norms.clamp(min=clip_norm)
            for unit in cancels.nonzero().flatten().tolist():
                norms[unit] = _add_by_itself(apart, {n: X[n][unit].mT @ D[n][unit] for n in X}, clip_norm)
            added = norms.isfinite() & ~cancels
            scale = torch.where(added, torch.clamp((1 - MARGIN) * clip_norm / norms, max=1.0), 0.0)
            for name in factors:
                X[name][~added], D[name][~added] = 0.0, 0.0  # 0 * NaN is NaN
                total[name] += X[name].flatten(0, 1).T @ (scale[:, None, None] * D[name]).flatten(0, 1)
        figures.passes.append((losses, norms))
    steps = {name: (total[name] / grid).round_() + apart[name] for name in factors}
    return [steps[n].T if factor.transposed else steps[n] for n, factor in factors.items()], figures


def units_at_once(objective: Objective) -> Callable[[int], int]:
    return (lambda size: 1) if objective.one_by_one else no_limit


def factors_by_name(objective: Objective, parameters: Parameters) -> dict[str, Factor]:
    return {name: (objective.factors or {})[name] for name in parameters}


def bounded_norms(X: Matrices, D: Matrices) -> tuple[torch.Tensor, torch.Tensor]:
    """(units,): N, never below the joint norm of X^T D, and S, the lengths of its terms added up. Proof: see above."""
    first = next(iter(X.values()))
    squares, lengths = first.new_zeros(len(first)), first.new_zeros(len(first))
    for name in X:
        size, inputs, outputs = *X[name].shape[1:], D[name].shape[2]
        between_inputs, between_outputs = X[name] @ X[name].mT, D[name] @ D[name].mT  # (units, size, size)
        own = [products.diagonal(dim1=1, dim2=2).sqrt() for products in (between_inputs, between_outputs)]
        length = (own[0] * own[1]).sum(1)
        K = inputs + outputs + 2 * size + len(X)
        squares += (between_inputs * between_outputs).sum(2).sum(1) + 2 * K * UNIT_ROUNDOFF * length.square()
        lengths += length
    return squares.clamp(min=0).sqrt(), lengths


def _add_by_itself(total: Matrices, gradient: Matrices, clip_norm: float) -> float:
    """As in gradients.py: one norm over all matrices, rounded to the grid. Returns the norm."""
    norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
    factor = torch.clamp((1 - MARGIN) * clip_norm / norm, max=1.0) / grid_of(clip_norm)
    for name, g in gradient.items():
        total[name] += (g * factor).round_()
    return norm.item()


def factors_of(
    objective: Objective,
    values: dict[str, torch.Tensor],
    factors: Mapping[str, Factor],
    chunk: Records,
    each: Pass,
) -> tuple[Matrices, Matrices, torch.Tensor]:
    """X and D of each unit, and the units' losses."""
    present = each.present.to(next(iter(chunk.values())).device)

    def width(name: str) -> int:
        return values[name].shape[0 if factors[name].transposed else 1]

    probes = {f.probe: values[n].new_zeros(*present.shape, width(n)) for n, f in factors.items()}

    def loss_of(probes: Parameters, unit: Records, there: torch.Tensor) -> torch.Tensor:
        return objective.loss(values, objective.features({**values, **probes}, unit, merge=False), there)

    derivatives, losses = vmap(grad_and_value(loss_of))(probes, chunk, present)
    inputs = {n: chunk[f.inputs][..., slice(*f.columns)] for n, f in factors.items()}
    found = [inputs, {n: derivatives[f.probe] for n, f in factors.items()}]
    for tensor in (*found[0].values(), *found[1].values()):
        if tensor.dtype not in RANGE:
            raise ValueError(f"the bound on rounding errors is proven for {RANGE}; got {tensor.dtype}")
    X, D = ({name: tensor[: each.count].double() for name, tensor in tensors.items()} for tensors in found)
    return X, D, losses[: each.count]
