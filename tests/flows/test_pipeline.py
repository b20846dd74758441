"""The Prefect flow on a real (temporary) server, over real DVC stages."""

import hashlib
import re
import sys
from pathlib import Path

import pytest

from flows.stopping import SERVER_LOG
from tests.conftest import ROOT, SWEEP_STAGES, Project
from tests.flows.conftest import without_cells

FLOW = (sys.executable, "-m", "flows.pipeline")


# Of each training by itself: the name of its run, and how many there have been on the same records.
OF_THE_RUN = re.compile(rb'"run": "[0-9a-f]+"|all [0-9]+ private run.*')


def files(project: Project, *folders: str) -> dict[str, str]:
    paths = [p for folder in folders for p in (project.folder / folder).rglob("*") if p.is_file()]
    contents = {str(p.relative_to(project.folder)): OF_THE_RUN.sub(b"", p.read_bytes()) for p in paths}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_the_flow_makes_the_same_files_as_dvc_repro(finished, copy_of_finished):
    project = without_cells(copy_of_finished)
    done = project.run(*FLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Stopping temporary server" in done.stderr.splitlines()[-1]  # and none of its own words, which are in a file
    assert (project.folder / ".prefect" / SERVER_LOG).is_file()
    assert f"{SWEEP_STAGES} stages: 8 cached, 10 completed" in done.stdout  # 4 train, 4 evaluate, report, publish
    folders = ("data", "models", "calibration", "runs", "results", "report")
    mine, theirs = files(project, *folders), files(finished, *folders)
    for each in (mine, theirs):
        each.pop("report/published.json")  # a version of a model that was trained again is a new one
    assert mine.keys() == theirs.keys()
    own = {name for name in mine if name.endswith((".png", "/costs.json"))}  # how long a training took is its own
    assert {n for n in mine if mine[n] != theirs[n]} <= own
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


def test_wrong_arguments_are_told_before_prefect_starts(finished):
    for arguments, words in ((["nonsense"], "no such stage: nonsense"), (["--workers", "0"], "at least 1")):
        done = finished.run(*FLOW, *arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
        assert "Starting temporary server" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_that_does_not_start_is_one_line(tmp_path):
    start = "from flows.stopping import start_server; from stages.errors import run; run(start_server)"
    environment = {"PYTHONPATH": str(ROOT), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "1"}
    done = Project(tmp_path).run(sys.executable, "-c", start, **environment)
    log = tmp_path / ".prefect" / SERVER_LOG
    assert done.returncode == 2 and f"error: Prefect's temporary server did not start; its log: {log}" in done.stderr
    assert "Traceback" not in done.stderr and log.is_file()


def test_missing_java_is_told_before_anything_runs(project):
    assert project.stage("params", "--use", "captions", "--discard").returncode == 0
    done = project.run(*FLOW, PATH=str(Path(sys.executable).parent))
    assert done.returncode == 2 and "the caption metrics need Java" in done.stderr and not done.stdout
