"""The fast accountant is dp-accounting's: same epsilons to the last bit, same refusals, a fraction of the time."""

import time

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    pld,
)

from stages.privacy.pld import PLDAccountant

REPLACE = NeighboringRelation.REPLACE_ONE


def steps(q: float, z: float, count: int) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)


def both(event, interval: float, delta: float = 1e-5) -> list[float]:
    accountants = (PLDAccountant, pld.PLDAccountant)
    return [a(value_discretization_interval=interval).compose(event).get_epsilon(delta) for a in accountants]


@pytest.mark.parametrize("q", [5e-4, 0.008, 0.128, 0.5, 0.9999])
@pytest.mark.parametrize("z", [0.5, 1.3, 6.0])
@pytest.mark.parametrize("count", [1, 300])
def test_epsilon_is_the_same_to_the_last_bit(q, z, count):
    ours, theirs = both(steps(q, z, count), interval=1e-2)
    assert ours == theirs > 0


def test_so_it_is_of_runs_that_compose_and_of_what_it_leaves_to_dp_accounting():
    everything = ComposedDpEvent([steps(0.1, 1.5, 20), steps(0.02, 0.9, 50), steps(1.0, 8.0, 3), GaussianDpEvent(5.0)])
    ours, theirs = both(everything, interval=1e-2)
    assert ours == theirs > 0
    for event in (steps(0.0, 1.0, 5), steps(0.1, 0.0, 5), NonPrivateDpEvent()):
        ours, theirs = both(event, interval=1e-2)
        assert ours == theirs


def test_a_rate_whose_edge_is_a_point_of_the_grid():
    """There the loss without sampling is infinite, which dp-accounting treats apart; so it does the loss zero."""
    interval = 1e-2
    ours, theirs = both(steps(-np.expm1(-10 * interval), 1.0, 10), interval)
    assert ours == theirs


def test_what_has_no_analysis_is_refused_as_before():
    without = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0))
    for relation, event in ((REPLACE, steps(0.1, 1.0, 1)), (REPLACE, without)):
        assert not PLDAccountant(relation).supports(event)
        assert not pld.PLDAccountant(relation).supports(event)


@pytest.mark.slow
def test_it_takes_less_than_half_of_the_time():
    def seconds(accountant) -> float:
        start = time.process_time()
        accountant(value_discretization_interval=1e-4).compose(steps(0.016, 0.9, 12)).get_epsilon(1e-5)
        return time.process_time() - start

    assert min(seconds(PLDAccountant) for _ in range(2)) < 0.5 * min(seconds(pld.PLDAccountant) for _ in range(2))
