"""What the theorem chooses: T, sigma and eta, from n, epsilon and delta; sigma is the accountant's.

The paper's sigma is C sqrt(T log(1/delta)) / (n epsilon) for any batch size b. That is not private: a clipped batch
gradient changes by 2c whatever b is, so with q = b/n the noise must be about 2 q sqrt(2 T log(1/delta)) / epsilon, a
factor of b more (slips.py shows it by numbers). With m units in a step the sum's noise is shared by m: what reaches
the mean gradient is sigma / m, and with units of a fixed size k that is again proportional to k / (n epsilon).
"""

import functools
import math

from stages.privacy.accounting import Plan, calibrate_rdp
from stages.privacy.mechanism import Mechanism
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.sampling import PoissonSampling


def dimension(rd: int, steps: int, n: int, d: int) -> float:
    """rd + log(T (n + d)), which stands wherever the noise's size does."""
    return rd + math.log(steps * (n + d))


def eta_of(sigma: float, units: int, rd: int, steps: int, n: int, d: int) -> float:
    """1 / (sigma sqrt(T (rd + log(T (n + d))))), where sigma is the noise of the mean over units."""
    return units / (sigma * math.sqrt(steps * dimension(rd, steps, n, d)))


@functools.cache
def choose(
    n: int, batch_size: int, units: int, clip_norm: float, epsilon: float, delta: float, rd: int, d: int, fastest: float
) -> tuple[Plan, float]:
    """(plan, eta): the fewest steps with eta <= `fastest` and epsilon <= q^2 T / 3; the paper's constant is not known.

    With fewer steps the noise that is needed stops falling as 1 / epsilon.
    """
    sampling = PoissonSampling(n, batch_size)
    mechanism: Mechanism = GroupClipping(clip_norm, 1.0, units) if units > 1 else BatchClipping(clip_norm, 1.0)
    steps = math.ceil(3 * epsilon / sampling.q**2)
    while True:
        plan = calibrate_rdp(Plan(sampling, mechanism, steps), epsilon, delta)
        eta = eta_of(plan.sigma, units, rd, steps, n, d)
        if eta <= fastest:
            return plan, eta
        steps = math.ceil(1.02 * steps * eta / fastest)  # sigma grows with sqrt(T), so eta falls as 1/T
