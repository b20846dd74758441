"""Losses on a real small CLIP: the paper's equation, and gradients of clip units against a plain loop."""

import numpy as np
import open_clip
import pytest
import torch
from dp_accounting import NeighboringRelation

from stages.data.rows import Labels
from stages.errors import UserError
from stages.losses import About, objective_of
from stages.models import clip as clips
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.models.prompts import class_features
from stages.privacy import unit_gradients
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import MARGIN, grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.places import product
from stages.privacy.randomness import Key

LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a photo of a {}.", "a drawing of a {}."))
ALL = 10_000
C = 0.05


@pytest.fixture
def tiny() -> Encoder:
    torch.manual_seed(0)
    return clips.create("stages/models/configs/tiny-clip")


def batch(count: int = 12) -> Batch:
    images = torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    labels = [i % 3 for i in range(count)]
    return Batch(images, [LABELS.captions(label)[i % 2] for i, label in enumerate(labels)], labels)


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def prepared(clip, loss="contrastive", part="all"):
    parameters = trainable_parameters(clip.model, part)
    objective = objective_of(loss, clip, parameters, About(LABELS))
    return objective, parameters, objective.records(batch())


CASES = [("contrastive", "all"), ("contrastive", "image-tower"), ("prompts", "image-tower")]


def test_the_loss_is_open_clips_two_directions_added(tiny):
    objective, parameters, records = prepared(tiny)
    grads, ours = gradient(objective, parameters, records, ALL)
    image = tiny.model.encode_image(batch().images, normalize=True)
    text = tiny.model.encode_text(tiny.tokenize(batch().texts), normalize=True)
    theirs = 2 * open_clip.ClipLoss()(image, text, tiny.model.logit_scale.exp())  # it takes the mean of the two
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    plain = torch.autograd.grad(theirs, list(parameters.values()))
    assert torch.allclose(flat(grads), flat(plain), atol=1e-5)  # though equal texts were encoded once


def test_one_pair_has_no_contrastive_gradient(tiny):
    parameters = trainable_parameters(tiny.model, "all")
    objective = objective_of("contrastive", tiny, parameters, About())
    grads, loss = gradient(objective, parameters, objective.records(batch(1)), ALL)
    assert loss == 0 and not flat(grads).any()


def test_prompts_is_the_softmax_against_the_mean_prompt_of_each_class(tiny):
    objective, parameters, records = prepared(tiny, "prompts", "image-tower")
    _, ours = gradient(objective, parameters, records, ALL)
    with torch.no_grad():
        prompts = [tiny.model.encode_text(tiny.tokenize(list(LABELS.captions(i))), normalize=True) for i in range(3)]
        classes = torch.nn.functional.normalize(torch.stack([p.mean(0) for p in prompts]), dim=1)
        logits = tiny.model.logit_scale.exp() * tiny.model.encode_image(batch().images, normalize=True) @ classes.T
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(batch().labels))
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_prompts_has_the_same_bits_as_when_it_was_written_by_itself(tiny):
    """What it shares with `anchored` adds no operation: models that were trained with a fixed key can be made again."""
    objective, parameters, records = prepared(tiny, "prompts", "image-tower")
    image = tiny.model.encode_image(batch().images, normalize=True)
    classes = tiny.model.logit_scale.exp().detach() * class_features(tiny, LABELS, image.device)
    each = torch.nn.functional.cross_entropy(product(image, classes.T), records["labels"], reduction="none")
    plain = torch.autograd.grad(
        torch.where(torch.ones(12, dtype=torch.bool), each, 0.0).sum() / 12, parameters.values()
    )
    assert torch.equal(flat(gradient(objective, parameters, records, ALL)[0]), flat(plain))


@pytest.mark.parametrize(("loss", "part"), CASES)
@pytest.mark.parametrize("at_once", [5, 8, ALL])
def test_clip_units_agree_with_a_plain_loop(tiny, loss, part, at_once, monkeypatch):
    """at_once: units one by one and in pieces, a few together, all in one pass."""
    monkeypatch.setattr(
        unit_gradients, "COVERED", 1.0
    )  # without what is added to a norm for what rounding may do to it
    objective, parameters, records = prepared(tiny, loss, part)
    for units in (np.zeros(12, int), np.array([0, 0, 1, 2, 2, 2, 2, 2, 2, 3, 3, 1]), np.arange(12)):
        expected = 0
        for unit in np.unique(units):
            mine = {name: t[torch.from_numpy(units == unit)] for name, t in records.items()}
            features = objective.features(parameters, mine, merge=False)
            value = objective.loss(parameters, features, torch.ones(len(mine["images"]), dtype=torch.bool))
            g = flat(torch.autograd.grad(value, list(parameters.values()), materialize_grads=True))
            expected = expected + g * min(1.0, (1 - MARGIN) * C / max(g.norm().item(), 1e-30))
        got = flat(clipped_sum(objective, parameters, records, units, C, at_once)[0]) * grid_of(C)
        assert (got - expected).norm() <= 1e-5 * expected.norm() + 1e-7, (units, at_once)


@pytest.mark.parametrize(("loss", "part"), CASES)
def test_a_batch_in_pieces_has_the_gradient_of_the_whole_batch(tiny, loss, part):
    objective, parameters, records = prepared(tiny, loss, part)
    whole, loss_whole = gradient(objective, parameters, records, ALL)
    for at_once in (1, 5, 11):
        pieces, loss_pieces = gradient(objective, parameters, records, at_once)
        assert (flat(pieces) - flat(whole)).norm() < 1e-5 * flat(whole).norm()
        assert loss_pieces.item() == pytest.approx(loss_whole.item(), rel=1e-5)
    # the mean of the pieces' own gradients is something else for a loss that is not a sum
    halves = [gradient(objective, parameters, {k: v[i : i + 6] for k, v in records.items()}, ALL)[0] for i in (0, 6)]
    mean = (flat(halves[0]) + flat(halves[1])) / 2
    far = (mean - flat(whole)).norm() / flat(whole).norm()
    assert far < 1e-5 if loss == "prompts" else far > 1e-3


def test_a_tower_that_is_not_trained_gives_the_same_gradient_to_the_other(tiny):
    _, _, records = whole = prepared(tiny)
    both = dict(zip(whole[1], gradient(whole[0], whole[1], records, ALL)[0], strict=True))
    both = {name: g.clone() for name, g in both.items()}
    objective, parameters, records = prepared(tiny, part="image-tower")
    assert "tokens" not in records  # the texts are encoded beforehand
    for name, g in zip(parameters, gradient(objective, parameters, records, ALL)[0], strict=True):
        assert torch.allclose(g, both[name], atol=1e-5), name


def test_prompts_needs_labels_and_a_fixed_text_tower(tiny):
    image_tower = trainable_parameters(tiny.model, "image-tower")
    with pytest.raises(UserError, match="needs class labels"):
        objective_of("prompts", tiny, image_tower, About())
    with pytest.raises(UserError, match="set trainable to image-tower"):
        objective_of("prompts", tiny, trainable_parameters(tiny.model, "all"), About(LABELS))


UNITS = {
    "batch": (BatchClipping(C, 1.0), "contrastive", "all"),
    "group": (GroupClipping(C, 1.0, groups=4), "contrastive", "all"),
    "example": (ExampleClipping(C, 1.0), "prompts", "image-tower"),
}


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("at_once", [6, ALL])
def test_removing_any_record_moves_the_sum_by_at_most_the_sensitivity(tiny, name, at_once):
    mechanism, loss, part = UNITS[name]
    objective, parameters, records = prepared(tiny, loss, part)

    def summed(drawn: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        units = mechanism.assign(drawn, Key.from_seed(5), 0)
        chosen = {k: t[torch.from_numpy(drawn)] for k, t in records.items()}
        return units, flat(clipped_sum(objective, parameters, chosen, units, C, at_once)[0]) * grid_of(C)

    units, whole = summed(np.arange(12))
    for removed in range(0, 12, 3):
        others = np.delete(np.arange(12), removed)
        fewer, without = summed(others)
        assert np.array_equal(np.delete(units, removed), fewer) or name == "example"
        assert (whole - without).norm() <= mechanism.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE)


def test_a_record_adds_to_the_last_bit_what_it_adds_alone(tiny):
    """Whoever shares its pass: a neighbour's record moves no other one's rounding."""
    objective, parameters, records = prepared(tiny, "prompts", "image-tower")
    alone = [
        flat(
            clipped_sum(objective, parameters, {k: t[i : i + 1] for k, t in records.items()}, np.array([0]), C, ALL)[0]
        )
        for i in range(12)
    ]
    together, _ = clipped_sum(objective, parameters, records, np.arange(12), C, ALL)
    assert torch.equal(flat(together), sum(alone))


@pytest.mark.parametrize("name", ["group", "example"])
def test_a_broken_image_zeroes_its_own_unit_and_no_other(tiny, name):
    _, loss, part = UNITS[name]
    objective, parameters, records = prepared(tiny, loss, part)
    units = np.repeat(np.arange(4), 3) if name == "group" else np.arange(12)
    broken = {**records, "images": records["images"].clone()}
    broken["images"][0, 0, 0, 0] = torch.nan
    total, figures = clipped_sum(objective, parameters, broken, units, C, ALL)
    assert figures.not_finite == 1
    rest = torch.from_numpy(units != units[0])
    expected, _ = clipped_sum(
        objective, parameters, {k: t[rest] for k, t in records.items()}, units[units != units[0]], C, ALL
    )
    assert torch.equal(flat(total), flat(expected))
