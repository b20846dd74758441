"""A model for vectors: it starts as the CLIP that made them, and a reference gives its centre and directions."""

import base64
import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from stages import tasks
from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.data.vectors import as_text, written
from stages.errors import UserError
from stages.models import saved, vectors
from stages.models.batches import decoded
from stages.models.families.vectors import Referred
from stages.models.heads import Heads, trunks
from stages.pretrain.reference import aligned
from stages.sources.features import Features
from stages.tasks.base.task import HeldOut, Settings
from tests.conftest import Project
from tests.report.test_publish import SCRIPT

CONFIG = "stages/models/configs/vectors"
CPU = torch.device("cpu")


def prepared(tmp_path, path, name: str, **more):
    entry = Features(source="features", path=str(path), **more)
    write(tmp_path / name, name, dataclasses.replace(entry.load(), public=entry.public))
    return tmp_path / name


def scores(folder, task: str, encoder) -> dict:
    data, labels = PreparedSplit(folder, "test"), Manifest.read(folder).labels
    test = HeldOut(data, decoded(data, encoder), labels)
    return tasks.named(task).evaluate(encoder, test, Settings(batch_size=256), CPU).metrics().scores


def test_it_starts_at_the_zero_shot_accuracy_of_the_clip_that_made_the_vectors(tmp_path, shared_data):
    file = shared_data / "clip-features/pets23.npz"
    arrays = {name: array.astype(np.float32) for name, array in np.load(file).items()}
    nearest = (arrays["test_image"] @ arrays["class_text"].T).argmax(axis=1)
    wanted = (nearest == arrays["test_label"]).mean()
    folder = prepared(tmp_path, file, "pets")
    encoder = vectors.create(CONFIG, classes=23)
    assert scores(folder, "classification", encoder)["accuracy"] == pytest.approx(wanted, abs=0.002)
    if "shared" in shared_data.parts:  # true features, not a stand-in
        assert wanted == pytest.approx(0.9281, abs=0.005)
    saved.save(encoder, tmp_path / "model")
    assert scores(folder, "classification", saved.load(tmp_path / "model"))["accuracy"] == pytest.approx(
        wanted, abs=0.002
    )


def test_pairs_have_the_recalls_of_the_clip_that_made_them(tmp_path, shared_data):
    pairs = np.load(shared_data / "clip-features/pairs500.npz")
    image, text = pairs["image"].astype(np.float32), pairs["text"].astype(np.float32)
    other = np.roll(image, 1, axis=1)  # training records that are no test records
    np.savez(tmp_path / "pairs.npz", train_image=other, train_text=text, test_image=image, test_text=text)
    found = scores(prepared(tmp_path, tmp_path / "pairs.npz", "pairs"), "retrieval", vectors.create(CONFIG))
    similarity = image @ text.T
    first = (similarity.argmax(axis=1) == np.arange(500)).mean()
    assert found["image_to_text_recall_1"] == pytest.approx(first, abs=0.005)
    if "shared" in shared_data.parts:
        named = [found[f"{way}_recall_{k}"] for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)]
        assert [100 * value for value in named] == pytest.approx([55.2, 80.8, 89.2, 50.6, 76.6, 86.2], abs=0.5)


def referred(data, directions: int) -> vectors.VectorEncoder:
    return aligned(Referred(architecture=CONFIG, data="public", directions=directions, classes=4), data, 1, CPU)


def test_a_reference_gives_the_centre_and_the_directions_of_public_vectors(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 6)) * [3, 1, 0.1, 0.1, 0.1, 0.1] + 2
    np.savez(tmp_path / "r.npz", train_image=rows, train_text=rows, test_image=-rows[:3], test_text=rows[:3])
    public = prepared(tmp_path, tmp_path / "r.npz", "public", public=True)
    encoder = referred(public, directions=2)
    kept = np.stack([row / np.linalg.norm(row) for row in rows])
    assert np.allclose(encoder.model.centre, kept.mean(axis=0), atol=1e-6)
    spread = ((kept - kept.mean(axis=0)) @ encoder.model.basis.numpy()).var(axis=0)
    assert spread[0] > spread[1] > 0.5 * np.linalg.eigvalsh(np.cov(kept.T))[-2]
    assert encoder.config["reference"] == f"features {tmp_path / 'r.npz'}"
    saved.save(encoder, tmp_path / "model")
    again = saved.load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(again.model.buffers(), encoder.model.buffers(), strict=True))
    with pytest.raises(UserError, match="directions: 7 is over 6"):
        referred(public, directions=7)
    private = prepared(tmp_path, tmp_path / "r.npz", "private")
    with pytest.raises(UserError, match="is not declared public"):
        referred(private, directions=2)


@torch.no_grad()
def test_heads_on_the_trunk_are_the_whole_model():
    encoder = vectors.built(6, 2, 3, {"logit_scale": 100.0})
    for tensor in encoder.model.parameters():
        tensor.copy_(torch.randn(tensor.shape))
    heads, images, tokens = Heads(dict(encoder.model.named_parameters())), torch.randn(5, 6), torch.randn(4, 6)
    with trunks(encoder.model) as trunk:
        seen, said = trunk.encode_image(images), trunk.encode_text(tokens)
    assert seen.shape == (5, 8) and torch.equal(said, tokens)
    for one, other in zip(encoder.model(images, tokens), heads(seen, said), strict=True):
        assert torch.allclose(one, other)
    assert torch.allclose(encoder.model.probed(images, 3), heads.probed(seen, 3))


def test_what_is_no_vector_of_its_width_is_refused():
    encoder = vectors.create(CONFIG, width=4)
    with pytest.raises(ValueError, match="a vector of 3 numbers; the model takes 4"):
        encoder.read(written(np.ones(3)))
    with pytest.raises(UserError, match="takes texts as vectors"):
        encoder.tokenize(["a photo of a cat."])
    with pytest.raises(UserError, match="another width"):
        encoder.tokenize([as_text(np.ones(3))])


def test_dvc_brings_features_to_a_published_model_that_tells_classes_apart(project, tmp_path):
    rng, values = np.random.default_rng(0), project.params()
    means = rng.normal(size=(3, 8))

    def rows(count: int, split: str) -> dict:
        label = np.arange(count) % 3
        return {f"{split}_image": means[label] + rng.normal(size=(count, 8)) / 5, f"{split}_label": label}

    np.savez(project.folder / "mine.npz", **rows(90, "train"), **rows(12, "test"))
    np.savez(project.folder / "public.npz", **rows(40, "train"), **rows(3, "test"))
    values["prepare"] = values["pretrain"] = {}
    values["folders"] = {"mine": {"source": "features", "path": "mine.npz"}}
    values["folders"]["public"] = {"source": "features", "path": "public.npz", "public": True}
    entry = {"architecture": CONFIG, "data": "public", "directions": 6, "classes": 3}
    values["align"] = {"heads": entry}
    values["sweep"] |= {"dataset": ["mine"], "model": ["heads"], "method": ["example"], "epsilon": [8]}
    how = {"batch_size": 90, "steps": 5, "clip_norm": 10.0, "optimizer": "sgd", "lr": 1.0}
    values["train"]["methods"]["example"] |= how | {"loss": "probe", "trainable": "probe"}
    values["publish"]["not_private"], values["privacy"]["unsafe_noise_seed"] = [], None
    project.write_params(values)
    done = project.run("dvc", "repro", "publish")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = project.folder / "results/classification/mine/heads/example/eps-8/seed-0/metrics.json"
    assert json.loads(results.read_text())["accuracy"] > 0.8
    np.save(tmp_path / "one.npy", means[1])
    name = "dp-clip.classification.mine.heads.example"
    asked = {"image": [str(tmp_path / "one.npy"), base64.b64encode(written(means[2])).decode()]}
    where = [f"sqlite:///{project.folder / 'mlflow.db'}", f"models:/{name}@eps-8"]
    said = Project(tmp_path).run(sys.executable, "-c", SCRIPT, *where, json.dumps(asked))
    assert said.returncode == 0, said.stderr[-2000:]
    assert [row["label"] for row in json.loads(said.stdout.splitlines()[-1])] == ["class 1", "class 2"]
