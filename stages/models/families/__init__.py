"""Kinds of models. A family is one file in this folder, found by its name, and it declares:

    how an entry of params.yaml and a folder of it are recognised, and what its models can do
    how it is created, loaded, and taken from published weights, with the entry of `weights` that this needs
    how it learns from public data
    where the parts of a model are, by the names of its tensors

The file has a class derived from base/family.py and one object of it, FAMILY. Importing a family is cheap: its network
is in a file of its own, which is imported where it is used.

>>> of({"architecture": "stages/models/configs/tiny-blip"}).name, of({"architecture": "ViT-B-32"}).name
('blip', 'open_clip')
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from stages.keys import FAMILIES
from stages.models.families.base.family import ABILITIES, Aligned, Family, Names, Published

__all__ = ["ABILITIES", "FAMILIES", "Aligned", "Family", "Names", "Published", "known", "of", "of_folder"]

DEFAULT = "open_clip"  # an architecture that no other family knows is one of its many names


@cache
def known() -> dict[str, Family]:
    return {name: import_module(f"stages.models.families.{name}").FAMILY for name in FAMILIES}


def of(entry: Mapping[str, Any]) -> Family:
    """Of an entry of `pretrain`, `align` or `weights`."""
    return next((family for family in known().values() if family.takes(entry)), known()[DEFAULT])


def of_folder(folder: Path) -> Family:
    """Of a folder with a config, and with weights if the model was saved there."""
    return next((family for family in known().values() if family.recognises(folder)), known()[DEFAULT])
