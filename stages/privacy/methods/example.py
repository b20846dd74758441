"""`example`: the gradient of each record's own term is clipped, for losses that are sums over records. DP-SGD."""

from dataclasses import dataclass

import numpy as np

from stages.privacy.mechanism import Expected, Mechanism, Places
from stages.privacy.randomness import Key


@dataclass(frozen=True)
class ExampleClipping(Mechanism):
    """The sensitivity is C: a record adds one vector of norm at most C and changes no other.

    Replacing a record takes one such vector away and adds another: 2C.
    """

    factor = {"ADD_OR_REMOVE_ONE": 1.0, "REPLACE_ONE": 2.0}  # noqa: RUF012
    clipped = "the gradient of each record's own loss"
    only_sums = True

    def assign(self, records: Places, key: Key, t: int) -> Places:
        return np.arange(len(records))

    def expected_units(self, batch_size: float | None) -> Expected | None:
        return None if batch_size is None else {1: batch_size}


METHOD = ExampleClipping
