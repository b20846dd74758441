"""Named sweeps: values of `presets` in params.yaml that take the place of those in the other sections."""

from pathlib import Path

from ruamel.yaml import YAML

from stages.atomic import new_file
from stages.errors import UserError
from stages.params.reading import load, read_yaml
from stages.params.schema import merge


def use(name: str, path: Path = Path("params.yaml")) -> None:
    """Write the values of a preset into the sections of params.yaml; comments stay. Wrong values change nothing."""
    known = read_yaml(path).get("presets")
    known = known if isinstance(known, dict) else {}
    if not isinstance(known.get(name), dict):
        usable = [key for key, value in known.items() if isinstance(value, dict)]
        raise UserError(f"there is no preset {name!r} with sections in {path}; known: {', '.join(usable) or 'none'}")
    # Keeps comments and order. Like the safe loader, which has just read the same file, it builds plain data only.
    round_trip = YAML(typ="rt")
    round_trip.width, round_trip.preserve_quotes = 120, True
    null = "tag:yaml.org,2002:null"
    round_trip.representer.add_representer(type(None), lambda r, _: r.represent_scalar(null, "null"))
    document = round_trip.load(path)
    merge(document, document["presets"][name])
    with new_file(path) as temporary:
        round_trip.dump(document, temporary)
        try:
            load(temporary)
        except UserError as error:
            raise UserError(f"preset {name!r} does not fit {path}, which is left as it was:", error.problems) from None
