"""Options of training that must not change what is trained: LoRA, bf16, checkpointing."""

import numpy as np
import pytest
import torch

from stages.data.rows import Labels
from stages.losses import About, objective_of
from stages.models import clip as clips
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import merge_adapters, trainable_parameters
from stages.params import Compute
from stages.privacy.gradients import clipped_sum
from stages.privacy.grid import grid_of
from stages.train.cell import speed_up

LABELS = Labels(classes=("cat", "dog"), templates=("a {}.",))
C = 0.1


def tiny() -> Encoder:
    torch.manual_seed(0)
    clip = clips.create("stages/models/configs/tiny-clip")
    clip.model.eval()
    return clip


def batch(count: int = 12) -> Batch:
    images = torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    return Batch(images, [f"number {i}" for i in range(count)], [i % 2 for i in range(count)])


def summed(clip, part="all", loss="contrastive", **options) -> torch.Tensor:
    parameters = trainable_parameters(clip.model, part)
    objective = objective_of(loss, clip, parameters, About(LABELS), **options)
    total, _ = clipped_sum(objective, parameters, objective.records(batch()), np.arange(12) // 4, C, 100)
    return torch.cat([t.detach().double().flatten() for t in total]) * grid_of(C)


def test_checkpointing_gives_the_same_gradient():
    clip = tiny()
    special = speed_up(clip.model, Compute(device="cpu", records_at_once=8, gradient_checkpointing=True))
    assert special and clip.model.visual.transformer.grad_checkpointing
    plain, checkpointed = summed(tiny()), summed(clip, one_by_one=special)
    assert (plain - checkpointed).norm() < 1e-4 * plain.norm()


def test_bf16_is_close_in_float32_and_clipped_all_the_same():
    plain, half = summed(tiny()), summed(tiny(), bf16=True)
    assert 1e-4 * plain.norm() < (plain - half).norm() < 0.1 * plain.norm()
    clip = tiny()
    parameters = trainable_parameters(clip.model, "all")
    objective = objective_of("contrastive", clip, parameters, About(LABELS), bf16=True)
    total, _ = clipped_sum(objective, parameters, objective.records(batch()), np.zeros(12, int), C, 100)
    assert torch.cat([t.double().flatten() for t in total]).norm() * grid_of(C) <= C


@pytest.mark.parametrize(("part", "loss"), [("lora", "contrastive"), ("image-lora", "prompts")])
def test_lora_trains_few_parameters_and_leaves_a_model_of_the_usual_layers(part, loss):
    clip, images = tiny(), batch().images
    names = set(clip.model.state_dict())
    before = clip.model.encode_image(images)
    parameters = trainable_parameters(clip.model, part)
    assert torch.equal(clip.model.encode_image(images), before)  # adapters start at zero
    assert all(".lora_" in name for name in parameters)
    assert all(name.startswith("visual.") for name in parameters) == (part == "image-lora")
    assert sum(p.numel() for p in parameters.values()) < 0.1 * sum(p.numel() for p in clip.model.parameters())
    objective = objective_of(loss, clip, parameters, About(LABELS))
    total, figures = clipped_sum(objective, parameters, objective.records(batch()), np.arange(12) // 4, C, 100)
    assert all(norm > 0 for norm in figures.norms)
    with torch.no_grad():
        for parameter, t in zip(parameters.values(), total, strict=True):
            parameter.add_(t * grid_of(C))
    trained = clip.model.encode_image(images)
    assert not torch.allclose(trained, before, atol=1e-4)
    merge_adapters(clip.model)
    assert set(clip.model.state_dict()) == names
    assert torch.allclose(clip.model.encode_image(images), trained, atol=1e-4)
