"""Run by test_memory.py: how much memory stages take, each in a child that is forked from this process.

    python -m tests.peaks COMMANDS      a JSON list of [folder, stage, argument, ...]; prints the bytes of each

The parent has imported the libraries, so a child costs no start-up and begins with the memory of all others.
"""

import importlib
import json
import os
import runpy
import sys

LIBRARIES = (
    "open_clip",
    "pyarrow.parquet",
    "randomgen",
    "stages.models.features",
    "stages.train.cell",
    "tensorflow_privacy",
)


def peak(folder: str, stage: str, *arguments: str) -> int:
    """Bytes of resident memory that the stage had at most, those of this process included."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.argv = [stage, *arguments]
        runpy.run_module(f"stages.{stage}", run_name="__main__")
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"stages.{stage} in {folder} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    for name in LIBRARIES:
        importlib.import_module(name)
    print(json.dumps([peak(*command) for command in json.loads(sys.argv[1])]))
