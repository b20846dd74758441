"""A command that starts warm is the command that starts cold: what it sees, says, and how it ends."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.conftest import Project
from tests.patience import patience, wait_for

PROBE = """
import atexit, os, sys, time
print(os.getcwd(), sys.argv[1:], os.environ["ASKED"], __name__, __spec__.name, os.umask(0o77), sys.stdin.read())
print("also to the other stream", file=sys.stderr)
atexit.register(print, "the end")
if sys.argv[1] == "raise":
    raise ValueError("a mistake")
if sys.argv[1] == "wait":
    open("ready", "w").close()
    time.sleep(600)
sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


@pytest.fixture
def starts(tmp_path) -> dict[bool, Project]:
    """A folder with a stage of its own, by whether commands start cold there."""
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/__init__.py").touch()
    (tmp_path / "stages/probe.py").write_text(PROBE)
    made = {cold: Project(tmp_path) for cold in (True, False)}
    for cold, project in made.items():
        project.cold = cold
    return made


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_it_computes_on_as_many_threads_as_it_is_told(starts, threads):
    """More than that, and tests side by side wait for each other most of their time."""
    for project in starts.values():
        (project.folder / "stages/probe.py").write_text("import torch; print(torch.get_num_threads())")
        said = project.run(sys.executable, "-m", "stages.probe", OMP_NUM_THREADS=threads).stdout
        assert said == f"{threads}\n"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["0", "2", "words at the end", "raise"])
def test_output_arguments_surroundings_and_exit_code_are_the_same(starts, given):
    def said(cold: bool) -> list:
        project = starts[cold]
        done = subprocess.run(
            [sys.executable, "-m", "stages.probe", given, "more"],
            cwd=project.folder,
            env=project.environment(ASKED="yes"),
            input="from outside",
            capture_output=True,
            text=True,
            umask=0o27,
        )
        own = [line for line in done.stderr.splitlines() if "runpy" not in line and "server.py" not in line]
        return [done.returncode, done.stdout, own[0], own[-1]]

    assert said(cold=False) == said(cold=True)
    assert said(cold=False)[1].endswith("from outside\nthe end\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_command_and_the_process_behind_it(starts, number):
    project = starts[False]
    command = [sys.executable, "-m", "stages.probe", "wait"]
    environment = project.environment(ASKED="yes")
    started = subprocess.Popen(command, cwd=project.folder, env=environment, stdin=subprocess.DEVNULL)
    wait_for((project.folder / "ready").exists, "start", every=0.05)

    def there() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == os.fspath(project.folder)]

    assert len(there()) == 2
    started.send_signal(number)
    assert started.wait(patience(10)) == -number
    wait_for(lambda: not there(), "end", seconds=10, every=0.05)
