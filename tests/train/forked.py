"""Run by test_crashes.py in a project's folder: trains a cell in a child process that is killed again and again.

    python -m tests.train.forked CELL KILLS SEED

The parent has imported everything, verified the claim, which is the same every time, and forks: a new try costs no
start-up. It kills with SIGKILL after a random
number of steps at a random moment, every second time as soon as a checkpoint is being written; the last try is left
alone.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path


def newest(folder: Path) -> int:
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.json")), default=0)


def child() -> int:
    import stages.models.clip  # noqa: F401 (else every child would import it)
    from stages.errors import run
    from stages.train.__main__ import main

    pid = os.fork()
    if pid == 0:
        try:
            run(main)
            os._exit(0)
        except SystemExit as stop:
            os._exit(stop.code)
        except BaseException:
            os._exit(99)
    return pid


def verify_once(cell: str) -> None:
    """The accountants remember what they found."""
    from stages import params
    from stages.data.prepared import PreparedSplit
    from stages.keys import Cell, data_dir
    from stages.privacy.facts import PrivacyFacts
    from stages.train.cell import plan_of

    key = Cell.parse(cell)
    units = PreparedSplit(data_dir(key.dataset), "train").units
    plan_of(key, params.load(), PrivacyFacts.read(key.privacy_json), units)


def kill_at_random(pid: int, folder: Path, while_writing: bool) -> bool:
    """True if a checkpoint was being written."""
    wanted = newest(folder) + random.randint(0, 3)  # noqa: S311
    while newest(folder) < wanted:
        alive(pid)
        time.sleep(0.002)
    writing = False
    if while_writing:
        while not (writing := any(folder.glob(".tmp-*"))):
            alive(pid)
    else:
        time.sleep(random.random() * 0.2)  # noqa: S311
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return writing or any(folder.glob(".tmp-*"))


def alive(pid: int) -> None:
    if os.waitpid(pid, os.WNOHANG)[0]:
        sys.exit("the training ended before it was killed")


if __name__ == "__main__":
    cell, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.argv = ["stages.train", "--cell", cell]
    folder = Path("checkpoints") / cell
    random.seed(seed)
    verify_once(cell)
    torn = sum(kill_at_random(child(), folder, while_writing=i % 2 == 1) for i in range(kills))
    print(f"killed {kills} times, {torn} of them while a checkpoint was written, last at step {newest(folder)}")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child(), 0)[1]))
