"""easy-VQA: 4,000 + 1,000 pictures of one shape, some ten questions about each, from its Python package."""

from collections.abc import Iterator
from pathlib import Path

import easy_vqa

from stages.prepare.format import Dataset, Question, Row

TRAIN_UNITS = 4000


def load(test: int) -> Dataset:
    return Dataset(
        source=f"Python package easy-vqa 1.0, the first {test:,} of its 1,000 test images",
        licence="MIT",
        labels=None,
        train=_rows("train", easy_vqa.get_train_questions(), easy_vqa.get_train_image_paths(), TRAIN_UNITS),
        test=_rows("test", easy_vqa.get_test_questions(), easy_vqa.get_test_image_paths(), test),
    )


def _rows(split: str, asked: tuple[list, list, list], paths: dict[int, str], count: int) -> Iterator[Row]:
    """A unit is an image with all of its questions."""
    questions: dict[int, list[Question]] = {}
    for i, (text, answer, image) in enumerate(zip(*asked, strict=True)):
        questions.setdefault(image, []).append(Question(f"{split}-{i}", text, (answer,)))
    for image in sorted(questions)[:count]:
        yield Row.asked(Path(paths[image]).read_bytes(), tuple(questions[image]), f"{split}-{image:06d}")
