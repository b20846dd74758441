import math

import numpy as np
import pytest
import torch
from scipy import stats

from stages.privacy.noise import BLOCK, FEW, noised
from stages.privacy.randomness import Key

GRID = 2.0**-31


MANY = FEW + 8  # blocks, so that several threads draw them


def draw(shapes, std=1.5, key=None, t=0, total=None) -> list[np.ndarray]:
    tensors = total or [torch.zeros(shape) for shape in shapes]
    return [x.numpy() for x in noised(tensors, GRID, std, key or Key.from_os(), t)]


def test_noise_is_gaussian_with_the_stated_standard_deviation():
    for sample in draw([(MANY * BLOCK,), (400, 250)]):
        sample = sample.reshape(-1).astype(float) / 1.5
        n = sample.size
        assert abs(sample.mean()) < 5 / math.sqrt(n)
        assert abs(sample.std() - 1) < 5 / math.sqrt(2 * n)
        assert stats.kstest(sample, "norm").pvalue > 1e-6


def test_noise_is_independent_between_steps_tensors_and_blocks():
    key, draws = Key.from_os(), []
    for t in range(3):
        for tensor in draw([(2 * BLOCK,), (2 * BLOCK,)], key=key, t=t):
            draws += [tensor[:BLOCK], tensor[BLOCK:]]
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), k=1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(BLOCK)


def test_the_same_key_and_step_always_give_the_same_noise_and_two_runs_never_share_any():
    key = Key.from_os()
    threads, shape = torch.get_num_threads(), (MANY * BLOCK + 5,)  # enough for several threads
    first = draw([shape], key=key, t=4)[0]
    torch.set_num_threads(1)
    try:
        again = draw([shape], key=key, t=4)[0]
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(first, again)
    assert np.mean(first == draw([shape], key=key, t=5)[0]) < 1e-3
    assert np.mean(first == draw([shape], key=Key.from_os(), t=4)[0]) < 1e-3


def test_the_signal_is_added_to_the_noise():
    key = Key.from_seed(2)
    total = [torch.round(torch.randn(1000, dtype=torch.float64) * 2**30)]
    noise, both = draw([(1000,)], key=key)[0], draw(None, key=key, total=total)[0]
    assert np.allclose(both - noise, total[0].numpy() * GRID, atol=1e-6)


def test_what_leaves_is_on_the_grid_whatever_the_signal():
    """Noise with gaps of its own would tell in the last digits what was added to it."""
    total = [torch.tensor([0.0, 3.0, -(2.0**29)], dtype=torch.float64)]
    for t in range(50):
        small = draw(None, std=100 * GRID, t=t, total=[total[0][:2]])[0].astype(float) / GRID
        assert np.array_equal(small, np.rint(small))
    steps = np.concatenate([draw([(1000,)], std=3 * GRID, t=t)[0] / GRID for t in range(20)])
    counts = {int(k): int(np.sum(steps == k)) for k in range(-4, 5)}
    expected = {k: 20_000 * (stats.norm.cdf((k + 0.5) / 3) - stats.norm.cdf((k - 0.5) / 3)) for k in counts}
    for k in counts:  # every grid point is reached as often as the rounded Gaussian says
        assert abs(counts[k] - expected[k]) < 6 * math.sqrt(expected[k])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_noise_is_float32_whatever_the_model_computes_in(dtype):
    noise = noised([torch.zeros(4096, dtype=dtype)], GRID, 1.0, Key.from_seed(0), 0)[0]
    assert noise.dtype == torch.float32
    assert torch.equal(noise, noised([torch.zeros(4096)], GRID, 1.0, Key.from_seed(0), 0)[0])
    assert len(noise.unique()) > 4000  # bfloat16 noise would have a few hundred values
