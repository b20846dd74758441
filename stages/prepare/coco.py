"""Photos with several captions each: COCO-caption JSON, as VizWiz publishes it.

    vizwiz/annotations/train.json   {"images": [{"id": 0, "file_name": "VizWiz_train_00000000.jpg"}, ...],
                                     "annotations": [{"image_id": 0, "caption": "a mug", "is_rejected": false}, ...]}
    vizwiz/train/                   the images; the same again for the test split

The privacy unit is the image with all of its captions. Captions with `is_precanned` or `is_rejected` are left out, and
so is an image that has no other; other keys are not looked at.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stages.errors import UserError
from stages.params import Coco, CocoSplit
from stages.prepare.format import SPLITS, Dataset, Row
from stages.prepare.images import exists, image_problems, inside, refuse

LEFT_OUT = ("is_precanned", "is_rejected")


@dataclass
class Photo:
    """One image and its usable captions."""

    id: int | str
    file_name: str | None  # None where it is no text
    texts: list[str] = field(default_factory=list)
    wanted: bool = False  # it has a caption that is not left out, even if something is wrong with that one
    path: Path | None = None  # links followed: the same for two names of one file
    unit: str = ""  # its name relative to the dataset's folder: names of two image folders do not clash


def quick_look(config: Coco) -> tuple[int, bool]:
    """n, from the annotations alone; there are no labels."""
    photos, unreadable, problems = _read(config)
    # With single entries wrong, what there is cannot be counted yet; `load` tells it together with them.
    refuse(config.path, unreadable or ([] if problems else _too_few(config, photos)))
    return config.train.units or len(_usable(photos["train"])), False


def load(config: Coco) -> Dataset:
    """Everything is checked, the images that are taken included, before the first row is handed out."""
    photos, unreadable, problems = _read(config)
    problems = unreadable + problems + _too_few(config, photos)
    for split in photos:
        problems += _place(config, split, photos[split])
    problems += _in_both(photos)
    chosen = {split: _chosen(getattr(config, split), _usable(its), config.seed) for split, its in photos.items()}
    taken = [p for its in chosen.values() for p in its if p.path and exists(p.path)]
    for photo in tqdm(taken, desc="checking images", unit=" images", disable=None):
        problems += image_problems(photo.path, f"image {photo.id!r} ({photo.unit})")
    refuse(config.path, problems)

    def rows(split: str) -> Iterator[Row]:
        for photo in chosen[split]:
            yield Row(photo.path.read_bytes(), tuple(photo.texts), None, photo.unit)

    notes = [_note(config, split, photos[split]) for split in SPLITS]
    source = "; ".join([f"COCO captions in {config.path}", *notes])
    return Dataset(source, config.licence, None, rows("train"), rows("test"))


def _read(config: Coco) -> tuple[dict[str, list[Photo]], list[str], list[str]]:
    """The annotations as photos by split, what cannot be read at all, and problems of single entries."""
    root = Path(config.path)
    if not root.is_dir():
        raise UserError(f"folder {config.path!r} does not exist; give the path of a folder with images and annotations")
    photos: dict[str, list[Photo]] = {}
    unreadable: list[str] = []
    problems: list[str] = []
    for name in SPLITS:
        split: CocoSplit = getattr(config, name)
        if not (root / split.images).is_dir():
            unreadable.append(f"{name}.images: there is no folder {root / split.images}")
        try:
            images, captions = _entries(root / split.annotations)
        except UserError as error:
            unreadable.append(f"{name}.annotations: {error}")
            continue
        by_id: dict[int | str, Photo] = {}
        found = [p for i, entry in enumerate(images) for p in _add_image(by_id, f"images[{i}]", entry)]
        found += [p for i, entry in enumerate(captions) for p in _add_caption(by_id, f"annotations[{i}]", entry)]
        photos[name] = list(by_id.values())
        problems += [f"{split.annotations}: {problem}" for problem in found]
    return photos, unreadable, problems


def _entries(path: Path) -> tuple[list, list]:
    """The lists `images` and `annotations` of the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}; it must be JSON in UTF-8") from None
    lists = [content.get(key) if isinstance(content, dict) else None for key in ("images", "annotations")]
    if not all(isinstance(entries, list) for entries in lists):
        has = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise UserError(f"{path} must have the lists images and annotations; it has {has}")
    return lists[0], lists[1]


def _add_image(photos: dict[int | str, Photo], where: str, entry: object) -> list[str]:
    """Take one entry of `images` into `photos`, and say what is wrong with it."""
    if not isinstance(entry, dict) or not _is_id(entry.get("id")):
        return [f"{where} must have an id (a number or a text) and a file_name; got {_short(entry)}"]
    image, file_name = entry["id"], entry.get("file_name")
    if image in photos:
        return [f"{where}: image id {image!r} is there twice"]
    if _is_text(file_name):
        photos[image] = Photo(image, file_name)
        return []
    photos[image] = Photo(image, None)  # its captions are no problem of their own
    return [f"{where}: file_name of image {image!r} must be text; got {_short(file_name)}"]


def _add_caption(photos: dict[int | str, Photo], where: str, entry: object) -> list[str]:
    """Give one entry of `annotations` to its photo, or say what is wrong with it."""
    if not isinstance(entry, dict) or not _is_id(entry.get("image_id")):
        return [f"{where} must have an image_id (a number or a text) and a caption; got {_short(entry)}"]
    image = entry["image_id"]
    if "id" in entry:
        where = f"{where} (id {_short(entry['id'])})"
    if image not in photos:
        return [f"{where}: image_id {image!r} is not among the images"]
    flags = {key: entry.get(key, False) for key in LEFT_OUT}
    if wrong := [key for key, value in flags.items() if value not in (True, False)]:
        return [f"{where}: {key} of image {image!r} must be true or false; got {_short(flags[key])}" for key in wrong]
    if any(flags.values()):
        return []
    photo, caption = photos[image], entry.get("caption")
    photo.wanted = True
    if not _is_text(caption):
        return [f"{where}: caption of image {image!r} must be text; got {_short(caption)}"]
    text = " ".join(caption.split())
    if not text:
        return [f"{where}: empty caption for image {image!r}"]
    photo.texts.append(text)
    return []


def _is_id(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or _is_text(value)


def _is_text(value: object) -> bool:
    """JSON can spell half a character, which UTF-8 cannot."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _usable(photos: list[Photo]) -> list[Photo]:
    return [p for p in photos if p.wanted]


def _too_few(config: Coco, photos: dict[str, list[Photo]]) -> list[str]:
    problems = []
    for name, its in photos.items():
        split, there = getattr(config, name), len(_usable(its))
        if not there:
            problems.append(f"{split.annotations}: no image has a usable caption")
        elif split.units and split.units > there:
            problems.append(
                f"{name}.units: {split.units} is more than the {there} images with a usable caption in "
                f"{split.annotations}; lower it, or leave it out to take all"
            )
    return problems


def _place(config: Coco, name: str, photos: list[Photo]) -> list[str]:
    """Find the file of each photo, or say why there is none. An image that is left out needs no file."""
    split: CocoSplit = getattr(config, name)
    folder = Path(config.path, split.images)
    if not folder.is_dir():
        return []  # told already
    base, problems = os.path.realpath(folder), []
    seen: dict[Path, Photo] = {}
    for photo in photos:
        if photo.file_name is None:
            continue
        where = f"{split.annotations}: image {photo.id!r}"
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


def _in_both(photos: dict[str, list[Photo]]) -> list[str]:
    """The test split is public: a file that is in both would be a private image in it."""
    train = {p.path: p for p in _usable(photos.get("train", [])) if p.path}
    shared = [(train[p.path], p) for p in _usable(photos.get("test", [])) if p.path in train]
    return [f"image {a.id!r} of train and image {b.id!r} of test are one file: {a.unit}" for a, b in shared]


def _chosen(split: CocoSplit, photos: list[Photo], seed: int) -> list[Photo]:
    """In the order of their names, so that the order of the file does not matter; `units` of them at random."""
    photos = sorted(photos, key=lambda p: p.unit)
    if split.units is None or split.units >= len(photos):
        return photos
    indices = np.random.default_rng(seed).choice(len(photos), split.units, replace=False)
    return [photos[i] for i in np.sort(indices)]


def _note(config: Coco, name: str, photos: list[Photo]) -> str:
    """What the manifest, which is published, says of a split. Of private images nothing but how many there are."""
    split, usable = getattr(config, name), len(_usable(photos))
    part = f"{split.units} of {usable} images (seed {config.seed})" if split.units else f"{usable} images"
    left_out = f", {len(photos) - usable} without a usable caption left out" if name == "test" else ""
    return f"{name} {split.annotations}: {part}{left_out}"
