"""How far a step goes, and which weights are kept at the end: functions of public step numbers alone.

Both work on what the mechanism has already released, the noisy gradients and the weights made of them, so they are
post-processing: every intermediate weight is covered by the guarantee of the run, and so is any mean of them. A mean
over the last steps takes out much of the noise that each step adds anew.

    >>> course = Course(steps=8, schedule="linear", average=0.25)
    >>> [course.rate(t) for t in range(8)]
    [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    >>> [course.averages(t) for t in range(8)]
    [0, 0, 0, 0, 0, 0, 1, 2]
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

SCHEDULES = ("constant", "linear", "cosine")
MEAN = "mean"  # a field of the optimiser's state, so that checkpoints have it


@dataclass(frozen=True)
class Course:
    steps: int
    schedule: str = "constant"
    average: float | None = None  # the share of the steps, the last ones, whose weights are averaged

    def rate(self, t: int) -> float:
        """The learning rate of step t, in units of the one that is set."""
        match self.schedule:
            case "linear":
                return 1 - t / self.steps
            case "cosine":
                return (1 + math.cos(math.pi * t / self.steps)) / 2
            case _:
                return 1.0

    def averages(self, t: int) -> int:
        """The weights after step t are so many-th in the mean; 0: not in it."""
        first = self.steps - max(1, round((self.average or 0) * self.steps))
        return max(0, t - first + 1) if self.average else 0

    def set_rate(self, optimizer: torch.optim.Optimizer, t: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_lr", group["lr"]) * self.rate(t)

    @torch.no_grad()
    def keep(self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, t: int) -> None:
        """Take the weights after step t into their mean; with the last step, the mean takes their place."""
        if not (count := self.averages(t)):
            return
        for parameter in parameters.values():
            state = optimizer.state[parameter]
            mean = state.setdefault(MEAN, torch.zeros_like(parameter))
            mean += (parameter - mean) / count
            if t + 1 == self.steps:
                parameter.copy_(state.pop(MEAN))
