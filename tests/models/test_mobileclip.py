"""MobileCLIP, whose image tower normalises by batch averages, and SigLIP: by name, from a folder, trained privately."""

from functools import partial

import huggingface_hub.constants
import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import save_file

from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.models import clip as clips
from stages.models import families, saved
from stages.models.batches import Batch, Chosen
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.privacy.accounting import Plan
from stages.privacy.gradients import clipped_sum
from stages.privacy.grid import grid_of
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import Execution, Learner, train

SMALL, C = "stages/models/configs/tiny-mobileclip", 0.05


@pytest.fixture(scope="module")
def small() -> Encoder:
    torch.manual_seed(0)
    encoder = saved.create(SMALL)
    encoder.model.eval()
    return encoder


def batch(count: int = 6) -> Batch:
    images = torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return Batch(images, [f"number {i}" for i in range(count)], [None] * count)


class Reader:
    units = 6
    views, variation = 1, None

    def batch(self, units, stream, view=0):
        return batch(len(units))

    def choose(self, units, stream, view):
        chosen = batch(len(units))
        return Chosen(list(range(len(units))), chosen.texts, chosen.labels, None)

    def images(self, rows):
        return batch(len(rows)).images


def test_private_training_moves_weights_and_no_running_average(small):
    model = small.model.train()  # as a model is that has just been made; the loop must see to the rest
    averages = {name: b.clone() for name, b in model.named_buffers() if "running_" in name or "num_batches" in name}
    parameters = trainable_parameters(model, "image-tower")
    before = parameters["visual.trunk.head.fc.weight"].detach().clone()
    objective = objective_of("contrastive", small, parameters, About())
    learner = Learner(model, parameters, torch.optim.SGD(parameters.values(), lr=1e-4), objective)
    plan = Plan(PoissonSampling(6, 5), GroupClipping(C, 1.0, groups=2), steps=1)
    train(learner, Reader(), plan, Key.from_seed(0), Execution(100), private=True)
    assert not torch.equal(before, parameters["visual.trunk.head.fc.weight"])
    assert len(averages) > 50 and all(torch.equal(model.get_buffer(name), b) for name, b in averages.items())


@pytest.mark.slow
def test_units_through_one_vmapped_pass_are_those_of_a_plain_loop(small):
    parameters = trainable_parameters(small.model.eval(), "image-tower")
    objective = objective_of("contrastive", small, parameters, About())
    records, units = objective.records(batch(4)), np.arange(4) // 2
    sums = []
    for objective.one_by_one in (False, True):
        total, figures = clipped_sum(objective, parameters, records, units, C, 100)
        sums.append(torch.cat([t.detach().double().flatten() for t in total]) * grid_of(C))
        assert all(norm > C for norm in figures.norms)
    assert (sums[0] - sums[1]).norm() < 1e-5 * sums[1].norm()


@pytest.mark.parametrize(
    ("part", "some", "none"),
    [
        ("image-tower", "visual.trunk.stem.0.conv_kxk.0.conv.weight", "text.text_projection"),
        ("image-projection", "visual.trunk.head.fc.weight", "visual.trunk.head.fc.bias"),
        ("projections", "text.text_projection", "visual.trunk.stem.0.conv_kxk.0.conv.weight"),
        ("lora", "text.transformer.resblocks.0.mlp.c_fc.lora_A.default.weight", "visual.trunk.head.fc.weight"),
    ],
)
def test_parts_match_its_tensors(part, some, none):
    model = saved.create(SMALL).model
    chosen = trainable_parameters(model, part)
    assert some in chosen and none not in chosen
    if part == "lora":
        assert all(".lora_" in name for name in chosen)


@pytest.mark.parametrize("name", ["MobileCLIP-S1", "ViT-B-16-SigLIP"])
def test_real_architectures_have_the_parts_that_are_trained(name):
    """On torch's meta device, where a tensor has a shape and no numbers."""
    with torch.device("meta"):
        model = open_clip.create_model(name, load_weights=False, device="meta")
    loss = named("sigmoid" if model.logit_bias is not None else "contrastive")
    reached = partial(loss.reaches, about=About())
    tower = trainable_parameters(model, "image-tower", reached=reached)
    assert tower and all(part.startswith("visual.") for part in tower)
    everything = trainable_parameters(model, "no-token-table", reached=reached)
    assert "text.token_embedding.weight" not in everything and ("logit_bias" in everything) == (loss.name == "sigmoid")
    if name == "MobileCLIP-S1":
        assert set(trainable_parameters(model, "image-projection")) == {"visual.trunk.head.fc.weight"}
    else:
        with pytest.raises(UserError, match="matches no parameter"):  # its tower ends in pooling
            trainable_parameters(model, "image-projection")


def test_a_tokenizer_that_is_not_here_is_one_clear_error_with_two_ways(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else it tries for a minute
    with pytest.raises(UserError, match=r"tokenizer of ViT-B-16-SigLIP could not be loaded .*Two ways: run once"):
        clips.create("ViT-B-16-SigLIP")


def test_published_weights_come_from_a_folder_as_it_is_on_the_hub(tmp_path):
    encoder = saved.create("stages/models/configs/tiny-siglip")
    saved.save(encoder, tmp_path / "hub")
    entry = {"architecture": str(tmp_path / "hub")}
    family = families.of(entry)
    again = family.published(family.weights.model_validate(entry))
    assert torch.equal(again.model.logit_bias, encoder.model.logit_bias)
    assert torch.equal(again.tokenize(["a dog"]), encoder.tokenize(["a dog"]))
    (tmp_path / "hub/open_clip_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights open_clip_model.safetensors in .*; put them there"):
        family.published(family.weights.model_validate(entry))
    save_file(saved.state(encoder.model), tmp_path / "hub/open_clip_model.safetensors")
    (tmp_path / "hub/tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"the tokenizer of the model in .* could not be loaded"):
        family.published(family.weights.model_validate(entry))
