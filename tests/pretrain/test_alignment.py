"""Projections between towers that have never met: texts find images of things no pair was ever given for."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from stages.data.prepared import PreparedSplit, write
from stages.models import saved
from stages.models.encoder import Encoder
from stages.models.families.open_clip import Towers
from stages.pretrain.alignment import aligned
from stages.sources.font_digits import FontDigits

CPU = torch.device("cpu")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("alignment")]  # the model is made once


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "font-digits"
    write(folder, "font-digits", FontDigits(source="font-digits", train=600, test=100, seed=0).load())
    return folder


@pytest.fixture(scope="module")
def clip(data, tmp_path_factory) -> Encoder:
    """Saved and loaded again, as training finds it."""
    folder = tmp_path_factory.mktemp("model")
    entry = Towers(architecture="stages/models/configs/lite-minilm", data="digits", ridge=0.1)
    saved.save(aligned(entry, data, 16, CPU), folder)
    clip = saved.load(folder)
    clip.model.eval()
    return clip


@torch.no_grad()
def best(clip: Encoder, images: list[Image.Image], texts: list[str]) -> list[int]:
    """For each image, which of the texts."""
    seen = clip.model.encode_image(torch.stack([clip.preprocess(image) for image in images]), normalize=True)
    return (seen @ clip.model.encode_text(clip.tokenize(texts), normalize=True).T).argmax(dim=1).tolist()


def test_a_photograph_is_found_by_a_name_that_imagenet_does_not_have(clip):
    from sklearn.datasets import load_sample_image

    from stages.pretrain.alignment import imagenet_names

    texts = [f"a photo of a {thing}." for thing in ("pagoda", "dog", "car", "banana", "sailor", "kitchen")]
    assert "pagoda" not in imagenet_names()
    assert best(clip, [Image.fromarray(load_sample_image("china.jpg"))], texts) == [0]


def test_it_reads_the_public_digits_it_was_aligned_on(clip, data):
    rows = list(PreparedSplit(data, "test"))
    texts = [f'a photo of the number: "{digit}".' for digit in range(10)]
    found = best(clip, [row.pixels() for row in rows], texts)
    assert sum(digit == row.label for digit, row in zip(found, rows, strict=True)) > 50  # of 100; one in ten by chance
