"""From a DICOM file to the grey or colour picture that a viewer opens it with. It wants `pip install dp-clip[dicom]`.

    picture(Path("scan.dcm").read_bytes())

Only the elements in PIXELS are read: what the header says of a patient gets into no picture, no message and no log.

rescaled    by slope and intercept, to the units of the modality (Hounsfield of a CT).
windowed    by the first window that the file has; without one, by the whole range that its bits can hold.
inverted    where the smallest value is white (MONOCHROME1).

Compressed pixels, lookup tables, several frames and palettes are refused: save such a file uncompressed, or as PNG.
"""

import io
import logging
import warnings
from typing import Any

import numpy as np
from PIL import Image

PIXELS = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope", "RescaleIntercept"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "ModalityLUTSequence", "VOILUTSequence", "PixelData"),
)
HEAD = 132  # bytes: a preamble, and the four letters
DEFLATED = b"1.2.840.10008.1.2.1.99"  # the whole file is compressed: a few bytes could become any number
GREY = ("MONOCHROME1", "MONOCHROME2")
NEEDED = "DICOM files, which the package pydicom reads: pip install pydicom"

warnings.filterwarnings("ignore", module=r"pydicom\.")  # what they say holds values of the header
logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)


class NoPicture(ValueError):
    """Why there is none, in words that hold nothing of the file."""


class NoReader(ImportError):
    """pydicom is not installed."""


def is_dicom(head: bytes) -> bool:
    """By its first HEAD bytes."""
    return head[HEAD - 4 : HEAD] == b"DICM"


def size(content: bytes) -> tuple[int, int]:
    """Width and height as the file states them; no pixel is decoded."""
    dataset = _read(content)
    return int(dataset.Columns), int(dataset.Rows)


def frames(content: bytes) -> int:
    return int(_read(content).get("NumberOfFrames") or 1)


def picture(content: bytes) -> Image.Image:
    dataset = _read(content)
    kind, samples = dataset.PhotometricInterpretation, dataset.SamplesPerPixel
    if kind == "RGB" and samples == 3 and dataset.BitsAllocated == 8:
        return Image.fromarray(dataset.pixel_array)
    if kind not in GREY or samples != 1:
        raise NoPicture("its colours are neither grey values nor RGB of 8 bits")
    if "ModalityLUTSequence" in dataset or ("VOILUTSequence" in dataset and "WindowWidth" not in dataset):
        raise NoPicture("its values go through a lookup table")
    slope = float(1 if dataset.get("RescaleSlope") is None else dataset.RescaleSlope)
    intercept = float(dataset.get("RescaleIntercept") or 0)
    share = _windowed(dataset, dataset.pixel_array * slope + intercept, slope, intercept).clip(0, 1)
    return Image.fromarray(np.round(255 * (1 - share if kind == "MONOCHROME1" else share)).astype(np.uint8))


def _windowed(dataset: Any, values: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """From 0, black, to 1 (DICOM PS3.3, C.11.2.1.2 and 3)."""
    if dataset.get("WindowWidth") is None or dataset.get("WindowCenter") is None:
        least = -(2 ** (dataset.BitsStored - 1)) if dataset.PixelRepresentation else 0
        ends = sorted(slope * value + intercept for value in (least, least + 2**dataset.BitsStored - 1))
        return (values - ends[0]) / (ends[1] - ends[0])
    centre, width = _first(dataset.WindowCenter), _first(dataset.WindowWidth)
    match dataset.get("VOILUTFunction") or "LINEAR":
        case "LINEAR" if width == 1:
            return (values > centre - 0.5).astype(float)
        case "LINEAR" if width > 1:
            return (values - (centre - 0.5)) / (width - 1) + 0.5
        case "LINEAR_EXACT" if width > 0:
            return (values - centre) / width + 0.5
        case "SIGMOID" if width > 0:
            return 1 / (1 + np.exp((-4 * (values - centre) / width).clip(-700, 700)))
    raise NoPicture("its window is of an unknown kind or has no width")


def _first(value: Any) -> float:
    return float(value if isinstance(value, (int, float, str)) else value[0])


def _read(content: bytes) -> Any:
    try:
        from pydicom import dcmread
    except ImportError:
        raise NoReader(NEEDED) from None
    if DEFLATED in content:
        raise NoPicture("it is compressed as a whole")
    dataset = dcmread(io.BytesIO(content), specific_tags=list(PIXELS))
    if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        raise NoPicture("its pixels are compressed")
    return dataset
