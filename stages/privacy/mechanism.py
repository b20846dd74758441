"""One private step, Algorithm 1 lines 5-6: clip the gradient of the whole batch's loss, add noise.

The mechanism is a value object whose fields are the public facts. Its sensitivity is 2C, not C: one more record changes
every term of a contrastive loss, so the clipped gradients with and without it are two arbitrary vectors of norm at most
C (privacy.md section 2). The noise multiplier relative to the sensitivity is therefore z = sigma / 2.

    >>> mechanism = BatchClipping(clip_norm=0.5, sigma=2.0)
    >>> mechanism.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE)
    1.0
    >>> mechanism.event(NeighboringRelation.ADD_OR_REMOVE_ONE)
    GaussianDpEvent(noise_multiplier=1.0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation

ROUNDING = 1e-6  # aims a little below C, so that float32 gets there in one turn


def joint_norm(tensors: Sequence[torch.Tensor]) -> float:
    """L2 norm of all tensors together, summed in float64."""
    return torch.stack([torch.linalg.vector_norm(t, dtype=torch.float64).square() for t in tensors]).sum().sqrt().item()


@dataclass(frozen=True)
class BatchClipping:
    """g_priv = g * min(1, C / ||g||_2) + sigma * C * N(0, I), with ONE norm over all trainable parameters."""

    clip_norm: float  # C
    sigma: float

    name = "batch"
    sensitivity_factor = 2.0  # in units of C

    def __post_init__(self):
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be positive; got {self.clip_norm}")
        if not self.sigma >= 0:
            raise ValueError(f"sigma must not be negative; got {self.sigma}")

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Largest L2 distance of two clipped gradients; 2C whichever way the neighbours differ."""
        if relation not in (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE):
            raise ValueError(f"no sensitivity is proven for {relation}")
        return self.sensitivity_factor * self.clip_norm

    def event(self, relation: NeighboringRelation) -> DpEvent:
        return GaussianDpEvent(self.sigma * self.clip_norm / self.sensitivity(relation))

    def clip_(self, gradients: Sequence[torch.Tensor]) -> None:
        """Scale all tensors by one factor, in place, so that their joint norm is at most C."""
        norm = joint_norm(gradients)
        if not math.isfinite(norm):
            # A gradient that is not finite says nothing and would break the bound: it counts as zero.
            for g in gradients:
                g.zero_()
            return
        slack = ROUNDING
        while norm > self.clip_norm:  # measured again: the scaled values are rounded, in bfloat16 coarsely
            for g in gradients:
                g.mul_(self.clip_norm / norm * (1 - slack))
            norm, slack = joint_norm(gradients), 4 * slack

    def add_noise_(self, gradients: Sequence[torch.Tensor], stream: np.random.Generator) -> None:
        """Add sigma * C * N(0, I), drawn in float32 whatever the model computes in."""
        for g in gradients:
            noise = torch.from_numpy(stream.standard_normal(g.numel(), dtype=np.float32)).view(g.shape)
            g.add_(noise.to(g.device), alpha=self.sigma * self.clip_norm)


METHODS = {BatchClipping.name: BatchClipping}
