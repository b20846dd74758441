"""What somebody does who was given a release: runs the code of its card, in a Python that has not this project."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

BEFORE = """
import sys
from importlib.abc import MetaPathFinder

class WithoutTheProject(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("stages", "flows", "tests"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, WithoutTheProject())
"""
AFTER = """
import json
assert not any(name.split(".")[0] == "stages" for name in sys.modules)
print(json.dumps(answer))
"""


def code_of(card: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), flags=re.DOTALL)
    return code


def in_plain_python(folder: Path, code: str):
    """The value of `answer` in the end; it runs in the folder."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{BEFORE}\n{code}\n{AFTER}"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
