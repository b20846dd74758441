"""Images as a published model is given them: the path of a file, or the file's bytes in base64."""

import base64
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from stages.data.pixels import UNREADABLE, Unusable, rgb
from stages.models.encoder import WholeEncoder

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def is_picture(path: Path) -> bool:
    """By its name; whether it can be read is seen when it is."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def pictures(encoder: WholeEncoder, values: Iterable[str]) -> torch.Tensor:
    """(b, 3, height, width): what the model takes."""
    return torch.stack([picture(value, encoder.read) for value in values])


def picture(value: str, read: Callable[[bytes | Path], Any] = rgb) -> Any:
    """What `read` makes of such a file: the same as training."""
    for source in (_decoded, Path):
        try:
            return read(source(value))
        except Unusable as error:
            if error.kind != UNREADABLE:
                raise
        except ValueError:
            continue  # not base64
    raise ValueError(f"not an image file, and not an image in base64: {value[:80]!r}")


def _decoded(value: str) -> bytes:
    return base64.b64decode(value, validate=True)
