"""How a run is stopped: asked once, it ends when its trainings have written their checkpoints; asked again, at once.

Ctrl-C, SIGTERM and a cancellation in Prefect, whose worker sends SIGTERM, all come here. No exception goes through
Prefect, which would take it for a crash of the flow and of each of its tasks: what runs is asked to stop, what waits is
not started, all of these tasks return Cancelled, and so does the flow. The terminal gets one line, at the end.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.exceptions import CancelledRun
from prefect.settings import get_current_settings

from flows.live import console_handlers, live
from flows.steps import LocalRunner
from stages.errors import UserError

STOPPED = 130  # the exit code, as a shell has it for Ctrl-C
ONE_REQUEST_SECONDS = 1.0  # a signal that is sent to a process and to its parent arrives twice
PREFECT_SECONDS = 6.0  # what Prefect may take to hear of it; its server may be gone
SERVER_LOG = "temporary-server.log"  # in PREFECT_HOME
SILENT_SECONDS = 10.0  # then the terminal shows what the run waits for
WAITING = "stopping when the steps that are being made are done and written; Ctrl-C again stops at once"


class _Stop:
    """What this process was asked, and what it runs."""

    def __init__(self):
        self.asked: dict[int, float] = {}  # when, by signal
        self.runner: LocalRunner | None = None
        self.server = None  # Prefect's temporary one
        self._told = threading.Lock()

    def ask(self, number: int, frame: object) -> None:
        again = number in self.asked and time.monotonic() - self.asked[number] > ONE_REQUEST_SECONDS
        if again or not self.asked:
            # In a thread: the lock that it needs may be held by the code that the signal has interrupted.
            threading.Thread(target=self._end, args=[again], daemon=True).start()
        self.asked.setdefault(number, time.monotonic())

    def _end(self, at_once: bool) -> None:
        _leave_the_terminal_alone()
        waiting = threading.Timer(SILENT_SECONDS, print, [WAITING], {"file": sys.stderr, "flush": True})
        waiting.daemon = True
        waiting.start()
        if self.runner:
            (self.runner.kill if at_once else self.runner.stop)()
        waiting.cancel()
        time.sleep(PREFECT_SECONDS)  # mostly this thread ends here, with the process
        self.tell(message(self.runner.unfinished if self.runner else []))
        if self.server:
            self.server.stop()
        os._exit(STOPPED)

    def tell(self, line: str) -> None:
        """Once, whoever comes first."""
        if self._told.acquire(blocking=False):
            print(line, file=sys.stderr, flush=True)


_stop = _Stop()
tell = _stop.tell


def listen() -> dict[int, Any]:
    """From here on, signals stop what runs. Returns what they did before. In the main thread."""
    return {number: signal.signal(number, _stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}


@contextmanager
def stoppable(runner: LocalRunner) -> Iterator[None]:
    """While the block runs, signals stop what `runner` runs; when it ends, nothing of it is left."""
    logging.getLogger("prefect.flow_runs").addFilter(_is_news)
    before = listen()  # again: Prefect has a handler of its own, which it sets when the flow starts
    _stop.runner = runner
    try:
        if _stop.asked:
            runner.stop()
        yield
    finally:
        runner.stop()
        if not _stop.asked:
            for number, handler in before.items():
                signal.signal(number, handler)


def message(unfinished: list[str]) -> str:
    return f"stopped; {', '.join(unfinished) or 'the run goes on where it was'} with the same command"


def start_server() -> None:
    """Prefect's temporary server, where no other is set.

    Ctrl-C does not reach it, or it would end before the run. Its log is a file: when it is stopped while it records
    what it was sent last, it writes tracebacks of the work that it gave up.
    """
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return
    from prefect.server.api.server import SubprocessASGIServer  # slow

    _stop.server = SubprocessASGIServer()  # the one that Prefect would start itself
    start, log = _stop.server._run_uvicorn_command, settings.home / SERVER_LOG

    def start_apart() -> subprocess.Popen:
        with _inherited_by_children(log):
            return start()

    log.parent.mkdir(parents=True, exist_ok=True)
    _stop.server._run_uvicorn_command = start_apart  # type: ignore[method-assign]  # Prefect has no setting for it
    try:
        _stop.server.start()
    except RuntimeError:
        raise UserError(f"Prefect's temporary server did not start; its log: {log}") from None


@contextmanager
def _inherited_by_children(log: Path) -> Iterator[None]:
    """What is started in the block is deaf to Ctrl-C and writes its errors to `log`."""
    signals, errors = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]), os.dup(2)
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _is_news(record: logging.LogRecord) -> bool:
    """On a worker, Prefect logs that a run returned Cancelled as an exception, with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], CancelledRun))


def _leave_the_terminal_alone() -> None:
    """From here on, Prefect's log goes to its server alone, and nothing shows how far the stages are."""
    for handler in console_handlers():
        handler.setLevel(logging.CRITICAL + 1)
    live.close()
