"""Golden values are the table of the privacy contract: b = 32, RDP, Poisson, delta = 1/(2n)."""

import pytest

from stages.privacy.accounting import calibrate_pld, calibrate_rdp, epsilon_pld, epsilon_rdp, pld_interval
from stages.privacy.sampling import PoissonSampling

EPSILONS = (0.25, 0.5, 1, 3, 10)
GOLDEN = {  # (n, epochs): sigma without the factor 2, and the epsilon which that sigma really gives
    (60_000, 30): ((1.997, 1.281, 0.919, 0.620, 0.458), (0.8, 2.7, 9.9, 59, 226)),
    (50_000, 30): ((2.145, 1.323, 0.936, 0.630, 0.466), (0.7, 2.6, 9.7, 58, 219)),
    (73_257, 15): ((1.621, 1.156, 0.860, 0.588, 0.430), (1.2, 3.2, 10.0, 51, 193)),
}
CASES = [
    (n, epochs, *values) for (n, epochs), columns in GOLDEN.items() for values in zip(EPSILONS, *columns, strict=True)
]


@pytest.mark.parametrize(("n", "epochs", "epsilon", "paper_sigma", "really"), CASES)
def test_calibration_agrees_with_the_contract(n, epochs, epsilon, paper_sigma, really):
    sampling, delta = PoissonSampling(n, 32), 1 / (2 * n)
    T = sampling.steps(epochs)
    z = calibrate_rdp(sampling, T, epsilon, delta)
    assert z == pytest.approx(paper_sigma, abs=2e-3)  # what the paper takes for sigma; ours is 2z
    assert 0.999 * epsilon < epsilon_rdp(sampling, z, T, delta) <= epsilon
    assert epsilon_rdp(sampling, paper_sigma / 2, T, delta) == pytest.approx(really, rel=0.07)


def test_pld_asks_for_less_noise_and_still_meets_the_target():
    sampling, T, delta = PoissonSampling(4000, 32), 1875, 1 / 8000
    for epsilon in (0.5, 3):
        z_rdp = calibrate_rdp(sampling, T, epsilon, delta)
        z = calibrate_pld(sampling, T, epsilon, delta, z_rdp)
        assert z < z_rdp
        assert epsilon_pld(sampling, z, T, delta, pld_interval(epsilon)) <= epsilon
        # also by a grid four times finer, which has less rounding to hide behind
        assert epsilon_pld(sampling, z, T, delta, pld_interval(epsilon) / 4) <= epsilon


def test_the_pld_grid_costs_little_of_epsilon_at_many_steps():
    sampling, T, delta = PoissonSampling(60_000, 32), 56_250, 1 / 120_000
    for z, epsilon in ((2.0, 0.25), (0.92, 1)):
        used = epsilon_pld(sampling, z, T, delta, pld_interval(epsilon))
        finer = epsilon_pld(sampling, z, T, delta, pld_interval(epsilon) / 4)
        assert finer <= used <= 1.005 * finer
