"""What a model said of single test images, for people to look at: details.json, the sheet, and the report's page."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from stages.data.prepared import PreparedSplit

SHOWN = 12  # pictures on the sheet


class Example(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    row: int  # of the test split
    question: str | None = None  # without one, it is a caption
    said: str
    references: list[str]  # what people said
    score: float | None  # the primary one, or what it is made of, of this alone; none without references
    found: list[int] = []  # rows of the test split: images that it answered with


class Examples(BaseModel):
    """details.json of a task in which a model writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    settings: dict  # with which it wrote; the published model has them too
    examples: list[Example]

    def one_an_image(self, count: int) -> list[Example]:
        """Of the first images; of several questions, the first for one image, the second for the next, and so on."""
        by_row: dict[int, list[Example]] = {}
        for example in self.examples:
            by_row.setdefault(example.row, []).append(example)
        return [its[row % len(its)] for row, its in list(by_row.items())[:count]]


def counted(references: Sequence[str]) -> list[str]:
    """What was said more than once, once.

    >>> counted(["red", "blue", "red"])
    ['red (2)', 'blue']
    """
    return [f"{said} ({times})" if times > 1 else said for said, times in Counter(references).most_common()]


def draw(examples: Examples, data: "PreparedSplit", title: str, path: Path) -> None:
    """A sheet of the first pictures, each with what the model said and what a person did."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = examples.one_an_image(SHOWN)
    height = -(-len(shown) // 4)
    figure, grid = plt.subplots(height, 4, figsize=(13, 3.6 * height), layout="constrained")
    for axes in grid.flat:
        axes.axis("off")
    for example, axes in zip(shown, grid.flat, strict=False):
        axes.imshow(data.row(example.row).pixels())
        lines = [example.question] if example.question else []
        lines.append(example.said or "(nothing)")
        lines += [f"(people: {counted(example.references)[0]})"] if example.references else []
        axes.set_title("\n".join(lines).replace("$", r"\$"), fontsize=8, wrap=True)
    figure.suptitle(title)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it; the page has it
        figure.savefig(path, dpi=100)
    plt.close(figure)
