"""Sums of clipped gradients are exact: whole numbers of grid steps, in whatever order."""

import pytest
import torch

from stages.privacy.grid import TOGETHER, whole_sum


@pytest.mark.parametrize("units", [1, 2, 31, TOGETHER, TOGETHER + 1, 300])
@pytest.mark.parametrize("size", [2.0**31, 2.0**29 / 3, 5000.7, 0.6])
def test_sums_are_those_of_integers(units, size):
    generator = torch.Generator().manual_seed(0)
    scaled = size * (2 * torch.rand(units, 1000, generator=generator) - 1)
    scaled[:, 0], scaled[:, 1] = size, -size
    scaled[:, 2:500].abs_()  # nothing cancels
    expected = [sum(round(x) for x in column) for column in scaled.T.tolist()]
    assert whole_sum(scaled.clone()).tolist() == expected
    assert whole_sum(scaled.flip(0)).tolist() == expected


def test_what_is_rounded_is_no_more_than_half_a_step_away():
    scaled = torch.linspace(-3e9 / 2, 3e9 / 2, 10001)
    assert ((whole_sum(scaled[None].clone()) - scaled.double()).abs() <= 0.5).all()
