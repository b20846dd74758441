"""Learning-rate schedules and averaged weights: what they are, and that a training that goes on has the same."""

import pytest
import torch

from stages import progress
from stages.data.prepared import PreparedSplit
from stages.distributed.ranks import ALONE
from stages.losses import About, objective_of
from stages.models.batches import BatchReader, decoded
from stages.models.parts import trainable_parameters
from stages.privacy.accounting import Plan
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.course import MEAN, SCHEDULES, Course
from stages.train.loop import Execution, Learner, train
from stages.train.state import restore, snapshot
from tests.train.test_loop import LABELS, tiny, write_noise

STEPS = 6


@pytest.fixture
def data(tmp_path) -> PreparedSplit:
    write_noise(tmp_path / "noise")
    return PreparedSplit(tmp_path / "noise", "train")


class Training:
    """By AdamW, with the key of seed 3; what the weights were after each step, and what a checkpoint would have."""

    def __init__(self, data, course: Course | None, done: int = 0, tensors=None):
        clip = tiny()
        self.parameters = trainable_parameters(clip.model, "image-tower")
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=0.01)
        self.after, self.rates, self.checkpoints = [], [], []
        if tensors:
            restore(tensors, self.parameters, self.optimizer, ALONE, bool(course and course.averages(done - 1)))
        objective = objective_of("prompts", clip, self.parameters, About(LABELS))
        learner = Learner(clip.model, self.parameters, self.optimizer, objective, course)
        plan = Plan(PoissonSampling(data.units, 8), ExampleClipping(0.1, 1.0), STEPS)
        reader, how = BatchReader(data, decoded(data, clip)), Execution(16, done=done, after=self.keep)
        train(learner, reader, plan, Key.from_seed(3), how, private=True)

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters.values()]).clone()

    def keep(self, done: int) -> None:
        self.after.append(self.weights())
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        made = snapshot(self.parameters, self.optimizer)
        self.checkpoints.append({name: tensor.clone() for name, tensor in made.items()})  # as on a disk


def test_without_a_course_it_is_one_rate_and_the_last_weights(data):
    plain, course = Training(data, None), Training(data, Course(STEPS))
    assert torch.equal(plain.weights(), course.weights()) and torch.equal(plain.weights(), plain.after[-1])
    assert plain.rates == [0.01] * STEPS


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_a_schedule_goes_from_the_full_rate_towards_zero(data, schedule):
    rates = Training(data, Course(STEPS, schedule)).rates
    assert rates[0] == 0.01 and rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.002


def test_the_weights_at_the_end_are_the_mean_of_those_after_the_last_steps(data):
    plain, averaged = Training(data, None), Training(data, Course(STEPS, average=0.5))
    for one, other in zip(plain.after[:-1], averaged.after[:-1], strict=True):
        assert torch.equal(one, other)  # on the way there is no difference
    assert torch.allclose(averaged.weights(), torch.stack(plain.after[-3:]).mean(0), atol=1e-6)
    assert not any(MEAN in state for state in averaged.optimizer.state.values())


def test_a_training_that_goes_on_counts_from_where_it_was(data, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0)
    whole, path, counts = Training(data, None), tmp_path / "count", []
    monkeypatch.setenv(progress.FILE, str(path))
    monkeypatch.setattr(Training, "keep", lambda self, done: counts.append((done, path.read_text())))
    Training(data, None, 4, whole.checkpoints[3])
    assert counts == [(5, "4 6 steps train"), (6, "5 6 steps train")] and path.read_text() == "6 6 steps train"


@pytest.mark.parametrize("done", [2, 4, 5])
def test_a_training_that_goes_on_has_the_same_weights(data, done):
    course = Course(STEPS, "cosine", average=0.5)
    whole = Training(data, course)
    rest = Training(data, course, done, whole.checkpoints[done - 1])
    assert torch.equal(whole.weights(), rest.weights())
