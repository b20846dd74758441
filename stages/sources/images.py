"""Image files that metadata name: where they are, whether they hold a picture, and all problems in one error."""

import os
from collections.abc import Sequence
from pathlib import Path

from stages.data import dicom
from stages.data.pixels import Unusable, rgb
from stages.data.rows import png
from stages.errors import Private, Problem, UserError


def inside(folder: Path, file_name: str) -> Path | None:
    """The file in one spelling, links followed; None if the name is empty or leaves the folder."""
    path = Path(os.path.realpath(folder / file_name.replace("\0", "\ufffd")))
    return path if file_name and path.is_relative_to(os.path.realpath(folder)) else None


def exists(path: Path) -> bool:
    return os.path.isfile(path)  # False too for names that no file can have, where Path.is_file raises


def content(path: Path) -> bytes:
    """What is kept of an image file: all of it; of a DICOM file the picture alone, whose header names the patient."""
    with path.open("rb") as file:
        if not dicom.is_dicom(file.read(dicom.HEAD)):
            file.seek(0)
            return file.read()
    return png(rgb(path))


def image_problems(path: Path, name: str) -> list[Private]:
    """Makes the picture that training will see; the detail has the image's name in place of the path."""
    try:
        rgb(path)
    except Unusable as error:
        return [Private(error.kind, f"{name}: {error}".replace(str(path), name))]
    return []


def refuse(where: str, problems: Sequence[Problem]) -> None:
    """One error for all problems, if there are any."""
    if problems:
        raise UserError(f"{where} has {len(problems)} problem(s):", problems)
