"""What is in a scene, and the style in which scenes are drawn and described.

>>> an("orange star"), plural("cross")
('an orange star', 'crosses')
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "cross")
NUMBERS = {2: "two", 3: "three", 4: "four"}
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


def an(words: object) -> str:
    return f"{'an' if str(words)[0] in 'aeiou' else 'a'} {words}"


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def _colour(parts: Iterable[float]) -> tuple[int, int, int]:
    red, green, blue = (round(min(max(part, 0), 255)) for part in parts)
    return red, green, blue


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str

    def __str__(self) -> str:
        return f"{self.size} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """One thing; or two that differ, the first in `relation` to the second; or two to four that are alike."""

    things: tuple[Thing, ...]
    relation: str | None = None


@dataclass(frozen=True)
class Style:
    palette: dict[str, tuple[int, int, int]]
    ground: tuple[int, int, int]
    grain: float  # standard deviation of the noise of pixels
    spread: float  # how far from the middle things may be, in parts of the picture
    one: tuple[str, ...]
    two: tuple[str, ...]
    many: tuple[str, ...]
    questions: dict[str, tuple[str, ...]]
    shapes: tuple[str, ...] = SHAPES

    def in_some_light(self, rng: np.random.Generator) -> "Style":
        """The same things and words, photographed by anybody: on a ground from dark to light, bright or dim, grainy."""
        light, ground = rng.uniform(0.55, 1.0), rng.uniform(35, 240) + rng.normal(0, 6, 3)
        palette = {name: _colour(light * part for part in colour) for name, colour in self.palette.items()}
        return replace(self, palette=palette, ground=_colour(ground), grain=rng.uniform(3, 12), spread=0.25)

    def captions(self, scene: Scene) -> tuple[str, ...]:
        first, last = scene.things[0], scene.things[-1]
        if scene.relation:
            words = {"a": an(first), "b": an(last), "rel": scene.relation, "back": OPPOSITE[scene.relation]}
            templates = self.two
        elif len(scene.things) > 1:
            words = {"n": NUMBERS[len(scene.things)], "things": f"{first.colour} {plural(first.shape)}"}
            words |= {"colour": first.colour, "shapes": plural(first.shape)}
            templates = self.many
        else:
            words = {"a": an(first), "thing": str(first), "size": first.size, "shape": first.shape}
            words |= {"coloured": an(f"{first.colour} {first.shape}"), "colour": first.colour}
            templates = self.one
        return tuple(template.format(**words) for template in templates)
