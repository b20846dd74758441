"""The noiseless part of a step: the gradient of each clip unit, clipped, and their exact sum.

A unit is the set of drawn records that share one clip: all of them, a group, or one (see mechanism.py). Its gradient is
that of the loss of its records alone. Ways to compute it, all exact:

    many units           one backward pass for all of them, padded to a common size; padding adds nothing (onepass.py)
    the same, vmapped    where a model does what that has no rule for
    one unit at a time   a plain backward pass, where a step has one unit, or few of a size, or the gradients of several
                         would not fit in memory
    a unit in pieces     where the records of one unit exceed memory: their features first, the loss on all of them, and
                         then each piece again with its part of the derivative: the gradient of the WHOLE unit's loss

Several processes share this work as ranks.py says: each has whole units, or some records of every unit.

A unit whose gradient is not finite counts as zero. Clipped gradients are rounded to a grid that is fixed by C; sums on
the grid are exact, in whatever order and chunks (grid.py).

A unit's own gradient is what float32 makes of it, but it is the same to the last bit whoever else is in the batch: the
first way has passes of shapes that depend on public values and the unit's own size (passes.py), the other two take the
unit's records alone. So one more record changes its own unit and no other, and what the stated sensitivity needs is
that no unit is longer than C. A norm is wrong by at most 3e-5 of itself (see grid.py), the factor made of it by 2e-7,
and rounding p numbers to the grid adds 2^-31 sqrt(p) C at most, 3e-5 C for four thousand million of them: clipping to
(1 - 1e-4) C covers all of it. What is not in there: numbers below 1e-19, the squares of
which float32 may lose; 10^10 of them have a norm below 1e-14.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from stages.distributed.ranks import ALONE, Part, Ranks
from stages.distributed.shards import Gradients, is_split, local
from stages.privacy import onepass
from stages.privacy.grid import clip_factors, square, whole_sum
from stages.privacy.mechanism import Expected, Places
from stages.privacy.passes import no_limit, passes
from stages.privacy.precision import full_precision

BLOCK_BYTES = {"cpu": 2**20, "cuda": 2**28}  # of gradients, clipped and added together: on a CPU a cache's
GRADIENT_BYTES = 256 * 2**20  # gradients of units that are held at once, where there is a choice

Parameters = Mapping[str, torch.Tensor]
Records = Mapping[str, torch.Tensor]  # a row per record


class Objective(Protocol):
    """A loss in two parts: what each record gives by itself, and what all of them give together."""

    one_by_one: bool  # whether units must not share a pass: its graph is hidden, or places matter (places.py)
    bf16: bool  # whether the towers' products are
    factors: Mapping[str, Any] | None  # where all that is trained are matrices on fixed inputs: see factored.py

    def records(self, batch: Any) -> Records:
        """What the loss needs of a batch, as tensors."""

    def features(self, parameters: Parameters, records: Records, merge: bool) -> dict[str, torch.Tensor]:
        """One row a record. `merge` allows to compute equal inputs once, which vmap cannot."""

    def loss(self, parameters: Parameters, features: Mapping[str, torch.Tensor], present: torch.Tensor) -> torch.Tensor:
        """A number; rows that are not `present` are padding, and contribute nothing."""


@dataclass
class Diagnostics:
    """Figures of one step. They are functions of the private data: not for release (README.md section 1)."""

    records: int
    passes: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # losses, norms; on their device

    @property
    def losses(self) -> list[float]:
        """One per unit, like `norms`."""
        return [loss for losses, _ in self.passes for loss in losses.tolist()]

    @property
    def norms(self) -> list[float]:
        """Before clipping."""
        return [norm for _, norms in self.passes for norm in norms.tolist()]

    @property
    def not_finite(self) -> int:
        return sum(not math.isfinite(norm) for norm in self.norms)


def clipped_sum(
    objective: Objective,
    parameters: Parameters,
    records: Records,
    units: Places,
    clip_norm: float,
    at_once: int,
    expected: Expected | None = None,
) -> tuple[list[torch.Tensor], Diagnostics]:
    """Sum over units of g * min(1, C / ||g||), in steps of the grid, one tensor a parameter.

    `units` has the unit of each record; at most `at_once` records go through the model together. `expected`, which is
    public, says in which shapes (passes.py). All records of a unit are here; where processes share them, it is
    `clipped_sum_of_shared`.
    """
    figures = Diagnostics(len(units))
    total = None
    known = None if expected == {} else onepass.known(objective, parameters, records)  # {}: one unit, by itself
    device = next(iter(parameters.values())).device
    for each in passes(units, at_once, units_at_once(objective, parameters, known), expected):
        if known and len(each.members) > 1:
            clipped, norms, loss = onepass.clipped_sum(
                objective,
                parameters,
                take(records, each.members),
                each.present.to(device),
                each.count,
                clip_norm,
                known,
            )
        else:
            if len(each.members) == 1:
                gradients, loss = _one(objective, parameters, take(records, each.members[0]), at_once)
            else:
                gradients, loss = several(objective, parameters, take(records, each.members), each.present)
            with full_precision():
                norms = _joint_norms(gradients)[: each.count]
                clipped = _on_grid([g[: each.count] for g in gradients], norms, clip_norm)
        figures.passes.append((loss[: each.count], norms))
        total = clipped if total is None else [a.double().add_(b) for a, b in zip(total, clipped, strict=True)]
    if total is None:
        total = [torch.zeros_like(p) for p in parameters.values()]
    return total, figures


def units_at_once(objective: Objective, parameters: Parameters, known: onepass.OnePass | None) -> Callable[[int], int]:
    """The most units of so many records each that go through the model together: a function of public values."""
    fitting = max(1, GRADIENT_BYTES // sum(p.numel() * p.element_size() for p in parameters.values()))

    def most(size: int) -> int:
        if objective.one_by_one or (objective.bf16 and not known):  # vmap cannot take autocast
            return 1
        return no_limit(size) if known and known.pays(size) else fitting

    return most


def clipped_sum_of_shared(
    objective: Objective,
    parameters: Parameters,
    records: Records,
    parts: list[Part],
    clip_norm: float,
    at_once: int,
    ranks: Ranks,
) -> list[torch.Tensor]:
    """As clipped_sum, of units of which every process has some records; `records` are those of `parts`, in their order.

    The result is the same on all processes; of a tensor that is split among them, each has its part.
    """
    total, start = None, 0
    for part in parts:
        end = start + len(part.records)
        own = {k: v[start:end] for k, v in records.items()}
        gradients, _ = shared_gradient(objective, parameters, own, part.own, at_once, ranks)
        gradients, start = [g.unsqueeze(0) for g in gradients], end
        split = [is_split(p) for p in parameters.values()] if ranks.sharded else None
        with full_precision():
            clipped = _on_grid(gradients, _joint_norms(gradients, ranks, split), clip_norm)
        total = clipped if total is None else [a.double().add_(b) for a, b in zip(total, clipped, strict=True)]
    return total or [torch.zeros_like(local(p)) for p in parameters.values()]


def gradient(
    objective: Objective, parameters: Parameters, records: Records, at_once: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """d loss / d parameters of all records as one unit, and the loss. Parameters that the loss does not use have 0."""
    first = next(iter(records.values()))
    if len(first) > at_once:
        return shared_gradient(objective, parameters, records, len(first), at_once, ALONE)
    present = torch.ones(len(first), dtype=torch.bool, device=first.device)
    loss = objective.loss(parameters, objective.features(parameters, records, merge=True), present)
    return list(torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)), loss.detach()


def shared_gradient(
    objective: Objective, parameters: Parameters, records: Records, own: int, at_once: int, ranks: Ranks
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The same in pieces, some of which other processes have: features of all, the loss, and back to each piece.

    Of `records` the first `own` count.
    """
    count = len(next(iter(records.values())))
    given = {name: p for name, p in parameters.items() if not is_split(p)}  # FSDP puts split ones in place itself
    pieces = [{k: v[i : i + at_once] for k, v in records.items()} for i in range(0, count, at_once)]
    with torch.set_grad_enabled(len(pieces) == 1):  # one piece keeps its graph, of several each is computed again
        kept = [objective.features(given, piece, merge=True) for piece in pieces]
    features = {k: torch.cat([part[k].detach() for part in kept]) for k in kept[0]}
    features, begin = ranks.gather(features, own) if ranks.world > 1 else (features, 0)
    differentiable = [k for k, v in features.items() if v.is_floating_point()]
    for k in differentiable:
        features[k].requires_grad_()
    present = torch.ones(len(features[differentiable[0]]), dtype=torch.bool, device=features[differentiable[0]].device)
    loss = objective.loss(given, features, present)
    direct = list(given.values())  # a tensor that is split is in features alone
    found = torch.autograd.grad(loss, [*direct, *(features[k] for k in differentiable)], materialize_grads=True)
    cotangents = [_rows(c, begin, own, count) for c in found[len(direct) :]]

    gradients = Gradients(parameters, direct, found[: len(direct)], ranks)
    for i, piece in enumerate(pieces):
        again = kept[0] if len(pieces) == 1 else objective.features(given, piece, merge=True)
        gradients.pull_back(
            [again[k] for k in differentiable], [c[i * at_once : (i + 1) * at_once] for c in cotangents]
        )
    return gradients.summed(), loss.detach()


def _rows(cotangents: torch.Tensor, begin: int, own: int, count: int) -> torch.Tensor:
    """Those of this process's records; zero for one that does not count."""
    rows = torch.zeros(count, *cotangents.shape[1:], dtype=cotangents.dtype, device=cotangents.device)
    rows[:own] = cotangents[begin : begin + own]
    return rows


def _one(
    objective: Objective, parameters: Parameters, records: Records, at_once: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    gradients, loss = gradient(objective, parameters, records, at_once)
    return [g.unsqueeze(0) for g in gradients], loss.unsqueeze(0)


def several(
    objective: Objective, parameters: Parameters, records: Records, present: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The gradient of each unit, a row per unit of each tensor, and their losses."""

    def loss_of(values: Parameters, unit: Records, there: torch.Tensor) -> torch.Tensor:
        return objective.loss(values, objective.features(values, unit, merge=False), there)

    values = {name: p.detach() for name, p in parameters.items()}
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention has no batched form and would run unit by unit
        present = present.to(next(iter(records.values())).device)
        gradients, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(values, records, present)
    return list(gradients.values()), losses


def take(records: Records, indices: Places) -> dict[str, torch.Tensor]:
    return {name: tensor[torch.from_numpy(indices).to(tensor.device)] for name, tensor in records.items()}


def _joint_norms(gradients: list[torch.Tensor], ranks: Ranks = ALONE, split: list[bool] | None = None) -> torch.Tensor:
    """(units,): ONE L2 norm over all parameters, and over all processes where they have parts of them (`split`)."""

    def measured(tensors: list[torch.Tensor]) -> torch.Tensor:
        squares = [square(g.reshape(len(g), -1)) for g in tensors]
        if split is None:
            return torch.stack(squares).sum(0).sqrt()
        counted = [s for s, is_part in zip(squares, split, strict=True) if is_part or ranks.is_first]
        total = torch.stack(counted).sum(0) if counted else torch.zeros_like(squares[0])
        return ranks.sum([total])[0].sqrt()

    norms = measured(gradients)
    if norms.device.type != "cpu":
        return norms  # in float64 from the start (grid.py)
    for unit in (~norms.isfinite()).nonzero().flatten().tolist():
        # Squares beyond float32, or a gradient that is not finite: float64 tells which. The other units keep their
        # norms to the last digit, or one bad record would move them all.
        norms[unit] = measured([g[unit : unit + 1].double() for g in gradients])[0]
    return norms


def _on_grid(gradients: list[torch.Tensor], norms: torch.Tensor, clip_norm: float) -> list[torch.Tensor]:
    """Clip, round to the grid, and add the units up. The values are whole numbers of grid steps."""
    finite, factors = norms.isfinite(), clip_factors(norms, clip_norm).unsqueeze(1)
    all_finite = norms.device.type == "cpu" and bool(finite.all())
    at_once = BLOCK_BYTES.get(norms.device.type, BLOCK_BYTES["cpu"]) // 4

    def steps(block: torch.Tensor, factor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        scaled = torch.mul(block.float(), factor, out=out)
        return scaled if all_finite else scaled.nan_to_num_(0.0, 0.0, 0.0)  # 0 * NaN is NaN

    def added(g: torch.Tensor) -> torch.Tensor:
        """In blocks that stay in the processor's cache: several times as fast as whole."""
        flat = g.reshape(len(g), -1)
        if len(g) == 1:
            total = torch.empty_like(flat[0], dtype=torch.float32)
            for block, out in zip(*(torch.split(each, at_once) for each in (flat[0], total)), strict=True):
                steps(block, factors[0], out).round_()
        else:
            rows = max(1, at_once // flat.shape[1])
            pairs = zip(torch.split(flat, rows), torch.split(factors, rows), strict=True)
            zero = flat.new_zeros((), dtype=torch.float64)
            total = sum((whole_sum(steps(*pair)) for pair in pairs), zero)
        return total.view(g.shape[1:])

    return [added(g) for g in gradients]
