"""From prepared rows to tensors: one row and one text for each drawn unit."""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from stages.models.clip import Clip
from stages.prepare.format import PreparedSplit

CACHE_BYTES = 512 * 2**20  # decoded images kept; memory stays bounded for any n


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor  # (b, 3, height, width)
    texts: list[str]
    labels: list[int | None]  # None where the data have no classes

    def __len__(self) -> int:
        return len(self.texts)


class BatchReader:
    """Reads units of a split as the model wants them. Preprocessing has no randomness: an image is decoded once."""

    def __init__(self, data: PreparedSplit, clip: Clip):
        self._data = data
        self._preprocess = clip.preprocess
        one = self._read(0)[0]
        self._row = functools.lru_cache(maxsize=CACHE_BYTES // (one.nelement() * one.element_size()))(self._read)

    def _read(self, index: int) -> tuple[torch.Tensor, tuple[str, ...], int | None]:
        row = self._data.row(index)
        return self._preprocess(row.pixels()), row.texts, row.label

    def batch(self, units: np.ndarray, stream: np.random.Generator) -> Batch:
        """A unit with several images or texts gives one of each, drawn at random (privacy.md section 1)."""
        images, texts, labels = [], [], []
        draws = stream.random((self._data.units, 2))[units]  # for every unit: one more leaves those of the others alone
        for unit, (row_draw, text_draw) in zip(units, draws, strict=True):
            rows = self._data.rows_of_unit(int(unit))
            image, its_texts, label = self._row(rows[int(row_draw * len(rows))])
            images.append(image)
            texts.append(its_texts[int(text_draw * len(its_texts))])
            labels.append(label)
        return Batch(torch.stack(images) if images else torch.empty(0), texts, labels)
