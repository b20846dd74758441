"""What a message says to whom: everybody, a terminal, and a file that stays on this machine."""

import os
import pickle
import pty
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stages.errors import Private, UserError, unusable

ROOT = Path(__file__).parent.parent
NAMES = [Private("rows whose file does not exist", f"file ann-smith-{i}.png does not exist") for i in range(3)]

MISTAKE = """
from stages.errors import Private, UserError, run
def main():
    raise UserError("photos has 2 problem(s):", ["units: too many", Private("empty labels", "ann-smith.png: no label")])
run(main)
"""
ACCIDENT = """
from stages.errors import run
def main():
    raise KeyError("ann-smith.png")
run(main)
"""
LEAVING = """
import atexit, time
from stages.errors import UserError, run
@atexit.register
def library_cleans_up():
    print("leaving", flush=True)
    time.sleep(60)
def main():
    raise UserError("another process has ended")
run(main)
"""


def command(program: str, folder: Path) -> dict:
    script = folder / "stages" / "prepare" / "__main__.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return {"args": [sys.executable, str(script), "--dataset", "photos"], "cwd": folder, "env": environment}


def piped(program: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(**command(program, folder), capture_output=True, text=True)


def at_a_terminal(program: str, folder: Path) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(**command(program, folder), stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(ours)
    return process.wait(), said.decode()


def test_a_mistake_is_counted_in_a_log_and_told_in_a_local_file(tmp_path):
    done = piped(MISTAKE, tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.splitlines() == [
        "error: photos has 2 problem(s):",
        "  - units: too many",
        "  - empty labels: 1",
        "details: problems/prepare-photos.txt (on this machine only: they may hold private names)",
    ]
    details = tmp_path / "problems" / "prepare-photos.txt"
    assert details.read_text() == "photos has 2 problem(s):\n  - units: too many\n  - ann-smith.png: no label\n"
    assert stat.S_IMODE(details.stat().st_mode) == 0o600 and stat.S_IMODE(details.parent.stat().st_mode) == 0o700


def test_a_mistake_is_told_in_full_at_a_terminal(tmp_path):
    code, said = at_a_terminal(MISTAKE, tmp_path)
    assert code == 2 and "  - units: too many\r\n  - ann-smith.png: no label\r\n" in said
    assert "details: problems/prepare-photos.txt" in said


def test_the_traceback_of_an_accident_stays_on_this_machine(tmp_path):
    done = piped(ACCIDENT, tmp_path)
    assert done.returncode == 1 and not done.stdout and "ann-smith" not in done.stderr
    assert done.stderr.startswith("error: unexpected KeyError; its traceback: problems/prepare-photos.txt")
    details = tmp_path / "problems" / "prepare-photos.txt"
    assert "KeyError: 'ann-smith.png'" in details.read_text() and "in main" in details.read_text()
    assert stat.S_IMODE(details.stat().st_mode) == 0o600


def test_the_traceback_of_an_accident_is_shown_at_a_terminal(tmp_path):
    code, said = at_a_terminal(ACCIDENT, tmp_path)
    assert code == 1 and "KeyError: 'ann-smith.png'" in said and not (tmp_path / "problems").exists()


@pytest.mark.parametrize("program", [MISTAKE, ACCIDENT], ids=["a mistake", "an accident"])
def test_details_that_cannot_be_written_are_still_no_ones_business(tmp_path, program):
    (tmp_path / "problems").write_text("a file where the folder should be")
    done = piped(program, tmp_path)
    assert done.returncode == (2 if program is MISTAKE else 1)
    assert "none, problems/prepare-photos.txt cannot be written" in done.stderr
    assert "ann-smith" not in done.stderr and "Traceback" not in done.stderr


def test_no_copy_of_an_error_takes_names_along(tmp_path):
    error = UserError("photos:", NAMES)
    for copy in (str(error), repr(error), str(error.args), ascii(pickle.dumps(error))):
        assert "ann-smith" not in copy and "photos:" in copy
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
    assert error.problems == ["rows whose file does not exist: 3"]
    assert error.details == [f"file ann-smith-{i}.png does not exist" for i in range(3)]


def test_problems_keep_what_is_private_in_a_longer_list():
    found = UserError("photos:", ["units: too many", *NAMES]).within("folders.mine")
    found += unusable("in/train.json cannot be read", "byte 0xff").within("coco.other")
    found += UserError("no such folder").within("vqa.third")
    whole = UserError("mistakes:", found)
    assert whole.problems == [
        "folders.mine: units: too many",
        "vqa.third: no such folder",
        "folders.mine: rows whose file does not exist: 3",
        "coco.other: in/train.json cannot be read",
    ]
    assert whole.details[1] == "folders.mine: file ann-smith-0.png does not exist"
    assert whole.details[4] == "coco.other: in/train.json cannot be read; byte 0xff"


def test_an_error_without_private_words_writes_nothing(tmp_path):
    error = UserError("photos:", ["units: too many"]).keep("x", tmp_path)
    assert str(error) == "photos:\n  - units: too many" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_interpreter_ends_says_nothing_over_the_message(number, tmp_path):
    process = subprocess.Popen(**command(LEAVING, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "leaving\n"
    process.send_signal(number)
    assert process.communicate()[1] == "error: another process has ended\n"
    assert process.returncode == -number
