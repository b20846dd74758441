"""Photos with several captions each: COCO-caption JSON, as VizWiz publishes it.

    vizwiz/annotations/train.json   {"images": [{"id": 0, "file_name": "VizWiz_train_00000000.jpg"}, ...],
                                     "annotations": [{"image_id": 0, "caption": "a mug", "is_rejected": false}, ...]}
    vizwiz/train/                   the images; the same again for the test split

The privacy unit is the image with all of its captions. Captions with `is_precanned` or `is_rejected` are left out, and
so is an image that has no other; other keys are not looked at.
"""

import functools
from pathlib import Path

from stages.params import CocoSplit
from stages.prepare import described
from stages.prepare.described import Kind, Photo, is_id, is_text, lists, short

LEFT_OUT = ("is_precanned", "is_rejected")


def _read(root: Path, split: CocoSplit) -> tuple[list[Photo], list[str]]:
    _, (images, captions) = lists(root / split.annotations, "images", "annotations")
    photos: dict[int | str, Photo] = {}
    found = [p for i, entry in enumerate(images) for p in _add_image(photos, f"images[{i}]", entry)]
    found += [p for i, entry in enumerate(captions) for p in _add_caption(photos, f"annotations[{i}]", entry)]
    return list(photos.values()), [f"{split.annotations}: {problem}" for problem in found]


CAPTIONS = Kind("COCO captions", "caption", _read)
quick_look = functools.partial(described.quick_look, kind=CAPTIONS)
load = functools.partial(described.load, kind=CAPTIONS)


def _add_image(photos: dict[int | str, Photo], where: str, entry: object) -> list[str]:
    """Take one entry of `images` into `photos`, and say what is wrong with it."""
    if not isinstance(entry, dict) or not is_id(entry.get("id")):
        return [f"{where} must have an id (a number or a text) and a file_name; got {short(entry)}"]
    image, file_name = entry["id"], entry.get("file_name")
    if image in photos:
        return [f"{where}: image id {image!r} is there twice"]
    if is_text(file_name):
        photos[image] = Photo(image, file_name)
        return []
    photos[image] = Photo(image, None)  # its captions are no problem of their own
    return [f"{where}: file_name of image {image!r} must be text; got {short(file_name)}"]


def _add_caption(photos: dict[int | str, Photo], where: str, entry: object) -> list[str]:
    """Give one entry of `annotations` to its photo, or say what is wrong with it."""
    if not isinstance(entry, dict) or not is_id(entry.get("image_id")):
        return [f"{where} must have an image_id (a number or a text) and a caption; got {short(entry)}"]
    image = entry["image_id"]
    if "id" in entry:
        where = f"{where} (id {short(entry['id'])})"
    if image not in photos:
        return [f"{where}: image_id {image!r} is not among the images"]
    flags = {key: entry.get(key, False) for key in LEFT_OUT}
    if wrong := [key for key, value in flags.items() if value not in (True, False)]:
        return [f"{where}: {key} of image {image!r} must be true or false; got {short(flags[key])}" for key in wrong]
    if any(flags.values()):
        return []
    photo, caption = photos[image], entry.get("caption")
    photo.wanted = True
    if not is_text(caption):
        return [f"{where}: caption of image {image!r} must be text; got {short(caption)}"]
    text = " ".join(caption.split())
    if not text:
        return [f"{where}: empty caption for image {image!r}"]
    photo.texts.append(text)
    return []
