"""`batch`: the gradient of the whole batch's loss is clipped. The paper's Algorithm 1."""

from dataclasses import dataclass

import numpy as np

from stages.privacy.mechanism import Expected, Mechanism, Places
from stages.privacy.randomness import Key


@dataclass(frozen=True)
class BatchClipping(Mechanism):
    """The sensitivity is 2C, not C.

    Adding one record changes every term of a contrastive loss, so the clipped gradients with and without it are two
    arbitrary vectors of norm at most C. Replacing one record is no worse.
    """

    factor = {"ADD_OR_REMOVE_ONE": 2.0, "REPLACE_ONE": 2.0}  # noqa: RUF012
    clipped = "the gradient of each batch's loss"
    one_unit = True

    def assign(self, records: Places, key: Key, t: int) -> Places:
        return np.zeros(len(records), dtype=np.int64)

    def expected_units(self, batch_size: float | None) -> Expected | None:
        return {}  # one, of any size: it goes by itself


METHOD = BatchClipping
