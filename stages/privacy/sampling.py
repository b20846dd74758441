"""The sampler and its accounting are one object: what draws the batches hands out the DpEvent it implements.

>>> sampling = PoissonSampling(n=60_000, batch_size=32)
>>> sampling.event(dp_accounting.GaussianDpEvent(1.0))
PoissonSampledDpEvent(sampling_probability=0.0005333333333333334, event=GaussianDpEvent(noise_multiplier=1.0))
>>> sampling.steps(epochs=30)
56250
>>> FixedSizeSampling(n=60_000, batch_size=32).relation.name
'REPLACE_ONE'
>>> ShuffledBatches(n=60_000, batch_size=32).event(dp_accounting.GaussianDpEvent(1.0))
Traceback (most recent call last):
stages.errors.UserError: batches of a shuffled loader have no privacy accounting: ...
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation

from stages.errors import UserError
from stages.privacy.randomness import Key


@dataclass(frozen=True)
class Sampling(ABC):
    n: int
    batch_size: int

    relation: ClassVar[NeighboringRelation]  # the neighbours for which `event` is stated

    def __post_init__(self):
        if not 1 <= self.batch_size <= self.n:
            raise UserError(f"batch size must be between 1 and n={self.n}; got {self.batch_size}; change batch_size")

    @property
    def q(self) -> float:
        """The chance of a record to be in a step's batch."""
        return self.batch_size / self.n

    def steps(self, epochs: float) -> int:
        """T, the number of steps in which each record is drawn `epochs` times on average (rounded up, exactly)."""
        return math.ceil(Fraction(str(epochs)) * self.n / self.batch_size)

    @abstractmethod
    def event(self, step: DpEvent) -> DpEvent:
        """What a step is, for an adversary who does not know the batch. `step` is the event on a known batch."""

    @abstractmethod
    def sample(self, key: Key, t: int) -> np.ndarray:
        """Indices of the records of step t, in increasing order; a pure function of (key, t)."""


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every step takes each of the n records independently with probability q; `batch_size` is the expected size.

    Batches vary in size and may be empty. Goes with add-or-remove-one adjacency.
    """

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def event(self, step):
        return dp_accounting.PoissonSampledDpEvent(self.q, step)

    def sample(self, key, t):
        return np.flatnonzero(key.stream("sample", t).random(self.n) < self.q)


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Every step takes `batch_size` records, each such set being equally likely. Goes with replace-one adjacency."""

    relation = NeighboringRelation.REPLACE_ONE

    def event(self, step):
        return dp_accounting.SampledWithoutReplacementDpEvent(self.n, self.batch_size, step)

    def sample(self, key, t):
        return np.sort(key.stream("sample", t).choice(self.n, self.batch_size, replace=False))


@dataclass(frozen=True)
class ShuffledBatches(Sampling):
    """Each epoch is a random order of the data, cut into batches. For non-private runs: it has no event."""

    @property
    def relation(self):
        raise self._refusal()

    def event(self, step):
        raise self._refusal()

    def _refusal(self) -> UserError:
        return UserError(
            "batches of a shuffled loader have no privacy accounting: they are not independent of each other, and "
            "to account them as Poisson would claim too small an epsilon. Set privacy.sampling to poisson (or "
            "fixed-size), or keep only 0 and inf in sweep.epsilon"
        )

    def sample(self, key, t):
        per_epoch = self.n // self.batch_size
        order = key.stream("shuffle", t // per_epoch).permutation(self.n)
        start = t % per_epoch * self.batch_size
        return np.sort(order[start : start + self.batch_size])


SAMPLERS: dict[str, type[Sampling]] = {
    "poisson": PoissonSampling,
    "fixed-size": FixedSizeSampling,
    "shuffled": ShuffledBatches,
}
