import math
import time

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from stages import keys
from stages.errors import UserError
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import (
    SAMPLERS,
    FixedSizeSampling,
    Neighbours,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    poisson,
    sampling_of,
)

GAUSSIAN = dp_accounting.GaussianDpEvent(1.5)


def draws(sampling: Sampling, steps: int) -> np.ndarray:
    """(steps, n) of zeros and ones."""
    key = Key.from_os()
    taken = np.zeros((steps, sampling.n))
    for t in range(steps):
        taken[t, sampling.sample(key, t, sampling.n)] = 1
    return taken


def test_every_record_is_drawn_at_rate_q_and_sizes_are_binomial():
    sampling, steps = PoissonSampling(n=500, batch_size=50), 4000
    taken = draws(sampling, steps)
    q, spread = 0.1, math.sqrt(0.1 * 0.9 / steps)
    assert np.abs(taken.mean(axis=0) - q).max() < 6 * spread
    sizes = taken.sum(axis=1)
    assert abs(sizes.mean() - 50) < 5 * math.sqrt(500 * q * (1 - q) / steps)
    assert sizes.var() == pytest.approx(500 * q * (1 - q), rel=0.15)  # a fixed-size batch would have variance 0


@pytest.mark.slow
def test_records_and_steps_are_independent():
    taken = draws(PoissonSampling(n=20, batch_size=5), 20_000)
    between_records = np.corrcoef(taken.T)[np.triu_indices(20, k=1)]
    assert np.abs(between_records).max() < 6 / math.sqrt(20_000)
    between_steps = [np.corrcoef(taken[:-1, i], taken[1:, i])[0, 1] for i in range(20)]
    assert np.abs(between_steps).max() < 6 / math.sqrt(20_000)


def test_batches_may_be_empty():
    sizes = draws(PoissonSampling(n=100, batch_size=1), 200).sum(axis=1)
    assert 0 in sizes


def test_fixed_size_batches_have_that_size_without_repeats_and_each_record_the_same_chance():
    sampling, steps = FixedSizeSampling(n=50, batch_size=10), 10_000
    taken = draws(sampling, steps)
    assert (taken.sum(axis=1) == 10).all()
    assert np.abs(taken.mean(axis=0) - 0.2).max() < 6 * math.sqrt(0.2 * 0.8 / steps)
    between_steps = [np.corrcoef(taken[:-1, i], taken[1:, i])[0, 1] for i in range(50)]
    assert np.abs(between_steps).max() < 6 / math.sqrt(steps)
    pairs = (taken.T @ taken / steps)[np.triu_indices(50, k=1)]  # all pairs are equally likely: 10 * 9 / (50 * 49)
    assert np.abs(pairs - 90 / 2450).max() < 6 * math.sqrt(90 / 2450 / steps)


def test_a_shuffled_epoch_takes_every_record_once_and_the_next_in_another_order():
    sampling, key = ShuffledBatches(n=12, batch_size=4), Key.from_os()
    for first in (0, 3):
        assert sorted(np.concatenate([sampling.sample(key, first + t, 12) for t in range(3)])) == list(range(12))
    orders = {tuple(map(tuple, (sampling.sample(key, t, 12) for t in range(s, s + 3)))) for s in range(0, 60, 3)}
    assert len(orders) > 15


def test_the_names_of_the_samplers_are_those_of_params():
    assert tuple(SAMPLERS) == keys.SAMPLERS


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_batch_of_a_step_is_a_pure_function_of_key_and_step(name):
    sampling, key = SAMPLERS[name](n=1000, batch_size=100), Key.from_os()
    assert sampling.sample(key, 3, 1000).tolist() == sampling.sample(key, 3, 1000).tolist()
    assert sampling.sample(key, 3, 1000).tolist() != sampling.sample(key, 4, 1000).tolist()
    assert sampling.sample(key, 3, 1000).tolist() != sampling.sample(Key.from_os(), 3, 1000).tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_q_one_takes_every_record_and_n_one_works(name):
    assert SAMPLERS[name](n=7, batch_size=7).sample(Key.from_os(), 0, 7).tolist() == list(range(7))
    assert SAMPLERS[name](n=1, batch_size=1).sample(Key.from_os(), 0, 1).tolist() == [0]


def test_each_sampler_hands_out_the_event_it_implements():
    event = PoissonSampling(n=1000, batch_size=20).event(GAUSSIAN)
    assert event == dp_accounting.PoissonSampledDpEvent(0.02, GAUSSIAN)
    event = FixedSizeSampling(n=1000, batch_size=20).event(GAUSSIAN)
    assert event == dp_accounting.SampledWithoutReplacementDpEvent(1000, 20, GAUSSIAN)
    with pytest.raises(UserError, match="no privacy accounting"):
        ShuffledBatches(n=1000, batch_size=20).event(GAUSSIAN)


@pytest.mark.parametrize(
    ("n", "batch_size", "epochs", "steps"),
    [(60_000, 32, 30, 56_250), (50_000, 32, 30, 46_875), (73_257, 32, 15, 34_340), (100, 30, 1, 4), (10, 10, 0.1, 1)],
)
def test_steps_are_rounded_up_exactly(n, batch_size, epochs, steps):
    assert PoissonSampling(n, batch_size).steps(epochs) == steps


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_size_outside_the_data_is_refused(batch_size):
    with pytest.raises(UserError, match="between 1 and n=10"):
        PoissonSampling(n=10, batch_size=batch_size)


def test_neighbours_go_with_the_sampler_and_zero_out_is_accounted_as_add_or_remove():
    zero_out, secret = PoissonSampling(1000, 20), PoissonSampling(1000, 20, Neighbours.ADD_OR_REMOVE)
    assert zero_out.neighbours is Neighbours.ZERO_OUT and zero_out.event(GAUSSIAN) == secret.event(GAUSSIAN)
    assert zero_out.relation is secret.relation is dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    fixed = FixedSizeSampling(1000, 20)
    assert fixed.neighbours is Neighbours.REPLACE_ONE
    assert fixed.relation is dp_accounting.NeighboringRelation.REPLACE_ONE
    for sampler, neighbours in (
        (PoissonSampling, Neighbours.REPLACE_ONE),
        (FixedSizeSampling, Neighbours.ZERO_OUT),
        (FixedSizeSampling, Neighbours.ADD_OR_REMOVE),
        (ShuffledBatches, Neighbours.ZERO_OUT),
    ):
        with pytest.raises(ValueError, match="no analysis for the neighbours"):
            sampler(1000, 20, neighbours)


def test_an_empty_record_leaves_the_draws_of_all_others_as_they_are():
    """What the argument for zero-out needs: a record's draw is its own, so emptying it is leaving it out."""
    sampling, key = PoissonSampling(200, 50), Key.from_os()
    secret = PoissonSampling(200, 50, Neighbours.ADD_OR_REMOVE)
    for t in range(20):
        drawn = sampling.sample(key, t, 200)
        assert secret.sample(key, t, 199).tolist() == drawn[drawn != 199].tolist()


def test_where_n_is_secret_rate_steps_and_event_come_from_the_public_number_alone():
    secret = sampling_of("poisson", 777, 50, public_n=500)
    assert secret == sampling_of("poisson", 123, 50, public_n=500)  # nothing in it knows n
    assert (secret.n, secret.q, secret.steps(2)) == (500, 0.1, 20)
    taken = np.concatenate([secret.sample(Key.from_os(), t, 777) for t in range(2000)])
    rates = np.bincount(taken, minlength=777) / 2000
    assert len(rates) == 777 and np.abs(rates - 0.1).max() < 6 * math.sqrt(0.1 * 0.9 / 2000)
    for sampler in ("fixed-size", "shuffled"):
        with pytest.raises(UserError, match="a secret n needs Poisson sampling") as error:
            sampling_of(sampler, 777, 50, public_n=500)
        assert "777" not in str(error.value)


@pytest.mark.parametrize("name", SAMPLERS)
def test_where_n_is_public_there_must_be_n_records(name):
    with pytest.raises(ValueError, match="planned for n=100 records and there are 101"):
        SAMPLERS[name](100, 10).sample(Key.from_os(), 0, 101)


@pytest.mark.parametrize("q", [0.0004, 0.3, 0.9])
def test_the_gaps_between_drawn_records_are_those_of_independent_draws(q):
    """Chi-square over gaps, at rates for which numpy draws them in different ways."""
    gaps = np.diff(poisson(Key.from_os().stream("sample", 0), int(200_000 / q), q))
    edges = np.unique(stats.geom.ppf(np.linspace(0, 1, 21)[1:-1], q))  # about equally likely
    chances = np.diff(stats.geom.cdf(np.concatenate([[0], edges, [np.inf]]), q))
    seen = np.bincount(np.searchsorted(edges, gaps), minlength=len(chances))
    assert stats.chisquare(seen, chances * len(gaps)).pvalue > 1e-9
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 6 / len(gaps) ** 0.5


def test_what_a_step_draws_costs_the_same_for_a_thousand_times_the_records():
    mechanism, key = GroupClipping(1.0, 1.0, groups=64), Key.from_os()

    def seconds(n: int) -> float:
        sampling, times = PoissonSampling(n, 512), []
        for t in range(15):
            start = time.perf_counter()
            drawn = sampling.sample(key, t, n)
            mechanism.assign(drawn, key, t)
            key.by_record("text", t, drawn, 4)
            times.append(time.perf_counter() - start)
        return min(times)

    assert abs(seconds(10**7) - seconds(10**4)) < 0.002
