"""The noiseless sum of clipped gradients: bounds, exactness, and what one record more can change."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation

from stages.privacy import gradients as g
from stages.privacy import onepass, unit_gradients
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import MARGIN, clip_factors, grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
SHAPES = {"a": (5, 4), "b": (30,), "c": ()}
ALL = 10_000  # at once


class Free:
    """Each record brings its own gradient, and the loss of several is f(their mean): the worst case of any loss."""

    one_by_one = bf16 = False

    def __init__(self, couple: bool):
        self.couple = couple  # whether a record changes what the others contribute

    def features(self, parameters, records, merge):
        return {"dot": sum((records[k] * parameters[k]).reshape(len(records[k]), -1).sum(1) for k in parameters)}

    def loss(self, parameters, features, present):
        dot = torch.where(present, features["dot"], 0.0)
        if not self.couple:
            return dot.sum()
        return dot.sum() * torch.where(present.sum() % 2 == 0, 1.0, -1.0)  # one record more turns the sign


def parameters() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape, requires_grad=True) for name, shape in SHAPES.items()}


def records(count: int, scale: float = 1.0, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(count, *shape, generator=generator) for name, shape in SHAPES.items()}


def summed(objective, rows, units, C=1.0, at_once=ALL) -> list[torch.Tensor]:
    """In ordinary numbers instead of grid steps."""
    total, _ = clipped_sum(objective, parameters(), rows, np.asarray(units), C, at_once)
    return [t.double() * grid_of(C) for t in total]


def norm(tensors) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def difference(one, other) -> float:
    return norm([a - b for a, b in zip(one, other, strict=True)])


def test_one_norm_over_all_tensors_is_clipped_to_C():
    rows = records(1, scale=3.0)
    clipped = summed(Free(couple=False), rows, [0], C=0.7)
    assert norm(clipped) == pytest.approx(0.7, rel=2e-4) and norm(clipped) <= 0.7
    # one factor for all: clipping each tensor would change the ratios between tensors
    ratios = [float((c / rows[k][0]).flatten()[0]) for c, k in zip(clipped, SHAPES, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(SHAPES), rel=1e-4)


def test_a_gradient_inside_the_ball_is_left_alone():
    rows = records(1, scale=1e-3)
    for part, name in zip(summed(Free(couple=False), rows, [0], C=1.0), SHAPES, strict=True):
        assert torch.allclose(part, rows[name][0].double(), rtol=0, atol=2**-29)


@pytest.mark.parametrize("clip_norm", [0.01, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e10, 3e37])
def test_the_bound_holds_to_the_last_digit(scale, clip_norm):
    for seed in range(20):
        for units in ([0], [0, 1]):
            rows = records(len(units), scale, seed)
            rows = {name: t.clamp(-3e38, 3e38) for name, t in rows.items()}
            assert norm(summed(Free(couple=False), rows, units, clip_norm)) <= len(units) * clip_norm


def test_a_bfloat16_gradient_is_bounded_too():
    flat = torch.randn(1, 100_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    norms = g._joint_norms([flat])
    clipped = g._on_grid([flat], norms, 0.1)[0].double() * grid_of(0.1)
    assert 0.09998 < norm([clipped]) <= 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at_once", [1, 4, ALL])
def test_a_record_that_is_not_finite_zeroes_its_unit_and_is_counted(bad, at_once):
    rows, units = records(6), np.array([0, 0, 1, 1, 2, 3])
    rows["a"][0, 0, 0] = bad
    total, figures = clipped_sum(Free(couple=True), parameters(), rows, units, 1.0, at_once)
    assert figures.not_finite == 1
    without = {k: t[2:] for k, t in rows.items()}
    expected, _ = clipped_sum(Free(couple=True), parameters(), without, units[2:], 1.0, at_once)
    assert all(torch.equal(a.double(), b.double()) for a, b in zip(total, expected, strict=True))


def test_a_unit_that_is_not_finite_leaves_the_norms_of_the_others_to_the_last_digit():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(3, 5000, generator=generator), torch.randn(3, 7, generator=generator)]
    norms = g._joint_norms(tensors)
    tensors[0][1, 3] = math.nan
    broken = g._joint_norms(tensors)
    assert broken[1].isnan() and broken[[0, 2]].tolist() == norms[[0, 2]].tolist()
    tensors[0][1, 3] = 1e30  # its square is beyond float32
    huge = g._joint_norms(tensors)
    assert huge[1].item() == pytest.approx(1e30, rel=1e-6) and huge[[0, 2]].tolist() == norms[[0, 2]].tolist()


def test_no_record_gives_zero_and_one_record_works():
    total, figures = clipped_sum(Free(couple=True), parameters(), {}, np.array([], dtype=int), 1.0, ALL)
    assert norm(total) == 0 and [t.shape for t in total] == list(SHAPES.values()) and figures.norms == []
    assert norm(summed(Free(couple=False), records(1), [5])) == pytest.approx(1.0, rel=2e-4)


@pytest.mark.parametrize("at_once", [1, 3, 7, ALL])
def test_the_sum_is_that_of_a_plain_loop_and_does_not_depend_on_chunks_or_order(at_once):
    rows, units = records(40, seed=4), np.random.default_rng(0).integers(9, size=40)
    expected = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES.values()]
    for unit in range(9):
        mine = [sum(row for row in rows[k][units == unit].double()) for k in SHAPES]
        sign = 1 if (units == unit).sum() % 2 == 0 else -1
        factor = sign * min(1.0, (1 - MARGIN) / norm(mine)) if (units == unit).any() else 0.0
        expected = [e + factor * m for e, m in zip(expected, mine, strict=True)]
    got = summed(Free(couple=True), rows, units, at_once=at_once)
    assert difference(got, expected) < 1e-5
    if at_once == ALL:
        order = np.random.default_rng(1).permutation(40)
        other = summed(Free(couple=True), {k: t[order] for k, t in rows.items()}, units[order])
        assert difference(got, other) < 1e-6


def test_units_are_added_exactly():
    """Float32 sums depend on order and chunks; a neighbour could then move every rounding at once."""
    rows = records(500, seed=7)
    one = summed(Free(couple=False), rows, np.arange(500))
    order = np.random.default_rng(0).permutation(500)
    other = summed(Free(couple=False), {k: t[order] for k, t in rows.items()}, np.arange(500), at_once=13)
    assert difference(one, other) == 0


# Neighbouring datasets: the same draws of groups, one record more.

MECHANISMS = {
    "batch": (BatchClipping(0.3, 1.0), True),
    "group": (GroupClipping(0.3, 1.0, groups=5), True),
    "example": (ExampleClipping(0.3, 1.0), False),
}


def distance(mechanism, couple, rows, key, t=0) -> float:
    """Between the noiseless sums with all records and without the last one."""
    n = len(rows["b"])
    sums = []
    for count in (n, n - 1):
        units = mechanism.assign(np.arange(count), key, t)
        sums.append(summed(Free(couple), {k: v[:count] for k, v in rows.items()}, units, mechanism.clip_norm))
    return difference(*sums)


def adversarial(count: int) -> dict[str, torch.Tensor]:
    """All records push the same way, far beyond C: a sign that turns moves the clipped gradient from +C to -C."""
    one = records(1, scale=100.0, seed=1)
    return {name: row.expand(count, *row.shape[1:]).clone() for name, row in one.items()}


def uneven(count: int) -> dict[str, torch.Tensor]:
    """In each group one record outshines the others: to move it elsewhere changes two groups altogether."""
    scales = 10 ** torch.linspace(1, 6, count)
    return {name: row * scales.view(-1, *[1] * (row.dim() - 1)) for name, row in records(count, seed=3).items()}


def replaced(rows: dict[str, torch.Tensor], other: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    return {name: torch.cat([t[:index], other[name][:1], t[index + 1 :]]) for name, t in rows.items()}


@pytest.mark.parametrize("name", MECHANISMS)
def test_replacing_a_record_moves_the_sum_by_at_most_its_sensitivity(name):
    mechanism, couple = MECHANISMS[name]
    bound, seen = mechanism.sensitivity(NeighboringRelation.REPLACE_ONE), []
    for seed in range(20):
        count = 2 + seed
        units = mechanism.assign(np.arange(count), Key.from_seed(seed), 0)
        for rows in (records(count, scale=3.0, seed=seed), adversarial(count), uneven(count)):
            opposite = {k: -1e4 * t for k, t in adversarial(1).items()}
            other = replaced(rows, opposite, index=seed % count)
            seen.append(difference(*(summed(Free(couple), r, units, mechanism.clip_norm) for r in (rows, other))))
    assert 0.99 * bound < max(seen) <= bound


@pytest.mark.parametrize("name", MECHANISMS)
def test_neighbouring_batches_are_never_further_apart_than_the_sensitivity(name):
    mechanism, couple = MECHANISMS[name]
    bound, seen = mechanism.sensitivity(ADD_REMOVE), []
    for seed in range(30):
        key = Key.from_seed(seed)
        random = records(2 + seed, scale=10.0 ** (seed % 5 - 2), seed=seed)
        for rows in (random, adversarial(2 + seed), uneven(2 + seed)):
            seen.append(distance(mechanism, couple, rows, key))
    assert max(seen) <= bound
    assert max(seen) > 0.99 * bound  # the bound is reached: a smaller one would be wrong


def test_the_sensitivity_of_a_batch_is_2C_and_not_C():
    mechanism, couple = MECHANISMS["batch"]
    assert distance(mechanism, couple, adversarial(11), Key.from_seed(0)) > 0.99 * 2 * mechanism.clip_norm


@pytest.mark.parametrize("one_pass", [True, False])
def test_the_neighbour_test_notices_clipping_per_tensor(monkeypatch, one_pass):
    mechanism, couple = MECHANISMS["batch"]
    jointly, together = g._on_grid, unit_gradients.Gradient.clipped

    def per_tensor(tensors, _, C):
        return [jointly([t], g._joint_norms([t]), C)[0] for t in tensors]

    def by_itself(gradient, factors, all_finite):
        own = unit_gradients.norms_of({"": gradient}, len(gradient.block(0, 1)), factors.device)[: len(factors)]
        return together(gradient, clip_factors(own, mechanism.clip_norm), all_finite)

    monkeypatch.setattr(g, "_on_grid", per_tensor)
    monkeypatch.setattr(unit_gradients.Gradient, "clipped", by_itself)
    if not one_pass:
        monkeypatch.setattr(onepass, "known", lambda *_: None)
    assert distance(mechanism, couple, adversarial(11), Key.from_seed(0)) > 1.5 * mechanism.sensitivity(ADD_REMOVE)


def test_the_neighbour_test_notices_groups_cut_from_a_shuffled_batch():
    class Chunked(GroupClipping):
        def assign(self, records, key, t):
            order = key.stream("unit", t).permutation(len(records))
            return np.argsort(order) * self.groups // len(records)

    def furthest(mechanism) -> float:
        return max(distance(mechanism, True, uneven(100), Key.from_seed(seed)) for seed in range(5))

    assert furthest(GroupClipping(0.3, 1.0, groups=50)) <= 0.6
    assert furthest(Chunked(0.3, 1.0, groups=50)) > 2 * 0.6


def test_pieces_give_the_gradient_of_the_whole():
    rows = records(23)
    whole, _ = gradient(Free(couple=True), parameters(), rows, ALL)
    pieces, _ = gradient(Free(couple=True), parameters(), rows, 4)
    assert difference(whole, pieces) < 1e-5
