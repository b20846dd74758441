"""Every lemma that numbers can check, on matrices of real sizes; and that a changed sign or factor is noticed."""

import inspect
import itertools
import types

import pytest
import torch
from torch.func import grad, hessian

from stages.theory import linear

ALPHA = 0.7
R, D1, D2 = 2, 4, 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(seed: int = 0) -> torch.Tensor:
    """Singular values 1, 0.8, 0.3: a gap of 0.5 after the second."""
    p, q = (torch.linalg.qr(normal(d, 3, seed=seed + i)).Q for i, d in enumerate((D1, D2)))
    return p @ torch.diag(torch.tensor([1.0, 0.8, 0.3], dtype=torch.float64)) @ q.mT


def near(best: torch.Tensor, away: float, seed: int) -> torch.Tensor:
    direction = normal(*best.shape, seed=seed)
    return best + away * direction / direction.norm()


def rotation(seed: int) -> torch.Tensor:
    return torch.linalg.qr(normal(R, R, seed=seed)).Q


def sample_covariance_is_the_papers(lib):
    x, y, n = normal(7, D1), normal(7, D2, seed=1), 7
    pairs = sum(torch.outer(x[i], y[i]) for i in range(n)) / n
    others = sum(torch.outer(x[i], y[j]) for i, j in itertools.permutations(range(n), 2)) / (n * (n - 1))
    assert torch.allclose(lib.cross_covariance(x, y), pairs - others)


def loss_is_the_papers(lib):
    g, s = normal(R, D1 + D2), covariance()
    expected = -torch.trace(g[:, :D1] @ s @ g[:, D1:].T) + ALPHA / 4 * (g @ g.T - torch.eye(R)).norm() ** 2
    assert torch.allclose(lib.loss(g, s, ALPHA), expected)


def gradient_is_the_derivative(lib):
    g, s = normal(5, R, D1 + D2), covariance()
    each = torch.stack([grad(lambda v: linear.loss(v, s, ALPHA))(one) for one in g])
    assert torch.allclose(lib.gradient(g, s, ALPHA), each)


def minibatch_gradient_is_unbiased(lib):
    """All 20 batches of three out of six."""
    g, x, y = normal(R, D1 + D2), normal(6, D1, seed=1) + 1, normal(6, D2, seed=2) + 1
    batches = [list(b) for b in itertools.combinations(range(6), 3)]
    mean = torch.stack([lib.gradient(g, lib.cross_covariance(x[b], y[b]), ALPHA) for b in batches]).mean(0)
    assert torch.allclose(mean, lib.gradient(g, lib.cross_covariance(x, y), ALPHA))


def closed_form_is_the_minimum(lib):
    s = covariance()
    best = lib.minimiser(s, R, ALPHA)
    assert lib.gradient(best, s, ALPHA).norm() < 1e-12
    g = normal(R, D1 + D2, seed=3).requires_grad_()
    optimiser = torch.optim.LBFGS([g], max_iter=500, tolerance_grad=1e-11, tolerance_change=1e-14)

    def closure():
        optimiser.zero_grad()
        value = linear.loss(g, s, ALPHA)
        value.backward()
        return value

    optimiser.step(closure)
    assert torch.allclose(linear.loss(g, s, ALPHA), lib.loss(best, s, ALPHA), atol=1e-9)
    assert lib.distance(g.detach(), best) < 1e-4  # the same up to a rotation
    assert torch.allclose(lib.loss(rotation(1) @ best, s, ALPHA), lib.loss(best, s, ALPHA))


def curvature_is_the_second_derivative(lib):
    g, s, z = normal(R, D1 + D2), covariance(), normal(R, D1 + D2, seed=1)
    full = hessian(lambda v: linear.loss(v.view(R, D1 + D2), s, ALPHA))(g.flatten())
    assert torch.allclose(lib.curvature(g, s, ALPHA, z), z.flatten() @ full @ z.flatten())


def curvature_is_within_the_lemmas_constants(lib):
    """Smooth in the ball, and strongly convex towards the minimiser, after rotation."""
    s = covariance()
    best, constants = lib.minimiser(s, R, ALPHA), lib.Constants.of(s, R, ALPHA)
    assert (constants.beta_u, constants.beta_l) == pytest.approx((8 * 1.0 + 12 * ALPHA, (0.8 - 0.3) / 2))
    assert constants.gamma == pytest.approx(0.5 / (18 * ALPHA * (1 + 1 / ALPHA) ** 0.5))
    for seed in range(40):
        g = near(best, constants.gamma, seed)
        top = torch.linalg.eigvalsh(hessian(lambda v: linear.loss(v.view(R, D1 + D2), s, ALPHA))(g.flatten()))[-1]
        assert top <= constants.beta_u
        z = normal(R, D1 + D2, seed=100 + seed)
        u, _, v = torch.linalg.svd(best @ z.mT)
        towards = u @ v @ z - best
        assert lib.curvature(g, s, ALPHA, towards) >= constants.beta_l * towards.square().sum()


def a_step_contracts(lib):
    s = covariance()
    best, constants = lib.minimiser(s, R, ALPHA), lib.Constants.of(s, R, ALPHA)
    for seed in range(40):
        g = rotation(seed) @ near(best, constants.gamma, seed)
        for eta in (1 / constants.beta_u, 0.1 / constants.beta_u):
            after = lib.distance(g - eta * lib.gradient(g, s, ALPHA), best) ** 2
            assert after <= (1 - eta * constants.beta_l) * lib.distance(g, best) ** 2


def distances_are_minima(lib):
    """Against many rotations and a least-squares solver."""
    g, to = normal(R, D1 + D2), normal(R, D1 + D2, seed=1)
    found = lib.distance(g, to)
    assert all((rotation(seed) @ g - to).norm() >= found - 1e-12 for seed in range(200))
    assert lib.distance(rotation(1) @ to, to) < 1e-7
    worst = 0.0
    for part in (slice(None, D1), slice(D1, None)):
        solved = torch.linalg.lstsq(g[:, part].T, to[:, part].T).solution.T
        worst = max(worst, (solved @ g[:, part] - to[:, part]).norm().item())
    assert lib.lost_information(g, to, D1).item() == pytest.approx(worst)


LEMMAS = (
    sample_covariance_is_the_papers,
    loss_is_the_papers,
    gradient_is_the_derivative,
    minibatch_gradient_is_unbiased,
    closed_form_is_the_minimum,
    curvature_is_the_second_derivative,
    curvature_is_within_the_lemmas_constants,
    a_step_contracts,
    distances_are_minima,
)


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda f: f.__name__)
def test_lemma(lemma):
    lemma(linear)


MUTATIONS = (
    ("return penalty_gradient(g, alpha) - signal", "return penalty_gradient(g, alpha) + signal"),
    ("return penalty_gradient(g, alpha) - signal", "return penalty_gradient(g, alpha) - 2 * signal"),
    ("alpha * (g @ g.mT @ g - g)", "alpha * (g @ g.mT @ g + g)"),
    ("alpha * (g @ g.mT @ g - g)", "alpha / 2 * (g @ g.mT @ g - g)"),
    ("torch.cat([g[..., d1:] @ s.mT, g[..., :d1] @ s]", "torch.cat([g[..., d1:] @ s.mT, -g[..., :d1] @ s]"),
    ("/ n) / (n - 1)", "/ n) / n"),
    ("[..., None, :] / n)", "[..., None, :] / (n - 1))"),
    ("alpha / 4 * excess", "alpha / 2 * excess"),
    ("sum((-2, -1)) - signal", "sum((-2, -1)) + signal"),
    ("1 + values[..., :r, None] / alpha) / 2", "1 + values[..., :r, None] / alpha) / 1"),
    ("1 + values[..., :r, None] / alpha", "1 - values[..., :r, None] / alpha"),
    ("alpha * penalty - 2 *", "alpha * penalty -"),
    ("alpha * penalty - 2 *", "alpha * penalty + 2 *"),
    ("8 * first + 12", "4 * first + 12"),
    ("gap / 2, gamma", "4 * gap, gamma"),
    ("return (u @ v @ g - to)", "return (v @ u @ g - to)"),
    ("its - its @ basis @ basis.mT", "its"),
)


@pytest.mark.parametrize(("old", "new"), MUTATIONS, ids=range(len(MUTATIONS)))
def test_a_changed_sign_or_factor_fails_a_lemma(old, new):
    source = inspect.getsource(linear)
    assert source.count(old) == 1
    changed = types.ModuleType("changed")
    changed.__dict__["__name__"] = linear.__name__  # dataclasses look their module up
    exec(source.replace(old, new), changed.__dict__)  # noqa: S102
    failed = []
    for lemma in LEMMAS:
        try:
            lemma(changed)
        except (AssertionError, RuntimeError):
            failed.append(lemma.__name__)
    assert failed
