"""Clipped sums from factors, against the ones that compute every unit's gradient."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation

from stages.privacy import factored, gradients, grid
from stages.privacy.factored import Factor
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from tests.privacy.cancelling import CASES, NAMES, SIZE, crafted, ordinary, together

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

    one_by_one = bf16 = False

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
    return torch.cat([t.double().flatten() for t in total]) * grid.grid_of(C)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("at_once", [ALL, 4])
def test_it_is_the_sum_of_the_clipped_gradients(name, at_once):
    mechanism, couple = MECHANISMS[name]
    for seed, scale in enumerate((1e-3, 0.1, 1.0, 100.0)):  # nothing is clipped, some, all
        rows = records(17, scale, seed)
        units = mechanism.assign(np.arange(17), Key.from_seed(seed), 0)
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
                units = mechanism.assign(np.arange(count), key, 0)
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
    assert torch.equal(torch.cat([t.flatten() for t in total]) * grid.grid_of(C), alone)


def test_an_empty_batch_has_the_sum_zero_and_what_leaves_is_on_the_grid():
    total, figures = factored.clipped_sum(Linear(True), parameters(), {}, np.array([], dtype=int), C, ALL)
    assert all(t.abs().sum() == 0 for t in total) and figures.records == 0
    total, _ = factored.clipped_sum(Linear(True), parameters(), records(5), np.arange(5), C, ALL)
    assert all(torch.equal(t, t.round()) and t.abs().sum() > 0 for t in total)


def squared_length(total: list[torch.Tensor]) -> Fraction:
    """Of a sum that is given in whole steps of the grid, without any rounding."""
    return sum(int(x) ** 2 for t in total for x in t.flatten().tolist()) * Fraction(grid.grid_of(C)) ** 2


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize(("part", "loss"), CASES)
@pytest.mark.parametrize("length", [1.0, 1e3, 1e6, 1e9, 1e20, 3e37])
def test_a_unit_whose_records_cancel_is_never_longer_than_C(layout, part, loss, length):
    objective, trained, rows = crafted(layout, part, loss, length)
    batch, figures = factored.clipped_sum(objective, trained, rows, np.zeros(SIZE, int), C, ALL, {})
    assert (0.999 * C) ** 2 < squared_length(batch) <= Fraction(C) ** 2
    assert figures.norms[0] > 40  # its third record's gradient

    others = [ordinary(rows, seed) for seed in range(4)]
    sums = [
        factored.clipped_sum(objective, trained, *together(*units), C, ALL)[0] for units in (others, [*others, rows])
    ]
    moved = [a - b for a, b in zip(*sums, strict=True)]
    assert (0.999 * C) ** 2 < squared_length(moved) <= Fraction(C) ** 2


def exact_square(X: torch.Tensor, D: torch.Tensor) -> Fraction:
    x, d = ([[Fraction(v) for v in row] for row in t.tolist()] for t in (X, D))
    pairs = ((i, j) for i in range(len(x[0])) for j in range(len(d[0])))
    return sum(sum(a[i] * b[j] for a, b in zip(x, d, strict=True)) ** 2 for i, j in pairs)


def adversarial_units(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """X and D of a unit in float32: pairs that cancel, of any size, and one more record, which is all that is left."""
    rng = np.random.default_rng(seed)
    pairs, inputs, outputs = rng.integers(1, 12), *rng.integers(1, 7, size=2)
    x, d = rng.standard_normal((pairs, inputs)), rng.standard_normal((pairs, outputs))
    one = [rng.standard_normal((1, k)) * 10.0 ** -rng.integers(0, 8) for k in (inputs, outputs)]
    scales = 10.0 ** rng.integers(-44, 38, size=2)  # down to numbers of which float32 has few digits
    unit = [np.concatenate(t) * scale for t, scale in zip(((x, x, one[0]), (d, -d, one[1])), scales, strict=True)]
    unit[1][rng.integers(2 * pairs)] *= seed % 5 > 0
    limit, order = np.finfo(np.float32).max, rng.permutation(2 * pairs + 1)
    return tuple(torch.from_numpy(np.clip(t[order], -limit, limit).astype(np.float32)) for t in unit)


def test_the_norm_that_counts_is_never_below_the_exact_one():
    wrong = 0
    for seed in range(300):
        X, D = adversarial_units(seed)
        x, d = X[None].double(), D[None].double()
        norm, length = factored.bounded_norms({"W": x}, {"W": d})
        exact = exact_square(X, D)
        # the square root rounds to the nearest: one digit less than what is added to the square
        assert Fraction(norm.item()) ** 2 >= exact * (1 - Fraction(1, 2**51)), seed
        assert length.item() >= exact**0.5 * (1 - 1e-12)
        wrong += Fraction(((x @ x.mT) * (d @ d.mT)).sum().item()) < exact * (1 - Fraction(1, 1000))
    assert wrong > 50  # without what is added


@pytest.mark.parametrize(("size", "units"), [(512, 1), (64, 4), (4, 64), (1, 128)])
def test_ordinary_units_keep_their_clip_factor(size, units):
    """CLIP's features have a large part in common, so a contrastive gradient is a difference of longer terms."""
    generator = torch.Generator().manual_seed(size)
    common = 3 * torch.randn(64, generator=generator, dtype=torch.float64)
    x = (common + torch.randn(units, size, 64, generator=generator, dtype=torch.float64)).float().double()
    d = torch.randn(units, size, 32, generator=generator, dtype=torch.float64).float().double()
    d = (d - d.mean(1, keepdim=True) * (size > 1)).float().double()
    norms, _ = factored.bounded_norms({"W": x}, {"W": d})
    plain = (x.mT @ d).flatten(1).norm(dim=1)
    assert ((norms - plain).abs() / plain).max() < 1e-9


def test_cancelling_units_add_up_with_the_others():
    objective, trained, rows = crafted("Linear", "projections", "contrastive", 1e3)
    rows, units = together(*[ordinary(rows, 0), rows] * 5)
    plain, of_factors = (
        torch.cat([t.double().flatten() for t in module.clipped_sum(objective, trained, rows, units, C, ALL)[0]])
        for module in (gradients, factored)
    )
    assert (of_factors - plain).norm() * grid.grid_of(C) < 1e-4 * 10 * C


def test_numbers_with_more_range_than_float32_are_refused():
    wide = {k: t.double() for k, t in records(3).items()}
    with pytest.raises(ValueError, match="proven for"):
        factored.clipped_sum(Linear(True), {k: p.double() for k, p in parameters().items()}, wide, np.arange(3), C, ALL)
