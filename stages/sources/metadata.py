"""The metadata files of an image folder: where they may be, and their rows."""

import csv
import json
from pathlib import Path

from stages.data.rows import SPLITS
from stages.errors import Private, Problem, UserError, unusable

FILES = ("metadata.csv", "metadata.jsonl")
COLUMNS = ("file_name", "label", "text", "split", "unit")
OTHER_SPLITS = ("training", "testing", "val", "valid", "validation", "dev", "eval", "holdout")


def metadata_in(folder: Path) -> Path | None:
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def misplaced(root: Path, splits: list[str]) -> list[Problem]:
    """What would be left out without a word, where the folders `splits` are read, or else the metadata of the root."""
    problems: list[Problem] = []
    if splits and metadata_in(root):
        problems.append(f"there is metadata beside the folders {' and '.join(splits)} too; keep one or the other")
    read = [root / split for split in splits] or [root]
    if any(all((folder / name).is_file() for name in FILES) for folder in read):
        problems.append(f"a folder has both {' and '.join(FILES)}; keep one of them")
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and p.name not in SPLITS):
        if metadata_in(folder) or (splits and folder.name.casefold() in (*SPLITS, *OTHER_SPLITS)):
            problems.append(
                Private(
                    "folders of a split that is neither train nor test (known: train/ and test/)",
                    f"folder {folder.name} would be left out: only train/ and test/ are known",
                )
            )
    return problems


def records_of(folder: Path) -> list[tuple[str, dict]]:
    """The rows, each with the place where it stands."""
    path = metadata_in(folder)
    if path is None:
        raise UserError(f"{folder} has neither metadata.csv nor metadata.jsonl (columns file_name, and label or text)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                records = [(f"{path.name}:{i}", r) for i, r in enumerate(csv.DictReader(file), start=2)]
            else:
                records = [(f"{path.name}:{i}", json.loads(line)) for i, line in enumerate(file, 1) if line.strip()]
    except (json.JSONDecodeError, UnicodeDecodeError, csv.Error) as error:
        raise unusable(f"{path} cannot be read; it must be UTF-8 {path.suffix[1:].upper()}", str(error)) from None
    if not records:
        raise UserError(f"{path} has no rows")
    for where, record in records:
        columns = set(record) if isinstance(record, dict) else set()
        if "file_name" not in columns or not columns & {"label", "text"}:
            # without a line of column names, the first row is taken for them: they may be private
            has = f"{where} has {sorted(map(str, columns))}"
            raise unusable(f"{path}: every row must have file_name, and label or text", has)
        for column in columns - set(COLUMNS):
            if (meant := str(column).strip().casefold()) in COLUMNS:  # a `Unit` that is not looked at is no unit
                raise UserError(f"{path} has a column {column!r}; write {meant!r}")
    return records
