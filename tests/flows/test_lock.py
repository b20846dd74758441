"""The lock file as flows/dvc.py writes it, read again by DVC's own reader."""

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# What YAML may take for something else, and the shapes that DVC writes.
CONTENT = {
    "schema": "2.0",
    "stages": OrderedDict(
        {
            "train@a-0.5-0": OrderedDict(
                cmd="python -m stages.train --cell " + "classification/a-long-name/" * 8,
                deps=[OrderedDict(path="data/x", hash="md5", md5="1e5", size=12), {"path": "yes", "md5": "0123456789"}],
                params={
                    "params.yaml": {"eps": 1e-06, "lr": 1e-5, "none": None, "empty": {}, "on": True, "l": [0.9, 1]}
                },
                outs=[{"path": "no: colon # and hash", "md5": "12:30", "nfiles": 3, "size": 2**40}],
            ),
            "a": {"cmd": "é 赤 🙂\ttab and 'quotes' \"both\""},
        }
    ),
}
SCRIPT = """
import json, sys
from dvc.utils.serialize import _yaml
from flows import dvc
content = json.loads(sys.stdin.read())
before = _yaml.dumps_yaml(content)
read_by_dvc = _yaml.parse_yaml
dvc.use_c_library()
after = _yaml.dumps_yaml(content)
assert read_by_dvc(before, "x") == read_by_dvc(after, "x") == content == dict(_yaml.parse_yaml_for_update(before, "x"))
assert _yaml.loads_yaml(after, typ="rt") == content
assert list(_yaml.parse_yaml(after, "x")["stages"]) == list(content["stages"])
print(before == after)
"""


def test_what_is_written_means_the_same_to_dvc():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(CONTENT), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"  # otherwise the two are the same, and this test shows nothing
