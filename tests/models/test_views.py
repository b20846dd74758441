"""A record that is looked at several times in a step, and images that are varied: all inside the record's clip."""

from functools import partial

import numpy as np
import pytest
import torch

from stages import params
from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.models import saved
from stages.models.batches import BatchReader, decoded
from stages.models.parts import trainable_parameters
from stages.models.views import NUMBERS, Variation
from stages.privacy.gradients import gradient
from stages.privacy.mechanism import Mechanism
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.sources.scenes import Scenes
from stages.train import loop
from tests.conftest import small_params

C, N, VIEWS, KEY = 0.05, 6, 3, Key.from_seed(1)


class Training:
    """A small BLIP that writes captions of a few scenes, each looked at three times in a step."""

    def __init__(self, folder):
        scenes = Scenes(source="scenes", style="private", train=N, test=1, seed=0).load()
        write(folder / "scenes", "d", scenes)
        data = PreparedSplit(folder / "scenes", "train")
        torch.manual_seed(0)
        encoder = saved.create("stages/models/configs/tiny-blip", [t for i in range(N) for t in data.row(i).texts])
        encoder.model.eval()
        reached = partial(named("writing").reaches, about=About())
        self.parameters = trainable_parameters(encoder.model, "decoder", reached=reached)
        self.objective = objective_of("writing", encoder, self.parameters, About())
        variation = Variation(shift=0.1, colour=0.2)
        self.reader = BatchReader(data, decoded(data, encoder), views=VIEWS, variation=variation)

    def records(self, drawn: np.ndarray) -> dict[str, torch.Tensor]:
        places, view = np.divmod(np.arange(VIEWS * len(drawn)), VIEWS)
        chosen = self.reader.choose(drawn[places], partial(KEY.by_record, "text", 0), view)
        step = loop.Drawn(0, loop.Work(places), drawn[places], view, chosen)
        return loop._records(self.objective, self.reader, step, self.reader.images(chosen.rows), KEY)

    def summed(self, drawn: np.ndarray, mechanism: Mechanism) -> torch.Tensor:
        units = mechanism.assign(drawn, KEY, 0)
        work, rest = loop.Work(np.repeat(units, VIEWS)), (mechanism, KEY, 0, 100, float(N), VIEWS)
        total, _ = loop.private_gradient(self.objective, self.parameters, self.records(drawn), work, *rest)
        return flat(total)


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Training:
    return Training(tmp_path_factory.mktemp("views"))


def test_the_views_of_a_record_are_clipped_as_one(training):
    """By a plain loop: the gradient of the mean loss of a record's views, clipped, and the sum of these."""
    everyone, expected, means = np.arange(N), 0.0, []
    for record in everyone:
        views = training.records(np.array([record]))
        assert len({tuple(text.tolist()) for text in views["texts"]} | {0}) > 1
        each = [gradient(training.objective, training.parameters, one_view(views, i), 100)[0] for i in range(VIEWS)]
        mean = torch.stack([flat(g) for g in each]).mean(0)
        means.append(mean)
        expected = expected + mean * min(1.0, C / mean.norm().item())
    assert all(mean.norm() > C for mean in means)
    found = training.summed(everyone, ExampleClipping(C, 0.0))
    assert (found - expected).norm() < 2e-4 * N * C  # the clip keeps 1e-4 of C free
    once = 0.0
    for record in everyone:
        one = flat(
            gradient(training.objective, training.parameters, one_view(training.records(np.array([record])), 0), 100)[0]
        )
        once = once + one * C / one.norm()
    assert (found - once).norm() > 0.1 * C  # one view would have been another step


def one_view(views: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    return {name: tensor[i : i + 1] for name, tensor in views.items()}


@pytest.mark.parametrize(
    ("mechanism", "bound"), [(ExampleClipping(C, 0.0), C), (GroupClipping(C, 0.0, groups=2), 2 * C)]
)
def test_a_record_with_all_of_its_views_moves_a_step_by_at_most_the_sensitivity(training, mechanism, bound):
    everyone = np.arange(N)
    whole = training.summed(everyone, mechanism)
    for left_out in everyone:
        moved = (whole - training.summed(np.delete(everyone, left_out), mechanism)).norm().item()
        assert 0.1 * C < moved <= bound


def test_views_of_a_record_are_the_same_whoever_else_is_drawn(training):
    alone, together = training.records(np.array([4])), training.records(np.arange(N))
    for name, tensor in alone.items():
        assert torch.equal(tensor, together[name][4 * VIEWS : 5 * VIEWS])
    images = together["images"].flatten(1)
    assert len(images.unique(dim=0)) == N * VIEWS  # every view is another one


def test_draws_by_record_are_those_of_one_long_stream():
    stream = KEY.stream("view", 2).random((1000, NUMBERS))
    asked = np.array([7, 999, 0, 7, 8])
    assert np.array_equal(KEY.by_record("view", 2, asked, NUMBERS), stream[asked])
    assert KEY.by_record("view", 2, np.array([10**9]), 2).shape == (1, 2)
    assert not np.array_equal(KEY.by_record("view", 3, asked, NUMBERS), stream[asked])


def test_images_are_shifted_coloured_and_flipped_as_drawn():
    images = torch.arange(2 * 3 * 10 * 10.0).view(2, 3, 10, 10)
    draws = np.full((2, NUMBERS), 0.5)
    assert torch.equal(Variation(shift=0.2, colour=0.3).of(images, draws), images)  # the middle of every draw
    draws[0, 0], draws[1, 1] = 0.0, 0.999
    moved = Variation(shift=0.2).of(images, draws)
    assert torch.equal(moved[0, :, :, 2:], images[0, :, :, :8])
    assert torch.equal(moved[0, :, :, 0], images[0, :, :, 0]) and torch.equal(moved[0, :, :, 1], images[0, :, :, 0])
    assert torch.equal(moved[1, :, :8], images[1, :, 2:]) and torch.equal(moved[1, :, 9], images[1, :, 9])
    draws[:, 2], draws[:, 5] = 1.0, 0.0  # of the first channel, the factor and what is added
    coloured = Variation(colour=0.25).of(images, draws)
    assert torch.allclose(coloured[:, 0], images[:, 0] * 1.25 - 0.25) and torch.equal(coloured[:, 1:], images[:, 1:])
    draws[:, 8] = 0.1, 0.9
    flipped = Variation(flip=True).of(images, draws)
    assert torch.equal(flipped[0], images[0].flip(2)) and torch.equal(flipped[1], images[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"views": 2, "loss": "contrastive"}, "views: 2 is for a loss that is a sum over records"),
        ({"views": 2, "trainable": "image-projection"}, "has seen each image once; leave views and vary out"),
        ({"vary": {"shift": 1.5}}, "shift"),
    ],
)
def test_views_that_cannot_be_are_refused(tmp_path, monkeypatch, change, said):
    from ruamel.yaml import YAML

    values = small_params()
    values["train"]["methods"]["example"] |= {"loss": "prompts", "trainable": "image-tower"} | change
    with (tmp_path / "params.yaml").open("w") as file:
        YAML().dump(values, file)
    with pytest.raises(UserError, match=said):
        params.load(tmp_path / "params.yaml")
