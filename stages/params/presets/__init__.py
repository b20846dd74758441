"""Named sweeps, one file each beside this one. A preset is composed on stages/params/defaults.yaml and never on the
params.yaml in use, so that it gives the same values whatever was chosen before:

    >>> compose("paper-table2")["sweep"]["epsilon"], compose("paper-table2")["train"]["weight_decay"]
    ([0.5, 1, 3, 10], 1e-06)

A file has `about`, one line for whoever chooses; `defaults`, the files it starts from (as in Hydra: later ones win, the
file's own values win over all); and values for sections of params.yaml. What several presets share is in parts/.
"""

import copy
import functools
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from stages.errors import UserError
from stages.params.reading import read_yaml

FOLDER = Path(__file__).parent
DEFAULTS = FOLDER.parent / "defaults.yaml"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def about(name: str) -> str:
    return _read(name)["about"]


def compose(name: str) -> dict:
    """Every value of params.yaml as the preset has it: sections are merged key by key, lists and numbers replaced."""
    if name not in names():
        raise UserError(f"there is no preset {name!r}; known: {', '.join(names())}")
    return copy.deepcopy(_composed(name))


@functools.cache
def _composed(name: str) -> dict:
    return cast(dict, OmegaConf.to_container(OmegaConf.merge(read_yaml(DEFAULTS), _merged(name))))


@functools.cache
def _merged(name: str) -> DictConfig:
    sections = {key: value for key, value in _read(name).items() if key not in ("about", "defaults")}
    return cast(DictConfig, OmegaConf.merge(*map(_merged, _read(name).get("defaults", [])), sections))


@functools.cache
def _read(name: str) -> dict:
    return read_yaml(FOLDER / f"{name}.yaml")
