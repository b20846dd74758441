"""The privacy loss as a random variable: its interval holds what other ways of computing epsilon find."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from stages.privacy import prv
from stages.privacy.accounting import Plan, calibrate_pld, calibrate_rdp, epsilon_pld, pld_interval
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.sampling import PoissonSampling


def of_gaussian(z: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: exact."""

    def too_much(epsilon: float) -> float:
        a, b = 1 / (2 * z), epsilon * z
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - delta

    return brentq(too_much, 0, 100)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
@pytest.mark.parametrize(("z", "steps"), [(0.5, 1), (1, 1), (4, 1), (3, 16), (20, 400)])
def test_the_gaussian_mechanism_has_its_closed_form(z, steps, delta):
    lower, upper = prv.interval(1.0, z, steps, delta)
    assert lower <= of_gaussian(z / math.sqrt(steps), delta) <= upper
    assert upper - lower < 0.012 * upper


def delta_of_one_step(q: float, z: float, epsilon: float) -> float:
    """P(l > epsilon) - e^epsilon Q(l > epsilon), of one step, for the worse order of the pair."""
    deltas = []
    for at, sign in ((epsilon, 1), (-epsilon, -1)):
        if math.exp(at) <= 1 - q:
            continue
        x = z**2 * math.log((math.exp(at) - 1 + q) / q) + 0.5  # where the loss is `at`
        with_it = (1 - q) * norm.cdf(-sign * x / z) + q * norm.cdf(-sign * (x - 1) / z)
        without = norm.cdf(-sign * x / z)
        deltas.append(with_it - math.exp(epsilon) * without if sign > 0 else without - math.exp(epsilon) * with_it)
    return max(deltas)


@pytest.mark.parametrize(("q", "z", "delta"), [(0.1, 1, 1e-5), (0.01, 0.6, 1e-6), (0.5, 0.3, 1e-5), (0.9, 2, 1e-4)])
def test_one_sampled_step_has_its_closed_form(q, z, delta):
    lower, upper = prv.interval(q, z, 1, delta)
    assert lower <= brentq(lambda epsilon: delta_of_one_step(q, z, epsilon) - delta, 0, 60) <= upper


PLANS = [  # n, batch size, steps, delta: the demo's, the paper's and smaller ones
    (4000, 32, 500, 1e-5),
    (4000, 512, 60, 1e-5),
    (60_000, 32, 56_250, 1 / 120_000),
    (60_000, 32, 10_000, 1e-6),
    (400, 40, 10, 1e-5),
]


SLOW = (60_000, 32, 10_000, 1e-6, 1)  # at this epsilon the plan before it is like it, and faster


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "batch_size", "steps", "delta", "epsilon"),
    [case for plan in PLANS for epsilon in (0.1, 1, 10) if (case := (*plan, epsilon)) != SLOW],
)
def test_the_calibrated_claim_and_a_finer_one_lie_inside_a_narrow_interval(n, batch_size, steps, delta, epsilon):
    plan = Plan(PoissonSampling(n, batch_size), BatchClipping(1.0, 1.0), steps)
    by_rdp = calibrate_rdp(plan, epsilon, delta)
    found = calibrate_pld(by_rdp, epsilon, delta)
    lower, upper = prv.interval(found.sampling.q, found.z, steps, delta)
    claim, finer = (epsilon_pld(found, delta, pld_interval(epsilon) / by) for by in (1, 4))
    assert lower <= finer <= claim <= upper
    assert upper - lower < 0.02 * epsilon
    assert prv.interval(by_rdp.sampling.q, 0.98 * found.z, steps, delta)[0] > lower  # less noise: a larger epsilon


@pytest.mark.slow
def test_losses_finer_than_the_grid_are_rounded_by_their_mean():
    """Most losses of a rare and nearly noiseless draw are within one h: the mean of the rounding decides."""
    sampling, steps, delta = PoissonSampling(10_000, 1), 100_000, 1e-6
    plan = Plan(sampling, BatchClipping(1.0, sigma=0.7), steps)
    lower, upper = prv.interval(sampling.q, plan.z, steps, delta)
    assert lower <= epsilon_pld(plan, delta, 3e-4) <= upper


def test_opacus_finds_an_epsilon_inside():
    """Another implementation of the same theorem; it looks at one order of the pair, which here is the worse one."""
    from opacus.accountants import PRVAccountant

    q, z, steps, delta = 0.008, 1.02, 500, 1e-5
    accountant = PRVAccountant()
    accountant.history = [(z, q, steps)]
    composed = accountant._get_dprv(eps_error=0.01, delta_error=delta / 1000)
    _, estimate, _ = composed.compute_epsilon(delta, delta / 1000, 0.01)
    lower, upper = prv.interval(q, z, steps, delta)
    assert lower <= estimate <= upper
