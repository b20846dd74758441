"""Images that files beside them describe: what captions (coco.py) and questions (vqa.py) have in common.

The privacy unit is the image with all that is said of it. Everything is checked before the first row is handed out.
"""

import json
import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, cast

from pydantic import AfterValidator, Field

from stages import progress
from stages.data.rows import SPLITS, Dataset, Question, Row, in_space
from stages.errors import Private, Problem, UserError, unusable
from stages.sections import PositiveInt, Section, Seed
from stages.sources import subset
from stages.sources.images import content, exists, image_problems, inside, refuse
from stages.sources.source import QuickLook, Source


def _stays_inside(value: str) -> str:
    if PurePath(value).is_absolute() or ".." in PurePath(value).parts:
        raise ValueError(f"{value!r} must be relative to `path` and stay in it: that folder is what DVC watches")
    return value


Inside = Annotated[str, Field(min_length=1), AfterValidator(_stays_inside)]


class ImageFiles(Section):
    """A split: its images, and the files that describe them."""

    images: Inside  # the folder of the file names
    units: PositiveInt | None = None  # about so many images (subset.py); n, q and delta follow it

    @property
    @abstractmethod
    def file(self) -> str:
        """The one in which an image is described first."""

    @abstractmethod
    def read(self, root: Path) -> tuple[list["Photo"], list[Private]]:
        """Photos, and what is wrong with single entries; a UserError if a file is unreadable."""


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

    def row(self, id_space: str | None) -> Row:
        image, unit = content(cast(Path, self.path)), in_space(id_space, self.unit)  # all were found by now
        if self.questions:
            return Row.asked(image, tuple(self.questions), unit)
        return Row(image, tuple(self.texts), None, unit)


class Described(Source):
    """Images that files beside them describe."""

    said: ClassVar[str]  # what the files hold, as the manifest says it
    noun: ClassVar[str]  # what an image needs at least one of
    belongs: ClassVar[str]  # what a record has beside its image

    path: str
    seed: Seed = 0  # chooses the units
    in_both: Literal["refuse", "out-of-train"] = "refuse"  # what to do with an image that both splits name
    licence: str = "not stated"
    id_space: str | None = None  # given: its file names mean other records than equal ones of other data

    @property
    def origin(self):
        return Path(self.path).resolve()

    def quick_look(self):
        """n, without opening an image; there are no labels."""
        photos, unreadable, problems = _read(self)
        if not unreadable:
            for split in photos:
                _place(self, split, photos[split])
            _settle_both(self, photos)
        # With single entries wrong, what there is cannot be counted yet; `load` reports it together with them.
        refuse(self.path, unreadable or ([] if problems else _too_few(self, photos)))
        return QuickLook(len(_chosen(self, "train", photos["train"])), has_labels=False)

    def load(self):
        photos, unreadable, problems = _read(self)
        placing = [problem for split in photos for problem in _place(self, split, photos[split])]
        both = _settle_both(self, photos)
        all_problems = [*unreadable, *problems, *_too_few(self, photos), *placing, *both]
        chosen = {split: _chosen(self, split, its) for split, its in photos.items()}
        existing = [(p, p.path) for its in chosen.values() for p in its if p.path and exists(p.path)]
        for photo, path in progress.bar(existing, "checking images", "images"):
            all_problems += image_problems(path, f"image {photo.id!r} ({photo.unit})")
        refuse(self.path, all_problems)

        def rows(split: str) -> Iterator[Row]:
            return (photo.row(self.id_space) for photo in chosen[split])

        notes = [_note(self, split, photos[split], len(chosen[split])) for split in SPLITS]
        source = "; ".join([f"{self.said} in {self.path}", *notes])
        return Dataset(source, self.licence, None, rows("train"), rows("test"), f"one image with {self.belongs}")


def _read(config: Described) -> tuple[dict[str, list[Photo]], list[Problem], list[Problem]]:
    """What is described, by split; what cannot be read at all; and problems of single entries."""
    root = Path(config.path)
    if not root.is_dir():
        raise UserError(f"folder {config.path!r} does not exist; give the path of a folder with images and annotations")
    photos: dict[str, list[Photo]] = {}
    unreadable: list[Problem] = []
    problems: list[Problem] = []
    for name in SPLITS:
        split: ImageFiles = getattr(config, name)
        if not (root / split.images).is_dir():
            unreadable.append(f"{name}.images: there is no folder {root / split.images}")
        try:
            photos[name], found = split.read(root)
        except UserError as error:
            unreadable += error.within(name)
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
        raise unusable(f"{path} cannot be read; it must be JSON in UTF-8", str(error)) from None
    found: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in keys]
    if not all(isinstance(entries, list) for entries in found):
        has = sorted(content) if isinstance(content, dict) else type(content).__name__
        wanted = f"the lists {' and '.join(keys)}" if len(keys) > 1 else f"the list {keys[0]}"
        raise unusable(f"{path} must have {wanted}", f"it has {has}")
    return content, found


def is_id(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or is_text(value)


def is_text(value: object) -> TypeGuard[str]:
    """JSON can spell half a character, which UTF-8 cannot."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _usable(photos: list[Photo]) -> list[Photo]:
    return [p for p in photos if p.wanted]


def _too_few(config: Described, photos: dict[str, list[Photo]]) -> list[Problem]:
    problems: list[Problem] = []
    for name, its in photos.items():
        split, there = getattr(config, name), len(_usable(its))
        if not there:
            problems.append(f"{split.file}: no image has a usable {config.noun}")
        elif split.units and split.units > there:
            more = f"{name}.units: {split.units} is more than the images with a usable {config.noun} in {split.file}"
            way = "lower it, or leave it out to take all"
            problems.append(Private(f"{more}; {way}", f"{more}, which are {there}; {way}", counted=False))
        elif not _chosen(config, name, its):
            problems.append(f"{name}.units: no image is in the part; raise {split.units}, or change seed")
    return problems


def _place(config: Described, name: str, photos: list[Photo]) -> list[Private]:
    """Find the file of each photo, or say why there is none. An image that is left out needs no file."""
    split: ImageFiles = getattr(config, name)
    folder = Path(config.path, split.images)
    if not folder.is_dir():
        return []  # reported already
    base, problems = os.path.realpath(folder), []
    seen: dict[Path, Photo] = {}
    for photo in photos:
        if photo.file_name is None:
            continue
        where = f"image {photo.id!r}"
        photo.path = inside(folder, photo.file_name)
        if photo.path is None:
            what = f"is empty or leaves the folder {split.images}"
            detail = f"{where}: file_name {photo.file_name!r} {what}"
            problems.append(Private(f"images whose file_name {what}", detail))
            continue
        photo.unit = Path(split.images, photo.path.relative_to(base)).as_posix()
        first = seen.setdefault(photo.path, photo)
        if first is not photo:
            detail = f"{where}: file {photo.file_name} is that of image {first.id!r} too"
            problems.append(Private("images whose file is that of another image too", detail))
        elif photo.wanted and not exists(photo.path):
            what = f"does not exist in {split.images}"
            problems.append(Private(f"images whose file {what}", f"{where}: file {photo.file_name} {what}"))
    return [problem.within(split.file) for problem in problems]


def _settle_both(config: Described, photos: dict[str, list[Photo]]) -> list[Private]:
    """The test split is public: a file that is in both would be a private image in it. It is public, or a problem."""
    train = {p.path: p for p in _usable(photos.get("train", [])) if p.path}
    shared = [(train[p.path], p) for p in _usable(photos.get("test", [])) if p.path in train]
    if config.in_both == "out-of-train":
        for photo, _ in shared:
            photo.wanted = False
        return []
    way = "(`in_both: out-of-train` leaves it to the public test split)"
    return [
        Private(
            f"files that are an image of train and one of test {way}",
            f"image {a.id!r} of train and image {b.id!r} of test are one file: {a.unit} {way}",
        )
        for a, b in shared
    ]


def _chosen(config: Described, name: str, photos: list[Photo]) -> list[Photo]:
    """In the order of their names, so that the order of the file does not matter; about `units` of them (subset.py)."""
    split, usable = getattr(config, name), sorted(_usable(photos), key=lambda p: p.unit)
    fraction = split.units / len(usable) if split.units and usable else None
    part = set(subset.taken((p.unit for p in usable), fraction, config.seed))
    return [p for p in usable if p.unit in part]


def _note(config: Described, name: str, photos: list[Photo], chosen: int) -> str:
    """What the manifest, which is published, says of a split. Of private images not even how many there are."""
    split, usable = getattr(config, name), len(_usable(photos))
    rule = f"units {split.units}, seed {config.seed}" if split.units else "all images"
    if name == "train" or config.private_test:
        return f"{name} {split.file}: {rule}"
    part = f"{chosen} of {usable} images ({rule})" if split.units else f"{usable} images"
    return f"{name} {split.file}: {part}, {len(photos) - usable} without a usable {config.noun} left out"
