"""Image files that metadata name: where they are, whether they can be read, and all problems in one message."""

import os
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from stages.errors import UserError

SHOWN = 50  # problems listed in one message; the rest are counted


def inside(folder: Path, file_name: str) -> Path | None:
    """The file in one spelling, links followed; None if the name is empty or leaves the folder."""
    path = Path(os.path.realpath(folder / file_name.replace("\0", "\ufffd")))
    return path if file_name and path.is_relative_to(os.path.realpath(folder)) else None


def exists(path: Path) -> bool:
    return os.path.isfile(path)  # False too for names that no file can have, where Path.is_file raises


def image_problems(path: Path, name: str) -> list[str]:
    """Reads all of the image; the message has its name in place of the path."""
    try:
        with Image.open(path) as image:
            image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return [f"{name}: not a readable image ({error})".replace(str(path), name)]
    return []


def refuse(where: str, problems: list[str]) -> None:
    """One error for all problems, if there are any."""
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise UserError(f"{where} has {len(problems)} problem(s):", problems[:SHOWN] + more)
