"""Images as a published model is given them: the file's bytes in base64, bare or as `data:image/png;base64,...`; or the
path of a file, of those that may be opened (reach.py).
"""

import base64
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from stages.data.pixels import UNREADABLE, Unusable, rgb
from stages.models.encoder import WholeEncoder
from stages.tasks.base import reach
from stages.tasks.base.reach import Refused, shown

SUFFIXES = (".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


def is_picture(path: Path) -> bool:
    """By its name; whether it can be read is seen when it is."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def pictures(encoder: WholeEncoder, values: Iterable[str]) -> torch.Tensor:
    """(b, 3, height, width): what the model takes."""
    return torch.stack([picture(value, encoder.read) for value in values])


def picture(value: str, read: Callable[[bytes | Path], Any] = rgb) -> Any:
    """What `read` makes of such a file: the same as training. Unusable or Refused if there is none."""
    uri = DATA_URI.match(value)
    sent = _decoded(value[uri.end() :] if uri else value)
    if uri and sent is None:
        raise Refused(f"what follows `;base64,` is not base64: {shown(value)}")
    if sent is None:
        return read(reach.file(value))
    try:
        return read(sent)
    except Unusable as error:
        if uri or error.kind != UNREADABLE or not _may_be_a_name(value):
            raise
    return read(reach.file(value))  # as `photos/ann`, which is base64 too


def _decoded(value: str) -> bytes | None:
    """The bytes that such a text stands for, which programs break into lines; None if it is no base64."""
    reach.require_small(len(value) * 3 // 4)
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        return None


def _may_be_a_name(value: str) -> bool:
    return len(value) < 256 and not value.isspace()
