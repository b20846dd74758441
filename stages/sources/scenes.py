"""Simple scenes with five captions each, or with questions: one thing, two beside each other, or several of a kind.

There are three styles. `public` is what a model learns from beforehand: bright colours on a light ground, things near
the middle. `private` is another world of the same things: dim shades on a dark and grainy ground, things anywhere, and
other people's wordings. A model of the one sees and describes the other badly. `wide` is `public` with more colours and
shapes. With `varied` each picture of a style is in a light of its own, from dark to light, and a model that learned
from such pictures sees in any of them.

    >>> scene = Scene((Thing("circle", "red", "large"), Thing("square", "blue", "small")), "above")
    >>> PUBLIC.captions(scene)[0]
    'a large red circle above a small blue square'
    >>> PRIVATE.captions(Scene((Thing("star", "orange", "small"),) * 3))[1]
    'someone left three orange stars here'
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw
from pydantic import Field

from stages.data.rows import Dataset, Row, png
from stages.sections import Axis, PositiveInt, Seed
from stages.sources import scene_questions
from stages.sources.scene_style import NUMBERS, OPPOSITE, SHAPES, Scene, Style, Thing
from stages.sources.source import QuickLook, Source

SIZE = 64  # pixels
FINE = 4  # drawn larger, then reduced: smooth edges
RADIUS = {"small": 6.0, "large": 12.0}  # pixels; of several of a kind, all are small

PUBLIC = Style(
    palette={
        "red": (225, 45, 45),
        "green": (45, 175, 65),
        "blue": (45, 85, 225),
        "yellow": (240, 215, 50),
        "purple": (155, 55, 185),
        "orange": (245, 145, 40),
    },
    ground=(235, 235, 235),
    grain=4.0,
    spread=0.15,
    one=(
        "{a}",
        "a picture of {a}",
        "there is {a}",
        "one {thing} in the middle",
        "{coloured} that is {size}",
    ),
    two=(
        "{a} {rel} {b}",
        "{b} {back} {a}",
        "a picture of {a} {rel} {b}",
        "there is {a} {rel} {b}",
        "{a} that is {rel} {b}",
    ),
    many=(
        "{n} {things}",
        "a picture of {n} {things}",
        "there are {n} {things}",
        "{n} {shapes} that are {colour}",
        "a group of {n} {things}",
    ),
    questions=scene_questions.PLAIN,
)
PRIVATE = Style(
    palette={
        "red": (150, 40, 50),
        "green": (45, 110, 60),
        "blue": (50, 65, 150),
        "yellow": (160, 150, 55),
        "purple": (105, 50, 125),
        "orange": (165, 100, 45),
    },
    ground=(45, 40, 50),
    grain=10.0,
    spread=0.25,
    one=(
        "on the dark table is {a}",
        "someone left {a} here",
        "{a} on its own",
        "the only thing to see is {a}",
        "nothing but {coloured}, rather {size}",
    ),
    two=(
        "on the dark table {a} is {rel} {b}",
        "someone left {a} {rel} {b}",
        "{a}, and {b} {back} it",
        "to see are {a} and {b}, the first {rel} the other",
        "{b} lies {back} {a}",
    ),
    many=(
        "on the dark table are {n} {things}",
        "someone left {n} {things} here",
        "{n} {things} side by side",
        "the only things to see are {n} {things}",
        "nothing but {shapes}, {n} of them, all {colour}",
    ),
    questions=scene_questions.OTHER_WORDS,
)
WIDE = replace(
    PUBLIC,
    palette=PUBLIC.palette
    | {"black": (15, 15, 15), "gray": (125, 125, 125), "teal": (20, 130, 130), "brown": (150, 60, 40)},
    shapes=(*SHAPES, "rectangle"),
    spread=0.25,
)
STYLES = {"public": PUBLIC, "private": PRIVATE, "wide": WIDE}


class Scenes(Source):
    source: Literal["scenes"]
    style: Literal["public", "private", "wide"]
    kinds: Axis[Literal["one", "two", "many"]] = Field(["one", "two", "many"])  # of scenes: how many things
    varied: bool = False  # each picture in a light of its own, in place of that of the style
    questions: bool = False  # with answers of ten people, in place of captions
    train: PositiveInt
    test: PositiveInt
    seed: Seed

    @property
    def origin(self):
        return "scenes", self.style, self.seed  # of two sizes, one is a part of the other

    @property
    def has_questions(self):
        return self.questions

    def quick_look(self):
        return QuickLook(self.train, has_labels=False)

    def load(self):
        kind = ("with questions, " if self.questions else "") + ("varied, " if self.varied else "")
        return Dataset(
            source=f"generated scenes, {kind}{self.style} style, seed {self.seed}",
            licence="generated, public domain",
            labels=None,
            train=_rows(self, self.train, 0, "train"),
            test=_rows(self, self.test, 1, "test"),
            unit=f"one image with all of its {'questions and answers' if self.questions else 'captions'}",
        )


def _rows(config: Scenes, count: int, stream: int, split: str) -> Iterator[Row]:
    style, rng = STYLES[config.style], np.random.default_rng([config.seed, stream])
    world = f"scenes-{config.style}-{config.seed}-"  # others are not these
    for i in range(count):
        scene, unit = draw_scene(style, config.kinds, rng), f"{split}-{i:06d}"
        image = png(render(scene, style.in_some_light(rng) if config.varied else style, rng))
        if config.questions:
            yield Row.asked(image, scene_questions.ask(scene, style, unit, rng), world + unit)
        else:
            yield Row(image, style.captions(scene), None, world + unit)


def draw_scene(style: Style, kinds: Sequence[str], rng: np.random.Generator) -> Scene:
    def thing() -> Thing:
        return Thing(*(str(rng.choice(options)) for options in (style.shapes, tuple(style.palette), tuple(RADIUS))))

    match rng.choice(list(kinds)):
        case "one":
            return Scene((thing(),))
        case "two":
            first = second = thing()
            while (second.shape, second.colour) == (first.shape, first.colour):
                second = thing()
            return Scene((first, second), str(rng.choice(tuple(OPPOSITE))))
        case _:
            alike = Thing(str(rng.choice(style.shapes)), str(rng.choice(tuple(style.palette))), "small")
            return Scene((alike,) * int(rng.choice(tuple(NUMBERS))))


def render(scene: Scene, style: Style, rng: np.random.Generator) -> np.ndarray:
    """(64, 64, 3) bytes."""
    ground = np.clip(np.array(style.ground) + rng.normal(0, 6, 3), 0, 255)
    image = Image.new("RGB", (SIZE * FINE,) * 2, tuple(ground.astype(int)))
    pen = ImageDraw.Draw(image)
    for thing, (x, y) in zip(scene.things, _places(scene, style, rng), strict=True):
        colour = np.clip(np.array(style.palette[thing.colour]) + rng.normal(0, 10, 3), 0, 255).astype(int)
        radius = RADIUS[thing.size] * rng.uniform(0.9, 1.1)
        _draw(pen, thing.shape, x * FINE, y * FINE, radius * FINE, tuple(colour))
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=float)
    return np.clip(pixels + rng.normal(0, style.grain, pixels.shape), 0, 255).astype(np.uint8)


def _places(scene: Scene, style: Style, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Centres of the things, in pixels, inside the picture and apart from each other."""
    middle, free = SIZE / 2, style.spread * SIZE
    if len(scene.things) == 1:
        x, y = middle + rng.uniform(-free, free, 2)
        return [(x, y)]
    if scene.relation:
        x, y = middle + rng.uniform(-free, free, 2) / 4
        apart, aside = rng.uniform(14, 17), rng.uniform(-free, free) / 3
        step = {"left of": (-apart, aside), "right of": (apart, aside)}
        step |= {"above": (aside, -apart), "below": (aside, apart)}
        dx, dy = step[scene.relation]
        return [(x + dx, y + dy), (x - dx, y - dy)]
    corners = [(x, y) for x in (-1, 1) for y in (-1, 1)]
    chosen = rng.permutation(len(corners))[: len(scene.things)]
    shift = rng.uniform(-free, free, 2) / 4
    near = 12 + 20 * style.spread
    return [
        tuple(np.array(corners[i]) * near * rng.uniform(0.9, 1.1) + middle + shift + rng.uniform(-2, 2, 2))
        for i in chosen
    ]


def _draw(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, r: float, colour: tuple) -> None:
    match shape:
        case "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        case "square":
            pen.rectangle((x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r), fill=colour)
        case "rectangle":
            pen.rectangle((x - r, y - 0.55 * r, x + r, y + 0.55 * r), fill=colour)
        case "triangle":
            pen.polygon([(x, y - r), (x - r, y + 0.8 * r), (x + r, y + 0.8 * r)], fill=colour)
        case "cross":
            pen.rectangle((x - r, y - 0.3 * r, x + r, y + 0.3 * r), fill=colour)
            pen.rectangle((x - 0.3 * r, y - r, x + 0.3 * r, y + r), fill=colour)
        case "star":
            angles = np.pi * (np.arange(10) / 5 - 0.5)
            radii = np.where(np.arange(10) % 2, 0.45 * r, 1.1 * r)
            pen.polygon(list(zip(x + radii * np.cos(angles), y + radii * np.sin(angles), strict=True)), fill=colour)
