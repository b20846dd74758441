"""A step of a run: bring one stage of DVC up to date, in this folder.

What runs where is decided by whoever calls: `flows/pipeline.py` runs every stage here, `flows/workers.py` sends some to
other machines, where `flows/cell.py` runs them with this same code.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from prefect import get_run_logger
from prefect.states import Completed, Failed, State

from flows.dvc import Outcome
from flows.graph import kind
from flows.processes import Processes, Stopped, stop_seconds
from flows.progress import watched
from flows.public import public

FINE = (Outcome.RAN, Outcome.UNCHANGED)
LAST_LINES = 25
STEP = re.compile(r"after step \d+ of (\d+); the same command goes on from step (\d+)")  # stages/train/keeper.py


class LocalRunner:
    """Runs stages in this folder, `at_once` at a time, each of them up to `retries` more times if it fails.

    `pull`: what another clone finished and pushed is taken from the DVC remote instead of being run again.

    Slots are taken when a stage is ready: a thread of Prefect's pool is taken by a task that still waits for others,
    and its global limits live on the server. It would retry tasks; on a worker all stages of a cell are in one run.
    """

    def __init__(self, at_once: int = 1, retries: int = 0, pull: bool = False):
        self._slots = threading.BoundedSemaphore(at_once)
        self._processes = Processes()
        self._also_stopped: list[Callable[[], None]] = []
        self.unfinished: list[str] = []  # what was stopped, and where it goes on
        self._retries = retries
        self._options = ["--pull"] if pull else []
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(stop_seconds())),  # of a training on several processes
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // at_once)),
        }

    def run(self, stage: str) -> State:
        with self._slots:
            for left in reversed(range(self._retries + 1)):
                try:
                    with watched(stage) as counted:
                        code, output = self._start("flows.reproduce", stage, *self._options, **counted)
                except Stopped as stopped:
                    if stopped.started:
                        self.unfinished.append(goes_on(stage, stopped.output))
                    raise
                if code in FINE:
                    break
                tail = last_words(output)
                get_run_logger().error("%s\n%s", stage, tail)
                if not left or code == Outcome.REFUSED:
                    return Failed(message=tail.splitlines()[-1] if tail else f"exit code {code}")
                get_run_logger().info("%s is tried again; a training goes on from its last checkpoint", stage)
        get_run_logger().info("%s\n%s", stage, last_words(output))
        if code == Outcome.UNCHANGED:
            return Completed(name="Cached", message="unchanged")
        return Completed(message="ran")

    def dvc(self, *arguments: str) -> tuple[int, str]:
        """A command of DVC's: its exit code and what it printed."""
        return self._start("flows.dvc", "--wait-for-lock", *arguments)

    def _start(self, module: str, *arguments: str, **more: str) -> tuple[int, str]:
        return self._processes.run([sys.executable, "-m", module, *arguments], {**self._environment, **more}, FINE)

    @property
    def stopped(self) -> bool:
        return self._processes.stopped

    def also_stop(self, stop: Callable[[], None]) -> None:
        """Something elsewhere that ends when this does."""
        self._also_stopped.append(stop)

    def stop(self) -> None:
        """Let what runs come to a good end, and return when it has; nothing new is started."""
        try:
            for stop in self._also_stopped:
                stop()
        finally:
            self._processes.stop()

    def kill(self) -> None:
        """End what runs at once."""
        self._processes.kill()


def goes_on(stage: str, output: str) -> str:
    """Where a stage that was stopped goes on."""
    if found := STEP.search(output):
        return f"{stage} goes on from step {found[2]} of {found[1]}"
    return f"{stage} goes on from its last checkpoint" if kind(stage) == "train" else f"{stage} starts again"


def last_words(output: str) -> str:
    """The end of what a command said, as Prefect's server may keep it."""
    return public("\n".join(output.strip().splitlines()[-LAST_LINES:]))
