"""From an image file to the RGB picture that a person would see: for preparation, training and serving alike.

    >>> import io
    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> Image.fromarray(np.array([[0, 32768, 65535]], np.uint16)).save(file, "PNG")
    >>> np.asarray(rgb(file.getvalue()))[0, :, 0].tolist()
    [0, 128, 255]

What is decided here, once:

16 bits     are scaled by the depth that the file states (65535, or 4095 of 12 bits, becomes 255). Pillow's own
            `convert("RGB")` clips at 255, and an X-ray is white. 32-bit and floating-point numbers have no scale that
            a file states: refused, not guessed.
see-through what is transparent shows white paper behind it: alpha, a palette's alpha, a transparent colour.
turned      the orientation that a camera notes is applied.
inks        of a CMYK JPEG are stored inverted if Adobe's marker says whose they are; without it nobody knows: refused.
frames      a file of several frames or pages is refused: a picture of one would drop the others without a word. Phones
            write photos with a preview or a depth map behind them (MPO): the photo is taken.
DICOM       is rescaled and windowed as a viewer does (dicom.py), if pydicom is installed.
sizes       nothing, over PIXELS, or so thin that a model's resizing of the short side would take gigabytes: refused.

Colour profiles are not applied: nor were they when the released CLIP and BLIP models were trained.
"""

import io
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from stages.data import dicom

PIXELS = 89_478_485  # a quarter of a gigabyte as RGB: where Pillow begins to warn of decompression bombs
THIN = 100  # times as long as wide, at most
WHITE = (255, 255, 255, 255)
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
PHOTOMETRIC, BITS = 262, 258  # tags of TIFF
GREY_BITS = {"L;2": 255 // 3, "L;4": 255 // 15}  # by how much Pillow spreads the greys of such a PNG

warnings.filterwarnings("ignore", module=r"PIL\.")  # what they say of a private file would end in a log

UNREADABLE = "image files that cannot be read"
FRAMES = "image files with several frames or pages (save the one that is meant)"
SCALE = "image files whose scale of values is unknown (save them with 8 or 16 bits)"
SIZE = "image files that are empty, too large or too thin"


class Unusable(ValueError):
    """No picture can be made of a file. `kind` says why in words that hold nothing of the file."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


def rgb(source: bytes | Path | BinaryIO) -> Image.Image:
    """The picture in a file; Unusable if there is none, or if it would have to be guessed."""
    if content := _dicom(source):
        return _from_dicom(content)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            _check_format(image)
            _check_size(*image.size)
            _check_frames(image)
            _spread_transparent_value(image)
            ImageOps.exif_transpose(image, in_place=True)
            return _on_white(_eight_bits(image))
    except Unusable:
        raise
    except Image.DecompressionBombError:
        raise Unusable(SIZE, f"more than {PIXELS:,} pixels; make it smaller") from None
    except UnidentifiedImageError:  # whose text is the path, or an address in memory
        raise Unusable(UNREADABLE, "not a readable image (of no known format)") from None
    except Exception as error:  # of a damaged file Pillow's decoders raise whatever they run into
        raise Unusable(UNREADABLE, f"not a readable image ({error or type(error).__name__})") from None


def _dicom(source: bytes | Path | BinaryIO) -> bytes | None:
    """The content of such a file, of others nothing."""
    if isinstance(source, bytes):
        return source if dicom.is_dicom(source[: dicom.HEAD]) else None
    try:
        with open(source, "rb") if isinstance(source, Path) else nullcontext(source) as file:
            found = file.read(dicom.HEAD)
            file.seek(0)
            return file.read() if dicom.is_dicom(found) else None
    except (OSError, ValueError):
        return None  # it is reported with the other files that cannot be read


def _from_dicom(content: bytes) -> Image.Image:
    try:
        _check_size(*dicom.size(content))
        if (frames := dicom.frames(content)) > 1:
            raise Unusable(FRAMES, f"{frames} frames; only one can be shown, so save the one that is meant")
        return dicom.picture(content).convert("RGB")
    except Unusable:
        raise
    except dicom.NoReader as error:
        raise Unusable(dicom.NEEDED, str(error)) from None
    except dicom.NoPicture as error:
        raise Unusable(SCALE, f"a DICOM file, and {error}; save it uncompressed, or as PNG") from None
    except Exception as error:  # whose words may hold values of the header
        raise Unusable(UNREADABLE, f"not a readable DICOM file ({type(error).__name__})") from None


def _check_format(image: Image.Image) -> None:
    if image.format == "EPS":
        raise Unusable(UNREADABLE, "PostScript is a program that would have to be run; save the picture that it draws")


def _check_size(width: int, height: int) -> None:
    if not width or not height:
        raise Unusable(SIZE, f"{width} x {height} pixels: there is nothing in it")
    if width * height > PIXELS:
        raise Unusable(SIZE, f"{width} x {height} pixels are more than {PIXELS:,}; make it smaller")
    if max(width, height) > THIN * min(width, height):
        raise Unusable(SIZE, f"{width} x {height} pixels: one side is over {THIN} times the other; cut it")


def _check_frames(image: Image.Image) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise Unusable(FRAMES, f"{frames} frames or pages; only one can be shown, so save the one that is meant")


def _spread_transparent_value(image: ImageFile.ImageFile) -> None:
    """A PNG's one transparent value is in the file's depth, which Pillow forgets when it makes 8 bits of 2, 4 or 16."""
    raw = image.tile[0].args if image.format == "PNG" and "transparency" in image.info else None
    if raw in GREY_BITS:
        image.info["transparency"] *= GREY_BITS[raw]
    elif raw == "RGB;16B":
        raise Unusable(SCALE, "a transparent colour of 16 bits cannot be told from its neighbours; save it with alpha")


def _eight_bits(image: Image.Image) -> Image.Image:
    """In a mode with 8 bits a value."""
    if image.format in ("JPEG", "MPO") and image.mode == "CMYK" and "adobe" not in image.info:
        raise Unusable(SCALE, "a CMYK JPEG without Adobe's marker may be inverted or not; save it as RGB")
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    if image.mode in DEEP and image.format in ("PNG", "TIFF", "JPEG2000"):
        top = 2 ** max(tags.get(BITS, (16,))) - 1
    elif image.mode == "I" and image.format in ("PNG", "PPM"):
        top = 65535  # Pillow scales a PGM of any other depth to it
    elif image.mode == "F" or image.mode.startswith("I"):
        raise Unusable(
            SCALE, f"values of mode {image.mode} in a {image.format} have no stated scale; save 8 or 16 bits"
        )
    else:
        return image
    values = np.asarray(image).astype(np.int64)
    grey = Image.fromarray(((values * 255 + top // 2) // top).clip(0, 255).astype(np.uint8))
    if tags.get(PHOTOMETRIC) == 0:
        grey = ImageOps.invert(grey)  # 0 is white, which Pillow knows of 8 bits only
    if image.mode in DEEP and "transparency" in image.info:
        grey.putalpha(Image.fromarray(np.where(values == image.info["transparency"], 0, 255).astype(np.uint8)))
    return grey


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image).convert("RGB")
