"""The sampler and its accounting are one object: what draws the batches hands out the DpEvent it implements.

>>> sampling = PoissonSampling(n=60_000, batch_size=32)
>>> sampling.event(dp_accounting.GaussianDpEvent(1.0))
PoissonSampledDpEvent(sampling_probability=0.0005333333333333334, event=GaussianDpEvent(noise_multiplier=1.0))
>>> sampling.steps(epochs=30)
56250
>>> sampling.neighbours.value, FixedSizeSampling(n=60_000, batch_size=32).neighbours.value
('zero-out', 'replace-one')
>>> ShuffledBatches(n=60_000, batch_size=32).event(dp_accounting.GaussianDpEvent(1.0))
Traceback (most recent call last):
stages.errors.UserError: batches of a shuffled loader have no privacy accounting: ...
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from numpy.typing import NDArray

from stages.errors import UserError
from stages.privacy.randomness import Key

SHUFFLED = (
    "batches of a shuffled loader have no privacy accounting: they are not independent of each other, and "
    "to account them as Poisson would claim too small an epsilon. Set privacy.sampling to poisson (or "
    "fixed-size), or keep only 0 and inf in sweep.epsilon"
)


class Neighbours(Enum):
    """The two datasets that nobody may tell apart, by the word that is used wherever an epsilon is stated.

    Zero-out is for a public n: one record is replaced by an empty one, which contributes nothing, and n stays. In a
    Poisson sample no other record's draw depends on that one, and an empty record that is drawn adds nothing to any
    sum: training on it has the distribution of training without it. So the two distributions to be told apart are
    those of add-or-remove, with its sensitivities and events, and dp-accounting, which has no name for zero-out,
    accounts it as that. Add-or-remove changes n, so n must be secret: q, T and delta come from a public number.
    """

    ZERO_OUT = "zero-out"
    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"

    @property
    def accounted_as(self) -> NeighboringRelation:
        replaced = self is Neighbours.REPLACE_ONE
        return NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class Sampling(ABC):
    """The fields are public. How many records there are is private where n is secret, so it is an argument."""

    n: int  # the number of records; under add-or-remove a public number that stands for it
    batch_size: int
    neighbours: Neighbours | None = None  # for which `event` is stated; None: for none

    possible: ClassVar[tuple[Neighbours | None, ...]]

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.n:
            raise UserError(f"batch size must be between 1 and n={self.n}; got {self.batch_size}; change batch_size")
        if self.neighbours not in self.possible:
            raise ValueError(f"{type(self).__name__} has no analysis for the neighbours {self.neighbours}")

    @property
    def relation(self) -> NeighboringRelation:
        """The name under which dp-accounting knows the neighbours."""
        return self.adjacency.accounted_as

    @property
    def adjacency(self) -> Neighbours:
        """The neighbours of an epsilon; batches for which there is none are refused."""
        if self.neighbours is None:
            raise UserError(SHUFFLED)
        return self.neighbours

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

    def sample(self, key: Key, t: int, size: int) -> NDArray[np.int64]:
        """Indices of the records of step t among `size`, in increasing order; a pure function of (key, t, size)."""
        if size != self.n and self.neighbours is not Neighbours.ADD_OR_REMOVE:
            raise ValueError(f"the sampling was planned for n={self.n} records and there are {size}")
        return self._draw(key, t, size)

    @abstractmethod
    def _draw(self, key: Key, t: int, size: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every step takes each record independently with probability q; `batch_size` is the expected size if n is theirs.

    Batches vary in size and may be empty.
    """

    neighbours: Neighbours = Neighbours.ZERO_OUT

    possible = (Neighbours.ZERO_OUT, Neighbours.ADD_OR_REMOVE)

    def event(self, step: DpEvent) -> DpEvent:
        return dp_accounting.PoissonSampledDpEvent(self.q, step)

    def _draw(self, key: Key, t: int, size: int) -> NDArray[np.int64]:
        return poisson(key.stream("sample", t), size, self.q)


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Every step takes `batch_size` records, each such set being equally likely."""

    neighbours: Neighbours = Neighbours.REPLACE_ONE

    possible = (Neighbours.REPLACE_ONE,)

    def event(self, step: DpEvent) -> DpEvent:
        return dp_accounting.SampledWithoutReplacementDpEvent(self.n, self.batch_size, step)

    def _draw(self, key: Key, t: int, size: int) -> NDArray[np.int64]:
        return np.sort(key.stream("sample", t).choice(size, self.batch_size, replace=False))


@dataclass(frozen=True)
class ShuffledBatches(Sampling):
    """Each epoch is a random order of the data, cut into batches. For non-private runs: it has no event."""

    neighbours: None = None

    possible = (None,)

    def event(self, step: DpEvent) -> DpEvent:
        raise UserError(SHUFFLED)

    def _draw(self, key: Key, t: int, size: int) -> NDArray[np.int64]:
        per_epoch = size // self.batch_size
        order = key.stream("shuffle", t // per_epoch).permutation(size)
        start = t % per_epoch * self.batch_size
        return np.sort(order[start : start + self.batch_size])


def poisson(stream: np.random.Generator, count: int, q: float) -> NDArray[np.int64]:
    """Each of `count` records with probability q, independently of the others, in time proportional to the sample.

    What is drawn are the gaps between records that are taken: in a row of independent draws with chance q the number of
    draws up to the next success is geometric, and independent of all before. The gaps are one stream, so the sample of
    fewer records is the beginning of that of more.
    """
    most = int(count * q + 10 * (count * q) ** 0.5 + 10)
    places: NDArray[np.int64] = stream.geometric(q, size=most).cumsum() - 1
    while places[-1] < count:
        places = np.concatenate([places, places[-1] + stream.geometric(q, size=most).cumsum()])
    return places[places < count]


SAMPLERS: dict[str, type[Sampling]] = {
    "poisson": PoissonSampling,
    "fixed-size": FixedSizeSampling,
    "shuffled": ShuffledBatches,
}


def sampling_of(sampler: str, n: int, batch_size: int, public_n: int | None = None) -> Sampling:
    """The sampler of a dataset of n records. With `public_n` its n is secret, and nothing that is made here has it."""
    if public_n is None:
        return SAMPLERS[sampler](n, batch_size)
    if sampler != "poisson":
        raise UserError(
            f"a secret n needs Poisson sampling: a {sampler} batch of fixed size tells that there are as many records; "
            "set privacy.sampling to poisson, or take the dataset out of privacy.public_n"
        )
    return PoissonSampling(public_n, batch_size, Neighbours.ADD_OR_REMOVE)
