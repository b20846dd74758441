"""Child processes that never outlive the run: each has a process group, and the whole group is ended."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

GRACE_SECONDS = 5


class Stopped(Exception):
    """The run is being stopped; nothing new is started."""


class Processes:
    def __init__(self):
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self._stopped = False

    def run(self, command: Sequence[str], env: dict[str, str]) -> tuple[int, str]:
        """Run to the end; returns the exit code and everything that was printed."""
        with self._lock:
            if self._stopped:
                raise Stopped(" ".join(command))
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # its own group: DVC alone would leave the command it runs behind
            )
            self._running.add(process)
        try:
            output, _ = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        return process.returncode, output

    def stop(self) -> None:
        """End every process group that is still there. Safe to call more than once."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for sig in (signal.SIGTERM, signal.SIGKILL):
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sig)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS)
