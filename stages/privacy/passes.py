"""Which clip units go through the model together, in shapes that say nothing of who the other units are.

Float32 arithmetic rounds as the shape of an operation has it. Were units packed as they come, one more record would
change the shape of a pass and with it the last digits of every unit in it; equal units would all move the same way.
So the shape of a pass follows from public values and from the size of its own units alone:

    a size belongs to a rung of a fixed ladder (1, 2, 4, 6, 8, 12, 16, 24, ...), and a unit is padded to its rung
    a pass has as many units of one rung as the plan, not the batch, says; the last one is filled up with copies, whose
    results are thrown away
    where a rung has one unit in a pass, it goes by itself, as long as it is

That every unit then has the same gradient to the last bit, wherever it stands in a pass and whoever stands beside it,
is seen in tests/privacy/test_passes.py, and asked of each processor that trains (places.py).

    >>> [rung(size) for size in (1, 2, 3, 5, 9, 100)]
    [1, 2, 4, 6, 12, 128]
    >>> from stages.privacy.methods.group import poisson_units
    >>> expected = poisson_units(128, mean=4)
    >>> [(size, units_in_pass(size, 256, no_limit, expected)) for size in (1, 2, 4, 6, 8, 12, 16)]
    [(1, 13), (2, 24), (4, 29), (6, 20), (8, 15), (12, 1), (16, 1)]
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from stages.privacy.mechanism import Expected, Places

FEW = 3  # units of a rung, expected in a step: so few are faster one by one than in a pass that is mostly filler
UNITS = 32  # in a pass, where nothing is expected of a step


@dataclass(frozen=True)
class Pass:
    members: Places  # (units, rung): places of records in the batch
    present: torch.Tensor  # the same shape: which of them are not padding
    count: int  # the first so many units are real; the others are copies


def rung(size: int) -> int:
    """The smallest of 1, 2, 4, 6, 8, 12, 16, ... that is not below `size`."""
    if size <= 2:
        return size
    power = 1 << (size - 1).bit_length()
    return max(4, power * 3 // 4) if size <= power * 3 // 4 else power


def no_limit(size: int) -> int:
    return sys.maxsize


def units_in_pass(size: int, at_once: int, most: Callable[[int], int], expected: Expected | None) -> int:
    """Of rung `size`, of which at most so many may go together. A pass has at most half of `at_once` records: fewer are
    left over in the last one, and several processes have something to share.
    """
    fit = max(1, min(most(size), at_once // (2 * size)))
    if expected is None:
        return min(UNITS, fit)
    mean = sum(units for records, units in expected.items() if rung(records) == size)
    if mean < FEW:
        return 1
    likely = mean + math.sqrt(mean)
    return math.ceil(likely / math.ceil(likely / fit))


def passes(
    units: Places, at_once: int, most: Callable[[int], int] = no_limit, expected: Expected | None = None
) -> Iterator[Pass]:
    """All records, by the unit of each; at most `most` units of a size together."""
    by_rung: dict[int, list[Places]] = {}
    for members in members_of(units):
        by_rung.setdefault(rung(len(members)), []).append(members)
    for size, same in by_rung.items():
        count = units_in_pass(size, at_once, most, expected)
        for start in range(0, len(same), count):
            yield _pass(same[start : start + count], count, size)


def members_of(units: Places) -> list[Places]:
    """The records of each unit that has any, small units first."""
    order = np.argsort(units, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(units[order])) + 1) if len(units) else []
    return sorted(members, key=len)


def _pass(units: list[Places], count: int, size: int) -> Pass:
    if count == 1:
        return Pass(units[0][None], torch.ones(1, len(units[0]), dtype=torch.bool), 1)
    real, units = len(units), units + units[:1] * (count - len(units))
    present = np.arange(size) < np.array([len(records) for records in units])[:, None]
    # A unit is padded with a record of its own: not even a NaN can then reach another unit.
    members = np.repeat([records[:1] for records in units], size, axis=1)
    members[present] = np.concatenate(units)
    return Pass(members, torch.from_numpy(present), real)
