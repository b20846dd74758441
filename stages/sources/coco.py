"""Photos with several captions each: COCO-caption JSON, as VizWiz publishes it.

    vizwiz/annotations/train.json   {"images": [{"id": 0, "file_name": "VizWiz_train_00000000.jpg"}, ...],
                                     "annotations": [{"image_id": 0, "caption": "a mug", "is_rejected": false}, ...]}
    vizwiz/train/                   the images; the same again for the test split

The privacy unit is the image with all of its captions. Captions with `is_precanned` or `is_rejected` are left out, and
so is an image that has no other; other keys are not looked at.
"""

from pathlib import Path
from typing import ClassVar, Literal

from stages.errors import Private
from stages.sources.described import Described, ImageFiles, Inside, Photo, is_id, is_text, lists, short

LEFT_OUT = ("is_precanned", "is_rejected")


class CocoSplit(ImageFiles):
    annotations: Inside  # the JSON file

    @property
    def file(self) -> str:
        return self.annotations

    def read(self, root: Path):
        _, (images, captions) = lists(root / self.annotations, "images", "annotations")
        photos: dict[int | str, Photo] = {}
        found = [p for i, entry in enumerate(images) for p in _add_image(photos, f"images[{i}]", entry)]
        found += [p for i, entry in enumerate(captions) for p in _add_caption(photos, f"annotations[{i}]", entry)]
        return list(photos.values()), [problem.within(self.annotations) for problem in found]


class Coco(Described):
    section: ClassVar[str] = "coco"
    said, noun, belongs = "COCO captions", "caption", "all of its captions"

    source: Literal["coco"] = "coco"
    train: CocoSplit
    test: CocoSplit


def _add_image(photos: dict[int | str, Photo], where: str, entry: object) -> list[Private]:
    """Take one entry of `images` into `photos`, and say what is wrong with it."""
    if not isinstance(entry, dict) or not is_id(entry.get("id")):
        detail = f"{where} must have an id (a number or a text) and a file_name; got {short(entry)}"
        return [Private("images without an id (a number or a text)", detail)]
    image, file_name = entry["id"], entry.get("file_name")
    if image in photos:
        return [Private("images whose id is there twice", f"{where}: image id {image!r} is there twice")]
    if is_text(file_name):
        photos[image] = Photo(image, file_name)
        return []
    photos[image] = Photo(image, None)  # its captions are no problem of their own
    detail = f"{where}: file_name of image {image!r} must be text; got {short(file_name)}"
    return [Private("images whose file_name is no text", detail)]


def _add_caption(photos: dict[int | str, Photo], where: str, entry: object) -> list[Private]:
    """Give one entry of `annotations` to its photo, or say what is wrong with it."""
    if not isinstance(entry, dict) or not is_id(entry.get("image_id")):
        detail = f"{where} must have an image_id (a number or a text) and a caption; got {short(entry)}"
        return [Private("captions without an image_id (a number or a text)", detail)]
    image = entry["image_id"]
    if "id" in entry:
        where = f"{where} (id {short(entry['id'])})"
    if image not in photos:
        detail = f"{where}: image_id {image!r} is not among the images"
        return [Private("captions whose image_id is not among the images", detail)]
    flags = {key: entry.get(key, False) for key in LEFT_OUT}
    if wrong := [key for key, value in flags.items() if value not in (True, False)]:
        return [
            Private(
                f"captions whose {key} is neither true nor false",
                f"{where}: {key} of image {image!r} must be true or false; got {short(flags[key])}",
            )
            for key in wrong
        ]
    if any(flags.values()):
        return []
    photo, caption = photos[image], entry.get("caption")
    photo.wanted = True
    if not is_text(caption):
        detail = f"{where}: caption of image {image!r} must be text; got {short(caption)}"
        return [Private("captions that are no text", detail)]
    text = " ".join(caption.split())
    if not text:
        return [Private("empty captions", f"{where}: empty caption for image {image!r}")]
    photo.texts.append(text)
    return []
