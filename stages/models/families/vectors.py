"""Models for features that were made elsewhere (stages/models/vectors.py): they compare, and have no towers."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.models.families.base.family import Aligned, Family, Names, Published
from stages.models.kinds import VECTORS, config_folder
from stages.sections import PositiveInt

if TYPE_CHECKING:
    from stages.models.encoder import WholeEncoder


class Plain(Published):
    """All directions of a vector, and no centre."""

    width: PositiveInt  # numbers of a vector
    classes: PositiveInt | None = None  # of the probe, where one is trained


class Referred(Aligned):
    """With the centre and the directions of public features."""

    directions: PositiveInt  # the first ones
    classes: PositiveInt | None = None


class Vectors(Family):
    name = "vectors"
    layout = VECTORS
    names = Names(image_tower=("visual.",), neither=("class_probe", "class_centre"))  # those move a probe alone
    weights, align, aligning = Plain, Referred, "reference"

    def recognises(self, folder: Path) -> bool:
        return (folder / VECTORS.config).is_file()

    def abilities(self, entry: Mapping[str, Any]) -> frozenset[str]:
        return frozenset({"compares"})

    def create(self, folder: Path, texts: Iterable[str]) -> "WholeEncoder":
        from stages.models import vectors

        return vectors.create(str(folder))

    def load(self, folder: Path, weights: Path) -> "WholeEncoder":
        from stages.models import vectors

        return vectors.from_folder(folder, weights)

    def published(self, entry: Plain) -> "WholeEncoder":
        from stages.models import vectors

        return vectors.create(str(config_folder(entry.architecture)), entry.width, entry.classes or 0)

    def sketch(self, entry: Plain | Referred, texts: Iterable[str]) -> "WholeEncoder":
        """With two classes, as `plan` has."""
        from stages.models import vectors

        return vectors.create(str(config_folder(entry.architecture)), classes=2)

    def pretraining(self, encoder: "WholeEncoder") -> str:
        return "contrastive"


FAMILY = Vectors()
