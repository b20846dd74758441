"""Sets that no registry carries, in files as torchvision lays them out: real samples, and CIFAR-100 in a small file."""

import csv
import hashlib
import json
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.keys import Cell
from stages.params import load
from stages.sources import benchmarks
from stages.sources.benchmarks import Benchmark
from tests.conftest import ROOT
from tests.prepare.conftest import counts, pixels


def test_the_real_traffic_signs(shared_data, tmp_path, offline):
    config = Benchmark(source="gtsrb", root=str(shared_data))
    before = sorted(shared_data.iterdir())
    manifest = write(tmp_path / "d", "gtsrb", config.load())
    assert (manifest.n, manifest.test.rows) == (516, 258)
    assert manifest.source == f"torchvision, files in {shared_data.name}, 516 of the 26,640 training images"
    assert counts(tmp_path / "d", "train") == [12] * 43
    with (shared_data / "gtsrb" / "GT-final_test.csv").open() as file:
        listed = Counter(int(line["ClassId"]) for line in csv.DictReader(file, delimiter=";"))
    assert counts(tmp_path / "d", "test") == [listed[label] for label in range(max(listed) + 1)]
    for split in ("train", "test"):
        original = torchvision.datasets.GTSRB(shared_data, split)
        for index in (0, 100, 257):
            path, label = original._samples[index]
            assert np.array_equal(pixels(tmp_path / "d", split, index), np.asarray(Image.open(path)))
            assert PreparedSplit(tmp_path / "d", split).row(index).label == label
            assert split == "test" or int(Path(path).parent.name) == label
    stop = next(row for row in PreparedSplit(tmp_path / "d", "test") if row.label == 14)
    assert stop.texts[0] == 'a zoomed in photo of a "stop" traffic sign.'
    assert sorted(shared_data.iterdir()) == before, "nothing is written where nothing had to be fetched"


@pytest.mark.parametrize("fraction", [0.5, 0.1])
def test_traffic_signs_with_low_data(shared_data, tmp_path, fraction):
    config = Benchmark(source="gtsrb", root=str(shared_data), train_fraction=fraction)
    manifest = write(tmp_path / "d", "gtsrb", config.load())
    assert manifest.test.rows == 258
    for n, whole in ((manifest.n, 516), (config.quick_look()[0], 26_640)):  # the sample, and what is published
        assert abs(n - fraction * whole) < 4 * (whole * fraction * (1 - fraction)) ** 0.5
    again, other = (config.model_copy(update={"subset_seed": seed}).load().train for seed in (0, 1))
    units = [row.unit for row in PreparedSplit(tmp_path / "d", "train")]
    assert [row.unit for row in again] == units != [row.unit for row in other]


@pytest.mark.slow
def test_n_and_q_follow_the_subset(shared_data, tmp_path, monkeypatch):
    from stages.calibrate.guarantee import of_cell

    params = load(ROOT / "params.yaml")
    monkeypatch.chdir(tmp_path)
    part = Benchmark(source="gtsrb", root=str(shared_data), train_fraction=0.5)
    write(Path("data/low"), "low", part.load())
    guarantee = of_cell(Cell.parse("classification/low/any/batch/eps-1/seed-0"), params).guarantee
    n = PreparedSplit(Path("data/low"), "train").units
    assert 200 < n < 316 and (guarantee.n, guarantee.delta) == (n, 1e-5)
    assert guarantee.q == params.train.methods.batch.batch_size / n


def test_a_missing_class_is_refused(shared_data, tmp_path):
    """torchvision would number the classes after it one lower."""
    shutil.copytree(shared_data / "gtsrb", tmp_path / "gtsrb")
    folder = tmp_path / "gtsrb" / "GTSRB" / "Training"
    folder.parent.chmod(0o755), folder.chmod(0o755)
    (folder / "00007").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"labels of 42 classes; expected .* training images of all 43 classes"):
        Benchmark(source="gtsrb", root=str(tmp_path)).load()


def test_the_real_house_numbers(shared_data, tmp_path, monkeypatch):
    from scipy.io import loadmat

    folder = shared_data / "svhn"
    config = Benchmark(source="svhn", root=str(folder))
    with pytest.raises(UserError, match="not found or corrupted"):
        config.load()  # a sample is not the original file, and torchvision knows its md5
    files = {
        split: ["", path.name, hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()]
        for split, path in (("train", folder / "train_32x32.mat"), ("test", folder / "test_32x32.mat"))
    }
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", files)
    manifest = write(tmp_path / "d", "svhn", config.load())
    assert (manifest.n, manifest.test.rows) == (2000, 500)
    assert manifest.source == "torchvision, files in svhn, 2,000 of the 73,257 training images"
    for split in ("train", "test"):
        original = loadmat(folder / f"{split}_32x32.mat")
        digits = original["y"].ravel() % 10  # 10 stands for zero
        assert counts(tmp_path / "d", split) == np.bincount(digits, minlength=10).tolist()
        zero = int(np.flatnonzero(digits == 0)[0])
        for index in (0, zero, len(digits) - 1):
            assert np.array_equal(pixels(tmp_path / "d", split, index), original["X"][..., index])
            row = PreparedSplit(tmp_path / "d", split).row(index)
            assert row.label == digits[index] and row.texts == (f'a photo of the number: "{digits[index]}".',)


def fine_names() -> list[str]:
    labels = json.loads((Path(benchmarks.__file__).parent / "labels" / "cifar100.json").read_text())
    return [name.replace(" ", "_") for name in labels["classes"]]  # as the original file spells them


@pytest.fixture
def cifar100(tmp_path, monkeypatch) -> Path:
    """200 + 100 images of 100 classes as the original archive lays them out, and torchvision told of their md5."""
    folder = tmp_path / "raw" / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, n in (("train", 200), ("test", 100)):
        fine = [(7 * i) % 100 for i in range(n)]
        content = {
            "filenames": [f"{i}.png" for i in range(n)],
            "batch_label": f"{name} batch",
            "fine_labels": fine,
            "coarse_labels": [label // 5 for label in fine],
            "data": rng.integers(0, 256, (n, 3 * 32 * 32), dtype=np.uint8),
        }
        np.save(tmp_path / f"{name}.npy", content["data"])  # for tests to compare with
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": fine_names(), "coarse_label_names": []}, 2))
    md5 = {p.name: hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest() for p in folder.iterdir()}
    reader = torchvision.datasets.CIFAR100
    monkeypatch.setattr(reader, "train_list", [["train", md5["train"]]])
    monkeypatch.setattr(reader, "test_list", [["test", md5["test"]]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": md5["meta"]})
    return folder.parent


def test_cifar100_in_its_original_layout(cifar100, tmp_path):
    manifest = write(tmp_path / "d", "cifar100", Benchmark(source="cifar100", root=str(cifar100)).load())
    assert (manifest.n, manifest.test.rows) == (200, 100)
    assert manifest.source == "torchvision, files in raw, 200 of the 50,000 training images"
    assert counts(tmp_path / "d", "train") == [2] * 100 and counts(tmp_path / "d", "test") == [1] * 100
    for split in ("train", "test"):
        original = np.load(tmp_path / f"{split}.npy")
        for index in (0, 1, 99):
            expected = original[index].reshape(3, 32, 32).transpose(1, 2, 0)  # red, then green, then blue
            assert np.array_equal(pixels(tmp_path / "d", split, index), expected)
    row = PreparedSplit(tmp_path / "d", "train").row(1)
    assert (
        row.label == 7
        and len(row.texts) == 18
        and row.texts[:2]
        == (
            "a photo of a beetle.",
            "a blurry photo of a beetle.",
        )
    )


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_pickle_that_is_not_the_published_one_is_never_run(cifar100, tmp_path, name):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was-run",)

    (cifar100 / "cifar-100-python" / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="corrupted"):
        Benchmark(source="cifar100", root=str(cifar100)).load()
    assert not (tmp_path / "was-run").exists()
