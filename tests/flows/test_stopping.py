"""A flow that is stopped: its training writes a checkpoint, a terminal gets one line, and the same command goes on."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import Project
from tests.flows.conftest import CELL, STEPS, Machine, commands_in
from tests.flows.stopping import STAGE, Terminal, begun, charges, checkpoint, lines_after, seconds, trainings
from tests.patience import patience, wait_for

pytestmark = pytest.mark.xdist_group("stopping")  # the project is made once

FLOW = (sys.executable, "-m", "flows.pipeline", STAGE)


def goes_on_to_the_end(project: Project, step: int) -> None:
    project.cold = False  # nobody stops it any more
    done = project.run(*FLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on after step {step} of {STEPS}" in done.stderr
    assert (project.folder / "runs" / CELL / "training.json").is_file()
    assert charges(project.folder / "ledger") == [CELL]


def test_ctrl_c_in_a_terminal_leaves_a_checkpoint_and_says_in_one_line_where_it_goes_on(copied):
    terminal = Terminal(copied, *FLOW)
    try:
        begun(copied, terminal)
        before, start = terminal.text(), time.monotonic()
        terminal.ctrl_c()
        printed = terminal.end()
        took, step = time.monotonic() - start, checkpoint(copied)
        assert commands_in(copied.folder) == {}
        assert step > 0 and took < seconds() and terminal.process.returncode == 130
        assert lines_after(printed, before) == [
            f"stopped; {STAGE} goes on from step {step} of {STEPS} with the same command"
        ]
        assert "Traceback" not in printed
    finally:
        Machine(copied.folder).dies()
    goes_on_to_the_end(copied, step)


def test_sigterm_does_the_same_and_reaches_the_training_once_though_all_are_sent_it(copied):
    flow = subprocess.Popen(
        FLOW,
        cwd=copied.folder,
        env=copied.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        begun(copied, flow)
        start = time.monotonic()
        for pid in (flow.pid, *trainings(copied)):  # as a service manager does, which knows all processes of a job
            os.kill(pid, signal.SIGTERM)
        _, said = flow.communicate(timeout=patience(90))
        took, step = time.monotonic() - start, checkpoint(copied)
        assert commands_in(copied.folder) == {}
        assert step > 0 and took < seconds() and flow.returncode == 130
        assert said.endswith(f"stopped; {STAGE} goes on from step {step} of {STEPS} with the same command\n")
        assert "Traceback" not in said
    finally:
        Machine(copied.folder).dies()
    goes_on_to_the_end(copied, step)


def test_a_second_ctrl_c_stops_at_once(copied):
    terminal = Terminal(copied, *FLOW)
    try:
        begun(copied, terminal)
        (training,) = trainings(copied)
        os.kill(training, signal.SIGSTOP)  # a step that takes forever
        before = terminal.text()
        terminal.ctrl_c()
        time.sleep(2)
        assert terminal.process.poll() is None and psutil.pid_exists(training)
        start = time.monotonic()
        terminal.ctrl_c()
        printed = terminal.end()
        assert time.monotonic() - start < seconds() and terminal.process.returncode == 130
        assert commands_in(copied.folder) == {}
        assert lines_after(printed, before) == [
            f"stopped; {STAGE} goes on from its last checkpoint with the same command"
        ]
    finally:
        Machine(copied.folder).dies()


@pytest.mark.parametrize("moment", ["Starting temporary server", "Beginning flow run"])
def test_ctrl_c_before_anything_runs_is_one_line_too(copied, moment):
    terminal = Terminal(copied, *FLOW)
    try:
        wait_for(lambda: moment in terminal.text(), moment, every=0.02)
        before, start = terminal.text(), time.monotonic()
        terminal.ctrl_c()
        printed = terminal.end()
        assert time.monotonic() - start < seconds() and terminal.process.returncode == 130
        assert commands_in(copied.folder) == {}
        new = lines_after(printed, before)
        assert new == ["stopped; the run goes on where it was with the same command"]
    finally:
        Machine(copied.folder).dies()
