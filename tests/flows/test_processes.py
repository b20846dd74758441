"""Child processes that are asked to end: real ones, each in a shell."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from flows import processes
from flows.processes import Processes, Stopped
from stages.errors import UserError
from tests.conftest import ROOT
from tests.patience import patience, wait_for

SLOW_TO_END = "trap 'echo asked' TERM; touch ready; for i in $(seq 20); do sleep 0.1; done; echo written; exit 130"
ENDS_LATER = "trap 'touch asked' TERM; touch ready; until [ -e killed ]; do sleep 0.1; done; touch written"
DEAF = "trap '' TERM; touch ready; setsid sleep 600 & sleep 600"


@pytest.fixture
def started(tmp_path, monkeypatch) -> Callable:
    """Runs a line of shell in a thread; returns what will hold what became of it."""
    monkeypatch.chdir(tmp_path)

    def start(running: Processes, line: str) -> tuple[threading.Thread, list]:
        became = []

        def run() -> None:
            try:
                became.append(running.run(["bash", "-c", line], {"PATH": "/usr/bin:/bin"}))
            except Stopped as stopped:
                became.append(stopped)

        thread = threading.Thread(target=run, daemon=True)  # a test that fails does not wait for it
        thread.start()
        wait_for((tmp_path / "ready").exists, "child", seconds=10, every=0.02)
        return thread, became

    return start


def test_what_runs_is_asked_once_however_often_it_is_stopped_and_gets_the_time_it_needs(started):
    running = Processes()
    thread, became = started(running, SLOW_TO_END)
    stops = [threading.Thread(target=running.stop) for _ in range(3)]
    for stop in stops:
        stop.start()
        time.sleep(0.3)
    for stop in stops:
        stop.join()
    thread.join()
    assert isinstance(became[0], Stopped) and became[0].started
    assert became[0].output.count("asked") == 1 and "written" in became[0].output
    with pytest.raises(Stopped) as refused:
        running.run(["echo", "again"], {})
    assert not refused.value.started


RUN = """
import signal, sys, threading
from flows.processes import Processes
running = Processes()
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=running.stop).start())
running.run(["bash", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin"})
"""


def test_what_was_asked_ends_in_its_own_time_though_the_run_is_killed(tmp_path):
    """Prefect's worker sends SIGKILL 30 seconds after SIGTERM; the checkpoint of a long step is still written."""
    command, environment = [sys.executable, "-c", RUN, ENDS_LATER], {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    wait_for((tmp_path / "ready").exists, "child", seconds=10, every=0.02)
    os.killpg(run.pid, signal.SIGTERM)
    wait_for((tmp_path / "asked").exists, "signal", seconds=10, every=0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    (tmp_path / "killed").touch()
    wait_for((tmp_path / "written").exists, "end of what the run had started", seconds=10, every=0.02)


@pytest.mark.parametrize("how", [Processes.stop, Processes.kill], ids=["over the limit", "at once"])
def test_what_does_not_end_is_killed_with_all_that_it_started(started, monkeypatch, how):
    monkeypatch.setenv(processes.LIMIT, "0.5")
    running, others = Processes(), psutil.Process().children(recursive=True)
    thread, became = started(running, DEAF)

    def new() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if child not in others]

    wait_for(lambda: [child.name() for child in new()].count("sleep") == 2, "both children", seconds=30, every=0.02)
    family = new()
    start = time.monotonic()
    how(running)
    thread.join(patience(5))
    assert time.monotonic() - start < patience(5) and isinstance(became[0], Stopped)
    assert psutil.wait_procs(family, 5)[1] == []


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_a_wrong_limit_is_refused(monkeypatch, given):
    monkeypatch.setenv(processes.LIMIT, given)
    with pytest.raises(UserError, match=f"STOP_SECONDS is '{given}'; expected how many seconds"):
        Processes()


@pytest.mark.parametrize(
    "command", [["flows.reproduce", "prepare@font-digits"], ["flows.dvc", "--wait-for-lock", "push"]], ids=" ".join
)
def test_dvc_ends_at_once_when_no_command_of_a_stage_runs(project, command):
    lock = project.folder / ".dvc/tmp/lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    holder = "import sys; from zc.lockfile import LockFile as L; x = L(sys.argv[1]); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        waits = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=project.folder,
            env=project.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        time.sleep(2)
        wait_for(lambda: psutil.Process(waits.pid).cpu_percent(1) < 5, "waiting for the lock")
        assert waits.poll() is None
        waits.terminate()
        output, _ = waits.communicate(timeout=patience(10))
        other.stdin.write("\n")
    assert waits.returncode == 252 and b"interrupted by the user" in output and b"Traceback" not in output
