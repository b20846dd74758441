import math

import dp_accounting
import numpy as np
import pytest

from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling


def draws(sampling: PoissonSampling, steps: int) -> np.ndarray:
    """(steps, n) of zeros and ones."""
    key = Key.from_os()
    taken = np.zeros((steps, sampling.n))
    for t in range(steps):
        taken[t, sampling.sample(key.stream("sample", t))] = 1
    return taken


def test_every_record_is_drawn_at_rate_q_and_sizes_are_binomial():
    sampling, steps = PoissonSampling(n=500, batch_size=50), 4000
    taken = draws(sampling, steps)
    q, spread = 0.1, math.sqrt(0.1 * 0.9 / steps)
    assert np.abs(taken.mean(axis=0) - q).max() < 6 * spread
    sizes = taken.sum(axis=1)
    assert abs(sizes.mean() - 50) < 5 * math.sqrt(500 * q * (1 - q) / steps)
    assert sizes.var() == pytest.approx(500 * q * (1 - q), rel=0.15)  # a fixed-size batch would have variance 0


def test_records_and_steps_are_independent():
    taken = draws(PoissonSampling(n=20, batch_size=5), 20_000)
    between_records = np.corrcoef(taken.T)[np.triu_indices(20, k=1)]
    assert np.abs(between_records).max() < 6 / math.sqrt(20_000)
    between_steps = [np.corrcoef(taken[:-1, i], taken[1:, i])[0, 1] for i in range(20)]
    assert np.abs(between_steps).max() < 6 / math.sqrt(20_000)


def test_batches_may_be_empty():
    sizes = draws(PoissonSampling(n=100, batch_size=1), 200).sum(axis=1)
    assert 0 in sizes


def test_q_one_takes_every_record_and_n_one_works():
    assert PoissonSampling(n=7, batch_size=7).sample(Key.from_os().stream("sample", 0)).tolist() == list(range(7))
    assert PoissonSampling(n=1, batch_size=1).sample(Key.from_os().stream("sample", 0)).tolist() == [0]


def test_the_sampler_hands_out_the_event_it_implements():
    event = PoissonSampling(n=1000, batch_size=20).event(dp_accounting.GaussianDpEvent(1.5))
    assert event == dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.5))


@pytest.mark.parametrize(
    ("n", "batch_size", "epochs", "steps"),
    [(60_000, 32, 30, 56_250), (50_000, 32, 30, 46_875), (73_257, 32, 15, 34_340), (100, 30, 1, 4), (10, 10, 0.1, 1)],
)
def test_steps_are_rounded_up_exactly(n, batch_size, epochs, steps):
    assert PoissonSampling(n, batch_size).steps(epochs) == steps


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_size_outside_the_data_is_refused(batch_size):
    with pytest.raises(ValueError, match="between 1 and n=10"):
        PoissonSampling(n=10, batch_size=batch_size)
