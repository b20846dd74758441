"""The private step: clip the gradient of each unit, sum, add Gaussian noise (Algorithm 1 lines 5-6, and beyond).

A mechanism is a value object whose fields are the public facts. What it clips is its clip unit (privacy.md section 6):

    batch     the gradient of the whole batch's loss: Algorithm 1
    group     the gradient of each of m groups; every record picks its group by an independent uniform draw
    example   the gradient of each record's own term, for losses that are sums over records: DP-SGD

Adding one record changes every term of a contrastive loss, so the clipped gradients of its group with and without it
are two arbitrary vectors of norm at most C: the sensitivity of `batch` and `group` is 2C, not C. The signal of `group`
grows with m and its noise does not. Under `example` a record adds one vector of norm at most C and changes no other.

    >>> add_remove, replace = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
    >>> for mechanism in (BatchClipping(0.5, sigma=2), GroupClipping(0.5, sigma=2, groups=8), ExampleClipping(0.5, 2)):
    ...     print(mechanism.sensitivity(add_remove), mechanism.sensitivity(replace), mechanism.event(add_remove))
    1.0 1.0 GaussianDpEvent(noise_multiplier=1.0)
    1.0 1.0 GaussianDpEvent(noise_multiplier=1.0)
    0.5 1.0 GaussianDpEvent(noise_multiplier=2.0)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation

from stages.errors import UserError


@dataclass(frozen=True)
class Mechanism(ABC):
    """sum over units of g * min(1, C / ||g||_2), plus sigma * C * N(0, I); ONE norm over all trained parameters."""

    clip_norm: float  # C
    sigma: float

    factor: ClassVar[dict[NeighboringRelation, float]]  # sensitivity in units of C

    def __post_init__(self):
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be positive; got {self.clip_norm}")
        if not self.sigma >= 0:
            raise ValueError(f"sigma must not be negative; got {self.sigma}")

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Largest L2 distance between the noiseless sums of two neighbouring batches."""
        if relation not in self.factor:
            raise ValueError(f"no sensitivity is proven for {relation}")
        return self.factor[relation] * self.clip_norm

    def event(self, relation: NeighboringRelation) -> DpEvent:
        """One step on the sampled batch: a Gaussian with z = standard deviation / sensitivity."""
        return GaussianDpEvent(self.sigma * self.clip_norm / self.sensitivity(relation))

    @abstractmethod
    def assign(self, records: np.ndarray, n: int, stream: np.random.Generator) -> np.ndarray:
        """The unit of each drawn record, as a number. `records` are indices into the n of the data."""

    def accept(self, loss: str, is_sum_over_records: bool) -> None:  # noqa: B027
        """Refuse a loss for which the stated sensitivity does not hold; by default it holds for any."""


@dataclass(frozen=True)
class BatchClipping(Mechanism):
    factor = {NeighboringRelation.ADD_OR_REMOVE_ONE: 2.0, NeighboringRelation.REPLACE_ONE: 2.0}  # noqa: RUF012

    def assign(self, records, n, stream):
        return np.zeros(len(records), dtype=np.int64)


@dataclass(frozen=True)
class GroupClipping(Mechanism):
    groups: int = 1  # m; with 1 this is BatchClipping

    # A record that is replaced keeps its draw, so only one group differs under either relation.
    factor = BatchClipping.factor

    def __post_init__(self):
        super().__post_init__()
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1; got {self.groups}")

    def assign(self, records, n, stream):
        """Drawn for every record of the data: one more record moves no other one to another group.

        Cutting a shuffled batch into chunks would: that is not private (privacy.md section 6).
        """
        return stream.integers(self.groups, size=n)[records]


@dataclass(frozen=True)
class ExampleClipping(Mechanism):
    factor = {NeighboringRelation.ADD_OR_REMOVE_ONE: 1.0, NeighboringRelation.REPLACE_ONE: 2.0}  # noqa: RUF012

    def assign(self, records, n, stream):
        return np.arange(len(records))

    def accept(self, loss, is_sum_over_records):
        if not is_sum_over_records:
            raise UserError(
                f"method example cannot clip the loss {loss!r}: it is not a sum over records. One more record changes "
                "the terms of all others, so no record has a gradient of its own and the sensitivity would not be C. "
                "Use method group (or batch), or the loss prompts, where each image stands against the fixed class "
                "prompts alone"
            )


METHODS: dict[str, type[Mechanism]] = {"batch": BatchClipping, "group": GroupClipping, "example": ExampleClipping}
