"""Gradients of all units from one backward pass are those of one unit at a time, and none that is added is too long."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

from stages.data.rows import Labels
from stages.losses import About, named, objective_of
from stages.models import saved
from stages.models.bank import Bank
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.privacy import gradients, onepass, unit_gradients
from stages.privacy.gradients import clipped_sum
from stages.privacy.grid import grid_of
from stages.privacy.unit_gradients import Matrix
from stages.privacy.uses import Unknown

CONFIGS = Path("stages/models/configs")
LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a photo of a {}.", "a drawing of a {}."))
TEXTS = [LABELS.captions(i % 3)[i % 2] for i in range(6)]
SIZES = (1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7)
EXPECTED = {1: 3, 2: 3, 4: 3, 6: 3, 8: 3}  # all rungs have passes of several units
C, AT_ONCE = 0.01, 96
ASKED = About(LABELS, has_questions=True)
CASES = [
    ("tiny-clip", "prompts", "image-tower"),
    ("tiny-clip", "contrastive", "all"),
    ("tiny-clip", "contrastive", "no-token-table"),
    ("tiny-clip", "contrastive", "lora"),
    ("tiny-clip", "anchored", "all"),
    ("tiny-siglip", "sigmoid", "all"),
    ("tiny-blip", "contrastive", "all"),
    ("tiny-blip", "writing", "all"),
    ("tiny-blip", "writing", "image-tower+decoder"),
    ("tiny-blip-vqa", "writing", "no-token-table"),
    ("tiny-blip-vqa", "writing", "lora"),
    ("tiny-git", "writing", "all"),
]


def prepared(config: str, loss: str, part: str, bf16: bool = False, sizes=SIZES, dtype=torch.float32):
    """Objective, trained parameters, and records of all units."""
    torch.manual_seed(0)
    encoder = saved.create(str(CONFIGS / config), TEXTS)
    encoder.model.eval().to(dtype)
    return learning(encoder, loss, part, ASKED if config.endswith("vqa") else About(LABELS), bf16, sizes)


def learning(encoder, loss: str, part: str, about: About, bf16: bool = False, sizes=SIZES):
    count, (example, _) = sum(sizes), encoder.example()
    if named(loss).needs_bank:
        generator = torch.Generator().manual_seed(2)
        image, text = (
            torch.nn.functional.normalize(torch.randn(20, width, generator=generator, dtype=torch.float64), dim=1)
            for width in (encoder.model.text_projection.shape[1],) * 2
        )
        about = About(LABELS, bank=Bank(image, text, [(f"text {i}",) for i in range(20)], "", ""))
    reached = partial(named(loss).reaches, about=about)
    trained = trainable_parameters(encoder.model, part, lora_rank=2, reached=reached)
    for name, parameter in trained.items():
        if ".lora_B" in name:  # zero at first: what is before it would have no gradient
            torch.nn.init.normal_(parameter, std=0.05)
    objective = objective_of(loss, encoder, trained, about, bf16)
    dtype = next(iter(trained.values())).dtype
    images = torch.randn(count, *example.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    asked = [[("what is it?" * (1 + i % 2), f"a {LABELS.classes[i % 3]}")] for i in range(count)]
    batch = Batch(images, [TEXTS[i % 6] for i in range(count)], [i % 3 for i in range(count)], asked)
    return objective, trained, objective.records(batch)


def units_of(sizes=SIZES) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def flat(total) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in total]) * grid_of(C)


def summed(objective, trained, records, units, one_by_one: bool = False):
    objective.one_by_one = one_by_one
    try:
        total, figures = clipped_sum(objective, trained, records, units, C, AT_ONCE, EXPECTED)
    finally:
        objective.one_by_one = False
    return flat(total), figures


@pytest.mark.slow
@pytest.mark.parametrize("ghost", [True, False], ids=["products of rows", "as made"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_sums_are_those_of_one_unit_at_a_time(case, ghost, monkeypatch):
    """In float64, where the two may be told from each other."""
    objective, trained, records = prepared(*case, dtype=torch.float64)
    monkeypatch.setattr(gradients, "several", lambda *_: pytest.fail("units went through vmap"))
    monkeypatch.setattr(Matrix, "is_measured_as_made", property(lambda _: not ghost))
    monkeypatch.setattr(unit_gradients, "COVERED", 1.0)  # as if float32 rounded nothing, which it does not here
    together, seen = summed(objective, trained, records, units_of())
    apart, alone = summed(objective, trained, records, units_of(), one_by_one=True)
    assert np.allclose(sorted(seen.norms), sorted(alone.norms), rtol=1e-6, atol=1e-9)
    assert sum(norm > C for norm in seen.norms) >= len(SIZES) - 3  # of one record alone, contrastive losses say nothing
    assert (together - apart).norm() < 1e-6 * C < together.norm()


def test_a_parameter_that_the_loss_alone_reads_has_its_gradient_too():
    objective, trained, records = prepared("tiny-siglip", "sigmoid", "all")
    known = onepass.known(objective, trained, records)
    assert set(known.direct) == {"logit_scale", "logit_bias"}


@pytest.mark.slow
def test_bf16_shares_a_pass_and_is_near_float32():
    sums = []
    for bf16 in (False, True):
        objective, trained, records = prepared("tiny-clip", "contrastive", "all", bf16)
        sums.append(summed(objective, trained, records, units_of())[0])
        assert onepass.known(objective, trained, records)
    assert 1e-4 < (sums[0] - sums[1]).norm() / sums[0].norm() < 0.2


def test_a_model_that_does_something_else_goes_the_vmapped_way(caplog):
    """A ResNet of CLIP's: batch normalisation has no rule."""
    torch.manual_seed(0)
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "patch_size": None}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).eval()
    encoder = Encoder(model, open_clip.get_tokenizer("ViT-B-32", context_length=16))
    trained = trainable_parameters(model, "image-tower")
    objective = objective_of("prompts", encoder, trained, About(LABELS))
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    records = objective.records(Batch(images, TEXTS, [i % 3 for i in range(6)]))
    with pytest.raises(Unknown, match="Norm"):
        onepass.learned(objective, trained, records)
    together, _ = summed(objective, trained, records, np.arange(6))
    apart, _ = summed(objective, trained, records, np.arange(6), one_by_one=True)
    assert (together - apart).norm() < 1e-5 * C


def test_a_record_that_is_not_finite_zeroes_its_own_unit_alone():
    objective, trained, records = prepared("tiny-clip", "contrastive", "all")
    units = units_of()
    with_all, _ = summed(objective, trained, records, units)
    for bad in (math.nan, math.inf, 1e38):
        spoilt = {k: t.clone() for k, t in records.items()}
        spoilt["images"][7, 0, 3, 3] = bad  # of the unit 5
        found, figures = summed(objective, trained, spoilt, units)
        kept = {k: t[units != 5] for k, t in records.items()}
        expected, _ = summed(objective, trained, kept, units[units != 5])
        if math.isfinite(bad):
            assert (found - with_all).norm() <= 2 * C
        else:
            assert figures.not_finite == 1 and torch.equal(found, expected)
