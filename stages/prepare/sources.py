"""From a source named in params.yaml to rows. A new source is a module with `load`, a schema in params, a line here."""

from stages.params import Source
from stages.prepare.format import Dataset


def quick_facts(source: Source) -> int:
    """n, the number of training units, without reading an image; a UserError if the source cannot be there."""
    match source.source:
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.TRAIN_UNITS
        case "font-digits":
            return source.train
        case "folder":
            from stages.prepare import folder

            return folder.count_train_units(source)


def load(source: Source) -> Dataset:
    match source.source:
        case "mnist5k":
            from stages.prepare import mnist5k

            return mnist5k.load()
        case "font-digits":
            from stages.prepare import font_digits

            return font_digits.load(source.train, source.test, source.seed)
        case "folder":
            from stages.prepare import folder

            return folder.load(source)
