"""The Prefect flow on a real (temporary) server, over real DVC stages."""

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.processes import Processes, Stopped
from tests.conftest import SWEEP_STAGES, Project
from tests.flows.conftest import commands_in, without_cells

pytestmark = pytest.mark.xdist_group("flows")  # servers are started once

FLOW = (sys.executable, "-m", "flows.pipeline")


def files(project: Project, *folders: str) -> dict[str, str]:
    paths = [p for folder in folders for p in (project.folder / folder).rglob("*") if p.is_file()]
    return {str(p.relative_to(project.folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def test_the_flow_makes_the_same_files_as_dvc_repro(finished, copy_of_finished):
    project = without_cells(copy_of_finished)
    done = project.run(*FLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SWEEP_STAGES} stages: 8 cached, 10 completed" in done.stdout  # 4 train, 4 evaluate, report, publish
    folders = ("data", "models", "calibration", "runs", "results", "report")
    mine, theirs = files(project, *folders), files(finished, *folders)
    theirs.pop("report/published-theory.json")  # no cell, nor needed by one
    assert mine.keys() == theirs.keys()
    pictures = {name for name in mine if name.endswith(".png")}
    assert {n for n in mine if mine[n] != theirs[n]} <= pictures
    assert "up to date" in project.run("dvc", "status", "--with-deps", "publish").stdout

    again = project.run(*FLOW)
    assert again.returncode == 0 and f"{SWEEP_STAGES} stages: {SWEEP_STAGES} cached" in again.stdout


def test_a_failing_cell_fails_only_what_depends_on_it(copy_of_finished):
    params = copy_of_finished.params()
    params["sweep"]["epsilon"] = [0, 1, 3, 5, 10, "inf"]  # 3 and 5 are new
    copy_of_finished.write_params(params)
    runs = copy_of_finished.folder / "runs/classification/mnist5k/tiny-clip/batch"
    (runs / "eps-5").write_text("a file where the run's folder should be")

    done = copy_of_finished.run(*FLOW)
    assert done.returncode == 1
    failed = "train@classification-mnist5k-tiny-clip-batch-5-0"
    assert f"error: failed: {failed}; not run because of it: 3" in done.stderr  # evaluate, report, publish
    assert "Traceback" not in done.stderr.split("error: failed")[-1]
    assert (runs / "eps-3/seed-0/model").is_dir()
    results = copy_of_finished.folder / "results/classification/mnist5k/tiny-clip/batch"
    assert (results / "eps-3/seed-0/metrics.json").is_file() and not (results / "eps-5").exists()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_flow_leaves_no_process_behind(copy_of_finished, sent):
    params = copy_of_finished.params()
    params["train"]["methods"]["batch"]["epochs"] = 500  # longer than the test
    copy_of_finished.write_params(params)
    flow = subprocess.Popen(
        FLOW,
        cwd=copy_of_finished.folder,
        env=copy_of_finished.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # As in a terminal: a shell starts background jobs, and so perhaps these tests, with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 240
        while not any("stages.train" in command for command in commands_in(copy_of_finished.folder).values()):
            assert flow.poll() is None and time.monotonic() < deadline, "training never started"
            time.sleep(0.5)
        time.sleep(2)
        flow.send_signal(sent)
        flow.communicate(timeout=90)
        assert flow.returncode != 0
        time.sleep(1)
        assert commands_in(copy_of_finished.folder) == {}
    finally:
        for process in psutil.process_iter(["cwd"]):
            if (process.info["cwd"] or "").startswith(str(copy_of_finished.folder)):
                process.kill()


def test_wrong_arguments_are_told_before_prefect_starts(finished):
    for arguments, words in ((["nonsense"], "no such stage: nonsense"), (["--workers", "0"], "at least 1")):
        done = finished.run(*FLOW, *arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
        assert "Starting temporary server" not in done.stdout + done.stderr


def test_missing_java_is_told_before_anything_runs(project):
    assert project.stage("params", "--use", "captions").returncode == 0
    done = project.run(*FLOW, PATH=str(Path(sys.executable).parent))
    assert done.returncode == 2 and "the caption metrics need Java" in done.stderr and not done.stdout


def test_nothing_is_started_after_a_stop(tmp_path):
    processes = Processes()
    code, output = processes.run(["echo", "hello"], {})
    assert (code, output) == (0, "hello\n")
    processes.stop()
    with pytest.raises(Stopped):
        processes.run(["echo", "again"], {})
