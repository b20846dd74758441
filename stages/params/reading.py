"""Read params.yaml: every mistake is found before anything runs, and all are reported together."""

import re
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML, YAMLError

from stages.errors import Problem, UserError
from stages.params.checks import DATA, across_sections, source_problems
from stages.params.schema import Params
from stages.sources import is_chosen


def load(path: Path = Path("params.yaml"), check_sources: bool | str = False) -> Params:
    """Read and check everything; raises one UserError that lists every mistake.

    `check_sources` also looks whether the raw data are there and large enough: all of them, or those of one dataset
    alone. Stages that work on prepared data leave it out: they run on machines that have no raw data.
    """
    raw = read_yaml(path)
    only = check_sources if isinstance(check_sources, str) else None
    problems: list[Problem] = [*across_sections(raw, only), *(source_problems(raw, only) if check_sources else ())]
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        problems = [*(_message(e) for e in error.errors()), *problems]
    if problems:
        raise UserError(f"{path} has {len(problems)} mistake(s):", problems).keep("params", path.parent)
    return params


def read_yaml(path: Path) -> dict:
    if not path.is_file():
        raise UserError(
            f"no {path} in {Path.cwd()}; run this from the project's folder, or write one: "
            "python -m stages.params --use demo"
        )
    try:
        raw = YAML(typ="safe").load(path)
    except YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold sections ({', '.join(Params.model_fields)}); got {type(raw).__name__}")
    return raw


def _message(error: ErrorDetails) -> str:
    parts = [p for p in error["loc"] if p != "[key]"]
    if parts[0] in ("align", "weights") or (parts[0] in DATA and is_chosen(str(parts[0]))):
        del parts[2:3]  # the name of the family or the source, which chose the schema and is no key in the file
    location = re.sub(r"\.(\d+)\b", r"[\1]", ".".join(map(str, parts)))
    match error["type"]:
        case "extra_forbidden" if location == "presets":
            return "presets: each is a file now, and `python -m stages.params --list` names them; delete this section"
        case "extra_forbidden":
            return f"{location}: unknown key"
        case "missing":
            return f"{location}: missing"
        case "value_error":
            return f"{location}: {error['ctx']['error']}"
        case _:
            return f"{location}: {error['msg']}; got {error['input']!r}"
