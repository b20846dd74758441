"""Accounting: from the event that T steps implement to epsilon, and back to the noise that meets a target.

A plan is what an adversary may know of a training: each step is the sampler's event around the mechanism's, T of them
compose. RDP is the paper's accountant; PLD is usually tighter. Both are valid upper bounds (PLD rounds losses up), so
the calibration may use whichever asks for less noise.

    >>> from stages.privacy.methods.batch import BatchClipping
    >>> from stages.privacy.sampling import PoissonSampling
    >>> plan = Plan(PoissonSampling(n=60_000, batch_size=32), BatchClipping(clip_norm=1.0, sigma=1.0), steps=56_250)
    >>> calibrated = calibrate_rdp(plan, epsilon=1.0, delta=1 / 120_000)
    >>> round(calibrated.z, 3), round(calibrated.sigma, 2)  # the paper takes 0.919, which is z, for sigma
    (0.919, 1.84)
"""

import dataclasses
import functools
from dataclasses import dataclass, field

import dp_accounting
from dp_accounting import rdp
from dp_accounting.mechanism_calibration import ExplicitBracketInterval

from stages.errors import UserError
from stages.privacy.mechanism import Mechanism
from stages.privacy.pld import PLDAccountant
from stages.privacy.sampling import Sampling

RELATIVE_TOLERANCE = 1e-5  # of z; the search always returns the side that meets the target
PLD_RELATIVE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Plan:
    """The public facts of a training, from which its privacy follows."""

    sampling: Sampling
    mechanism: Mechanism
    steps: int  # T

    @property
    def sigma(self) -> float:
        return self.mechanism.sigma

    @property
    def factor(self) -> float:
        """Sensitivity in units of C: sigma = factor * z."""
        return self.mechanism.factor[self.sampling.relation.name]

    @property
    def z(self) -> float:
        return self.sigma / self.factor

    def event(self) -> dp_accounting.DpEvent:
        step = self.mechanism.event(self.sampling.relation)
        return dp_accounting.SelfComposedDpEvent(self.sampling.event(step), self.steps)

    def with_z(self, z: float) -> "Plan":
        return dataclasses.replace(self, mechanism=dataclasses.replace(self.mechanism, sigma=self.factor * z))

    def as_the_paper_reads_it(self) -> "Plan":
        """The same noise with the sensitivity taken to be C."""
        return self.with_z(self.sigma)


def pld_interval(epsilon: float) -> float:
    """Discretisation of the privacy loss for a target. Any value is valid; a coarse one only claims less.

    The rounding adds up over T steps and the cost grows with epsilon / interval, so the interval follows epsilon. At
    T = 56,250 this leaves 0.2% of epsilon at 0.25, 1 and 10, where a fixed 1e-3 is looser than RDP below 0.5.
    """
    return min(1e-3, 1e-4 * epsilon)


def epsilon_rdp(plan: Plan, delta: float) -> float:
    return _epsilon(plan.sampling.relation, None, plan.event(), delta)


def epsilon_pld(plan: Plan, delta: float, interval: float) -> float | None:
    """None where PLD has no analysis of the sampler (without replacement)."""
    supported = _accountant(plan.sampling.relation, interval).supports(plan.event())
    return _epsilon(plan.sampling.relation, interval, plan.event(), delta) if supported else None


def calibrate_rdp(plan: Plan, epsilon: float, delta: float) -> Plan:
    """The plan with the least noise for which RDP accounting stays at or below epsilon; its own sigma is ignored."""
    drawn = 1 - (1 - plan.sampling.q) ** plan.steps
    if delta >= drawn:
        raise UserError(
            f"delta {delta:g} is not below {drawn:.3g}, the chance that a given record is drawn at all: releasing the "
            "drawn records as they are would meet such a delta. Lower it (`auto` is at most 1e-5)"
        )
    upper = 1.0
    while epsilon_rdp(plan.with_z(upper), delta) > epsilon:
        upper *= 2
        if upper > 2**20:
            raise UserError(
                f"no noise meets epsilon {epsilon} at delta {delta} over {plan.steps} steps; raise epsilon or n"
            )
    lower = upper
    while epsilon_rdp(plan.with_z(lower), delta) <= epsilon:
        lower /= 2
        if lower < 2**-20:
            raise UserError(f"epsilon {epsilon} needs no noise at all; write inf for a non-private run")
    return _search(plan, None, epsilon, delta, lower, upper, RELATIVE_TOLERANCE)


def calibrate_pld(by_rdp: Plan, epsilon: float, delta: float) -> Plan | None:
    """The same by PLD; None where it has no analysis, or would ask for more noise than RDP does."""
    interval = pld_interval(epsilon)

    def meets(z: float) -> bool:
        found = epsilon_pld(by_rdp.with_z(z), delta, interval)
        return found is not None and found <= epsilon

    if not meets(by_rdp.z):
        return None
    upper, lower = by_rdp.z, 0.8 * by_rdp.z
    while meets(lower):
        upper, lower = lower, 0.8 * lower
    return _search(by_rdp, interval, epsilon, delta, lower, upper, PLD_RELATIVE_TOLERANCE)


def _accountant(relation: dp_accounting.NeighboringRelation, interval: float | None) -> dp_accounting.PrivacyAccountant:
    """PLD with that interval, or RDP with none."""
    if interval is None:
        return rdp.RdpAccountant(neighboring_relation=relation)
    return PLDAccountant(relation, value_discretization_interval=interval)


@functools.cache
def _epsilon(
    relation: dp_accounting.NeighboringRelation, interval: float | None, event: dp_accounting.DpEvent, delta: float
) -> float:
    """Kept: a search asks for its ends and its result more than once, and methods with one z for the same event."""
    return float(_accountant(relation, interval).compose(event).get_epsilon(delta))


@dataclass
class _Asked:
    """What a search asks of an accountant."""

    relation: dp_accounting.NeighboringRelation
    interval: float | None
    ledger: dp_accounting.DpEvent = field(default_factory=dp_accounting.NoOpDpEvent)

    def compose(self, event: dp_accounting.DpEvent) -> "_Asked":
        return dataclasses.replace(self, ledger=event)

    def get_epsilon(self, delta: float) -> float:
        return _epsilon(self.relation, self.interval, self.ledger, delta)


def _search(
    plan: Plan, interval: float | None, epsilon: float, delta: float, lower: float, upper: float, tolerance: float
) -> Plan:
    z = dp_accounting.calibrate_dp_mechanism(
        lambda: _Asked(plan.sampling.relation, interval),
        lambda z: plan.with_z(z).event(),
        epsilon,
        delta,
        ExplicitBracketInterval(lower, upper),
        tol=tolerance * lower,
    )
    return plan.with_z(z)
