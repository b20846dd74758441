"""What is in a scene, and the style in which scenes are drawn and described.

>>> an("orange star"), plural("cross")
('an orange star', 'crosses')
"""

from dataclasses import dataclass

SHAPES = ("circle", "square", "triangle", "star", "cross")
NUMBERS = {2: "two", 3: "three", 4: "four"}
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


def an(words: object) -> str:
    return f"{'an' if str(words)[0] in 'aeiou' else 'a'} {words}"


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


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
