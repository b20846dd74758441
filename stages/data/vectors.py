"""Vectors in place of images and texts: features that a model made elsewhere, in the one prepared format.

An image's vector is kept as the bytes of its .npy file, a text's as a text: exactly, in base64. So both go wherever
images and texts go, and whoever has neither can still train on what a CLIP saw.

    >>> vector = np.array([0.6, -0.8], dtype=np.float32)
    >>> read(written(vector)), of_text(as_text(vector))
    (array([ 0.6, -0.8], dtype=float32), array([ 0.6, -0.8], dtype=float32))
    >>> as_text(vector)
    'vector:mpkZP83MTL8='
"""

import base64
import io
import math
from pathlib import Path

import numpy as np
from PIL import Image

from stages.data.pixels import SIZE, UNREADABLE, Unusable

MAGIC = b"\x93NUMPY"
PREFIX = "vector:"
LARGEST = 2**20  # bytes of a file that is read as a vector
CELL = 8  # pixels for each number of a vector that is drawn


def written(vector: np.ndarray) -> bytes:
    """The bytes of a .npy file; always the same for the same numbers, because the ledger knows records by them."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(vector, dtype="<f4"), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def is_vector(image: bytes) -> bool:
    return image.startswith(MAGIC)


def read(source: bytes | Path) -> np.ndarray:
    """(d,) in float32; Unusable if the file holds something else."""
    try:
        content = source if isinstance(source, bytes) else _content(source)
        vector = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Unusable(UNREADABLE, f"not a readable .npy file ({error or type(error).__name__})") from None
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind != "f":
        raise Unusable(UNREADABLE, "a .npy file with one vector of floating-point numbers is expected")
    if not np.isfinite(vector).all():
        raise Unusable(UNREADABLE, "the vector has numbers that are not finite")
    return vector.astype(np.float32)


def _content(path: Path) -> bytes:
    if path.stat().st_size > LARGEST:
        raise Unusable(SIZE, f"more than {LARGEST:,} bytes: not one vector")
    return path.read_bytes()


def as_text(vector: np.ndarray) -> str:
    return PREFIX + base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()


def of_text(text: str) -> np.ndarray:
    """ValueError for any other text."""
    if not text.startswith(PREFIX):
        raise ValueError("a text is not a vector, and no text tower is here to make one of it")
    return np.frombuffer(base64.b64decode(text.removeprefix(PREFIX), validate=True), dtype="<f4").astype(np.float32)


def drawn(image: bytes) -> Image.Image:
    """For people: a square for each number, from the least (black) to the largest (white)."""
    vector = read(image)
    side = math.ceil(math.sqrt(len(vector)))
    low, high = float(vector.min()), float(vector.max())
    grey = np.full(side * side, 128, dtype=np.uint8)
    grey[: len(vector)] = np.round(255 * (vector - low) / ((high - low) or 1.0))
    return Image.fromarray(grey.reshape(side, side)).resize((CELL * side, CELL * side), 0).convert("RGB")
