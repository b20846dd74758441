"""Clipped sums from factors, against the ones that compute every unit's gradient."""

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation

from stages.privacy import factored, gradients
from stages.privacy.factored import Factor
from stages.privacy.mechanism import BatchClipping, ExampleClipping, GroupClipping
from stages.privacy.randomness import Key

ALL, C = 10_000, 0.3
MECHANISMS = {
    "batch": (BatchClipping(C, 1.0), True),
    "group": (GroupClipping(C, 1.0, groups=5), True),
    "example": (ExampleClipping(C, 1.0), False),
}


class Linear:
    """Two matrices, one kept as (inputs, outputs) and one as (outputs, inputs), each on inputs of its own.

    Coupled, the number of records turns the sign of all of them: the most that one more record can do.
    """

    factors = {"A": Factor("x", "a_probe", False), "B": Factor("y", "b_probe", True)}  # noqa: RUF012

    one_by_one = False

    def __init__(self, couple: bool):
        self.couple = couple

    def features(self, parameters, records, merge):
        a = records["x"] @ parameters["A"] + parameters.get("a_probe", 0.0)
        b = records["y"] @ parameters["B"].T + parameters.get("b_probe", 0.0)
        return {"a": a, "b": b}

    def loss(self, parameters, features, present):
        each = (features["a"].sum(1) + torch.sin(features["b"]).sum(1)) * present
        sign = 1 - 2 * (present.sum() % 2) if self.couple else 1
        return sign * each.sum()


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = {"A": torch.randn(6, 4, generator=generator), "B": 0.1 * torch.randn(3, 5, generator=generator)}
    return {name: value.requires_grad_() for name, value in values.items()}


def records(count: int, scale: float = 1.0, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {k: scale * torch.randn(count, d, generator=generator) for k, d in (("x", 6), ("y", 5))}


def same(count: int, scale: float) -> dict[str, torch.Tensor]:
    return {k: row.expand(count, -1).clone() for k, row in records(1, scale).items()}


def summed(objective, rows, units, module=factored, at_once=ALL) -> torch.Tensor:
    total, _ = module.clipped_sum(objective, parameters(), rows, units, C, at_once)
    return torch.cat([t.double().flatten() for t in total]) * gradients.grid_of(C)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("at_once", [ALL, 4])
def test_it_is_the_sum_of_the_clipped_gradients(name, at_once):
    mechanism, couple = MECHANISMS[name]
    for seed, scale in enumerate((1e-3, 0.1, 1.0, 100.0)):  # nothing is clipped, some, all
        rows = records(17, scale, seed)
        units = mechanism.assign(np.arange(17), 17, Key.from_seed(seed).stream("unit", 0))
        plain = summed(Linear(couple), rows, units, gradients)
        assert (summed(Linear(couple), rows, units, at_once=at_once) - plain).norm() <= 1e-5 * plain.norm() + 1e-8


@pytest.mark.parametrize("name", MECHANISMS)
def test_neighbouring_batches_are_never_further_apart_than_the_sensitivity(name):
    mechanism, couple = MECHANISMS[name]
    bound, seen = mechanism.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE), []
    for seed in range(20):
        n, key = 2 + seed, Key.from_seed(seed)
        for rows in (records(n, 10.0 ** (seed % 5 - 2), seed), same(n, 50.0)):
            sums = []
            for count in (n, n - 1):
                units = mechanism.assign(np.arange(count), count, key.stream("unit", 0))
                sums.append(summed(Linear(couple), {k: t[:count] for k, t in rows.items()}, units))
            seen.append((sums[0] - sums[1]).norm().item())
    assert 0.99 * bound < max(seen) <= bound


def test_a_record_that_is_not_finite_counts_as_zero_and_leaves_the_others_alone():
    rows = records(6, 10.0)
    units = np.array([0, 0, 1, 1, 2, 2])
    rows["x"][3] = torch.nan
    rows["y"][4] = torch.inf
    total, figures = factored.clipped_sum(Linear(False), parameters(), rows, units, C, ALL)
    assert figures.not_finite == 2
    alone = summed(Linear(False), {k: t[:2] for k, t in rows.items()}, units[:2])
    assert torch.equal(torch.cat([t.flatten() for t in total]) * gradients.grid_of(C), alone)


def test_an_empty_batch_has_the_sum_zero_and_what_leaves_is_on_the_grid():
    total, figures = factored.clipped_sum(Linear(True), parameters(), {}, np.array([], dtype=int), C, ALL)
    assert all(t.abs().sum() == 0 for t in total) and figures.records == 0
    total, _ = factored.clipped_sum(Linear(True), parameters(), records(5), np.arange(5), C, ALL)
    assert all(torch.equal(t, t.round()) and t.abs().sum() > 0 for t in total)
