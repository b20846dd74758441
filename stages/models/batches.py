"""From prepared rows to tensors: one row and one text for each drawn unit."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from stages.data.prepared import PreparedSplit
from stages.data.rows import Question
from stages.models.encoder import WholeEncoder
from stages.models.views import Variation

CACHE_BYTES = 128 * 2**20  # decoded images kept; memory stays bounded for any n


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor  # (b, 3, height, width); or (b, d), features of a frozen tower
    texts: list[str]
    labels: Sequence[int | None]  # None where the data have no classes
    asked: list[list[tuple[str, str]]] | None = None  # questions about each image, each with an answer

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Chosen:
    """A batch whose images are still to be read: one row of each drawn unit, and what is said of it."""

    rows: list[int]
    texts: list[str]
    labels: Sequence[int | None]
    asked: list[list[tuple[str, str]]] | None

    def batch(self, images: torch.Tensor) -> Batch:
        return Batch(images, self.texts, self.labels, self.asked)


# For places of records and their views, so many numbers of [0, 1) each; one more place changes none of the others'.
Draws = Callable[[np.ndarray, int], np.ndarray]
Images = Callable[[Sequence[int]], torch.Tensor]  # from rows of a split to what the model takes as their images


def decoded(data: PreparedSplit, encoder: WholeEncoder) -> Images:
    """Preprocessing has no randomness: an image is decoded once."""

    def read(index: int) -> torch.Tensor:
        return encoder.read(data.row(index).image)

    one = read(0)
    kept = functools.lru_cache(maxsize=CACHE_BYTES // (one.nelement() * one.element_size()))(read)
    return lambda rows: torch.stack([kept(int(row)) for row in rows])


class BatchReader:
    """Reads units of a split; for `images` see `decoded` and features.py. With `asks`, also questions about the image:
    one at random, with one of its answers; or all of them with answers that a generator chooses, for public data.
    """

    def __init__(
        self,
        data: PreparedSplit,
        images: Images,
        asks: Literal["one"] | np.random.Generator | None = None,
        views: int = 1,
        variation: Variation | None = None,
    ):
        self._data, self.images, self._asks = data, images, asks
        self.views, self.variation = views, variation

    @property
    def units(self) -> int:
        """How many there are; private where n is secret."""
        return self._data.units

    def batch(self, units: np.ndarray, draws: Draws, view: np.ndarray | int = 0) -> Batch:
        chosen = self.choose(units, draws, view)
        return chosen.batch(self.images(chosen.rows) if chosen.rows else torch.empty(0))

    def choose(self, units: np.ndarray, draws: Draws, view: np.ndarray | int = 0) -> Chosen:
        """A unit with several images or texts gives one of each, at random (stages/privacy/README.md section 2).

        `view` says which of a unit's `views` each is: another one, another draw.
        """
        chosen, texts, labels, asked = [], [], [], []
        numbers = 4 if self._asks == "one" else 2
        drawn = draws(units * self.views + view, numbers)
        for unit, (row_draw, text_draw, *asking) in zip(units, drawn, strict=True):
            rows = self._data.rows_of_unit(int(unit))
            row = rows[int(row_draw * len(rows))]
            its_texts, label = self._data.texts_and_label(row)
            chosen.append(row)
            texts.append(its_texts[int(text_draw * len(its_texts))] if its_texts else "")  # nothing was answered
            labels.append(label)
            if isinstance(self._asks, np.random.Generator):
                asked.append([(q.text, str(self._asks.choice(q.answers))) for q in self._answered(row)])
            elif self._asks:
                asked.append(self._one_question(row, *asking))
        return Chosen(chosen, texts, labels, asked or None)

    def _answered(self, row: int) -> list[Question]:
        return [question for question in self._data.questions(row) if question.answers]

    def _one_question(self, row: int, question_draw: float, answer_draw: float) -> list[tuple[str, str]]:
        """None where nothing was answered."""
        if not (answered := self._answered(row)):
            return []
        question = answered[int(question_draw * len(answered))]
        return [(question.text, question.answers[int(answer_draw * len(question.answers))])]
