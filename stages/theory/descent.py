"""Algorithm 1 on the linear loss, many trials at once, with the sampler, clip, noise and accountant of training.

A trial has data and noise of its own. Its step: a Poisson sample; the records of a clip unit (all of them, or a group)
give the gradient of the linear loss of that unit alone, penalty included; clip, sum, noise, and divide by the number of
units. Clipping to the grid, and the noise, are training's own functions (stages/privacy); what differs here is that the
units of all trials go through one product.
"""

from dataclasses import dataclass

import numpy as np
import torch

from stages.privacy.accounting import Plan
from stages.privacy.grid import clip_factors, grid_of
from stages.privacy.methods.group import GroupClipping
from stages.privacy.noise import noised
from stages.privacy.randomness import Key
from stages.privacy.sampling import poisson
from stages.theory.linear import penalty_gradient
from stages.theory.spiked import Sample


@dataclass(frozen=True)
class Descent:
    plan: Plan  # sampler, clip unit, noise and steps
    eta: float
    alpha: float
    key: Key

    @property
    def units(self) -> int:
        """Clip units of a step: m of `group`, else 1."""
        mechanism = self.plan.mechanism
        return mechanism.groups if isinstance(mechanism, GroupClipping) else 1

    def run(self, sample: Sample, start: torch.Tensor, look=None) -> tuple[torch.Tensor, float]:
        """G after all steps, (trials, r, d), and the share of unit gradients that were clipped. `look(t, G)` sees each
        G before step t."""
        g, clipped, seen = start.double(), 0, 0
        for t in range(self.plan.steps):
            if look:
                look(t, g)
            gradient, norms = self.step(sample, g, t)
            g = g - self.eta * gradient
            clipped += int((norms > self.plan.mechanism.clip_norm).sum())
            seen += len(norms)
        if look:
            look(self.plan.steps, g)
        return g, clipped / max(seen, 1)

    def step(self, sample: Sample, g: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The private gradient of step t for each trial, and the norms of the units before clipping."""
        trials, n = sample.x.shape[:2]
        mechanism, units = self.plan.mechanism, self.units
        drawn = poisson(self.key.stream("sample", t), trials * n, self.plan.sampling.q)
        group = self.key.stream("groups", t).integers(units, size=len(drawn))
        members, counts = by_unit(drawn, drawn // n * units + group, trials * units, nobody=trials * n)
        gradients = unit_gradients(sample, g, members, counts, self.alpha)
        norms = gradients.square().sum((1, 2)).sqrt()
        steps = (gradients * clip_factors(norms, mechanism.clip_norm)[:, None, None]).round()
        total = torch.where((counts > 0)[:, None, None], steps, 0.0).view(trials, units, *g.shape[1:]).sum(1)
        std = mechanism.sigma * mechanism.clip_norm
        noisy = noised([total], grid_of(mechanism.clip_norm), std, self.key, t)[0]
        return noisy.double() / units, norms[counts > 0]


def by_unit(records: np.ndarray, unit: np.ndarray, units: int, nobody: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(units, largest) of records, `nobody` where a unit has fewer, and how many each has."""
    counts = np.bincount(unit, minlength=units)
    order = np.argsort(unit, kind="stable")
    slot = np.arange(len(records)) - np.repeat(np.cumsum(counts) - counts, counts)
    members = np.full((units, max(counts.max(), 1)), nobody)
    members[unit[order], slot] = records[order]
    return torch.from_numpy(members), torch.from_numpy(counts)


def unit_gradients(
    sample: Sample, g: torch.Tensor, members: torch.Tensor, counts: torch.Tensor, alpha: float
) -> torch.Tensor:
    """(units, r, d): of the loss of each unit's records. One record alone has no contrast: only the penalty is left.

    As in linear.gradient, with the products in another order: G1 S needs no d1 x d2 matrix.
    """
    d1, trials = sample.x.shape[-1], len(g)
    x, y = sample.rows.index_select(0, members.flatten()).view(*members.shape, -1).tensor_split([d1], dim=-1)
    each = g.repeat_interleave(len(members) // trials, dim=0)
    own = each.float()
    u, v = x @ own[..., :d1].mT, y @ own[..., d1:].mT  # (units, records, r)
    k = counts[:, None, None]
    seen = [
        (a.mT @ b - a.sum(1)[..., :, None] * b.sum(1)[..., None, :] / k.clamp(min=1)) / (k - 1).clamp(min=1)
        for a, b in ((v, x), (u, y))
    ]
    return penalty_gradient(each, alpha) - torch.cat(seen, dim=-1).double()
