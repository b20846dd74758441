"""A step of a run: bring one stage of DVC up to date, in this folder.

What runs where is decided by whoever calls: `flows/pipeline.py` runs every stage here, `flows/workers.py` sends some to
other machines, where `flows/cell.py` runs them with this same code.
"""

import os
import re
import sys
import threading
from pathlib import Path

from prefect import get_run_logger
from prefect.states import Completed, Failed, State

from flows.processes import Processes

UNCHANGED = ("didn't change, skipping", "is cached - skipping run")  # what `dvc repro` says of a stage it did not run
WRONG_INPUT = "exited with 2"  # so does a stage that was given something wrong (stages/errors.py)
LAST_LINES = 25
CHECKSUM = re.compile(r"\b(?:[0-9a-f]{2}/)?[0-9a-f]{30,}\b(?:\.dir)?")  # DVC names what it cannot find by it


class Here:
    """Runs stages in this folder, `at_once` at a time, each of them up to `retries` more times if it fails.

    `pull`: what another clone finished and pushed is taken from the DVC remote instead of being run again.
    """

    def __init__(self, at_once: int = 1, retries: int = 0, pull: bool = False):
        self._slots = threading.BoundedSemaphore(at_once)
        self._processes = Processes()
        self._retries = retries
        self._repro = ["repro", "--single-item", *(["--pull"] if pull else [])]
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // at_once)),
        }

    def run(self, stage: str) -> State:
        with self._slots:
            for left in reversed(range(self._retries + 1)):
                code, output = self.dvc(*self._repro, stage)
                if code == 0:
                    break
                tail = last_words(output)
                get_run_logger().error("%s\n%s", stage, tail)
                if not left or WRONG_INPUT in output:
                    return Failed(message=tail.splitlines()[-1] if tail else f"exit code {code}")
                get_run_logger().info("%s is tried again; a training goes on from its last checkpoint", stage)
        get_run_logger().info("%s\n%s", stage, last_words(output))
        if any(words in output for words in UNCHANGED):
            return Completed(name="Cached", message="unchanged")
        return Completed(message="ran")

    def dvc(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "flows.dvc", "--wait-for-lock", *arguments]
        return self._processes.run(command, self._environment)

    def stop(self) -> None:
        self._processes.stop()


def last_words(output: str) -> str:
    """The end of what a command said, as Prefect's server may keep it: checksums of private data stay out."""
    words = output.split("Updating lock file")[0]  # after it DVC only gives hints about git
    return CHECKSUM.sub("(checksum)", "\n".join(words.strip().splitlines()[-LAST_LINES:]))
