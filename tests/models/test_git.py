"""GIT, the captioner: transformers' own numbers and layout, a record's term by itself, and what it cannot do."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from ruamel.yaml import YAML
from transformers import CLIPImageProcessor, GitForCausalLM

from stages import params, tasks
from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.models import families, git, saved, writing
from stages.models.batches import Batch
from stages.models.parts import merge_adapters, trainable_parameters
from stages.params import Compute
from stages.params.schema import merge
from stages.pretrain import learning
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import grid_of
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.sources import scenes
from stages.tasks.base.task import HeldOut
from stages.train.cell import speed_up
from tests.tasks.test_captioning import captioning_params

TINY = "stages/models/configs/tiny-git"
TEXTS = [caption for style in scenes.STYLES.values() for caption in (*style.one, *style.two, *style.many)]
COLOURS = ("red", "green", "blue", "pink", "black", "white")
C = 0.05
SEARCH = {"beams": 3, "most_tokens": 8}


@pytest.fixture
def tiny() -> git.GitEncoder:
    torch.manual_seed(0)
    encoder = saved.create(TINY, TEXTS)
    encoder.model.eval()
    return encoder


def batch(count: int = 6) -> Batch:
    images = torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    texts = [" and ".join([f"a {c} circle"] * (1 + i % 2)) for i, c in enumerate(COLOURS)]
    return Batch(images, texts[:count], [None] * count)


def prepared(encoder, part: str, **settings):
    about = About(settings=settings)
    parameters = trainable_parameters(encoder.model, part, reached=partial(named("writing").reaches, about=about))
    objective = objective_of("writing", encoder, parameters, about)
    return objective, parameters, objective.records(batch())


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


@pytest.fixture(scope="module")
def taught() -> git.GitEncoder:
    """By the loss that its family names for public data."""
    torch.manual_seed(0)
    encoder = saved.create(TINY, TEXTS)
    loss_of = learning._loss(encoder, families.of_folder(Path(TINY)).pretraining(encoder))
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=2e-3)
    for _ in range(50):
        optimizer.zero_grad()
        loss_of(batch()).backward()
        optimizer.step()
    encoder.model.eval()
    return encoder


@pytest.mark.slow
def test_public_data_teach_it_to_write(taught):
    assert writing.captions(taught, batch().images, beams=2, most_tokens=34) == batch().texts


def test_a_saved_folder_loads_with_transformers_and_says_and_scores_the_same(taught, tmp_path):
    saved.save(taught, tmp_path / "m")
    again, theirs = saved.load(tmp_path / "m"), GitForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert theirs.output.weight is theirs.git.embeddings.word_embeddings.weight
    objective, _, records = prepared(taught, "all")
    found = objective.features({}, records, merge=True)["each"]
    for i in range(6):
        text = records["texts"][i : i + 1, : int((records["texts"][i] != taught.pad).sum())]
        loss = theirs(input_ids=text, pixel_values=records["images"][i : i + 1], labels=text).loss
        assert torch.isclose(found[i], loss, atol=1e-5)
    said = writing.captions(again, batch().images, **SEARCH)
    assert said == writing.captions(taught, batch().images, **SEARCH)
    start = torch.full((1, 1), taught.model.config.bos_token_id)
    alone = [
        theirs.generate(pixel_values=image[None], input_ids=start, num_beams=3, max_new_tokens=8, do_sample=False)
        for image in batch().images
    ]
    assert said == [taught.decode(tokens)[0] for tokens in alone] and len(set(said)) > 1


def test_its_images_are_those_of_transformers(tiny, tmp_path):
    saved.save(tiny, tmp_path)
    picture = Image.effect_noise((90, 70), 80).convert("RGB").resize((90, 70), Image.Resampling.BOX)
    theirs = CLIPImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt")["pixel_values"][0]
    assert tiny.preprocess(picture).shape == (3, 64, 64) and (tiny.preprocess(picture) - theirs).abs().max() < 0.05


def test_published_weights_come_from_a_local_folder_and_a_missing_one_has_two_ways(taught, tmp_path):
    saved.save(taught, tmp_path / "local")
    entry = {"architecture": "git", "captioner": str(tmp_path / "local")}
    family = families.of(entry)
    again = family.published(family.weights.model_validate(entry))
    assert writing.captions(again, batch().images, **SEARCH) == writing.captions(taught, batch().images, **SEARCH)
    with pytest.raises(UserError, match="Two ways: run once with a network, or put them in a local folder"):
        git.pretrained(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("part", ["all", "no-token-table", "image-tower+decoder", "lora"])
def test_records_through_one_vmapped_pass_are_those_of_a_plain_loop(tiny, part):
    objective, parameters, records = prepared(tiny, part, text_tokens=16)
    together, figures = clipped_sum(objective, parameters, records, np.arange(6), C, 100)
    objective.one_by_one = True
    apart, _ = clipped_sum(objective, parameters, records, np.arange(6), C, 100)
    assert all(norm > C for norm in figures.norms)  # clipped, and not zero
    assert torch.allclose(flat(together), flat(apart), atol=1e-5 * C / grid_of(C))
    whole, pieces = (flat(gradient(objective, parameters, records, at_once)[0]) for at_once in (100, 2))
    assert torch.allclose(whole, pieces, atol=1e-6)
    if part == "lora":
        merge_adapters(tiny.model)
        assert set(tiny.model.state_dict()) == set(saved.create(TINY, TEXTS).model.state_dict())


@pytest.mark.parametrize(
    ("part", "trained", "frozen"),
    [
        ("all", {"git.embeddings.word_embeddings.weight", "output.bias"}, {"output.weight"}),
        ("image-tower", {"git.image_encoder.vision_model.post_layernorm.weight"}, {"output.bias"}),
        (
            "decoder",
            {"git.encoder.layer.0.output.dense.weight", "output.bias"},
            {"git.embeddings.word_embeddings.weight"},
        ),
    ],
)
def test_parts_are_found_by_name_and_tied_weights_are_one_tensor(tiny, part, trained, frozen):
    _, parameters, _ = prepared(tiny, part)
    assert trained <= set(parameters) and not frozen & set(parameters)
    assert tiny.model.output.weight is tiny.model.git.embeddings.word_embeddings.weight


def test_a_record_moves_a_step_by_at_most_the_sensitivity(tiny):
    objective, parameters, records = prepared(tiny, "all", text_tokens=16)
    for mechanism, bound in ((ExampleClipping(C, 1.0), C), (GroupClipping(C, 1.0, groups=3), 2 * C)):
        for poison in (1.0, 1e6, np.nan):
            poisoned = {**records, "images": records["images"].clone()}
            poisoned["images"][0] *= poison
            sums = []
            for drawn in (np.arange(6), np.arange(1, 6)):
                units = mechanism.assign(drawn, Key.from_seed(1), 0)
                chosen = {k: v[torch.from_numpy(drawn)] for k, v in poisoned.items()}
                total, _ = clipped_sum(objective, parameters, chosen, units, C, 100, mechanism.expected_units(6.0))
                sums.append(flat(total) * grid_of(C))
            moved = (sums[0] - sums[1]).norm().item()
            assert 0.9 * C * np.isfinite(poison) * (bound == C) <= moved <= bound


def test_checkpointing_gives_the_same_gradient(tiny):
    objective, parameters, records = prepared(tiny, "image-tower+decoder", text_tokens=16)
    plain = flat(clipped_sum(objective, parameters, records, np.arange(6) // 3, C, 100)[0])
    special = speed_up(tiny.model, Compute(device="cpu", records_at_once=8, gradient_checkpointing=True))
    objective.one_by_one = special
    assert special and tiny.model.git.image_encoder.vision_model.encoder.layers[0].training
    assert (flat(clipped_sum(objective, parameters, records, np.arange(6) // 3, C, 100)[0]) - plain).norm() < (
        1e-5 * plain.norm()
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "train.methods.batch.loss: contrastive needs a model that compares images with texts, and 'm' does not"),
        (
            {"sweep": {"task": ["retrieval"]}},
            "retrieval needs a model that compares images with texts, and 'm' does not",
        ),
        ({"sweep": {"task": ["classification"]}}, "classification needs a model that compares images with texts"),
        ({"sweep": {"task": ["vqa"]}}, "vqa needs a model that answers questions, and 'm' does not"),
    ],
)
def test_what_compares_or_asks_refuses_it_before_anything_runs(tmp_path, section, message):
    values = captioning_params()
    values["prepare"]["mine"] = {"source": "scenes", "style": "private", "train": 60, "test": 5, "seed": 0}
    values["pretrain"]["m"] = values["pretrain"]["tiny-blip"] | {"architecture": TINY}
    values["sweep"]["model"] = ["m"]
    merge(values, section)
    YAML(typ="safe").dump(values, tmp_path / "params.yaml")
    with pytest.raises(UserError) as error:
        params.load(tmp_path / "params.yaml")
    assert any(message in str(problem) for problem in error.value.problems), error.value.problems


def test_by_hand_it_is_refused_as_clearly(tiny):
    for loss in ("contrastive", "prompts"):
        with pytest.raises(UserError, match=f"the loss {loss} needs a model that compares images with texts"):
            objective_of(loss, tiny, {}, About())
    with pytest.raises(UserError, match="the loss writing needs a model that answers questions"):
        objective_of("writing", tiny, {}, About(has_questions=True))
    with pytest.raises(UserError, match="retrieval needs a model that compares"):
        tasks.named("retrieval").evaluate(tiny, HeldOut(None, None), None, torch.device("cpu"))
    with pytest.raises(UserError, match="this GIT is one for videos"):
        git.assemble({**tiny.config, "num_image_with_embedding": 6}, tiny.files, None)


def test_the_large_one_is_sketched_with_as_many_parameters_as_published():
    config = Path("stages/models/configs/git-base/config.json")
    with torch.device("meta"):
        model = GitForCausalLM(git.GitConfig.from_json_file(config))
    assert 1.7e8 < sum(p.numel() for p in model.parameters()) < 1.8e8  # microsoft/git-base says 0.2 B
