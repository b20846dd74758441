"""Questions about a scene, and what ten people answer, of whom some are wrong now and then.

>>> from stages.sources.scenes import PUBLIC, Scene, Thing
>>> ask(Scene((Thing("star", "red", "large"),)), PUBLIC, "train-000000", np.random.default_rng(1))[0].text
'how many stars are there?'
"""

from collections.abc import Iterator

import numpy as np

from stages.data.rows import Question
from stages.sources.scene_style import Scene, Style, an, plural

PEOPLE = 10
ATTENTIVE = 0.93  # how often a person is right
PER_SCENE = 4  # questions
YES_NO = ("yes", "no")
COUNTS = ("1", "2", "3", "4")
PLAIN = {  # wordings, by what is asked
    "color": ("what color is the {shape}?", "what is the color of the {shape}?"),
    "colors": ("what color are the {shapes}?",),
    "shape": ("what shape is {colour}?", "what is the {colour} shape?", "what is the {colour} thing?"),
    "size": ("how big is the {shape}?", "what size is the {shape}?"),
    "count": ("how many {shapes} are there?", "how many {shapes} are in the picture?"),
    "beside": ("what is {rel} the {other}?", "what shape is {rel} the {other}?"),
    "is beside": ("is the {shape} {rel} the {other}?",),
    "there is": ("is there {a}?", "does the picture contain {a}?", "is {a} in the picture?"),
    "there is no": ("is there no {thing}?", "does the picture not contain {a}?", "is no {thing} in the picture?"),
}
OTHER_WORDS = {
    "color": ("the {shape}, which color does it have?", "tell me the color of the {shape}"),
    "colors": ("the {shapes}, which color do they have?",),
    "shape": ("the {colour} one, what is it?", "tell me the shape of the {colour} one"),
    "size": ("the {shape}, is it large or small?",),
    "count": ("count the {shapes}", "the {shapes}, how many do you see?"),
    "beside": ("which shape lies {rel} the {other}?",),
    "is beside": ("does the {shape} lie {rel} the {other}?",),
    "there is": ("do you see {a}?", "is some {thing} here?"),
    "there is no": ("do you see no {thing}?", "is it right that no {thing} is here?"),
}


def ask(scene: Scene, style: Style, unit: str, rng: np.random.Generator) -> tuple[Question, ...]:
    possible = list(_possible(scene, style, rng))
    chosen = rng.permutation(len(possible))[:PER_SCENE]
    questions = []
    for i, (about, words, truth, others) in enumerate(possible[k] for k in chosen):
        text = str(rng.choice(style.questions[about])).format(**words)
        answers = tuple(_answer(truth, others, rng) for _ in range(PEOPLE))
        kind = "yes/no" if truth in YES_NO else "number" if truth in COUNTS else "other"
        questions.append(Question(f"{unit}-{i}", text, answers, kind))
    return tuple(questions)


def _answer(truth: str, others: tuple[str, ...], rng: np.random.Generator) -> str:
    return truth if rng.random() < ATTENTIVE else str(rng.choice([other for other in others if other != truth]))


def _possible(scene: Scene, style: Style, rng: np.random.Generator) -> Iterator[tuple[str, dict, str, tuple]]:
    """What can be asked: about what, with which words, the right answer, and answers of that sort."""
    colours, first, last = tuple(style.palette), scene.things[0], scene.things[-1]
    if scene.relation:
        if first.shape != last.shape:
            words = {"shape": first.shape, "other": last.shape}
            yield "beside", words | {"rel": scene.relation}, first.shape, style.shapes
            said = str(rng.choice(["above", "below", "left of", "right of"]))
            yield "is beside", words | {"rel": said}, YES_NO[said != scene.relation], YES_NO
            yield "color", {"shape": first.shape}, first.colour, colours
            yield "size", {"shape": last.shape}, last.size, ("small", "large")
        if first.colour != last.colour:
            yield "shape", {"colour": last.colour}, last.shape, style.shapes
    elif len(scene.things) > 1:
        yield "colors", {"shapes": plural(first.shape)}, first.colour, colours
        yield "shape", {"colour": first.colour}, first.shape, style.shapes
    else:
        yield "color", {"shape": first.shape}, first.colour, colours
        yield "shape", {"colour": first.colour}, first.shape, style.shapes
        yield "size", {"shape": first.shape}, first.size, ("small", "large")
    alike = sum(thing.shape == first.shape for thing in scene.things)
    yield "count", {"shapes": plural(first.shape)}, str(alike), COUNTS
    for about in ("there is", "there is no"):
        for _ in range(2):
            thing, there = _named(scene, style, rng)
            yield about, {"thing": thing, "a": an(thing)}, YES_NO[there != (about == "there is")], YES_NO


def _named(scene: Scene, style: Style, rng: np.random.Generator) -> tuple[str, bool]:
    """Something that may be in the scene, half of the time with something of it, and whether it is."""
    seen = scene.things[int(rng.integers(len(scene.things)))]
    shape = seen.shape if rng.random() < 0.5 else str(rng.choice(style.shapes))
    colour = seen.colour if rng.random() < 0.5 else str(rng.choice(tuple(style.palette)))
    match rng.integers(3):
        case 0:
            return shape, any(thing.shape == shape for thing in scene.things)
        case 1:
            return f"{colour} shape", any(thing.colour == colour for thing in scene.things)
        case _:
            return f"{colour} {shape}", any((t.shape, t.colour) == (shape, colour) for t in scene.things)
