"""Every kind of image file against the picture that it holds, in numbers."""

import base64
import io
import struct
import warnings
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from stages.data.pixels import FRAMES, PIXELS, SCALE, SIZE, UNREADABLE, Unusable, rgb
from stages.data.rows import Row
from stages.sources.images import image_problems

CORNERS = np.array([[[200, 0, 0], [0, 150, 0]], [[0, 0, 100], [250, 250, 50]], [[9, 9, 9], [90, 0, 90]]], np.uint8)
GREY16 = np.array([[0, 256, 32768, 65535]], np.uint16)
GREY8 = [0, 1, 128, 255]  # 255/65535 of them, rounded


def saved(image: Image.Image, kind: str, **more) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def grey(*values: int) -> np.ndarray:
    return np.repeat(np.array([values], np.uint8)[:, :, None], 3, axis=2)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_by_hand(width: int, depth: int, colour: int, row: bytes, *more: bytes, height: int = 1) -> bytes:
    """As the PNG specification has it: what Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *more, chunk(b"IDAT", zlib.compress(b"\0" + row)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_by_hand(bits: int, photometric: int, data: bytes, sample_format: int = 1) -> bytes:
    """Two grey values, little-endian."""
    tags = [(256, 2), (257, 1), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1), (278, 1)]
    tags += [(279, len(data)), (339, sample_format)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    start = 8 + len(data) + len(data) % 2
    return (
        struct.pack("<2sHI", b"II", 42, start)
        + data.ljust(start - 8, b"\0")
        + struct.pack("<H", 10)
        + entries
        + b"\0" * 4
    )


def palette(transparency: int | bytes | None, kind: str = "PNG") -> bytes:
    image = Image.new("P", (3, 1))
    image.putpalette([200, 0, 0, 0, 150, 0, 0, 0, 100])
    image.putdata([0, 1, 2])
    return saved(image, kind, **({} if transparency is None else {"transparency": transparency}))


def turned(orientation: int, kind: str, **more) -> bytes:
    """A file that shows CORNERS once the orientation in its EXIF data is applied."""
    undo = [None, None, 0, 3, 1, 5, 2, 6, 4][orientation]  # Image.Transpose
    image = Image.fromarray(CORNERS).resize((40, 60), Image.Resampling.NEAREST)
    stored = image if undo is None else image.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(stored, kind, exif=exif, **more)


def without_adobe(jpeg: bytes) -> bytes:
    start = jpeg.index(b"\xff\xee")
    return jpeg[:start] + jpeg[start + 2 + struct.unpack(">H", jpeg[start + 2 : start + 4])[0] :]


def grey_alpha(values: list[int], alpha: list[int]) -> Image.Image:
    return Image.merge("LA", [Image.fromarray(np.array([v], np.uint8)) for v in (values, alpha)])


SEEN: dict[str, tuple[Callable[[], bytes], np.ndarray]] = {
    "16-bit PNG": (lambda: saved(Image.fromarray(GREY16), "PNG"), grey(*GREY8)),
    "16-bit TIFF": (lambda: saved(Image.fromarray(GREY16), "TIFF"), grey(*GREY8)),
    "16-bit big-endian TIFF": (lambda: saved(Image.fromarray(GREY16.astype(">u2")), "TIFF"), grey(*GREY8)),
    "16-bit JPEG 2000": (lambda: saved(Image.fromarray(GREY16), "JPEG2000"), grey(*GREY8)),
    "16-bit PGM": (lambda: b"P5 4 1 65535\n" + GREY16.astype(">u2").tobytes(), grey(*GREY8)),
    "12-bit PGM": (lambda: b"P5 3 1 4095\n" + struct.pack(">3H", 0, 2048, 4095), grey(0, 128, 255)),
    "12-bit TIFF": (lambda: tiff_by_hand(12, 1, bytes([0xFF, 0xF8, 0x00])), grey(255, 128)),
    "16-bit TIFF whose 0 is white": (lambda: tiff_by_hand(16, 0, struct.pack("<2H", 0, 65535)), grey(255, 0)),
    "8-bit TIFF whose 0 is white": (lambda: tiff_by_hand(8, 0, bytes([0, 200])), grey(255, 55)),
    "16-bit colour PNG": (
        lambda: png_by_hand(2, 16, 2, struct.pack(">6H", 65535, 32768, 0, 256, 512, 1024)),
        np.array([[[255, 128, 0], [1, 2, 4]]]),
    ),
    "16-bit PNG with a transparent grey": (
        lambda: png_by_hand(2, 16, 0, struct.pack(">2H", 300, 301), chunk(b"tRNS", struct.pack(">H", 300))),
        grey(255, 1),
    ),
    "grey PNG": (lambda: saved(Image.fromarray(np.array([[0, 77, 255]], np.uint8)), "PNG"), grey(0, 77, 255)),
    "black and white PNG": (lambda: saved(Image.fromarray(np.array([[False, True]])), "PNG"), grey(0, 255)),
    "grey PNG with a transparent grey": (
        lambda: png_by_hand(3, 8, 0, bytes([0, 7, 100]), chunk(b"tRNS", struct.pack(">H", 7))),
        grey(0, 255, 100),
    ),
    "4-bit PNG with a transparent grey": (
        lambda: png_by_hand(4, 4, 0, bytes([0x07, 0x68]), chunk(b"tRNS", struct.pack(">H", 7))),
        grey(0, 255, 6 * 17, 8 * 17),
    ),
    "colour PNG with a transparent colour": (
        lambda: png_by_hand(2, 8, 2, bytes([1, 2, 3, 1, 2, 4]), chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))),
        np.array([[[255, 255, 255], [1, 2, 4]]]),
    ),
    "palette": (lambda: palette(None), np.array([[[200, 0, 0], [0, 150, 0], [0, 0, 100]]])),
    "palette with a transparent entry": (
        lambda: palette(1),
        np.array([[[200, 0, 0], [255, 255, 255], [0, 0, 100]]]),
    ),
    "palette with alpha": (
        lambda: palette(bytes([255, 102, 0])),  # 102/255 = 0.4
        np.array([[[200, 0, 0], [153, 213, 153], [255, 255, 255]]]),
    ),
    "GIF": (lambda: palette(None, "GIF"), np.array([[[200, 0, 0], [0, 150, 0], [0, 0, 100]]])),
    "GIF with a transparent entry": (
        lambda: palette(1, "GIF"),
        np.array([[[200, 0, 0], [255, 255, 255], [0, 0, 100]]]),
    ),
    "alpha": (
        lambda: saved(Image.new("RGBA", (1, 1), (100, 0, 200, 102)), "PNG"),
        np.array([[[193, 153, 233]]]),  # 0.4 c + 0.6 * 255
    ),
    "grey with alpha": (lambda: saved(grey_alpha([0, 100, 9], [255, 102, 0]), "PNG"), grey(0, 193, 255)),
    "CMYK TIFF": (
        lambda: saved(Image.merge("CMYK", [Image.new("L", (1, 1), v) for v in (0, 255, 100, 20)]), "TIFF"),
        np.array([[[235, 0, 143]]]),  # (255 - ink)(255 - black) / 255
    ),
    "one pixel": (lambda: saved(Image.new("RGB", (1, 1), (3, 2, 1)), "BMP"), np.array([[[3, 2, 1]]])),
    **{
        f"{kind} turned by {o}": (
            lambda kind=kind, o=o, more=more: turned(o, kind, **more),
            CORNERS.repeat(20, axis=0).repeat(20, axis=1),
        )
        for kind, more in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}))
        for o in range(1, 9)
    },
}


@pytest.mark.parametrize("name", SEEN)
def test_the_picture_is_what_a_person_sees_in_training_and_in_serving(name, tmp_path):
    from stages.tasks.base.pictures import picture

    make, expected = SEEN[name]
    file, path = make(), tmp_path / "file"
    path.write_bytes(file)
    seen = rgb(file)
    assert seen.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(seen), expected)
    ways = (rgb(path), Row(file, (), None, "u").pixels(), picture(str(path)), picture(base64.b64encode(file).decode()))
    for same in ways:
        np.testing.assert_array_equal(np.asarray(same), expected)
    assert image_problems(path, "x") == []


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_upright_as_the_camera_noted(orientation):
    seen = np.asarray(rgb(turned(orientation, "JPEG", quality=95, subsampling=0))).astype(int)
    assert seen.shape == (60, 40, 3)
    assert np.abs(seen[10::20, 10::20] - CORNERS).max() <= 4


def test_inks_of_a_photoshop_jpeg_are_not_inverted():
    inks = Image.merge("CMYK", [Image.new("L", (16, 16), v) for v in (0, 255, 255, 0)])  # red
    jpeg = saved(inks, "JPEG", quality=95)
    assert b"\xff\xee\x00\x0eAdobe" in jpeg
    assert np.abs(np.asarray(rgb(jpeg)).astype(int) - (255, 0, 0)).max() <= 3
    assert refusal(without_adobe(jpeg)) == SCALE


def frames(kind: str, **more) -> bytes:
    first, second = Image.new("RGB", (8, 8), (9, 9, 9)), Image.new("RGB", (8, 8), (200, 0, 0))
    return saved(first, kind, save_all=True, append_images=[second], **more)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "animated GIF": (lambda: frames("GIF"), FRAMES),
    "animated PNG": (lambda: frames("PNG"), FRAMES),
    "animated PNG with a picture of its own": (lambda: frames("PNG", default_image=True), FRAMES),
    "animated WebP": (lambda: frames("WEBP"), FRAMES),
    "animated AVIF": (lambda: frames("AVIF"), FRAMES),
    "TIFF of two pages": (lambda: frames("TIFF"), FRAMES),
    "32-bit integers": (lambda: saved(Image.fromarray(np.array([[0, 70000]], np.int32)), "TIFF"), SCALE),
    "floating point": (lambda: saved(Image.fromarray(np.array([[0, 0.5]], np.float32)), "TIFF"), SCALE),
    "signed 16-bit TIFF": (lambda: tiff_by_hand(16, 1, struct.pack("<2h", -5, 5), sample_format=2), SCALE),
    "transparent colour of 16 bits": (
        lambda: png_by_hand(1, 16, 2, bytes(6), chunk(b"tRNS", bytes(6))),
        SCALE,
    ),
    "no bytes": (lambda: b"", UNREADABLE),
    "text": (lambda: b"this is no image", UNREADABLE),
    "a program that draws": (lambda: saved(Image.new("L", (8, 8)), "EPS"), UNREADABLE),
    "half a file": (lambda: saved(Image.effect_noise((50, 50), 90), "PNG")[:700], UNREADABLE),
    "no rows": (lambda: png_by_hand(5, 8, 0, b"", height=0), UNREADABLE),
    "no columns": (lambda: b"P5 0 4 255\n", UNREADABLE),
    "thin": (lambda: saved(Image.new("L", (1, 101)), "PNG"), SIZE),
    "a bomb": (lambda: png_by_hand(20_000, 8, 0, b"", height=20_000), SIZE),
    "half a bomb": (lambda: png_by_hand(10_000, 8, 0, b"", height=PIXELS // 10_000 + 1), SIZE),
}


def refusal(file: bytes) -> str:
    with pytest.raises(Unusable) as error, warnings.catch_warnings(action="ignore"):
        rgb(file)
    return error.value.kind


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_a_guess_is_refused_before_work_starts(name, tmp_path):
    make, kind = REFUSED[name]
    path = tmp_path / "ann-smith.png"
    path.write_bytes(make())
    assert refusal(make()) == kind
    with warnings.catch_warnings(action="ignore"):
        (problem,) = image_problems(path, "ann-smith.png")
    assert problem.kind == kind and problem.detail.startswith("ann-smith.png: ") and str(tmp_path) not in problem.detail


def test_serving_says_why_a_file_is_refused():
    from stages.tasks.base.pictures import picture

    with pytest.raises(ValueError, match="2 frames or pages"):
        picture(base64.b64encode(frames("GIF")).decode())
    for nothing in ("no such file.png", "Zm9v", "ä", "a\0b", "x" * 5001):
        with pytest.raises(ValueError, match="not an image file, and not an image in base64"):
            picture(nothing)


def test_a_phones_photo_with_a_second_picture_behind_it_is_the_photo():
    seen = np.asarray(rgb(frames("MPO", quality=95)))
    assert seen.shape == (8, 8, 3) and np.abs(seen.astype(int) - 9).max() <= 3


@pytest.mark.parametrize("size", [(1, 1), (1, 100), (100, 1)])
@pytest.mark.parametrize("resize_mode", ["shortest", "squash"])  # CLIP's and BLIP's
def test_the_smallest_pictures_pass_a_models_preprocessing(size, resize_mode):
    from open_clip.transform import PreprocessCfg, image_transform_v2

    transform = image_transform_v2(PreprocessCfg(size=(336, 336), resize_mode=resize_mode), is_train=False)
    tensor = transform(rgb(saved(Image.new("RGB", size, (255, 0, 0)), "PNG")))
    assert (
        tensor.shape == (3, 336, 336) and bool(tensor.isfinite().all()) and float(tensor.std(dim=(1, 2)).max()) < 1e-4
    )
