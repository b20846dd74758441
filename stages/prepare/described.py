"""Images that files beside them describe: what captions (coco.py) and questions (vqa.py) have in common.

The privacy unit is the image with all that is said of it. Everything is checked before the first row is handed out.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from stages.errors import UserError
from stages.params import Coco, Vqa
from stages.params.data import ImageFiles
from stages.prepare.format import SPLITS, Dataset, Question, Row
from stages.prepare.images import exists, image_problems, inside, refuse


@dataclass
class Photo:
    """One image and what is said of it."""

    id: int | str
    file_name: str | None  # None where it is no text
    texts: list[str] = field(default_factory=list)  # captions
    questions: list[Question] = field(default_factory=list)
    wanted: bool = False  # something usable is said of it, even if there is a mistake in that
    path: Path | None = None  # links followed: the same for two names of one file
    unit: str = ""  # its name relative to the dataset's folder: names of two image folders do not clash

    def row(self) -> Row:
        image = self.path.read_bytes()
        if self.questions:
            return Row.asked(image, tuple(self.questions), self.unit)
        return Row(image, tuple(self.texts), None, self.unit)


@dataclass(frozen=True)
class Kind:
    """How a split's files are read: into photos and what is wrong with them, or a UserError if they are unreadable."""

    source: str  # as the manifest says it
    noun: str  # what an image needs at least one of
    read: Callable[[Path, Any], tuple[list[Photo], list[str]]]


def quick_look(config: Coco | Vqa, kind: Kind) -> tuple[int, bool]:
    """n, without opening an image; there are no labels."""
    photos, unreadable, problems = _read(config, kind)
    if config.in_both == "out-of-train" and not unreadable:
        for split in photos:
            _place(config, split, photos[split])
        _settle_both(config, photos)
    # With single entries wrong, what there is cannot be counted yet; `load` tells it together with them.
    refuse(config.path, unreadable or ([] if problems else _too_few(config, kind, photos)))
    return config.train.units or len(_usable(photos["train"])), False


def load(config: Coco | Vqa, kind: Kind) -> Dataset:
    photos, unreadable, problems = _read(config, kind)
    placing = [problem for split in photos for problem in _place(config, split, photos[split])]
    both = _settle_both(config, photos)
    problems = unreadable + problems + _too_few(config, kind, photos) + placing + both
    chosen = {split: _chosen(getattr(config, split), _usable(its), config.seed) for split, its in photos.items()}
    taken = [p for its in chosen.values() for p in its if p.path and exists(p.path)]
    for photo in tqdm(taken, desc="checking images", unit=" images", disable=None):
        problems += image_problems(photo.path, f"image {photo.id!r} ({photo.unit})")
    refuse(config.path, problems)

    def rows(split: str) -> Iterator[Row]:
        return (photo.row() for photo in chosen[split])

    notes = [_note(config, kind, split, photos[split]) for split in SPLITS]
    source = "; ".join([f"{kind.source} in {config.path}", *notes])
    return Dataset(source, config.licence, None, rows("train"), rows("test"))


def _read(config: Coco | Vqa, kind: Kind) -> tuple[dict[str, list[Photo]], list[str], list[str]]:
    """What is described, by split; what cannot be read at all; and problems of single entries."""
    root = Path(config.path)
    if not root.is_dir():
        raise UserError(f"folder {config.path!r} does not exist; give the path of a folder with images and annotations")
    photos: dict[str, list[Photo]] = {}
    unreadable: list[str] = []
    problems: list[str] = []
    for name in SPLITS:
        split: ImageFiles = getattr(config, name)
        if not (root / split.images).is_dir():
            unreadable.append(f"{name}.images: there is no folder {root / split.images}")
        try:
            photos[name], found = kind.read(root, split)
        except UserError as error:
            unreadable.append(f"{name}: {error}")
            continue
        problems += found
    return photos, unreadable, problems


def lists(path: Path, *keys: str) -> tuple[dict, list[list]]:
    """A JSON file, and the lists in it that have these names."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}; it must be JSON in UTF-8") from None
    found = [content.get(key) if isinstance(content, dict) else None for key in keys]
    if not all(isinstance(entries, list) for entries in found):
        has = sorted(content) if isinstance(content, dict) else type(content).__name__
        wanted = f"the lists {' and '.join(keys)}" if len(keys) > 1 else f"the list {keys[0]}"
        raise UserError(f"{path} must have {wanted}; it has {has}")
    return content, found


def is_id(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or is_text(value)


def is_text(value: object) -> bool:
    """JSON can spell half a character, which UTF-8 cannot."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _usable(photos: list[Photo]) -> list[Photo]:
    return [p for p in photos if p.wanted]


def _too_few(config: Coco | Vqa, kind: Kind, photos: dict[str, list[Photo]]) -> list[str]:
    problems = []
    for name, its in photos.items():
        split, there = getattr(config, name), len(_usable(its))
        if not there:
            problems.append(f"{split.file}: no image has a usable {kind.noun}")
        elif split.units and split.units > there:
            problems.append(
                f"{name}.units: {split.units} is more than the {there} images with a usable {kind.noun} in "
                f"{split.file}; lower it, or leave it out to take all"
            )
    return problems


def _place(config: Coco | Vqa, name: str, photos: list[Photo]) -> list[str]:
    """Find the file of each photo, or say why there is none. An image that is left out needs no file."""
    split: ImageFiles = getattr(config, name)
    folder = Path(config.path, split.images)
    if not folder.is_dir():
        return []  # told already
    base, problems = os.path.realpath(folder), []
    seen: dict[Path, Photo] = {}
    for photo in photos:
        if photo.file_name is None:
            continue
        where = f"{split.file}: image {photo.id!r}"
        photo.path = inside(folder, photo.file_name)
        if photo.path is None:
            problems.append(f"{where}: file_name {photo.file_name!r} is empty or leaves the folder {split.images}")
            continue
        photo.unit = Path(split.images, photo.path.relative_to(base)).as_posix()
        first = seen.setdefault(photo.path, photo)
        if first is not photo:
            problems.append(f"{where}: file {photo.file_name} is that of image {first.id!r} too")
        elif photo.wanted and not exists(photo.path):
            problems.append(f"{where}: file {photo.file_name} does not exist in {split.images}")
    return problems


def _settle_both(config: Coco | Vqa, photos: dict[str, list[Photo]]) -> list[str]:
    """The test split is public: a file that is in both would be a private image in it. It is public, or a problem."""
    train = {p.path: p for p in _usable(photos.get("train", [])) if p.path}
    shared = [(train[p.path], p) for p in _usable(photos.get("test", [])) if p.path in train]
    if config.in_both == "out-of-train":
        for photo, _ in shared:
            photo.wanted = False
        return []
    return [
        f"image {a.id!r} of train and image {b.id!r} of test are one file: {a.unit} (`in_both: out-of-train` leaves it "
        "to the public test split)"
        for a, b in shared
    ]


def _chosen(split: ImageFiles, photos: list[Photo], seed: int) -> list[Photo]:
    """In the order of their names, so that the order of the file does not matter; `units` of them at random."""
    photos = sorted(photos, key=lambda p: p.unit)
    if split.units is None or split.units >= len(photos):
        return photos
    indices = np.random.default_rng(seed).choice(len(photos), split.units, replace=False)
    return [photos[i] for i in np.sort(indices)]


def _note(config: Coco | Vqa, kind: Kind, name: str, photos: list[Photo]) -> str:
    """What the manifest, which is published, says of a split. Of private images nothing but how many there are."""
    split, usable = getattr(config, name), len(_usable(photos))
    part = f"{split.units} of {usable} images (seed {config.seed})" if split.units else f"{usable} images"
    left_out = f", {len(photos) - usable} without a usable {kind.noun} left out" if name == "test" else ""
    return f"{name} {split.file}: {part}{left_out}"
