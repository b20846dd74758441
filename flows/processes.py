"""Child processes that never outlive the run.

Each has a process group of its own, so that the Ctrl-C of a terminal reaches the run alone. A stop asks every group
once, by SIGTERM, and then waits: a training makes its step to the end and writes its checkpoint first, and a second
signal would make it give that up (stages/train/keeper.py).
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence

import psutil

from stages.errors import UserError

LIMIT = "STOP_SECONDS"  # environment variable: how long what was asked to stop may take; then it is killed
DEFAULT_LIMIT = "600"
POLL_SECONDS = 0.05


class Stopped(Exception):
    """The run is being stopped: a command was not started, or did not come to its end."""

    def __init__(self, output: str | None = None):
        super().__init__("the run was stopped")
        self.started, self.output = output is not None, output or ""


class Processes:
    def __init__(self):
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self.stopped = False
        self._limit = stop_seconds()

    def run(self, command: Sequence[str], env: dict[str, str], fine: Collection[int] = (0,)) -> tuple[int, str]:
        """Run to the end; returns the exit code and everything that was printed.

        An exit code that is not `fine` means that a command which was asked to stop did not come to its end.
        """
        with self._lock:
            if self.stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if self.stopped and process.returncode not in fine:
            raise Stopped(output)
        return process.returncode, output

    def stop(self) -> None:
        """Ask what runs to end, once, however often this is called; wait until it has, and kill what takes too long."""
        with self._lock:
            asked_before, self.stopped = self.stopped, True
            running = list(self._running)
            for process in running if not asked_before else ():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._limit
        while self._running.intersection(running):  # until nothing can print any more: DVC may be gone first
            if time.monotonic() > deadline:
                self.kill()
                return
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End everything at once, also what has left its group: the processes of a training on several of them."""
        with self._lock:
            self.stopped, running = True, list(self._running)
        for process in running:
            family = []
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for child in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def stop_seconds() -> float:
    given = os.environ.get(LIMIT, DEFAULT_LIMIT)
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{LIMIT} is {given!r}; expected how many seconds a training that is asked to stop may take")
    return seconds
