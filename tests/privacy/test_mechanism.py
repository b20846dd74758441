import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation
from scipy import stats

from stages.privacy.mechanism import BatchClipping
from stages.privacy.randomness import Key

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
SHAPES = [(50, 40), (300,), (7, 3, 5)]


def gradients(scale: float, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def joint_norm(tensors) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def test_one_norm_over_all_tensors_is_clipped_to_C():
    clipped = gradients(3.0)
    BatchClipping(clip_norm=0.7, sigma=1.0).clip_(clipped)
    assert joint_norm(clipped) == pytest.approx(0.7, rel=1e-5)
    assert joint_norm(clipped) <= 0.7
    # one factor for all: per-tensor clipping would change the ratios between tensors
    ratios = [float((c / g).flatten()[0]) for c, g in zip(clipped, gradients(3.0), strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(SHAPES), rel=1e-5)


def test_a_gradient_inside_the_ball_is_left_alone():
    inside = gradients(1e-4)
    BatchClipping(clip_norm=1.0, sigma=1.0).clip_(inside)
    assert all(torch.equal(a, b) for a, b in zip(inside, gradients(1e-4), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero(bad):
    broken = gradients(1.0)
    broken[1][5] = bad
    BatchClipping(clip_norm=1.0, sigma=1.0).clip_(broken)
    assert joint_norm(broken) == 0


def test_a_gradient_beyond_float32_range_is_still_clipped_to_C():
    huge = [torch.full((1000,), 1e37)]  # its norm overflows float32
    BatchClipping(clip_norm=1.0, sigma=1.0).clip_(huge)
    assert joint_norm(huge) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.full((1_000_000,), 3.3e38),  # the factor is a subnormal float32
        torch.randn(100_000, generator=torch.Generator().manual_seed(0)).bfloat16(),
        torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)),
    ],
    ids=["huge", "bfloat16", "float32"],
)
@pytest.mark.parametrize("clip_norm", [0.01, 1.0])
def test_the_bound_holds_to_the_last_digit(gradient, clip_norm):
    clipped = [gradient.clone()]
    BatchClipping(clip_norm, sigma=1.0).clip_(clipped)
    assert 0.98 * clip_norm < joint_norm(clipped) <= clip_norm


def test_zero_gradient_stays_zero():
    zero = [torch.zeros(10)]
    BatchClipping(clip_norm=1.0, sigma=1.0).clip_(zero)
    assert joint_norm(zero) == 0


def test_noise_is_gaussian_with_standard_deviation_sigma_times_C():
    noise = [torch.zeros(100_000), torch.zeros(400, 250)]
    BatchClipping(clip_norm=0.5, sigma=3.0).add_noise_(noise, Key.from_os().stream("noise", 0))
    for tensor in noise:
        sample = tensor.flatten().double().numpy() / 1.5
        n = sample.size
        assert abs(sample.mean()) < 5 / math.sqrt(n)
        assert abs(sample.std() - 1) < 5 / math.sqrt(2 * n)
        assert stats.kstest(sample, "norm").pvalue > 1e-6


def test_noise_differs_between_steps_and_tensors():
    key, mechanism = Key.from_os(), BatchClipping(clip_norm=1.0, sigma=1.0)
    draws = []
    for step in range(3):
        tensors = [torch.zeros(20_000), torch.zeros(20_000)]
        mechanism.add_noise_(tensors, key.stream("noise", step))
        draws += [t.numpy() for t in tensors]
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), k=1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(20_000)


def test_noise_is_drawn_in_float32_when_the_gradient_is_bfloat16():
    tensor = torch.zeros(1000, dtype=torch.bfloat16)
    BatchClipping(clip_norm=1.0, sigma=1.0).add_noise_([tensor], Key.from_seed(0).stream("noise", 0))
    expected = Key.from_seed(0).stream("noise", 0).standard_normal(1000, dtype=np.float32)
    assert torch.equal(tensor, torch.from_numpy(expected).to(torch.bfloat16))


def test_the_sensitivity_is_reached_by_opposite_gradients():
    """Two neighbouring batches can have opposite gradients: the distance is 2C, so C would not be sound."""
    mechanism = BatchClipping(clip_norm=0.3, sigma=1.0)
    one, other = gradients(10.0), [-g for g in gradients(10.0)]
    mechanism.clip_(one)
    mechanism.clip_(other)
    distance = joint_norm([a - b for a, b in zip(one, other, strict=True)])
    assert distance == pytest.approx(mechanism.sensitivity(ADD_REMOVE), rel=1e-5)
    assert distance <= mechanism.sensitivity(ADD_REMOVE) == 0.6


def test_the_event_is_relative_to_the_sensitivity():
    event = BatchClipping(clip_norm=0.25, sigma=1.84).event(ADD_REMOVE)
    assert event == GaussianDpEvent(0.92)


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0, "sigma": 1}, {"clip_norm": -1, "sigma": 1}, {"clip_norm": 1, "sigma": -1}]
)
def test_facts_that_make_no_mechanism_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        BatchClipping(**wrong)
