"""What a source hands over: rows, class names, and the public facts of a dataset.

A row is (image, texts, label, unit, questions). `image` holds the encoded bytes (PNG or JPEG;
of a vector those of its .npy file), `texts` every text that
belongs to the image (of a question, with each of its answers), `unit` the id of the privacy unit: rows with one unit
are ONE record (stages/privacy/README.md) and stand next to each other.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from stages.data import vectors
from stages.data.pixels import rgb

SPLITS = ("train", "test")
ONE_IMAGE = "one image with all of its texts"


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    answers: tuple[str, ...]  # one per person who was asked; none where nobody says
    kind: str | None = None  # yes/no, number or other, where the source says so

    @property
    def texts(self) -> tuple[str, ...]:
        """What private training aligns with the image: the question with an answer."""
        return tuple(f"{self.text} {answer}" for answer in self.answers)


@dataclass(frozen=True)
class Row:
    image: bytes
    texts: tuple[str, ...]
    label: int | None
    unit: str
    questions: tuple[Question, ...] = ()

    @classmethod
    def asked(cls, image: bytes, questions: tuple[Question, ...], unit: str) -> "Row":
        return cls(image, tuple(text for q in questions for text in q.texts), None, unit, questions)

    def pixels(self) -> Image.Image:
        return vectors.drawn(self.image) if vectors.is_vector(self.image) else rgb(self.image)


def in_space(id_space: str | None, unit: str) -> str:
    """The id of a unit where names such as 1.jpg mean others than those of other data with the same names."""
    return unit if id_space is None else f"{id_space}: {unit}"


class Labels(BaseModel):
    """Class names and the prompt templates that turn one into a caption."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    texts: tuple[str, ...] | None = None  # by class, in place of what the templates say of it

    def captions(self, label: int) -> tuple[str, ...]:
        if self.texts is not None:
            return (self.texts[label],)
        return tuple(template.replace("{}", self.classes[label]) for template in self.templates)


def read_labels(path: Path) -> Labels:
    return Labels.model_validate(json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Dataset:
    """What a source hands to `prepared.write`: public facts, and the rows of each split as streams."""

    source: str
    licence: str
    labels: Labels | None
    train: Iterable[Row]
    test: Iterable[Row]
    unit: str = ONE_IMAGE
    public: bool = False  # by declaration: a model may be pretrained on it, and nothing is charged for it
    private_test: bool = False
    has_questions: bool = False  # in place of captions or labels


def png(pixels: np.ndarray | Image.Image) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
