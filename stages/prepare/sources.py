"""From a source named in params.yaml to rows. A new source is a module with `load`, a schema in params, a line here."""

from stages.params import Source
from stages.prepare.format import Dataset


def quick_look(source: Source) -> tuple[int, bool]:
    """n and whether there are class labels, without reading an image; a UserError if the source is not there."""
    match getattr(source, "source", "folder"):
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.TRAIN_UNITS, True
        case "font-digits" | "optical-digits":
            return source.train, True
        case "folder":
            from stages.prepare import folder

            return folder.quick_look(source)
        case _:
            from stages.prepare import benchmarks

            return benchmarks.quick_look(source)


def load(source: Source) -> Dataset:
    match getattr(source, "source", "folder"):
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.load()
        case "optical-digits":
            from stages.prepare import optical_digits

            return optical_digits.load(source.train, source.seed)
        case "font-digits":
            from stages.prepare import font_digits

            return font_digits.load(source.train, source.test, source.seed)
        case "folder":
            from stages.prepare import folder

            return folder.load(source)
        case _:
            from stages.prepare import benchmarks

            return benchmarks.load(source)
