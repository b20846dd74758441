"""DVC, with its lock file read and written by the C library.

    python -m flows.dvc repro ...    the same as: dvc repro ...

After every stage DVC reads dvc.lock and writes it again in pure Python, in a way that would keep comments. It has none,
and in a sweep of hundreds of cells that takes seconds a stage, one stage at a time.
What is written means the same to DVC.
"""

import sys
from collections import OrderedDict

from dvc.cli import main
from dvc.utils.serialize import _yaml
from ruamel.yaml import YAML


def c_library() -> YAML:
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # keys stay in DVC's order
    yaml.Representer.add_representer(OrderedDict, yaml.Representer.represent_dict)
    return yaml


def use_c_library() -> None:
    _yaml.parse_yaml_for_update = _yaml.parse_yaml
    _yaml._get_yaml = c_library


if __name__ == "__main__":
    use_c_library()
    sys.exit(main())
