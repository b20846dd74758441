"""Where initial models come from: the sections pretrain, align and weights. None of them sees private data."""

import functools
import operator
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from stages.models import families
from stages.sections import Name, PositiveFloat, PositiveInt, Section, Seed


class Pretrain(Section):
    """A model that learns from public data alone."""

    architecture: str  # an open_clip name, or a folder with the config of any family (stages/models/families)
    data: Name
    steps: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    seed: Seed


class Align(Section):
    """Pretrained towers that come in Python packages, and projections fitted to public data."""

    architecture: str  # a folder with open_clip_config.json that names the packages
    data: Name
    ridge: PositiveFloat


def _family(value: Any) -> str:
    entry = value if isinstance(value, dict) else {"architecture": getattr(value, "architecture", None)}
    return families.of(entry).name


_entries = {name: family.weights for name, family in families.known().items() if family.weights is not None}
_types: list[Any] = [Annotated[entry, Tag(name)] for name, entry in _entries.items()]
# An entry of `weights`: that of the family that its architecture is of.
Entry: Any = Annotated[functools.reduce(operator.or_, _types), Discriminator(_family)]
