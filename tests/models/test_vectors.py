"""A model for vectors: at its start it says what the CLIP says that made them, and a reference gives centre and basis."""

import dataclasses

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
from stages.models.heads import Heads, trunks
from stages.pretrain.reference import referred
from stages.sources.features import Features
from stages.tasks.base.task import HeldOut, Settings

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


def test_a_reference_gives_the_centre_and_the_directions_of_public_vectors(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 6)) * [3, 1, 0.1, 0.1, 0.1, 0.1] + 2
    np.savez(tmp_path / "r.npz", train_image=rows, train_text=rows, test_image=-rows[:3], test_text=rows[:3])
    public = prepared(tmp_path, tmp_path / "r.npz", "public", public=True)
    encoder = referred(CONFIG, public, directions=2, classes=4)
    kept = np.stack([row / np.linalg.norm(row) for row in rows])
    assert np.allclose(encoder.model.centre, kept.mean(axis=0), atol=1e-6)
    spread = ((kept - kept.mean(axis=0)) @ encoder.model.basis.numpy()).var(axis=0)
    assert spread[0] > spread[1] > 0.5 * np.linalg.eigvalsh(np.cov(kept.T))[-2]
    assert encoder.config["reference"] == f"features {tmp_path / 'r.npz'}"
    saved.save(encoder, tmp_path / "model")
    again = saved.load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(again.model.buffers(), encoder.model.buffers(), strict=True))
    with pytest.raises(UserError, match="directions: 7 is over 6"):
        referred(CONFIG, public, directions=7, classes=4)
    private = prepared(tmp_path, tmp_path / "r.npz", "private")
    with pytest.raises(UserError, match="is not declared public"):
        referred(CONFIG, private, directions=2, classes=4)


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
