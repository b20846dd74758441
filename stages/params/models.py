"""Where initial models come from: the sections pretrain, align, weights and banks. None of them sees private data."""

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


def _family(value: Any) -> str:
    entry = value if isinstance(value, dict) else {"architecture": getattr(value, "architecture", None)}
    return families.of(entry).name


def _entry(section: str) -> Any:
    """The type of an entry of `align` or `weights`: that of the family that its architecture is of."""
    declared = {name: getattr(family, section) for name, family in families.known().items()}
    types: list[Any] = [Annotated[entry, Tag(name)] for name, entry in declared.items() if entry is not None]
    return Annotated[functools.reduce(operator.or_, types), Discriminator(_family)]


class Bank(Section):
    """One of the other models, with a bank of public pairs beside it (stages/models/bank.py): the loss anchored."""

    model: Name
    data: Name
    pairs: PositiveInt


AlignEntry, WeightsEntry = _entry("align"), _entry("weights")
