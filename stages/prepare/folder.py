"""Bring your own data: a folder of images with metadata, the Hugging Face image-folder convention.

    my-photos/metadata.csv          file_name,label          (or text; or both; or metadata.jsonl)
    my-photos/cats/1.jpg            optional columns: split (train or test), unit (the id of the person or place)

or one such folder for each split: my-photos/train/metadata.csv and my-photos/test/metadata.csv. Rows with the same
file_name are texts of one image; rows with the same `unit` (by default the image itself) are one privacy unit.
"""

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from stages.errors import UserError
from stages.params import Folder
from stages.prepare import subset
from stages.prepare.format import SPLITS, Dataset, Labels, Row
from stages.prepare.images import exists, image_problems, inside, refuse


@dataclass
class Photo:
    """One image and all that the metadata says of it."""

    path: Path
    name: str  # relative to the folder, in one spelling
    split: str
    unit: str
    label: str | None
    texts: list[str]


def quick_look(config: Folder) -> tuple[int, bool]:
    """n and whether there are labels, from the metadata alone."""
    photos, _ = _read(config)
    return len({p.unit for p in photos if p.split == "train"}), all(p.label is not None for p in photos)


def load(config: Folder) -> Dataset:
    """Everything is checked, images included, before the first row is handed out."""
    photos, problems = _read(config)
    labels = _labels(config, photos, problems)
    for photo in tqdm(photos, desc="checking images", unit=" images", disable=None):
        problems += image_problems(photo.path, photo.name)
    refuse(config.path, problems)

    def rows(split: str) -> Iterator[Row]:
        # Units stay together (stable sort), as the prepared format asks.
        for photo in sorted((p for p in photos if p.split == split), key=lambda p: p.unit):
            label = labels.classes.index(photo.label) if labels else None
            texts = tuple(photo.texts) or labels.captions(label)
            yield Row(photo.path.read_bytes(), texts, label, photo.unit)

    source = f"folder {config.path}" + subset.note(config.train_fraction, config.subset_seed)
    return Dataset(source, config.licence, labels, rows("train"), rows("test"))


def _read(config: Folder) -> tuple[list[Photo], list[str]]:
    """The metadata as photos, with the problems that need no image to be opened."""
    root = Path(config.path)
    if not root.is_dir():
        raise UserError(f"folder {config.path!r} does not exist; give the path of a folder with images and metadata")
    split_roots = {s: root / s for s in SPLITS if _metadata(root / s)}
    photos: dict[str, Photo] = {}
    problems: list[str] = []
    for split, folder in split_roots.items() or [(None, root)]:
        for where, record in _records(folder):
            _add(photos, problems, root, folder, where, record, split)
    result = list(photos.values())
    if config.test_fraction is not None and not any(p.split == "test" for p in result):
        for photo in result:
            photo.split = "test" if _fraction_of(photo.unit) < config.test_fraction else "train"
    if {p.label is None for p in result} == {True, False}:
        problems += [f"{p.name}: no label, while other rows have one" for p in result if p.label is None]
    for split in SPLITS:
        if not any(p.split == split for p in result):
            problems.append(
                f"no row is in the {split} split; add a `split` column, folders train/ and test/, or set test_fraction"
            )
    if not problems:
        result = _part(config, result)
    return result, problems


def _part(config: Folder, photos: list[Photo]) -> list[Photo]:
    """All test photos, and those of a part of the training units, each whole; its class is that of its first row."""
    labels: dict[str, str] = {}
    for photo in photos:
        if photo.split == "train":
            labels.setdefault(photo.unit, photo.label or "")
    units = sorted(labels)  # the order of the rows does not matter
    chosen = subset.stratified([labels[unit] for unit in units], config.train_fraction, config.subset_seed)
    kept = {units[i] for i in chosen}
    return [p for p in photos if p.split == "test" or p.unit in kept]


def _metadata(folder: Path) -> Path | None:
    return next((p for p in (folder / "metadata.csv", folder / "metadata.jsonl") if p.is_file()), None)


def _records(folder: Path) -> Iterator[tuple[str, dict]]:
    path = _metadata(folder)
    if path is None:
        raise UserError(f"{folder} has neither metadata.csv nor metadata.jsonl (columns file_name, and label or text)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                records = [(f"{path.name}:{i}", r) for i, r in enumerate(csv.DictReader(file), start=2)]
            else:
                records = [(f"{path.name}:{i}", json.loads(line)) for i, line in enumerate(file, 1) if line.strip()]
    except (json.JSONDecodeError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}; it must be UTF-8 {path.suffix[1:].upper()}") from None
    if not records:
        raise UserError(f"{path} has no rows")
    for where, record in records:
        columns = set(record) if isinstance(record, dict) else set()
        if "file_name" not in columns or not columns & {"label", "text"}:
            raise UserError(f"{where} must have file_name, and label or text; it has {sorted(map(str, columns))}")
    return iter(records)


def _add(
    photos: dict[str, Photo], problems: list[str], root: Path, folder: Path, where: str, record: dict, split: str | None
) -> None:
    """Take one row into `photos`, or say what is wrong with it."""
    values = {}
    for column in ("file_name", "label", "text", "split", "unit"):
        value = record.get(column)
        if isinstance(value, list | dict):
            problems.append(f"{where}: {column} must be one value; got {type(value).__name__} (write a row a text)")
            return
        values[column] = None if value is None else str(value).strip()
    given = values["file_name"] or ""
    path = inside(folder, given)
    if path is None:
        problems.append(f"{where}: file_name {given!r} is empty or leaves the folder")
        return
    name = path.relative_to(root.resolve()).as_posix()  # ./a.png and a.png are one image, and so one unit
    if not exists(path):
        problems.append(f"{where}: file {given} does not exist")
        return
    split = split or values["split"] or "train"
    if split not in SPLITS:
        problems.append(f"{where}: split {split!r} of {given} is neither train nor test")
        return
    problems += [
        f"{where}: empty {column} for {given}"
        for column in ("text", "label", "unit")
        if record.get(column) is not None and not values[column]
    ]
    unit = values["unit"] or name
    photo = photos.setdefault(name, Photo(path, name, split, unit, values["label"], []))
    if (photo.label, photo.unit, photo.split) != (values["label"], unit, split):
        problems.append(f"{where}: {given} is there twice, with another label, unit or split")
    if values["text"]:
        photo.texts.append(values["text"])


def _labels(config: Folder, photos: list[Photo], problems: list[str]) -> Labels | None:
    """Class names are public: they come from params or from the test split, never from the private records."""
    if all(p.label is None for p in photos):
        return None
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
    problems += [
        f"{p.name}: label {p.label!r} has no class name; list all classes in `classes` of params.yaml"
        for p in photos
        if p.label and p.label not in classes
    ]
    return Labels(classes=tuple(classes), templates=tuple(config.templates))


def _fraction_of(unit: str) -> float:
    """A fixed number in [0, 1) for each unit: the split does not change when rows are added or reordered."""
    return int.from_bytes(hashlib.blake2b(unit.encode(), digest_size=8).digest(), "big") / 2**64
