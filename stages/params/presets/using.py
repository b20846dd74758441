"""Put a preset into params.yaml. What was written there by hand is kept or shown, and never lost.

A value is somebody's own if it is not the one of the preset that the file started from (its first line). Without a word
about own values nothing is changed; with `keep` they stay on top of the new preset; with `discard` they go. The file as
it was stays beside the new one, unless it is to the letter what a preset writes.
"""

import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from stages.atomic import new_file
from stages.errors import UserError
from stages.params.presets import compose, names
from stages.params.presets.text import params_yaml, preset_yaml, started_from
from stages.params.reading import load, read_yaml

ABSENT = object()
SHOWN = 70  # characters of a value in a list


@dataclass(frozen=True)
class Own:
    """A value that differs from the one it started from; either can be ABSENT."""

    key: tuple
    value: object
    original: object

    def __str__(self) -> str:
        return ".".join(map(str, self.key))


@dataclass(frozen=True)
class Used:
    """What was done: own values that were kept and that found no place, and where the former file is now."""

    kept: list[Own]
    dropped: list[Own]
    before: Path | None


def use(name: str, path: Path = Path("params.yaml"), *, keep: bool = False, discard: bool = False) -> Used:
    """Write the preset to `path`. Nothing is changed where values would be lost unasked, or would not fit together."""
    values = compose(name)
    own = [one for one in own_values(path) if not _same(one.value, _at(values, one.key))] if path.exists() else []
    if own and not (keep or discard):
        raise UserError(
            f"{path} has {len(own)} value(s) of your own, which preset {name!r} would replace. Nothing was changed. "
            "Add --keep to keep them on top of the preset, or --discard to let them go (a copy of the file stays):",
            [f"{one}: {shown(one.value)} -> {shown(_at(values, one.key))}" for one in own],
        )
    kept = [one for one in own if keep and _put(values, one)]
    before = _free(path) if path.exists() and not _by_preset(path) else None
    with new_file(path) as temporary:
        temporary.write_text(params_yaml(name, values) if kept else preset_yaml(name), encoding="utf-8")
        try:
            load(temporary)
        except UserError as error:
            way = "with your own values; change those, or take --discard" if kept else "as it is"
            raise UserError(f"preset {name!r} does not fit {way}. {path} was not changed:", error.problems) from None
        if before:
            shutil.copy2(path, before)
    return Used(kept, [one for one in own if keep and one not in kept], before)


def own_values(path: Path) -> list[Own]:
    """What of a file no preset has written."""
    values = read_yaml(path)
    named = started_from(path.read_text(encoding="utf-8"))
    found = {name: _differences(values, compose(name)) for name in names()}
    # One that fits exactly, else the one that is named, else the nearest.
    return found[min(found, key=lambda name: (bool(found[name]), name != named, len(found[name])))]


def shown(value: object) -> str:
    said = "none" if value is ABSENT else value if isinstance(value, str) else json.dumps(value, default=str)
    return said if len(said) <= SHOWN else f"{said[: SHOWN - 3]}..."


def _differences(values: dict, originals: dict, above: tuple = ()) -> list[Own]:
    found = []
    for key in {**values, **originals}:
        mine, original, where = values.get(key, ABSENT), originals.get(key, ABSENT), (*above, key)
        if isinstance(mine, dict) and isinstance(original, dict):
            found += _differences(mine, original, where)
        elif not _same(mine, original):
            found.append(Own(where, mine, original))
    return found


def _at(values: object, key: tuple) -> object:
    for part in key:
        values = values.get(part, ABSENT) if isinstance(values, dict) else ABSENT
    return values


def _put(values: dict, own: Own) -> bool:
    """Whether it has a place: what was changed must be there, and what is new needs a section that there is. An entry
    that was deleted comes back with the preset."""
    *above, last = own.key
    section, there = _at(values, tuple(above)), _at(values, own.key)
    if not isinstance(section, dict) or (_nothing(there) and not (above and _nothing(own.original))):
        return False
    if own.value is not ABSENT:
        section[last] = own.value
    elif isinstance(own.original, dict):
        return False
    else:
        del section[last]
    return True


def _same(one: object, other: object) -> bool:
    return one == other or (_nothing(one) and _nothing(other))


def _nothing(value: object) -> bool:
    return value is None or value is ABSENT


def _by_preset(path: Path) -> bool:
    written = path.read_text(encoding="utf-8")
    name = started_from(written)
    return name in names() and written == preset_yaml(name)


def _free(path: Path) -> Path:
    """A name that no file has."""
    numbered = (path.with_name(f"{path.name}.before-{i}") for i in itertools.count(1))
    return next(one for one in numbered if not one.exists())
