"""Bring your own data: a folder of images with metadata, the Hugging Face image-folder convention.

    my-photos/metadata.csv          file_name,label          (or text; or both; or metadata.jsonl)
    my-photos/cats/1.jpg            optional columns: split (train or test), unit (the id of the person or place)

or one such folder for each split: my-photos/train/metadata.csv and my-photos/test/metadata.csv. Rows with the same
file_name are texts of one image; rows with the same `unit` (by default the image itself) are one privacy unit.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stages import progress
from stages.data.rows import ONE_IMAGE, SPLITS, Dataset, Labels, Row, in_space
from stages.errors import Private, Problem, UserError, remark
from stages.sections import Axis, Fraction
from stages.sources import subset
from stages.sources.images import content, exists, image_problems, inside, refuse
from stages.sources.metadata import COLUMNS, metadata_in, misplaced, records_of
from stages.sources.source import QuickLook

logger = logging.getLogger(__name__)


@dataclass
class Photo:
    """One image and all that the metadata says of it."""

    path: Path
    name: str  # relative to the folder, in one spelling
    split: str
    unit: str
    label: str | None
    texts: list[str]


class Folder(subset.Part):
    section: ClassVar[str] = "folders"

    source: Literal["folder"] = "folder"
    path: str
    classes: Axis[str] | None = None  # in the order of integer labels; by default the labels of the public test split
    templates: Axis[Annotated[str, Field(pattern=r"\{\}")]] = Field(["a photo of a {}."])
    test_fraction: Fraction | None = None  # where the folder has no test split of its own
    licence: str = "not stated"
    id_space: str | None = None  # given: its file names and units mean other records than equal ones of other data

    @property
    def origin(self):
        return Path(self.path).resolve()

    def quick_look(self):
        """From the metadata alone; a UserError for what is wrong in it."""
        photos, problems = _read(self)
        refuse(self.path, problems)
        n = len({p.unit for p in photos if p.split == "train"})
        return QuickLook(n, has_labels=all(p.label is not None for p in photos))

    def load(self):
        """Everything is checked, images included, before the first row is handed out."""
        photos, problems = _read(self)
        labels = _labels(self, photos, problems)
        for photo in progress.bar(photos, "checking images", "images"):
            problems += image_problems(photo.path, photo.name)
        refuse(self.path, problems)
        if labels:
            _tell_of_empty_classes(self, labels, photos)

        def rows(split: str) -> Iterator[Row]:
            # Units stay together (stable sort), as the prepared format asks.
            for photo in sorted((p for p in photos if p.split == split), key=lambda p: p.unit):
                label, texts = None, tuple(photo.texts)
                if labels:
                    label = labels.classes.index(photo.label)
                    texts = texts or labels.captions(label)
                yield Row(content(photo.path), texts, label, in_space(self.id_space, photo.unit))

        source = f"folder {self.path}" + subset.note(self.train_fraction, self.subset_seed)
        unit = "all rows with one value in the column `unit`" if any(p.unit != p.name for p in photos) else ONE_IMAGE
        return Dataset(source, self.licence, labels, rows("train"), rows("test"), unit)


def _read(config: Folder) -> tuple[list[Photo], list[Problem]]:
    """The metadata as photos, with the problems that need no image to be opened."""
    root = Path(config.path)
    if not root.is_dir():
        raise UserError(f"folder {config.path!r} does not exist; give the path of a folder with images and metadata")
    split_roots = {s: root / s for s in SPLITS if metadata_in(root / s)}
    photos: dict[str, Photo] = {}
    problems: list[Problem] = misplaced(root, list(split_roots))
    if not split_roots and not metadata_in(root):
        refuse(config.path, problems)  # folders of other names are why there is nothing to read
    for split, folder in split_roots.items() or [(None, root)]:
        for where, record in records_of(folder):
            _add(photos, problems, root, folder, where, record, split)
    result = list(photos.values())
    if config.test_fraction is not None and not any(p.split == "test" for p in result):
        for photo in result:
            photo.split = "test" if subset.position(photo.unit) < config.test_fraction else "train"
    if {p.label is None for p in result} == {True, False}:
        problems += [
            Private("rows without a label, while others have one", f"{p.name}: no label, while other rows have one")
            for p in result
            if p.label is None
        ]
    for split in SPLITS:
        if not any(p.split == split for p in result):
            problems.append(
                f"no usable row is in the {split} split; add a `split` column (train or test), folders train/ and "
                "test/, or set test_fraction"
            )
    return (result if problems else _part(config, result)), problems


def _part(config: Folder, photos: list[Photo]) -> list[Photo]:
    """All test photos, and those of a part of the training units, each whole (subset.py)."""
    units = sorted({p.unit for p in photos if p.split == "train"})
    kept = subset.taken(units, config.train_fraction, config.subset_seed)
    subset.require_some(kept, "train_fraction", config.train_fraction)
    chosen = set(kept)
    return [p for p in photos if p.split == "test" or p.unit in chosen]


def _add(
    photos: dict[str, Photo],
    problems: list[Problem],
    root: Path,
    folder: Path,
    where: str,
    record: dict,
    split: str | None,
) -> None:
    """Take one row into `photos`, or say what is wrong with it."""

    def wrong(kind: str, detail: str) -> None:
        problems.append(Private(kind, f"{where}: {detail}"))

    values = {}
    for column in COLUMNS:
        value = record.get(column)
        if isinstance(value, list | dict):
            what = f"{column} must be one value"
            wrong(f"rows whose {column} is not one value", f"{what}; got {type(value).__name__} (write a row a text)")
            return
        values[column] = None if value is None else str(value).strip()
    given = values["file_name"] or ""
    path = inside(folder, given)
    if path is None:
        what = "is empty or leaves the folder"
        wrong(f"rows whose file_name {what}", f"file_name {given!r} {what}")
        return
    name = path.relative_to(root.resolve()).as_posix()  # ./a.png and a.png are one image, and so one unit
    if not exists(path):
        wrong("rows whose file does not exist", f"file {given} does not exist")
        return
    stated, split = values["split"], split or values["split"] or "train"
    if stated and stated not in SPLITS:
        wrong("rows whose split is neither train nor test", f"split {stated!r} of {given} is neither train nor test")
        return
    if stated and stated != split:
        wrong("rows whose split is not that of their folder", f"split {stated!r} of {given}, which is in {split}/")
        return
    for column in ("text", "label", "unit", "split"):
        if record.get(column) is not None and not values[column]:
            wrong(f"rows with an empty {column}", f"empty {column} for {given}")
    unit = values["unit"] or name
    photo = photos.setdefault(name, Photo(path, name, split, unit, values["label"], []))
    if (photo.label, photo.unit, photo.split) != (values["label"], unit, split):
        wrong(
            "images that are there twice, with another label, unit or split",
            f"{given} is there twice, with another label, unit or split",
        )
    if values["text"]:
        photo.texts.append(values["text"])


def _labels(config: Folder, photos: list[Photo], problems: list[Problem]) -> Labels | None:
    """Class names are public: they come from params or from the test split, never from the private records."""
    if all(p.label is None for p in photos):
        return None
    if config.classes is None and config.private_test:
        problems.append("`classes` is missing: with a private test split no split may give the names of the classes")
    if config.classes is None:
        classes = sorted({p.label for p in photos if p.label and p.split == "test"})
    else:
        classes = config.classes
        for photo in photos:
            if (
                photo.label
                and photo.label not in classes
                and photo.label.isdecimal()
                and int(photo.label) < len(classes)
            ):
                photo.label = classes[int(photo.label)]
    way = "list all classes in `classes` of params.yaml"
    problems += [
        Private(f"rows whose label has no class name ({way})", f"{p.name}: label {p.label!r} has no class name; {way}")
        for p in photos
        if p.label and p.label not in classes
    ]
    return Labels(classes=tuple(classes), templates=tuple(config.templates))


def _tell_of_empty_classes(config: Folder, labels: Labels, photos: list[Photo]) -> None:
    """No mistake, but nobody should find it out from the results. What is said of the test split is public."""
    without = {s: set(labels.classes) - {p.label for p in photos if p.split == s} for s in SPLITS}
    if without["test"] and not config.private_test:
        names = ", ".join(sorted(without["test"]))
        words = "note: %s has no test image of %s: how well these are told apart is not measured"
        logger.info(words, config.path, names)
    private = {"train": "training", **({"test": "test"} if config.private_test else {})}
    remark([f"class {name!r} has no {words} image" for s, words in private.items() for name in sorted(without[s])])
