"""From a source named in params.yaml to rows. A new source is a module with `load`, a schema in params, a line here."""

from stages.params import Source
from stages.prepare.format import Dataset


def quick_look(source: Source) -> tuple[int, bool]:
    """n and whether there are class labels, without reading an image; a UserError if the source is not there."""
    match _kind(source):
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.TRAIN_UNITS, True
        case "font-digits" | "optical-digits":
            return source.train, True
        case "scenes":
            return source.train, False
        case "folder":
            from stages.prepare import folder

            return folder.quick_look(source)
        case "coco":
            from stages.prepare import coco

            return coco.quick_look(source)
        case "vqa":
            from stages.prepare import vqa

            return vqa.quick_look(source)
        case "easy-vqa":
            from stages.prepare import easy_vqa

            return easy_vqa.TRAIN_UNITS, False
        case _:
            from stages.prepare import benchmarks

            return benchmarks.quick_look(source)


def load(source: Source) -> Dataset:
    match _kind(source):
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.load()
        case "optical-digits":
            from stages.prepare import optical_digits

            return optical_digits.load(source.train, source.seed)
        case "scenes":
            from stages.prepare import scenes

            return scenes.load(source)
        case "font-digits":
            from stages.prepare import font_digits

            return font_digits.load(source.train, source.test, source.seed)
        case "folder":
            from stages.prepare import folder

            return folder.load(source)
        case "coco":
            from stages.prepare import coco

            return coco.load(source)
        case "vqa":
            from stages.prepare import vqa

            return vqa.load(source)
        case "easy-vqa":
            from stages.prepare import easy_vqa

            return easy_vqa.load(source.test)
        case _:
            from stages.prepare import benchmarks

            return benchmarks.load(source)


def _kind(source: Source) -> str:
    """What a built-in source calls itself; `folder`, `coco` or `vqa` for one's own data."""
    return getattr(source, "source", type(source).__name__.lower())
