"""A sweep on a worker that is stopped: the cell's checkpoint stays with its worker, which goes on."""

import shutil
import sys
import time

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from flows.progress import key
from tests.flows.conftest import CELL, STEPS, commands_in, in_log, machine, runs_of
from tests.flows.stopping import STAGE, Terminal, begun, charges, checkpoint, lines_after, seconds
from tests.patience import patience, wait_for

pytestmark = pytest.mark.xdist_group("flows")  # servers are started once


def test_a_stopped_sweep_leaves_the_checkpoint_of_a_cell_with_its_worker_which_goes_on(
    long, deployed, settings, api, tmp_path
):
    settings = settings | {"LEDGER_DIR": str(tmp_path / "ledger")}
    shutil.copytree(long.folder / "ledger", tmp_path / "ledger")
    parent = machine(tmp_path / "parent", settings, like=long, params=long.params())
    clone = machine(tmp_path / "clone", settings, params=long.params())
    parent.cold = clone.cold = True  # their processes are sent signals
    sweep = (sys.executable, "-m", "flows.sweep", "--on-workers", "--epsilon", "10")
    worker = clone.start_worker("dp-clip-cells")
    terminal = Terminal(parent, *sweep)
    try:
        begun(clone, terminal)
        before, start = terminal.text(), time.monotonic()
        terminal.ctrl_c()
        printed = terminal.end()
        assert time.monotonic() - start < seconds() and terminal.process.returncode == 130
        (line,) = lines_after(printed, before)
        assert line.endswith("seed 0 is stopped by its worker and goes on there with the same command")
        assert "Traceback" not in printed and commands_in(parent.folder) == {}

        wait_for(lambda: newest(api).state.is_cancelled(), "cancelled cell", seconds=40)
        step = checkpoint(clone)
        assert clone.training() == [] and step > 0
        assert "Traceback" not in (tmp_path / "clone-worker.log").read_text()
        stopped = newest(api)
        wait_for(lambda: in_log(api, stopped, f"goes on from step {step} of {STEPS}"), "word of the step", seconds=20)

        again = parent.run(*sweep)
        assert again.returncode == 0, again.stdout + again.stderr
        assert newest(api).id != stopped.id
        wait_for(lambda: in_log(api, newest(api), f"going on after step {step} of {STEPS}"), "word of it", seconds=20)
        assert not in_log(api, stopped, "Traceback")
        # Told by the worker: how far each of the two came.
        told = {each.flow_run_id: each.data for each in api.read_artifacts() if each.key == key(STAGE)}
        assert told[newest(api).id] == 100 and 0 < told[stopped.id] < 100
        assert charges(tmp_path / "ledger") == [CELL]
    finally:
        parent.dies()
        clone.dies()
        worker.wait(patience(30))


def newest(api: SyncPrefectClient) -> FlowRun:
    return max(runs_of(api, "dp-clip-cell"), key=lambda run: run.created)
