"""easy-VQA: 4,000 + 1,000 pictures of one shape, some ten questions about each, from its Python package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from stages.data.rows import Dataset, Question, Row
from stages.sections import PositiveInt
from stages.sources.source import QuickLook, Source

TRAIN_UNITS = 4000


class EasyVqa(Source):
    source: Literal["easy-vqa"]
    test: Annotated[PositiveInt, Field(le=1000)] = 1000  # the first of its test images

    @property
    def origin(self):
        return "easy-vqa"

    @property
    def has_questions(self):
        return True

    def quick_look(self):
        return QuickLook(TRAIN_UNITS, has_labels=False)

    def load(self):
        import easy_vqa

        return Dataset(
            source=f"Python package easy-vqa 1.0, the first {self.test:,} of its 1,000 test images",
            licence="MIT",
            labels=None,
            train=_rows("train", easy_vqa.get_train_questions(), easy_vqa.get_train_image_paths(), TRAIN_UNITS),
            test=_rows("test", easy_vqa.get_test_questions(), easy_vqa.get_test_image_paths(), self.test),
            unit="one image with all of its questions and answers",
        )


def _rows(split: str, asked: tuple[list, list, list], paths: dict[int, str], count: int) -> Iterator[Row]:
    """A unit is an image with all of its questions."""
    questions: dict[int, list[Question]] = {}
    for i, (text, answer, image) in enumerate(zip(*asked, strict=True)):
        questions.setdefault(image, []).append(Question(f"{split}-{i}", text, (answer,)))
    for image in sorted(questions)[:count]:
        yield Row.asked(Path(paths[image]).read_bytes(), tuple(questions[image]), f"easy-vqa-{split}-{image:06d}")
