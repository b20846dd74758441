"""params.yaml as a text for people: the values of a sweep with the comments of stages/params/defaults.yaml."""

import functools
import io
import re

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from stages.params.presets import DEFAULTS, compose

HEADER = """\
# Preset: {name}
# The values in use, one section per stage. `python -m stages.params` checks all of them; with `--list` it names the
# presets, and with `--use NAME` it puts another one here.
"""


@functools.cache
def preset_yaml(name: str) -> str:
    return params_yaml(name, compose(name))


def params_yaml(name: str, values: dict) -> str:
    """The whole file. `values` may differ from those of the preset; the first line says which one they started from."""
    left = dict(values)
    round_trip, parts = _round_trip(), [HEADER.format(name=name)]
    for section in DEFAULTS.read_text(encoding="utf-8").split("\n\n")[1:]:
        document = round_trip.load(section)  # a section by itself, or its last value would own the next one's comments
        (title,) = document
        _fill(document, {title: left.pop(title)} if title in left else {})
        parts.append(_dumped(round_trip, document) if document else "")
    parts += [_dumped(round_trip, {title: value}) for title, value in left.items()]
    return "\n".join(filter(None, parts))


def started_from(text: str) -> str | None:
    """The preset that the first line names."""
    named = re.match(r"# Preset: ([a-z0-9-]+)\n", text)
    return named[1] if named else None


def _round_trip() -> YAML:
    round_trip = YAML(typ="rt")
    round_trip.width, round_trip.preserve_quotes = 120, True
    null = "tag:yaml.org,2002:null"
    round_trip.representer.add_representer(type(None), lambda r, _: r.represent_scalar(null, "null"))
    return round_trip


def _dumped(round_trip: YAML, document: dict) -> str:
    stream = io.StringIO()
    round_trip.dump(document, stream)
    return stream.getvalue()


def _fill(document: CommentedMap, values: dict) -> None:
    """Give a commented section these values; a value that it has already stays as it is written there."""
    for key in [key for key in document if key not in values]:
        del document[key]
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            if value:
                document[key].fa.set_block_style()
            _fill(document[key], value)
        elif key not in document or document[key] != value:
            document[key] = _styled(value)


def _styled(value: object) -> object:
    """Sections as blocks, lists on one line."""
    if isinstance(value, dict):
        return CommentedMap({key: _styled(each) for key, each in value.items()})
    if isinstance(value, list):
        row = CommentedSeq(map(_styled, value))
        row.fa.set_flow_style()
        return row
    return value
