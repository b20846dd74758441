"""What is kept of an optimiser, and that a training goes on from it as if nothing had been."""

import pytest
import torch

from stages import params
from stages.distributed.ranks import ALONE
from stages.keys import Cell
from stages.train.cell import sgd
from stages.train.course import MEAN, Course
from stages.train.state import restore, snapshot


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_steps_after_a_restored_state_are_those_of_a_training_that_went_on(kind):
    def learner():
        parameter = torch.nn.Parameter(torch.ones(3))
        return {"w": parameter}, kind([parameter], lr=0.1)

    def step(parameters, optimizer, t, course=Course(6, average=0.5)):  # noqa: B008 (frozen)
        parameters["w"].grad = torch.tensor([1.0, -2.0, 3.0]) * (t + 1)
        optimizer.step()
        course.keep(parameters, optimizer, t)

    whole, part = learner(), learner()
    for t in range(4):
        step(*whole, t)
        step(*part, t)
    kept, again = snapshot(*part), learner()
    assert f"optimizer.w.{MEAN}" in kept
    restore(kept, *again, ALONE, averaged=True)
    for t in (4, 5):
        step(*whole, t)
        step(*again, t)
    assert torch.equal(whole[0]["w"], again[0]["w"])


def test_a_plain_step_means_the_same_with_and_without_privacy():
    """A private gradient is a sum over the units that the plan expects; the other one is their mean."""
    parameters = {"w": torch.nn.Parameter(torch.ones(2))}
    values = {"batch_size": 50, "steps": 1, "clip_norm": 1.0, "lr": 0.5, "loss": "prompts"}
    method = params.Method(**values, trainable="image-projection", optimizer="sgd")

    def rate(epsilon: str, name: str) -> float:
        cell = Cell("classification", "d", "m", name, epsilon, 0)
        return sgd(parameters, cell, method).param_groups[0]["lr"]

    assert (rate("inf", "example"), rate("1", "example")) == (0.5, 0.5 / 50)
    assert rate("1", "batch") == 0.5  # of one unit
