"""Accounting: from the event that T steps implement to epsilon, and back to the noise that meets a target.

Each step is the sampler's event around the mechanism's Gaussian event with z = stddev / sensitivity; T steps compose.
RDP is the paper's accountant; PLD is usually tighter. Both are valid upper bounds (PLD rounds losses up), so the
calibration may use whichever asks for less noise.

    >>> sampling = PoissonSampling(n=60_000, batch_size=32)
    >>> z = calibrate_rdp(sampling, steps=56_250, epsilon=1.0, delta=1 / 120_000)
    >>> round(z, 3), round(2 * z, 2)  # the paper's 0.919 is z, not sigma
    (0.919, 1.84)
"""

import functools

import dp_accounting
from dp_accounting import pld, rdp
from dp_accounting.mechanism_calibration import ExplicitBracketInterval

from stages.errors import UserError
from stages.privacy.sampling import PoissonSampling

RELATIVE_TOLERANCE = 1e-5  # of z; the search always returns the side that meets the target
PLD_RELATIVE_TOLERANCE = 1e-4


def pld_interval(epsilon: float) -> float:
    """Discretisation of the privacy loss for a target. Any value is valid; a coarse one only claims less.

    The rounding adds up over T steps and the cost grows with epsilon / interval, so the interval follows epsilon. At
    T = 56,250 this leaves 0.2% of epsilon at 0.25, 1 and 10, where a fixed 1e-3 is looser than RDP below 0.5.
    """
    return min(1e-3, 1e-4 * epsilon)


def composed(sampling: PoissonSampling, z: float, steps: int) -> dp_accounting.DpEvent:
    return dp_accounting.SelfComposedDpEvent(sampling.event(dp_accounting.GaussianDpEvent(z)), steps)


def epsilon_rdp(sampling: PoissonSampling, z: float, steps: int, delta: float) -> float:
    return _rdp(sampling).compose(composed(sampling, z, steps)).get_epsilon(delta)


def epsilon_pld(sampling: PoissonSampling, z: float, steps: int, delta: float, interval: float) -> float:
    return _pld(sampling, interval).compose(composed(sampling, z, steps)).get_epsilon(delta)


def calibrate_rdp(sampling: PoissonSampling, steps: int, epsilon: float, delta: float) -> float:
    """The smallest z for which RDP accounting stays at or below epsilon."""
    upper = 1.0
    while epsilon_rdp(sampling, upper, steps, delta) > epsilon:
        upper *= 2
        if upper > 2**20:
            raise UserError(f"no noise meets epsilon {epsilon} at delta {delta} over {steps} steps; raise epsilon or n")
    lower = upper
    while epsilon_rdp(sampling, lower, steps, delta) <= epsilon:
        lower /= 2
        if lower < 2**-20:
            raise UserError(f"epsilon {epsilon} needs no noise at all; write inf for a non-private run")
    accountant = functools.partial(_rdp, sampling)
    return _search(accountant, sampling, steps, epsilon, delta, lower, upper, RELATIVE_TOLERANCE)


def calibrate_pld(sampling: PoissonSampling, steps: int, epsilon: float, delta: float, z_rdp: float) -> float | None:
    """The smallest z for which PLD accounting meets epsilon; None where it would ask for more than RDP does."""
    interval = pld_interval(epsilon)
    if epsilon_pld(sampling, z_rdp, steps, delta, interval) > epsilon:
        return None
    upper, lower = z_rdp, 0.8 * z_rdp
    while epsilon_pld(sampling, lower, steps, delta, interval) <= epsilon:
        upper, lower = lower, 0.8 * lower
    accountant = functools.partial(_pld, sampling, interval)
    return _search(accountant, sampling, steps, epsilon, delta, lower, upper, PLD_RELATIVE_TOLERANCE)


def _rdp(sampling: PoissonSampling) -> rdp.RdpAccountant:
    return rdp.RdpAccountant(neighboring_relation=sampling.relation)


def _pld(sampling: PoissonSampling, interval: float) -> pld.PLDAccountant:
    return pld.PLDAccountant(sampling.relation, value_discretization_interval=interval)


def _search(accountant, sampling, steps, epsilon, delta, lower, upper, tolerance) -> float:
    return dp_accounting.calibrate_dp_mechanism(
        accountant,
        lambda z: composed(sampling, z, steps),
        epsilon,
        delta,
        ExplicitBracketInterval(lower, upper),
        tol=tolerance * lower,
    )
