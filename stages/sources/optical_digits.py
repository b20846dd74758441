"""Public handwritten digits for choosing hyper-parameters: the 1,797 scans of 8 x 8 that scikit-learn carries.

Enlarged to MNIST's format, the first 1,000 are turned, moved and scaled into as many training rows as wanted, so that
n, the sampling rate and the noise can be those of the private data they stand for. The other 797 are the test split.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from PIL import Image

from stages.data.rows import Dataset, Row, png
from stages.sections import PositiveInt, Seed
from stages.sources.class_names import published
from stages.sources.source import QuickLook, Source

TRAIN_SCANS = 1000
SIZE, INK = 28, 20  # MNIST's digits fill 20 of 28 pixels


class OpticalDigits(Source):
    source: Literal["optical-digits"]
    train: PositiveInt
    seed: Seed

    @property
    def origin(self):
        return "optical-digits"  # the scans are the same, whatever is made of them

    def quick_look(self):
        return QuickLook(self.train, has_labels=True)

    def load(self):
        from sklearn.datasets import load_digits

        scans, labels = load_digits(return_X_y=True)
        return enlarged(scans, labels, self.train, self.seed)


def enlarged(scans: np.ndarray, labels: np.ndarray, train: int, seed: int) -> Dataset:
    digits = published("digits")
    scans = (scans.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(seed)

    def train_rows() -> Iterator[Row]:
        for i in range(train):
            scan = int(rng.integers(TRAIN_SCANS))
            image = varied(scans[scan], rng)
            yield Row(png(image), digits.captions(int(labels[scan])), int(labels[scan]), unit=f"optical-train-{i}")

    def test_rows() -> Iterator[Row]:
        for scan in range(TRAIN_SCANS, len(scans)):
            label = int(labels[scan])
            yield Row(png(placed(scans[scan], INK)), digits.captions(label), label, unit=f"optical-test-{scan}")

    return Dataset(
        source="scikit-learn's digits, enlarged and varied",
        licence="UCI optical recognition of handwritten digits: CC BY 4.0",
        labels=digits,
        train=train_rows(),
        test=test_rows(),
    )


def placed(scan: np.ndarray, ink: int) -> Image.Image:
    canvas = Image.new("L", (SIZE, SIZE))
    canvas.paste(Image.fromarray(scan).resize((ink, ink), Image.Resampling.BICUBIC), ((SIZE - ink) // 2,) * 2)
    return canvas


def varied(scan: np.ndarray, rng: np.random.Generator) -> Image.Image:
    image = placed(scan, int(INK * rng.uniform(0.85, 1.15)))
    return image.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR, translate=tuple(rng.uniform(-2, 2, size=2)))
