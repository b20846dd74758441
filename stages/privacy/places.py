"""Whether a unit's gradient depends on its place among the units that go through the model with it.

It must not: one record more moves other units to other places, and if their last digits moved with them, all of them
would add to what one record changes (passes.py). Float32 products keep this as long as every row of a product is
summed in the same order, and libraries promise no such thing. Where they were seen to break it, `product` goes around:
MKL on processors with AVX-512 sums the rows of a product of one to three columns in different orders.

For all that was not seen there is `matter`, which every training asks before its first step, on the machine it runs on.
Where they do matter, units go through the model one by one, which takes longer.

    >>> rows, narrow = torch.randn(5, 64), torch.randn(64, 3)
    >>> torch.allclose(product(rows, narrow), rows @ narrow, atol=1e-5)
    True
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from stages.privacy import factored, onepass
from stages.privacy.gradients import Objective, Parameters, Records, several, take, units_at_once
from stages.privacy.mechanism import Expected
from stages.privacy.passes import Pass, rung, units_in_pass

NARROW = 16  # columns; fewer are filled up with zeros


def product(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """(..., d) @ (d, n), where units share the columns."""
    n = columns.shape[1]
    return rows @ columns if n >= NARROW else (rows @ F.pad(columns, (0, NARROW - n)))[..., :n]


def sizes(at_once: int, most: Callable[[int], int], expected: Expected | None) -> list[int]:
    """Rungs of the ladder whose passes have several units, as far as the plan says."""
    rungs = sorted({rung(size) for size in (expected if expected is not None else range(1, at_once // 2 + 1))})
    return [size for size in rungs if units_in_pass(size, at_once, most, expected) > 1]


def matter(
    objective: Objective, parameters: Parameters, records: Records, at_once: int, expected: Expected | None
) -> bool:
    """Whether copies of one unit, in all places of a pass, get different gradients; for each shape of the plan.

    A unit is made of the first so many `records`, which had better not be those of people.
    """
    there, values = len(next(iter(records.values()))), {name: p.detach() for name, p in parameters.items()}
    known = None if objective.factors else onepass.known(objective, parameters, records)
    most = factored.units_at_once(objective) if objective.factors else units_at_once(objective, parameters, known)
    for size in sizes(at_once, most, expected):
        count = units_in_pass(size, at_once, most, expected)
        members = np.tile(np.arange(size) % there, (count, 1))
        copies, own = Pass(members, torch.ones(count, size, dtype=torch.bool), count), take(records, members)
        if objective.factors:
            factors = factored.factors_by_name(objective, parameters)
            found = iter(factored.factors_of(objective, values, factors, own, copies)[1].values())
        elif known:
            found = onepass.by_unit(objective, parameters, own, copies.present, known)
        else:
            found = iter(several(objective, parameters, own, copies.present)[0])
        if not all(alike(each) for each in found):
            return True
    return False


def alike(copies: torch.Tensor) -> bool:
    """Whether all rows are the same to the last bit. What is not finite is: no record may tip the answer."""
    finite = copies.nan_to_num(0.0, 0.0, 0.0)
    return torch.equal(finite, finite[:1].expand_as(finite))
