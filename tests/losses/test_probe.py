"""A probe on vectors: it starts at the class texts, learns its centre, and a record's term is its own."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stages.data.rows import Labels
from stages.data.vectors import as_text
from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.losses.probe import PULL
from stages.models import clip, vectors
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.heads import SHARPNESS, Heads
from stages.models.parts import trainable_parameters
from stages.models.prompts import class_scores
from stages.privacy import factored, gradients
from stages.privacy.accounting import Plan
from stages.privacy.grid import grid_of
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from tests.privacy.one_step_audit import Step, audit

C, CLASSES, WIDTH, DIRECTIONS, COUNT = 4.0, 3, 12, 5, 16
LOSSES = {"probe": "probe", "adapter": "prompts", "image-projection": "prompts"}  # by what is trained


def unit(rows: int, width: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)), dim=1)


TEXTS = tuple(as_text(row.numpy()) for row in unit(CLASSES, WIDTH, 5))
ABOUT = About(Labels(classes=("a", "b", "c"), templates=("{}",), texts=TEXTS))


@pytest.fixture
def whole() -> vectors.VectorEncoder:
    """With weights as they are in the midst of a training."""
    encoder = vectors.built(WIDTH, DIRECTIONS, CLASSES, {"logit_scale": 100.0})
    model, stream = encoder.model, torch.Generator().manual_seed(3)
    with torch.no_grad():
        model.centre.copy_(unit(1, WIDTH, 4)[0] / 3)
        model.basis.copy_(torch.linalg.qr(torch.randn(WIDTH, DIRECTIONS, generator=stream)).Q)
        for name in ("class_probe", "class_centre"):
            tensor = getattr(model, name)
            tensor.copy_(torch.randn(tensor.shape, generator=stream))
        model.visual.adapter.copy_(torch.randn(DIRECTIONS, WIDTH, generator=stream) / 10)
    return encoder


def on_trunk(whole) -> Encoder:
    return Encoder(Heads(dict(whole.model.named_parameters())), whole.tokenize)


def batch(whole, count: int = COUNT) -> Batch:
    with torch.no_grad():
        images = whole.model.trunk(unit(count, WIDTH, 1))
    return Batch(images, [""] * count, [i % CLASSES for i in range(count)])


def objective_and_parameters(whole, part: str):
    encoder, loss = on_trunk(whole), LOSSES[part]
    reached = partial(named(loss).reaches, about=ABOUT)
    parameters = trainable_parameters(encoder.model, part, reached=reached)
    return objective_of(loss, encoder, parameters, ABOUT), parameters


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def test_it_is_the_softmax_of_text_logits_and_probe_and_the_pull_of_the_centre(whole):
    objective, parameters = objective_and_parameters(whole, "probe")
    assert set(parameters) == {"class_probe", "class_centre"}
    some = batch(whole)
    x, f = some.images[:, :WIDTH], some.images[:, WIDTH:]
    centre = whole.model.class_centre[0] / SHARPNESS
    g = F.normalize(f - centre, dim=1)
    image = F.normalize(x + f @ whole.model.visual.adapter, dim=1)
    texts = whole.tokenize(list(TEXTS))
    logits = 100 * image @ texts.T + SHARPNESS * g @ whole.model.class_probe
    away = (SHARPNESS * (f - centre)).square().sum(1)
    wanted = F.cross_entropy(logits, torch.tensor(some.labels), reduction="none") + PULL * away / 2
    present = torch.ones(COUNT, dtype=torch.bool)
    found = objective.loss(parameters, objective.features(parameters, objective.records(some), merge=True), present)
    assert torch.isclose(found, wanted.mean(), rtol=1e-5)
    scores = class_scores(on_trunk(whole).model, some.images, texts)  # what an evaluation looks at
    assert torch.allclose(100 * scores, logits, atol=1e-3)
    assert torch.allclose(scores, class_scores(whole.model, x, texts), atol=1e-6)  # and a published model


@pytest.mark.parametrize("part", LOSSES)
def test_records_clipped_together_are_those_of_a_plain_loop(whole, part):
    objective, parameters = objective_and_parameters(whole, part)
    records, units = objective.records(batch(whole)), np.arange(COUNT)
    together, figures = factored.clipped_sum(objective, parameters, records, units, C, 100)
    wanted = torch.zeros_like(flat(parameters.values()))
    for i in range(COUNT):
        alone = {name: tensor[i : i + 1] for name, tensor in records.items()}
        g = flat(gradients.gradient(objective, parameters, alone, 100)[0])
        wanted += g * min(1.0, (1 - 1e-4) * C / g.norm().item())
    assert any(norm > C for norm in figures.norms)
    assert torch.allclose(flat(together) * grid_of(C), wanted, atol=1e-5 * C)


@pytest.mark.parametrize("part", LOSSES)
@pytest.mark.parametrize("poison", [1.0, 1e30, -1e6, np.nan, "twin"])
def test_a_record_moves_a_step_by_at_most_the_sensitivity(whole, part, poison):
    """With or without it, before the noise; also if it is no vector at all, or the opposite of another record."""
    objective, parameters = objective_and_parameters(whole, part)
    some, key = batch(whole), Key.from_seed(1)
    if poison == "twin":  # in one group with it, gradients cancel
        some.images[0], some.labels[0] = -some.images[1], some.labels[1]
    else:
        some.images[0] *= poison
    for mechanism, bound in ((ExampleClipping(C, 1.0), C), (GroupClipping(C, 1.0, groups=3), 2 * C)):
        sums = []
        for drawn in (np.arange(COUNT), np.arange(1, COUNT)):
            units = mechanism.assign(drawn, key, 0)
            chosen = Batch(some.images[drawn], [""] * len(drawn), [some.labels[i] for i in drawn])
            expected = mechanism.expected_units(float(COUNT))
            total, _ = factored.clipped_sum(objective, parameters, objective.records(chosen), units, C, 100, expected)
            sums.append(flat(total) * grid_of(C))
        moved = (sums[0] - sums[1]).norm().item()
        assert moved <= bound
        assert moved > 0 or poison not in (1.0, -1e6)  # what overflows counts as nothing, as what is no number


def test_what_a_record_brings_is_the_same_to_the_last_bit_whoever_else_is_drawn(whole):
    objective, _ = objective_and_parameters(whole, "probe")
    some = batch(whole, 300)
    all_of_them = objective.records(some)
    for drawn in (np.arange(1), np.arange(5, 290), np.arange(299, 300)):
        fewer = objective.records(Batch(some.images[drawn], [""] * len(drawn), [some.labels[i] for i in drawn]))
        assert all(torch.equal(tensor, all_of_them[name][drawn]) for name, tensor in fewer.items())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["probe", "adapter"])
def test_the_audit_of_one_step_finds_no_more_than_is_claimed(whole, part):
    objective, parameters = objective_and_parameters(whole, part)
    plan = Plan(PoissonSampling(4, 2), ExampleClipping(C, 0.5), steps=1)
    claimed, found = audit(Step(plan, objective, parameters, (objective.records(batch(whole, 4)),)), runs=1000)
    assert 0.3 * claimed < found <= claimed


def test_other_models_other_parts_and_other_numbers_of_classes_are_refused(whole):
    tiny = clip.create("stages/models/configs/tiny-clip")
    with pytest.raises(UserError, match="is in models for vectors alone"):
        trainable_parameters(tiny.model, "probe", reached=partial(named("probe").reaches, about=ABOUT))
    with pytest.raises(UserError, match="models of vectors"):
        objective_of("probe", tiny, {}, ABOUT)
    labels = Labels(classes=("a", "b"), templates=("{}",), texts=TEXTS[:2])
    with pytest.raises(UserError, match="for 3 classes, and the data have 2"):
        objective_of("probe", on_trunk(whole), {"class_probe": whole.model.class_probe}, About(labels))
    assert "write probe" in named("probe").unfit_part("adapter")
    assert named("prompts").unfit_part("adapter") is None and named("prompts").unfit_part("probe")
