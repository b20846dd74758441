"""`group`: the gradient of the loss of each of m groups is clipped.

The signal grows with m, and the noise does not. With m = 1 it is `batch`.
"""

import math
from dataclasses import dataclass

import numpy as np

from stages.privacy.mechanism import Expected, Mechanism, Places
from stages.privacy.randomness import Key
from stages.sections import PositiveInt


@dataclass(frozen=True)
class GroupClipping(Mechanism):
    """The sensitivity is that of `batch`, for one group alone: every record picks its group by an independent draw.

    So one more record changes no group but its own. A record that is replaced keeps its draw: one group differs then,
    too.
    """

    groups: PositiveInt = 1  # m: each record of a batch picks one at random

    factor = {"ADD_OR_REMOVE_ONE": 2.0, "REPLACE_ONE": 2.0}  # noqa: RUF012
    clipped = "the gradient of the loss of each random group of a batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1; got {self.groups}")

    def assign(self, records: Places, key: Key, t: int) -> Places:
        """Each record's own draw, by its place in the data: one more record moves no other one to another group.

        Cutting a shuffled batch into chunks would: that is not private (README.md section 2).
        """
        return (key.by_record("unit", t, records, 1)[:, 0] * self.groups).astype(np.int64)

    def expected_units(self, batch_size: float | None) -> Expected | None:
        return None if batch_size is None else poisson_units(self.groups, batch_size / self.groups)


def poisson_units(units: float, mean: float) -> Expected:
    """`units` that have `mean` records each on average, each record being in one of them by an independent draw."""
    most = math.ceil(mean + 8 * math.sqrt(mean) + 8)
    return {k: units * math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(1, most)}


METHOD = GroupClipping
