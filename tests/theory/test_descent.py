"""The batched descent is training's private step, with the guarantee that is stated."""

import dataclasses

import numpy as np
import pytest
import torch

from stages.privacy.accounting import Plan, epsilon_rdp
from stages.privacy.gradients import clipped_sum
from stages.privacy.grid import grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.noise import noised
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling, poisson
from stages.theory import linear
from stages.theory.choices import choose, eta_of
from stages.theory.descent import Descent, by_unit, unit_gradients
from stages.theory.slips import noise_needed
from stages.theory.spiked import Sample, Spiked

ALPHA, KEY, C = 1.0, Key.from_seed(3), 0.4
MODEL = Spiked(5, 4, 2, snr=4.0, effective_rank=2.0, kappa=2.0)


def sample(trials: int = 3, n: int = 200, seed: int = 0) -> Sample:
    return MODEL.draw(np.random.default_rng(seed), trials, n)


def descent(groups: int = 1, n: int = 200, sigma: float = 1.0, clip_norm: float = C, steps: int = 10) -> Descent:
    mechanism = GroupClipping(clip_norm, sigma, groups) if groups > 1 else BatchClipping(clip_norm, sigma)
    return Descent(Plan(PoissonSampling(n, n // 4), mechanism, steps), 0.1, ALPHA, KEY)


class LinearObjective:
    """The linear loss as training's step would be given it."""

    one_by_one, bf16, factors = False, False, None

    def features(self, parameters, records, merge):
        return dict(records)

    def loss(self, parameters, features, present):
        g, there, k = parameters["g"], present[:, None].double(), present.sum()
        x, y = features["x"] * there, features["y"] * there
        s = (x.T @ y - torch.outer(x.sum(0), y.sum(0)) / k) / (k - 1).clamp(min=1)
        return linear.loss(g, s, ALPHA)


@pytest.mark.parametrize("groups", [1, 5])
def test_a_step_is_that_of_training(groups):
    data, run = sample(trials=1), descent(groups)
    g = linear.minimiser(data.population, MODEL.r, ALPHA) + 0.2
    drawn = poisson(KEY.stream("sample", 4), 200, 0.25)
    units = KEY.stream("groups", 4).integers(groups, size=len(drawn))
    records = {"x": data.x[0, drawn].double(), "y": data.y[0, drawn].double()}
    parameters = {"g": g[0].clone().requires_grad_()}
    total, figures = clipped_sum(LinearObjective(), parameters, records, units, C, at_once=1000)
    assert max(figures.norms) > C  # the clip is at work
    theirs = noised([total[0].double()[None]], grid_of(C), C, KEY, 4)[0] / groups
    ours, norms = run.step(data, g, 4)
    assert sorted(norms.tolist()) == pytest.approx(sorted(figures.norms), rel=1e-4)
    assert torch.allclose(ours, theirs.double(), atol=2e-6)


def test_trials_do_not_touch_each_other_and_each_has_its_own_noise():
    data, run = sample(), descent(4)
    g = linear.minimiser(data.population, MODEL.r, ALPHA)
    other = dataclasses.replace(data, x=torch.cat([data.x[:1] * 100, data.x[1:]]))
    ours, theirs = run.step(data, g, 0)[0], run.step(other, g, 0)[0]
    assert not torch.equal(ours[0], theirs[0]) and torch.equal(ours[1:], theirs[1:])
    quiet = dataclasses.replace(run, plan=dataclasses.replace(run.plan, mechanism=GroupClipping(C, 0.0, 4)))
    noise = (ours - quiet.step(data, g, 0)[0]) * 4 / C
    assert noise.std().item() == pytest.approx(1, abs=0.25)
    assert abs(np.corrcoef(noise.flatten(1).numpy())[0, 1]) < 0.6


def test_one_record_moves_the_sum_by_at_most_2c_and_almost_that_much():
    """A record that is replaced by one that turns its unit's gradient around; other units stay as they are."""
    data = sample(trials=1)
    run = descent(groups=5, sigma=0.0)
    g = linear.minimiser(data.population, MODEL.r, ALPHA)
    record = poisson(KEY.stream("sample", 0), 200, 0.25)[7]
    totals = []
    for size in (1e4, -1e4):
        x, y = data.x.clone(), data.y.clone()
        x[0, record], y[0, record] = g[0, 0, :5] * size, g[0, 0, 5:] * abs(size)
        totals.append(run.step(dataclasses.replace(data, x=x, y=y), g, 0)[0] * 5)
    moved = (totals[0] - totals[1]).norm().item()
    assert 1.9 * C < moved <= 2 * C


def test_a_unit_alone_has_the_penalty_and_an_empty_one_counts_nothing():
    data = sample(trials=1)
    g = linear.minimiser(data.population, MODEL.r, ALPHA) * 1.5
    members, counts = by_unit(np.array([3, 4, 9]), np.array([0, 2, 2]), 3, nobody=200)
    gradients = unit_gradients(data, g, members, counts, ALPHA)
    assert counts.tolist() == [1, 0, 2]
    assert torch.allclose(gradients[0], linear.penalty_gradient(g, ALPHA)[0], atol=1e-6)
    s = linear.cross_covariance(data.x[0, [4, 9]].double(), data.y[0, [4, 9]].double())
    assert torch.allclose(gradients[2], linear.gradient(g[0], s, ALPHA), atol=1e-5)
    nobody = dataclasses.replace(descent(500, sigma=0.0, clip_norm=1e3))
    total, norms = nobody.step(data, g, 0)
    assert len(norms) < 60 and total.norm() < 0.2 * linear.penalty_gradient(g, ALPHA).norm()


def test_gaps_draw_every_record_with_probability_q_independently():
    draws = [poisson(Key.from_seed(5).stream("sample", t), 40, 0.3) for t in range(4000)]
    taken = np.zeros((4000, 40))
    for row, drawn in zip(taken, draws, strict=True):
        assert (np.diff(drawn) > 0).all() and drawn.min(initial=0) >= 0 and drawn.max(initial=0) < 40
        row[drawn] = 1
    assert np.abs(taken.mean(0) - 0.3).max() < 0.03  # four standard errors
    assert np.abs(np.cov(taken.T) - np.diag([0.21] * 40)).max() < 0.02
    assert taken.sum(1).var() == pytest.approx(40 * 0.21, rel=0.1)


def test_data_are_those_of_the_model():
    data = sample(trials=2, n=200_000)
    variances = torch.linalg.svdvals(data.population)[:, :3]
    assert torch.allclose(variances, torch.tensor([[1.0, 0.5, 0.0]] * 2, dtype=torch.float64), atol=1e-9)
    found = linear.cross_covariance(data.x.double(), data.y.double())
    assert (found - data.population).abs().max() < 0.02
    own = linear.cross_covariance(data.x.double(), data.x.double())[0]
    top = torch.linalg.eigvalsh(own)
    assert own.trace().item() == pytest.approx(1.5 + 2.0 / 4, abs=0.03)  # signal, and effective rank / snr
    assert top[0] < 0.25


def test_without_noise_it_reaches_the_minimiser_and_noise_leaves_the_floor_that_is_predicted():
    data = sample(trials=8, n=400)
    s = linear.cross_covariance(data.x.double(), data.y.double())
    best = linear.minimiser(s, MODEL.r, ALPHA)
    everyone = Plan(PoissonSampling(400, 400), BatchClipping(100.0, 0.0), 400)
    g, clipped = Descent(everyone, 0.2, ALPHA, KEY).run(data, best + 0.05)
    assert linear.distance(g, best).max() < 1e-4 and clipped == 0
    noisy = dataclasses.replace(everyone, mechanism=BatchClipping(100.0, 1e-4))
    g, _ = Descent(noisy, 0.2, ALPHA, KEY).run(data, best)
    # of a coordinate with curvature h the variance is eta^2 s^2 / (1 - (1 - eta h)^2); a rotation of G costs nothing
    full = torch.func.hessian(lambda v: linear.loss(v.view(2, 9), s[0], ALPHA))(best[0].flatten())
    h = torch.linalg.eigvalsh(full)[1:]
    expected = (0.04 * 1e-4 / (1 - (1 - 0.2 * h) ** 2)).sum().sqrt().item()
    assert linear.distance(g, best).square().mean().sqrt().item() == pytest.approx(expected, rel=0.25)


def test_choices_are_the_theorems_and_private():
    plan, eta = choose(2000, 100, 10, 0.8, 2.0, 1e-5, 16, 16, 0.1)
    assert epsilon_rdp(plan, 1e-5) <= 2.0 and plan.factor == 2
    assert eta == pytest.approx(10 / (plan.sigma * np.sqrt(plan.steps * (16 + np.log(plan.steps * 2016)))))
    assert eta <= 0.1 and plan.steps * 0.05**2 >= 2.0
    assert eta_of(plan.sigma, 10, 16, plan.steps, 2000, 16) == eta


# What the paper says and numbers contradict


def test_the_propositions_noise_is_too_small_by_a_factor_that_grows_with_the_batch():
    ratios = []
    for n in (1000, 10_000):
        claimed, really, needed = noise_needed(n, n // 20, 1200, 3.0, 1e-5)
        assert really > 1000 * 3.0
        ratios.append(needed / claimed)
    assert ratios[0] > 50 and ratios[1] == pytest.approx(10 * ratios[0], rel=0.01)


def test_an_operator_norm_is_not_bounded_by_the_largest_entry():
    ones = torch.ones(4, 9)
    assert torch.linalg.matrix_norm(ones, 2).item() == pytest.approx(6) and ones.max() == 1


def test_the_condition_on_steps_has_no_square():
    """T >= 1 / (sigma^2 D) with sigma^2 = T s^2 is T >= 1 / (s sqrt(D)); T >= sigma^2 D is 1 >= s^2 D for every T."""
    s, dimension = 1e-3, 30.0
    least = 1 / (s * np.sqrt(dimension))
    for steps in (0.9 * least, 1.1 * least, least**2):
        assert (steps >= 1 / (steps * s**2 * dimension)) == (steps >= least)
        assert (steps >= steps * s**2 * dimension) == (s**2 * dimension <= 1)


def test_the_minimisers_map_needs_a_rotation():
    """The same matrix with both singular vectors turned around: A_P, as the paper defines it, gives -G1*."""
    star = linear.minimiser(sample().population, MODEL.r, ALPHA)[0]
    turned = -star  # of the SVD with -P and -Q; A_P is the identity, as V and the singular values are the same
    assert (turned[:, :5] - star[:, :5]).norm() == 2 * star[:, :5].norm()
    assert linear.distance(turned, star) < 1e-7  # and a rotation brings it back
