"""Locks between real processes: held by one, waited for by the others, free when their holder is killed."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import Timeout

from stages.locks import file_lock
from tests.conftest import ROOT

HOLDER = """
import os, sys
from pathlib import Path
from stages.locks import file_lock
with file_lock(Path(sys.argv[1])):
    if os.fork():  # as the workers of a data loader are: without an exec, with all files of their parent
        print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "some.lock"


@pytest.fixture
def holder(path):
    """A process that holds the lock until its input ends, and a child that it has forked."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_a_held_lock_is_refused_or_waited_for(path, holder):
    with pytest.raises(Timeout), file_lock(path, wait=False):
        pytest.fail("two have it")
    start = time.monotonic()
    with pytest.raises(Timeout):
        file_lock(path).acquire(timeout=0.5)
    assert time.monotonic() - start >= 0.5


def test_the_lock_of_a_killed_process_is_free_though_its_children_live(path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with file_lock(path).acquire(timeout=5):
        assert path.exists()


def test_a_file_system_without_locks_is_an_error_and_no_file_marks_the_lock(path, monkeypatch):
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(OSError, match="Function not implemented"), file_lock(path):
        pytest.fail("it is no lock")
    monkeypatch.undo()
    with file_lock(path, wait=False):
        pass
