"""Published weights from a local file: OpenAI's original layout, safetensors, and what is wrong with others."""

import copy
import json
import pickle
import zipfile
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from stages.errors import UserError
from stages.models import clip as clips
from stages.models import saved, torchscript, towers
from stages.models.heads import trunks

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the archive is only read, never run

NAME, MEAN = "small-clip-for-tests", (0.1, 0.2, 0.3)
IMAGE = {"image_size": 28, "patch_size": 14, "width": 64, "layers": 1, "head_width": 32}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}


@pytest.fixture(scope="module", autouse=True)
def a_small_released_model(tmp_path_factory):
    """A name and a tag as open_clip has them for OpenAI's models."""
    file = tmp_path_factory.mktemp("configs") / f"{NAME}.json"
    file.write_text(json.dumps({"embed_dim": 16, "vision_cfg": IMAGE, "text_cfg": TEXT}))
    open_clip.add_model_config(file)
    tags = open_clip.pretrained._PRETRAINED
    tags[NAME] = {"openai": {"mean": MEAN, "std": (0.5, 0.5, 0.5), "interpolation": "bicubic", "quick_gelu": True}}
    yield
    del tags[NAME]


@pytest.fixture(scope="module")
def original() -> torch.nn.Module:
    torch.manual_seed(0)
    return open_clip.create_model(NAME, force_quick_gelu=True).eval()


@pytest.fixture
def archive(original, tmp_path) -> Path:
    """TorchScript with half-precision weights and three numbers among them, as OpenAI released its models."""
    model = copy.deepcopy(original)
    model.__dict__["attn_mask"] = model._buffers.pop("attn_mask")  # no buffer in OpenAI's class
    for fact, value in (("input_resolution", 28), ("context_length", 77), ("vocab_size", 49408)):
        model.__dict__.pop(fact, None)
        model.register_buffer(fact, torch.tensor(value))
    inputs = torch.zeros(1, 3, 28, 28), open_clip.get_tokenizer(NAME)(["x"])
    torch.jit.trace(model, inputs, check_trace=False, strict=False).half().save(str(tmp_path / "small.pt"))
    return tmp_path / "small.pt"


def features(model: torch.nn.Module) -> torch.Tensor:
    images = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        text = model.encode_text(open_clip.get_tokenizer(NAME)(["a cat", "a dog"]))
        return torch.cat([model.encode_image(images), text])


def test_openais_original_layout_loads_with_its_preprocessing_and_activation(archive, original, tmp_path):
    assert {"input_resolution", "visual.conv1.weight"} <= set(torch.jit.load(archive).state_dict())
    clip = clips.pretrained(NAME, "openai", archive)
    assert torch.allclose(
        features(clip.model.eval()), features(original), atol=5e-2
    )  # they were stored in half precision
    assert next(clip.model.parameters()).dtype == torch.float32
    assert open_clip.get_model_preprocess_cfg(clip.model)["mean"] == MEAN
    saved.save(clip, tmp_path / "m")
    again = saved.load(tmp_path / "m")
    assert torch.equal(features(again.model.eval()), features(clip.model))
    assert again.config["model_cfg"]["quick_gelu"] is True and again.config["preprocess_cfg"]["mean"] == list(MEAN)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_file_of_tensors_loads(kind, original, tmp_path):
    file = tmp_path / f"weights.{kind}"
    state = {k: v.contiguous() for k, v in original.state_dict().items()}
    save_file(state, file) if kind == "safetensors" else torch.save(state, file)
    assert torch.equal(features(clips.pretrained(NAME, "openai", file).model.eval()), features(original))


class Evil:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_file_with_code_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": Evil(tmp_path / "was-run")}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="does not hold the weights"):
        clips.pretrained(NAME, "openai", tmp_path / "evil.pt")
    assert not (tmp_path / "was-run").exists()


def test_an_archive_with_code_is_refused_and_not_run(archive, tmp_path):
    """TorchScript's own data file, with a call in it that has no business there."""
    evil = tmp_path / "evil-archive.pt"
    with zipfile.ZipFile(archive) as good, zipfile.ZipFile(evil, "w", zipfile.ZIP_STORED) as bad:
        for name in good.namelist():
            content = good.read(name)
            if name.endswith("/data.pkl"):
                content = pickle.dumps(Evil(tmp_path / "was-run"), protocol=2)
            bad.writestr(name.replace("small/", "evil-archive/"), content)
    with pytest.raises(UserError, match=r"does not hold the weights .* which is not part of any weights"):
        clips.pretrained(NAME, "openai", evil)
    assert not (tmp_path / "was-run").exists()


def test_an_archives_tensors_are_those_that_torchscript_finds(archive):
    theirs, ours = torch.jit.load(archive).state_dict(), torchscript.tensors(archive)
    assert set(theirs) <= set(ours) and all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_a_missing_a_wrong_and_an_unknown_one_are_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no weights file .*nothing\.pt; correct `file`"):
        clips.pretrained(NAME, "openai", tmp_path / "nothing.pt")
    save_file({"visual.conv1.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"other\.safetensors does not hold the weights of small-clip"):
        clips.pretrained(NAME, "openai", tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="no weights 'laion99' of 'ViT-L-14-336'; its tags: openai"):
        clips.pretrained("ViT-L-14-336", "laion99", None)


def test_offline_the_error_gives_two_ways(monkeypatch):
    monkeypatch.setattr("open_clip.factory.download_pretrained", _no_network)
    with pytest.raises(UserError, match="Two ways: run once with a network, or put the weights in a file"):
        clips.pretrained("ViT-B-32", "openai", None)


def _no_network(*_, **__):
    raise OSError("no network")


def test_only_what_changed_is_kept_and_comes_back(original, archive, tmp_path):
    clip = clips.pretrained(NAME, "openai", archive)
    saved.save(clip, tmp_path / "base")
    with torch.no_grad():
        clip.model.visual.proj.add_(1.0)
    (tmp_path / "run").mkdir()
    saved.save_changes(clip.model, tmp_path / "base", tmp_path / "run")
    assert saved.changed(tmp_path / "run") == ["visual.proj"]
    heads = saved.heads(tmp_path / "base", tmp_path / "run")  # without the towers
    assert set(heads) == {"visual.proj", "text_projection", "logit_scale"}
    assert all(torch.equal(tensor, clip.model.get_parameter(name)) for name, tensor in heads.items())
    again = saved.load(tmp_path / "base", tmp_path / "run")
    assert torch.equal(features(again.model.eval()), features(clip.model.eval()))
    with pytest.raises(UserError, match="dvc repro"):
        saved.load(tmp_path / "base", tmp_path)
    with torch.no_grad():
        clip.model.ln_final.bias.add_(1.0)
    saved.save_changes(clip.model, tmp_path / "base", tmp_path / "run")
    assert saved.heads(tmp_path / "base", tmp_path / "run") is None  # a tower was trained too
    saved.save_changes(None, tmp_path / "base", tmp_path / "run")
    assert saved.changed(tmp_path / "run") == []


def test_towers_from_packages_know_what_they_learned():
    """A photograph of a palace that scikit-learn carries, and two sentences with one meaning."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    from stages.pretrain.alignment import imagenet_names

    folder = Path("stages/models/configs/lite-minilm")
    clip = towers.create(folder)
    clip.model.eval()
    with torch.no_grad(), trunks(clip.model) as model:
        image = model.encode_image(clip.preprocess(Image.fromarray(load_sample_image("china.jpg")))[None])
        best = (image @ towers.classifier(folder).T)[0].topk(10).indices
        assert {"palace", "monastery"} & {imagenet_names()[i] for i in best}
        dog, puppy, lorry = torch.nn.functional.normalize(
            model.encode_text(clip.tokenize(["a photo of a dog", "a picture of a puppy", "a photo of a lorry"])), dim=1
        )
    assert dog @ puppy > dog @ lorry + 0.2
