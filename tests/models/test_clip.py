import json
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile

from stages.errors import UserError
from stages.models import clip as clips
from stages.models import saved
from stages.models.encoder import Encoder, device_of
from stages.models.parts import trainable_parameters

TINY = "stages/models/configs/tiny-clip"
TEXTS = ["a cat", "a dog", "a cat", "ein Hündchen"]


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    torch.manual_seed(0)
    return clips.create(TINY)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))


def test_the_small_model_has_no_large_token_table(tiny):
    total = sum(p.numel() for p in tiny.model.parameters())
    table = tiny.model.token_embedding.weight.numel()
    assert total < 300_000 and table < 0.1 * total


def test_the_tokenizer_takes_any_text_and_cuts_a_long_one(tiny):
    tokens = tiny.tokenize(["", "ä 漢字 🙂", "x" * 500])
    context, end = tiny.model.context_length, tiny.model.vocab_size - 1
    assert tokens.shape == (3, context) and int(tokens.max()) == end
    assert (tokens == end).sum(dim=1).tolist() == [1, 1, 1]  # the text tower reads its feature at the one end token
    assert tokens[2, -1] == end


def test_saved_weights_preprocessing_and_tokenizer_come_back(tiny, images, tmp_path):
    saved.save(tiny, tmp_path / "m")
    again = saved.load(tmp_path / "m")
    picture = Image.effect_noise((40, 30), 90).convert("RGB")
    with torch.no_grad():
        assert torch.equal(again.model.encode_image(images), tiny.model.encode_image(images))
        assert torch.equal(again.model.encode_text(tiny.tokenize(TEXTS)), tiny.model.encode_text(again.tokenize(TEXTS)))
    assert torch.equal(again.preprocess(picture), tiny.preprocess(picture))
    assert json.loads((tmp_path / "m" / clips.LAYOUT.config).read_text()) == tiny.config


def test_open_clip_alone_loads_a_saved_model(tiny, images, tmp_path):
    saved.save(tiny, tmp_path / "m")
    model, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'm'}")
    with torch.no_grad():
        assert torch.equal(model.encode_image(images), tiny.model.encode_image(images))


def test_an_architecture_of_open_clip_by_name_can_be_saved_and_loaded(tmp_path):
    clip = clips.create("ViT-S-32-alt")
    saved.save(clip, tmp_path / "m")
    again = saved.load(tmp_path / "m")
    assert again.tokenize(["a dog"]).tolist() == clip.tokenize(["a dog"]).tolist()
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), clip.model.parameters(), strict=True))


def test_an_unknown_architecture_is_refused():
    with pytest.raises(UserError, match="neither a folder"):
        clips.create("ViT-Z-99")


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match="dvc repro"):
        saved.load(Path(TINY))


@pytest.mark.parametrize(
    ("part", "trained", "frozen"),
    [
        ("all", ["token_embedding.weight", "visual.proj", "logit_scale"], []),
        ("image-tower", ["visual.proj", "visual.conv1.weight"], ["text_projection", "logit_scale"]),
        ("projections", ["visual.proj", "text_projection"], ["visual.conv1.weight", "token_embedding.weight"]),
        ("image-projection", ["visual.proj"], ["text_projection", "visual.conv1.weight", "logit_scale"]),
        ("no-token-table", ["visual.proj", "text_projection", "logit_scale"], ["token_embedding.weight"]),
    ],
)
def test_what_is_trained_is_a_parameter(tiny, part, trained, frozen):
    chosen = trainable_parameters(tiny.model, part)
    assert set(trained) <= set(chosen) and not set(frozen) & set(chosen)
    assert all(p.requires_grad == (name in chosen) for name, p in tiny.model.named_parameters())
    trainable_parameters(tiny.model, "all")


def test_asking_for_a_missing_gpu_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto").type == "cpu"
    with pytest.raises(UserError, match="no CUDA device"):
        device_of("cuda")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [TINY, "RN50"])
def test_weights_that_are_loaded_are_not_drawn_before(architecture, tmp_path):
    saved.save(saved.create(architecture), tmp_path / "m")
    with profile(activities=[ProfilerActivity.CPU]) as made:
        saved.create(architecture)
    with profile(activities=[ProfilerActivity.CPU]) as loaded:
        again = saved.load(tmp_path / "m").model.state_dict()
    drawn = [{e.key for e in seen.key_averages()} & {"aten::normal_", "aten::uniform_"} for seen in (made, loaded)]
    assert drawn[0] == {"aten::normal_", "aten::uniform_"}
    few = sum(e.count for e in loaded.key_averages() if e.key == "aten::normal_")
    assert "aten::uniform_" not in drawn[1] and few <= 5  # open_clip's own torch.randn of a few
    there = load_file(tmp_path / "m" / clips.LAYOUT.weights)
    assert again.keys() == there.keys() and all(torch.equal(again[name], there[name]) for name in there)
    assert torch.empty(100).normal_().std() > 0.5  # from here on, draws are draws
