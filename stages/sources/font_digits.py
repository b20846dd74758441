"""Public digits drawn with the fonts that matplotlib ships, varied in size, slant, turn, weight, place and bend."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from stages.data.rows import Dataset, Row, png
from stages.sections import PositiveInt, Seed
from stages.sources.class_names import published
from stages.sources.source import QuickLook, Source

SIZE = 28
CANVAS = 56  # drawn at twice the size, then reduced: smooth strokes as a scanner gives them
TEXT_FONTS = ("DejaVu", "STIXGeneral", "cmb10", "cmr10", "cmss10", "cmtt10")  # the others have no plain digits


class FontDigits(Source):
    source: Literal["font-digits"]
    train: PositiveInt
    test: PositiveInt
    seed: Seed

    @property
    def origin(self):
        return "font-digits", self.seed  # of two sizes, one is a part of the other

    def quick_look(self):
        return QuickLook(self.train, has_labels=True)

    def load(self):
        train_rng, test_rng = np.random.default_rng(self.seed).spawn(2)
        return Dataset(
            source="drawn with the fonts of matplotlib",
            licence="public: generated; fonts under the DejaVu, STIX and BaKoMa licences",
            labels=published("digits"),
            train=rows("train", self.train, train_rng),
            test=rows("test", self.test, test_rng),
        )


def rows(split: str, n: int, rng: np.random.Generator) -> Iterator[Row]:
    fonts, digits = text_fonts(), published("digits")
    for i in range(n):
        label = i % 10
        image = draw(str(label), fonts[rng.integers(len(fonts))], rng)
        yield Row(png(image), digits.captions(label), label, unit=f"font-{split}-{i}")


def text_fonts() -> list[str]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return sorted(str(p) for p in folder.glob("*.ttf") if p.name.startswith(TEXT_FONTS) and "Display" not in p.name)


def draw(text: str, font_file: str, rng: np.random.Generator) -> Image.Image:
    """One white digit on black, centred on its ink like MNIST and then moved a little."""
    font = ImageFont.truetype(font_file, size=int(rng.integers(34, 56)))
    left, top, right, bottom = map(int, font.getbbox(text))
    glyph = Image.new("L", (right - left + 8, bottom - top + 8))
    stroke = int(rng.choice([0, 0, 1, 1, 2]))
    ImageDraw.Draw(glyph).text((4 - left, 4 - top), text, fill=255, font=font, stroke_width=stroke, stroke_fill=255)
    glyph = glyph.resize((max(8, int(glyph.width * rng.uniform(0.75, 1.25))), glyph.height))

    canvas = Image.new("L", (CANVAS, CANVAS))
    shift = rng.uniform(-3, 3, size=2)
    corner = (int((CANVAS - glyph.width) / 2 + shift[0]), int((CANVAS - glyph.height) / 2 + shift[1]))
    canvas.paste(glyph, corner)
    slant, turn = rng.uniform(-0.35, 0.35), rng.uniform(-15, 15)
    canvas = canvas.transform(
        canvas.size, Image.Transform.AFFINE, (1, slant, -slant * CANVAS / 2, 0, 1, 0), Image.Resampling.BILINEAR
    )
    canvas = canvas.rotate(turn, Image.Resampling.BILINEAR)
    canvas = canvas.transform(canvas.size, Image.Transform.MESH, bent_mesh(rng), Image.Resampling.BILINEAR)
    canvas = canvas.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 1.5))))
    return canvas.resize((SIZE, SIZE), Image.Resampling.BOX)


def bent_mesh(rng: np.random.Generator, cells: int = 4, bend: float = 3.5) -> list[tuple]:
    """A grid over the canvas whose inner corners are moved at random: strokes bend as a hand bends them."""
    step = CANVAS // cells
    corners = np.stack(np.meshgrid(np.arange(cells + 1), np.arange(cells + 1)), axis=-1) * float(step)  # (y, x, xy)
    corners[1:-1, 1:-1] += rng.normal(0, bend, size=(cells - 1, cells - 1, 2))
    mesh = []
    for y in range(cells):
        for x in range(cells):
            box = (x * step, y * step, (x + 1) * step, (y + 1) * step)
            quad = [corners[y, x], corners[y + 1, x], corners[y + 1, x + 1], corners[y, x + 1]]
            mesh.append((box, tuple(np.concatenate(quad))))
    return mesh
