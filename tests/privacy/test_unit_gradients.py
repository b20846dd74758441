"""No unit that is added is longer than C, whatever its rows are, and a sum has what each unit gives by itself."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from stages.privacy import unit_gradients
from stages.privacy.grid import MARGIN, clip_factors, grid_of
from stages.privacy.unit_gradients import Lookup, Made, Matrix, Together
from stages.privacy.uses import Product, Table

C = 0.01


def exact_square(X: torch.Tensor, D: torch.Tensor) -> Fraction:
    x, d = ([[Fraction(v) for v in row] for row in t.tolist()] for t in (X, D))
    pairs = [(i, j) for i in range(len(x[0])) for j in range(len(d[0]))]
    return sum(sum(a[i] * b[j] for a, b in zip(x, d, strict=True)) ** 2 for i, j in pairs)


def cancelling(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """X and D of a unit: pairs of rows that cancel up to the last digits, and one that is left; or any rows."""
    rng = np.random.default_rng(seed)
    pairs, inputs, outputs = rng.integers(1, 12), *rng.integers(1, 7, size=2)
    x, d = rng.standard_normal((pairs, inputs)), rng.standard_normal((pairs, outputs))
    one = [rng.standard_normal((1, k)) * 10.0 ** -rng.integers(0, 6) for k in (inputs, outputs)]
    slip = 1 + rng.integers(0, 2) * 2.0**-22
    scale = 10.0 ** rng.integers(-8, 8)
    others = -slip * d if seed % 2 else rng.standard_normal(d.shape)
    X, D = np.concatenate((x, x, one[0])), np.concatenate((d, others, one[1])) * scale
    order = rng.permutation(len(X))
    return torch.from_numpy(X[order]).float(), torch.from_numpy(D[order]).float()


def test_the_norm_that_counts_is_below_neither_the_true_one_nor_that_of_what_is_added():
    tight = 0
    for seed in range(300):
        X, D = cancelling(seed)
        matrix = Matrix(torch.Size([X.shape[1], D.shape[1]]), Product(X[None], D[None]))
        between = [rows.double() @ rows.double().T for rows in (X, D)]
        squares, slack = unit_gradients.bounded(between[0][None], between[1][None], sum(matrix.shape))
        norm = (squares.sqrt() + slack.sqrt()).item()
        made = matrix.block(0, matrix.rows)[0].double()
        assert norm >= made.norm().item() * (1 - 1e-12), seed
        assert Fraction(squares.item()) >= exact_square(X, D) * (1 - Fraction(1, 10**12)), seed
        tight += norm <= 1.001 * made.norm().item()
    assert tight > 100  # it is not always the bound that counts


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6, 1e12])
def test_no_unit_whose_rows_cancel_is_added_longer_than_C(length):
    """Float64 and float32 lose nearly all of such a gradient: what is left of it must still be at most C."""
    generator = torch.Generator().manual_seed(0)
    x, d = torch.randn(12, 200, generator=generator), length * torch.randn(12, 150, generator=generator)
    X = torch.cat([x, x * (1 + 2**-22), torch.randn(1, 200, generator=generator)])
    D = torch.cat([d, -d, torch.randn(1, 150, generator=generator)])
    order = torch.randperm(25, generator=generator)
    X, D = X[order], D[order]
    matrix = Matrix(torch.Size([200, 150]), Product(X[None], D[None]))
    assert not matrix.is_measured_as_made
    norms = unit_gradients.norms_of({"W": matrix}, 1, torch.device("cpu"))
    steps = matrix.clipped(clip_factors(norms, C), True)
    assert torch.equal(steps, steps.round())
    assert steps.norm() * grid_of(C) <= C
    if length <= 1e-6:
        assert steps.norm() * grid_of(C) > 0.999 * (1 - MARGIN) * C


def test_terms_beyond_float32_count_as_not_finite():
    X, D = torch.full((1, 4, 300), 1e19), torch.full((1, 4, 300), 1e19)
    assert unit_gradients.norms_of({"W": Matrix(torch.Size([300, 300]), Product(X, D))}, 1, X.device).isinf().all()


def test_tables_and_sums_of_several_operations():
    generator = torch.Generator().manual_seed(0)
    tokens, D = torch.randint(7, (3, 10), generator=generator), torch.randn(3, 10, 4, generator=generator)
    table = Lookup(torch.Size([7, 4]), Table(tokens, D))
    whole = torch.stack([torch.zeros(7, 4).index_add_(0, t, d) for t, d in zip(tokens, D, strict=True)])
    pieces = torch.cat([table.block(0, 3), table.block(3, 5), table.block(5, 7)], dim=1)
    assert torch.allclose(pieces, whole, atol=1e-6)
    squares, slack = table.squares()
    assert torch.allclose(squares.sqrt() + slack.sqrt(), whole.double().flatten(1).norm(dim=1), rtol=1e-5)

    X, E = torch.randn(3, 5, 7, generator=generator), torch.randn(3, 5, 4, generator=generator)
    both = Together([table, Matrix(torch.Size([7, 4]), Product(X, E)), Made(torch.ones(3, 7, 4))])
    assert torch.allclose(both.block(2, 6), (whole + X.mT @ E + 1)[:, 2:6], atol=1e-5)
    assert torch.allclose(both.squares()[0], (whole + X.mT @ E + 1).double().square().sum((1, 2)), rtol=1e-4)


def test_a_gradient_made_in_blocks_is_clipped_like_one_made_at_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    X, D = torch.randn(5, 30, 64, generator=generator), torch.randn(5, 30, 48, generator=generator)
    factors = clip_factors(torch.tensor([1.0, math.inf, 1e-3, 50.0]), C)  # the last unit is a copy, to fill the pass
    sums = []
    for at_once in (2**21, 5 * 48 * 7):
        monkeypatch.setitem(unit_gradients.AT_ONCE, "cpu", at_once)
        sums.append(Matrix(torch.Size([64, 48]), Product(X, D)).clipped(factors, all_finite=True))
    expected = sum((factors[i] * (X[i].T @ D[i])).round().double() for i in range(4))
    made, measured = torch.bmm(X.mT, D), []
    for at_once in (2**21, 5 * 48 * 7):
        monkeypatch.setitem(unit_gradients.AT_ONCE, "cpu", at_once)
        monkeypatch.setattr(Matrix, "is_measured_as_made", True)
        measured.append(Matrix(torch.Size([64, 48]), Product(X, D)).squares()[0])
    for squares in measured:
        assert torch.allclose(squares, made.double().square().sum((1, 2)), rtol=1e-5)
    for total in sums:
        assert (total - expected).abs().max() <= 1e-6 * expected.abs().max() + 4
        assert torch.equal(total, total.round())


def test_rows_that_a_factor_takes_beyond_float32_reach_no_other_unit():
    """Huge inputs with tiny derivatives: their product is an ordinary gradient."""
    generator = torch.Generator().manual_seed(0)
    X, D = torch.randn(3, 4, 300, generator=generator), torch.randn(3, 4, 300, generator=generator)
    X[1], D[1] = 1e33 * X[1], 1e-36 * D[1]
    matrix = Matrix(torch.Size([300, 300]), Product(X, D))
    norms = unit_gradients.norms_of({"W": matrix}, 3, X.device)
    assert not matrix.is_measured_as_made and norms.isfinite().all() and norms[1] < C * 1e3
    both = [Matrix(matrix.shape, Product(X[k], D[k])) for k in ([0, 1, 2], [0, 2])]
    sums = [each.clipped(clip_factors(norms[k], C), True) for each, k in zip(both, ([0, 1, 2], [0, 2]), strict=True)]
    assert sums[0].isfinite().all() and (sums[0] - sums[1]).norm() * grid_of(C) <= C


def test_a_token_that_is_added_in_another_order_leaves_its_unit_within_C(monkeypatch):
    """As on a GPU: what is measured is then not to the last digit what is added."""
    generator = torch.Generator().manual_seed(0)
    D = 1e7 * torch.randn(1, 40, 8, generator=generator)
    D[:, 20:] = -D[:, :20]
    table = Lookup(torch.Size([3, 8]), Table(torch.ones(1, 40, dtype=torch.long), D))

    def in_any_order(self, first, last):
        order = torch.randperm(40)
        whole = torch.zeros(1, 3, 8)
        whole[0, 1] = sum(D[0, order], torch.zeros(8))
        return whole[:, first:last]

    monkeypatch.setattr(Lookup, "block", in_any_order)
    tied = Together([table, Made(torch.zeros(1, 3, 8))])
    for _ in range(20):
        factors = clip_factors(unit_gradients.norms_of({"table": tied}, 1, D.device), C)
        assert tied.clipped(factors, True).norm() * grid_of(C) <= C
