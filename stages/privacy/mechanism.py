"""The private step: clip the gradient of each unit, sum, add Gaussian noise (Algorithm 1 lines 5-6, and beyond).

A mechanism is a value object whose fields are the public facts. What it clips is its clip unit (README.md section 2).
Each method of params.yaml is one file of methods/, which says all that is known of it: what it clips, its sensitivity
and why, how many units a step has, and its own fields. Read this file first, then those.

Neighbours are named as they are accounted (sampling.py): zero-out has the sensitivities of add-or-remove.

    >>> from dp_accounting import NeighboringRelation
    >>> from stages.privacy.methods import METHODS
    >>> for name, method in METHODS.items():
    ...     mechanism, relations = method(clip_norm=0.5, sigma=2), NeighboringRelation
    ...     print(name, *(mechanism.sensitivity(r) for r in (relations.ADD_OR_REMOVE_ONE, relations.REPLACE_ONE)))
    ...     print(mechanism.event(relations.ADD_OR_REMOVE_ONE))
    batch 1.0 1.0
    GaussianDpEvent(noise_multiplier=1.0)
    example 0.5 1.0
    GaussianDpEvent(noise_multiplier=2.0)
    group 1.0 1.0
    GaussianDpEvent(noise_multiplier=1.0)
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.privacy.randomness import Key

if TYPE_CHECKING:  # takes seconds, and params.yaml is read by the fields below
    from dp_accounting import DpEvent, NeighboringRelation

Places = NDArray[np.int64]  # of records: in the data, or in a batch
# By a number of records, how many units of a step have so many, on average: of the plan, never of the batch.
Expected = Mapping[int, float]


@dataclass(frozen=True)
class Mechanism(ABC):
    """sum over units of g * min(1, C / ||g||_2), plus sigma * C * N(0, I); ONE norm over all trained parameters."""

    clip_norm: float  # C
    sigma: float

    factor: ClassVar[Mapping[str, float]]  # sensitivity in units of C, by the name of a dp_accounting relation
    clipped: ClassVar[str]  # what is clipped, in the words of a privacy statement
    one_unit: ClassVar[bool] = False  # whether all records of a batch are one
    only_sums: ClassVar[bool] = False  # whether the sensitivity holds for losses alone that are sums over records

    def __post_init__(self) -> None:
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be positive; got {self.clip_norm}")
        if not self.sigma >= 0:
            raise ValueError(f"sigma must not be negative; got {self.sigma}")

    @classmethod
    def own_fields(cls) -> dict[str, Any]:
        """What `train.methods.NAME` of params.yaml must say of this method alone, with the types of the values.

        The accounting knows nothing of them, so a default may stand for one there.
        """
        shared = {field.name for field in fields(Mechanism)}
        return {field.name: field.type for field in fields(cls) if field.name not in shared}

    @classmethod
    def planned(cls, settings: Mapping[str, Any], sigma: float) -> Self:
        """From the values of `train.methods.NAME`, most of which are about other things."""
        return cls(sigma=sigma, **{name: settings[name] for name in ("clip_norm", *cls.own_fields())})

    def sensitivity(self, relation: "NeighboringRelation") -> float:
        """Largest L2 distance between the noiseless sums of two neighbouring batches."""
        if relation.name not in self.factor:
            raise ValueError(f"no sensitivity is proven for {relation}")
        return self.factor[relation.name] * self.clip_norm

    def event(self, relation: "NeighboringRelation") -> "DpEvent":
        """One step on the sampled batch: a Gaussian with z = standard deviation / sensitivity."""
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(self.sigma * self.clip_norm / self.sensitivity(relation))

    @abstractmethod
    def assign(self, records: Places, key: Key, t: int) -> Places:
        """The unit of each drawn record in step t, as a number. `records` are indices of records."""

    @abstractmethod
    def expected_units(self, batch_size: float | None) -> Expected | None:
        """How many units of each size a step has on average: public, unlike how many it has (passes.py).

        `batch_size` is the expected one. None: nothing is known.
        """

    def accept(self, loss: str, is_sum_over_records: bool) -> None:
        """Refuse a loss for which the stated sensitivity does not hold."""
        if self.only_sums and not is_sum_over_records:
            method = type(self).__module__.rpartition(".")[2]
            raise UserError(
                f"method {method} cannot clip the loss {loss!r}: it is not a sum over records. One more record changes "
                "the terms of all others, so no record has a gradient of its own and the sensitivity would not be C. "
                "Use method group (or batch), or the loss prompts, where each image stands against the fixed class "
                "prompts alone"
            )
