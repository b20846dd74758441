"""A command in a terminal, and what is seen of the training that it is stopped in."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

from tests.conftest import Project
from tests.flows.conftest import CELL, commands_in
from tests.patience import patience, wait_for

STAGE = "train@classification-mnist5k-tiny-clip-batch-10-0"
HEIGHT, COLUMNS = 40, 120  # of a terminal
CODE = r"\x1b\[[0-9;]*[A-Za-z]"


def seconds() -> float:
    """That a stop may take: ten, on a machine that has nothing else to do."""
    return patience(20)


class Terminal:
    """A command in the foreground of a terminal of its own."""

    def __init__(self, project: Project, *command: str):
        self._side, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", HEIGHT, COLUMNS, 0, 0))
        self._printed = bytearray()

        def enter() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # A shell starts background jobs, and so perhaps these tests, with Ctrl-C ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            command,
            cwd=project.folder,
            env=project.environment(),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=enter,
        )
        os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._printed += os.read(self._side, 2**16)
            except OSError:
                return  # nobody writes any more

    def text(self) -> str:
        return self._printed.decode().replace("\r\n", "\n")

    def ctrl_c(self) -> None:
        os.write(self._side, b"\x03")

    def end(self) -> str:
        self.process.wait(patience(90))
        self._reader.join(patience(10))
        return self.text()


def checkpoint(project: Project) -> int:
    """The step of the newest one; 0 if there is none."""
    found = (project.folder / "checkpoints" / CELL).glob("step-*.safetensors")
    return max((int(path.stem.removeprefix("step-")) for path in found), default=0)


def trainings(project: Project) -> list[int]:
    return [pid for pid, command in commands_in(project.folder).items() if "stages.train" in command]


def begun(project: Project, run: Terminal | subprocess.Popen) -> None:
    """Returns when some steps of the training are made."""
    process = run.process if isinstance(run, Terminal) else run

    def has_key() -> bool:
        assert process.poll() is None, f"the run ended: {run.text() if run is not process else process.communicate()}"
        return (project.folder / "checkpoints" / CELL / "key").exists()

    wait_for(has_key, "training", every=0.1)
    time.sleep(3)


def charges(folder: Path) -> list[str]:
    entries = [json.loads(line)["charge"]["cell"] for path in folder.glob("*.jsonl") for line in path.open()]
    return [cell for cell in entries if cell == CELL]


def lines_after(printed: str, before: str) -> list[str]:
    """What a terminal shows and did not show before, without the echo of Ctrl-C."""
    old, rows = screen(before), screen(printed.replace("^C", ""))
    same = next((i for i, (a, b) in enumerate(zip(old, rows, strict=False)) if a != b), min(len(old), len(rows)))
    return [row.rstrip() for row in rows[same:] if row.strip()]


def screen(printed: str) -> list[str]:
    """The rows that a terminal without an edge has in the end, colours apart."""
    rows, row, column = [""], 0, 0
    for token in re.findall(rf"{CODE}|.", printed, re.DOTALL):
        match token:
            case "\n":
                row, column = row + 1, 0
                rows += [""] * (row == len(rows))
            case "\r":
                column = 0
            case "\x1b[A":
                row -= 1
            case "\x1b[J":
                rows[row:] = [rows[row][:column]]
            case _ if len(token) == 1:
                rows[row] = f"{rows[row][:column]:{column}}{token}{rows[row][column + 1 :]}"
                column += 1
            case _:
                assert token.endswith("m"), f"no colour: {token!r}"
    return rows
