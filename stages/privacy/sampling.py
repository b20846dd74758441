"""The sampler and its accounting are one object: what draws the batches hands out the DpEvent it implements.

>>> sampling = PoissonSampling(n=60_000, batch_size=32)
>>> sampling.event(dp_accounting.GaussianDpEvent(1.0))
PoissonSampledDpEvent(sampling_probability=0.0005333333333333334, event=GaussianDpEvent(noise_multiplier=1.0))
>>> sampling.steps(epochs=30)
56250
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import dp_accounting
import numpy as np


@dataclass(frozen=True)
class PoissonSampling:
    """Every step takes each of the n records independently with probability q = batch_size / n.

    Batches vary in size and may be empty; `batch_size` is the expected size. Goes with add-or-remove-one adjacency.
    """

    n: int
    batch_size: int

    name = "poisson"
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self):
        if not 1 <= self.batch_size <= self.n:
            raise ValueError(f"expected batch size must be between 1 and n={self.n}; got {self.batch_size}")

    @property
    def q(self) -> float:
        return self.batch_size / self.n

    def steps(self, epochs: float) -> int:
        """T, the number of steps in which each record is drawn `epochs` times on average (rounded up, exactly)."""
        return math.ceil(Fraction(str(epochs)) * self.n / self.batch_size)

    def event(self, step: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        return dp_accounting.PoissonSampledDpEvent(self.q, step)

    def sample(self, stream: np.random.Generator) -> np.ndarray:
        """Indices of the drawn records, in order; possibly none."""
        return np.flatnonzero(stream.random(self.n) < self.q)
