"""DVC as a process that a run starts, with its lock file read and written by the C library.

    python -m flows.dvc push ...    the same as: dvc push ...

After every stage DVC reads dvc.lock and writes it again in pure Python, in a way that would keep comments. It has none,
and in a sweep of hundreds of cells that takes seconds per stage, one stage at a time.
What is written means the same to DVC.

SIGTERM is to it what Ctrl-C is to `dvc`: between commands it ends, with its locks given back; while the command of a
stage runs it waits for that, which was sent the same signal and knows best when to end.
"""

import signal
import sys
from collections import OrderedDict
from enum import IntEnum
from types import FrameType
from typing import Any, cast

from dvc.cli import main
from dvc.utils.serialize import _yaml
from ruamel.yaml import YAML

from stages.errors import WRONG_INPUT


class Outcome(IntEnum):
    """What became of a stage: the exit codes of `python -m flows.reproduce`."""

    RAN = 0
    REFUSED = WRONG_INPUT  # it was given something wrong: to try again would not help
    UNCHANGED = 3  # up to date, or taken from DVC's run-cache
    INTERRUPTED = 252  # these two as in `dvc`
    FAILED = 255


def c_library() -> YAML:
    yaml = cast(Any, YAML(typ="safe"))  # its settings have no types
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # keys stay in DVC's order
    yaml.Representer.add_representer(OrderedDict, yaml.Representer.represent_dict)
    return yaml


def use_c_library() -> None:
    _yaml.parse_yaml_for_update = _yaml.parse_yaml
    _yaml._get_yaml = c_library


def listen() -> None:
    """End on SIGTERM as on Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in its background without
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):  # while a command runs, DVC ignores the signal
        handler(number, frame)


if __name__ == "__main__":
    listen()
    use_c_library()
    sys.exit(main())
