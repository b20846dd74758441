"""Frozen towers computed once: the same features, the same training, and memory that does not depend on n."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Labels, Row, png
from stages.errors import UserError
from stages.losses import About, objective_of
from stages.models import clip as clips
from stages.models import features, towers
from stages.models.batches import BatchReader, decoded
from stages.models.encoder import Encoder
from stages.models.heads import Heads, projections, trunks
from stages.models.parts import trainable_parameters
from stages.privacy import factored, gradients, grid
from stages.privacy.accounting import Plan
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import Execution, Learner, train

LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a photo of a {}.", "a drawing of a {}."))
N, CPU = 40, torch.device("cpu")
TEXTS = list(LABELS.captions(0))


def tiny() -> Encoder:
    torch.manual_seed(0)
    return clips.create("stages/models/configs/tiny-clip")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = [
        Row(png(rng.integers(0, 255, (28, 28, 3), dtype=np.uint8)), LABELS.captions(i % 3), i % 3, f"u{i}")
        for i in range(N + 5)
    ]
    folder = tmp_path_factory.mktemp("data") / "d"
    write(folder, "d", Dataset("made up", "none", LABELS, rows[:N], rows[N:]))
    return folder


@pytest.fixture(scope="module")
def encoded(data, tmp_path_factory) -> features.Features:
    folder = tmp_path_factory.mktemp("features")
    features.write(folder, tiny(), data, "model", 7, CPU)
    return features.Features(folder)


@pytest.mark.parametrize("architecture", ["stages/models/configs/tiny-clip", "ViT-S-32-alt", "text tower", "timm"])
def test_trunk_and_head_are_the_model(architecture):
    torch.manual_seed(0)
    match architecture:
        case "text tower":  # a text tower of its own class
            import open_clip

            image = {"image_size": 28, "patch_size": 7, "width": 64, "layers": 1, "head_width": 16}
            text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
            model = open_clip.CustomTextCLIP(embed_dim=32, vision_cfg=image, text_cfg=text)
            tokenize = open_clip.get_tokenizer("ViT-B-32", 16)
        case "timm":
            clip = towers.create(Path("stages/models/configs/lite-minilm"))
            model, tokenize = clip.model, clip.tokenize
        case _:
            clip = clips.create(architecture)
            model, tokenize = clip.model, clip.tokenize
    model.eval()
    size = model.visual.image_size
    images = torch.randn(3, 3, *(size if isinstance(size, tuple) else (size, size)))
    with torch.no_grad():
        whole = model.encode_image(images, normalize=True), model.encode_text(tokenize(TEXTS), normalize=True)
        with trunks(model):
            inputs = model.encode_image(images), model.encode_text(tokenize(TEXTS))
        assert not torch.equal(inputs[0][:, : whole[0].shape[1]], whole[0])
        again = model.encode_image(images, normalize=True), model.encode_text(tokenize(TEXTS), normalize=True)
        headed = Heads(dict(model.named_parameters()))(*inputs)
    for a, b, c in zip(whole, again, headed, strict=True):
        assert torch.equal(a, b) and torch.allclose(a, c, atol=1e-6)


def test_a_model_without_separate_projections_is_refused():
    model = clips.create("RN50").model  # its image tower ends in attention
    with pytest.raises(UserError, match="cannot be frozen apart from their projections"):
        Heads(dict(model.named_parameters()))
    assert len(projections(dict(model.named_parameters()))) == 1


def test_features_are_what_the_trunk_gives_row_by_row(data, encoded):
    clip, split = tiny(), PreparedSplit(data, "test")
    clip.model.eval()
    with torch.no_grad(), trunks(clip.model):
        for i in range(split.rows):
            expected = clip.model.encode_image(clip.preprocess(split.row(i).pixels())[None])[0]
            assert torch.allclose(encoded.images("test")([i])[0], expected, atol=1e-5)
        assert torch.allclose(encoded.texts(TEXTS), clip.model.encode_text(clip.tokenize(TEXTS)), atol=1e-5)
    with pytest.raises(KeyError):
        encoded.texts(["a text that is not in the data"])


@pytest.mark.parametrize("architecture", ["stages/models/configs/tiny-clip", "stages/models/configs/lite-minilm"])
def test_one_record_less_leaves_the_features_of_the_others_to_the_last_digit(data, tmp_path, architecture):
    rows = list(PreparedSplit(data, "train"))[:17]
    write(tmp_path / "less", "less", Dataset("made up", "none", LABELS, rows[:4] + rows[5:], rows[4:5]))
    write(tmp_path / "all", "all", Dataset("made up", "none", LABELS, rows, [Row(rows[0].image, ("x",), 0, "t")]))
    torch.manual_seed(0)
    folder = Path(architecture)
    clip = towers.create(folder) if "lite" in architecture else clips.create(architecture)
    found = {}
    for name in ("less", "all"):
        (tmp_path / f"{name}-features").mkdir()
        features.write(tmp_path / f"{name}-features", clip, tmp_path / name, "model", 16, CPU, splits=("train",))
        found[name] = np.load(tmp_path / f"{name}-features" / "train.npy")
    assert np.array_equal(found["less"], np.delete(found["all"], 4, axis=0))


def test_features_of_other_data_or_another_model_are_refused(data, encoded, tmp_path):
    content = Manifest.read(data).data_hash
    encoded.require(content, "model")
    for wrong in (("other data", "model"), (content, "another model")):
        with pytest.raises(UserError, match="of other data or another model; run: dvc repro"):
            encoded.require(*wrong)
    features.write_none(tmp_path)
    assert not features.Features(tmp_path).exist
    with pytest.raises(UserError, match="not wanted when it was made; run: dvc repro"):
        features.Features(tmp_path).require(content, "model")


CASES = {
    "batch": (BatchClipping(0.01, 1.0), "contrastive", "projections"),
    "group": (GroupClipping(0.01, 1.0, groups=3), "contrastive", "projections"),
    "group, image alone": (GroupClipping(0.01, 1.0, groups=3), "contrastive", "image-projection"),
    "example": (ExampleClipping(0.01, 1.0), "prompts", "image-projection"),
    "non-private": (None, "contrastive", "projections"),
}


@pytest.mark.parametrize("case", CASES)
def test_training_on_features_gives_the_weights_of_training_through_the_frozen_towers(data, encoded, case):
    mechanism, loss, part = CASES[case]
    split, weights = PreparedSplit(data, "train"), []
    for on_features in (False, True):
        whole = tiny()
        clip, images = whole, decoded(split, whole)
        if on_features:
            clip, images = encoded.encoder(dict(whole.model.named_parameters())), encoded.images("train")
        parameters = trainable_parameters(clip.model, part)
        objective = objective_of(loss, clip, parameters, About(LABELS))
        assert bool(objective.factors) == on_features
        optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3)
        plan = Plan(PoissonSampling(split.units, 12), mechanism or BatchClipping(1.0, 1.0), 5)
        learner, reader = Learner(clip.model, parameters, optimizer, objective), BatchReader(split, images)
        train(learner, reader, plan, Key.from_seed(3), Execution(at_once=8), private=mechanism is not None)
        weights.append(whole.model.state_dict())
    before = tiny().model.state_dict()
    for name in before:
        assert torch.allclose(weights[0][name], weights[1][name], atol=1e-5), name
        assert torch.equal(weights[0][name], before[name]) == (name not in parameters)


@pytest.mark.parametrize("case", [c for c in CASES if c != "non-private"])
def test_factored_sums_are_those_of_the_whole_model(data, encoded, case):
    mechanism, loss, part = CASES[case]
    split, sums = PreparedSplit(data, "train"), []
    for module, whole in ((gradients, tiny()), (factored, tiny())):
        clip = whole if module is gradients else encoded.encoder(dict(whole.model.named_parameters()))
        images = decoded(split, whole) if module is gradients else encoded.images("train")
        parameters = trainable_parameters(clip.model, part)
        objective = objective_of(loss, clip, parameters, About(LABELS))
        drawn = np.arange(0, N, 2)
        records = objective.records(
            BatchReader(split, images).batch(drawn, partial(Key.from_seed(1).by_record, "text", 0))
        )
        units = mechanism.assign(drawn, Key.from_seed(1), 0)
        total, _ = module.clipped_sum(objective, parameters, records, units, mechanism.clip_norm, 100)
        sums.append(torch.cat([t.detach().double().flatten() for t in total]) * grid.grid_of(mechanism.clip_norm))
    assert sums[0].norm() > 0.5 * mechanism.clip_norm
    assert (sums[0] - sums[1]).norm() < 1e-5 * sums[0].norm()


@pytest.mark.slow
def test_a_step_on_features_of_the_middle_size_model_is_at_least_20_times_as_fast(data, tmp_path):
    clip, split = towers.create(Path("stages/models/configs/lite-minilm")), PreparedSplit(data, "train")
    features.write(tmp_path, clip, data, "model", 8, CPU)
    encoded, seconds = features.Features(tmp_path), {}
    for on_features in (False, True):
        used, images = (
            (encoded.encoder(dict(clip.model.named_parameters())), encoded.images("train"))
            if on_features
            else (clip, decoded(split, clip))
        )
        parameters = trainable_parameters(used.model, "projections")
        objective = objective_of("contrastive", used, parameters, About(LABELS))
        learner = Learner(used.model, parameters, torch.optim.AdamW(parameters.values()), objective)
        reader, steps = BatchReader(split, images), 20 if on_features else 2
        plan = Plan(PoissonSampling(split.units, N), BatchClipping(0.1, 1.0), steps)  # q = 1
        for _ in range(2):  # the first time images are decoded and memory is allocated
            start = time.perf_counter()
            train(learner, reader, plan, Key.from_os(), Execution(at_once=8), private=True)
            seconds[on_features] = (time.perf_counter() - start) / steps
    assert seconds[False] > 20 * seconds[True], seconds
