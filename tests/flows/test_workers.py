"""A sweep on two workers in separate clones, one of which dies (the fixture `swept`)."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from prefect.client.schemas.filters import LogFilter
from ruamel.yaml import YAML

from tests.flows.conftest import ON_WORKERS, Machine, machine, without_cells, worker_of
from tests.patience import patience

pytestmark = pytest.mark.xdist_group("flows")  # servers are started once


def test_a_worker_that_dies_loses_no_finished_cell_and_its_cell_is_trained_by_the_other(swept):
    assert swept.code == 0, swept.output
    crashed = [run for run in swept.runs if run.state.is_crashed()]
    assert [worker_of(run) for run in crashed] == ["first"]
    again = [run for run in swept.runs if run.name == crashed[0].name and run.state.is_completed()]
    assert [worker_of(run) for run in again] == ["second"]
    assert f"epsilon {re.search('eps-(.*)/', swept.lost)[1]}, seed {swept.lost[-1]}" in crashed[0].name
    assert len(swept.runs) == 7  # six cells, one of them twice: none that was finished was started again
    assert len({run.name for run in swept.runs}) == 6
    assert {run.id for run in swept.done_before} <= {run.id for run in swept.runs if run.state.is_completed()}
    assert "15 stages: 7 cached, 8 completed" in swept.output  # the cells, the report and MLflow
    assert "Nothing was heard of first for 15 seconds" in swept.output


def test_the_table_of_many_machines_is_that_of_one(swept, one_machine):
    for name in ("table.md", "table.csv"):
        mine, theirs = (
            re.sub("all [0-9]+ private run.*", "", (each.folder / "report" / name).read_text())  # the other's ledger
            for each in (swept.parent, one_machine)
        )
        assert mine == theirs and mine.count("\n") > 3
    assert "up to date" in swept.parent.run("dvc", "status", "--with-deps", "publish").stdout


def test_every_worker_has_one_cell_at_a_time(swept):
    runs = [run for run in swept.runs if run.state.is_completed() and worker_of(run) == "second"]
    times = sorted((run.start_time, run.end_time) for run in runs)
    assert len(times) >= 2 and all(end <= start for (_, end), (start, _) in pairwise(times))


def test_all_machines_charge_one_ledger(swept, settings):
    charges = [
        json.loads(line)["charge"]["cell"] for p in Path(settings["LEDGER_DIR"]).glob("*.jsonl") for line in p.open()
    ]
    assert {cell for cell in charges if "eps-10" in cell} == {
        f"classification/mnist5k/tiny-clip/batch/eps-10/seed-{seed}" for seed in swept.parent.params()["sweep"]["seed"]
    }
    assert not (swept.second.folder / "ledger").exists()


def test_prefect_is_told_no_checksum_of_the_data(swept, api):
    lock = YAML(typ="safe").load(swept.parent.folder / "dvc.lock")
    private = [
        out["md5"] for name, entry in lock["stages"].items() if name.startswith("prepare") for out in entry["outs"]
    ]
    assert len(private) == 2
    told = [run.model_dump_json() for run in api.read_flow_runs()]
    for offset in range(0, 2000, 200):
        told += [entry.message for entry in api.read_logs(LogFilter(), limit=200, offset=offset)]
    assert len(told) > 50
    assert not [words for words in told for checksum in private if checksum.removesuffix(".dir") in words]


def test_nothing_of_the_jobs_is_left_in_the_remote(swept, settings):
    assert list((Path(settings["REMOTE"]) / "sweep-jobs").rglob("*")) == []


def test_a_sweep_that_is_started_anew_takes_finished_cells_from_the_remote(swept, finished, settings, tmp_path):
    anew = machine(tmp_path / "anew", settings, like=finished, params=swept.parent.params())
    without_cells(anew)
    name = next(run.name for run in swept.done_before if worker_of(run) == "first")
    epsilon, seed = re.search("epsilon (.*), seed (.*)", name).groups()
    worker = swept.second.start_worker("dp-clip-cells")
    try:
        done = anew.run(*ON_WORKERS, "--epsilon", epsilon, "--seed", seed)
    finally:
        swept.second.dies()
        worker.wait(patience(30))
    assert done.returncode == 0 and "Cached('finished before'" in done.stderr, done.stdout + done.stderr
    assert (anew.folder / f"runs/classification/mnist5k/tiny-clip/batch/eps-{epsilon}/seed-{seed}/model").is_dir()


REFUSAL = """
import json, sys
from flows.cell import cell
version, ledger = json.loads(sys.argv[1])
state = cell("a job", ["train@x"], [], version, ledger, return_state=True)
print(state.name, state.message)
"""
AGREEMENT = "import json; from flows import agreement as a; print(json.dumps([a.version(), a.ledger_identity()]))"


def other_code_and_values(made: Machine) -> None:
    made.write_params(made.params() | {"folders": {"more": {}}})
    with (made.folder / "stages/keys.py").open("a") as file:
        file.write("# changed\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_code_and_values, "Refused params.yaml, stages of this worker's clone differ"),
        (lambda made: made.settings.pop("LEDGER_DIR"), "Refused LEDGER_DIR is not set: machines that train"),
        (
            lambda made: made.settings.update(LEDGER_DIR=str(made.folder / "ledger")),
            "is not the folder that the sweep's",
        ),
    ],
    ids=["other code and values", "no ledger", "another ledger"],
)
def test_a_worker_that_differs_refuses_before_it_does_anything(one_machine, settings, tmp_path, change, words):
    asking = machine(tmp_path / "asking", settings, params=one_machine.params())
    asked = machine(tmp_path / "asked", dict(settings), params=one_machine.params())
    change(asked)
    agreed = asking.run(sys.executable, "-c", AGREEMENT)
    done = asked.run(sys.executable, "-c", REFUSAL, agreed.stdout)
    assert words in done.stdout and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert not (asked.folder / "dvc.lock").exists()


def test_a_sweep_without_a_shared_ledger_or_remote_is_refused(finished, settings):
    done = finished.run(*ON_WORKERS)
    assert done.returncode == 2 and "error: LEDGER_DIR is not set" in done.stderr
    done = finished.run(*ON_WORKERS, LEDGER_DIR=settings["LEDGER_DIR"])
    assert done.returncode == 2 and "this clone has no default one: dvc remote add" in done.stderr
    assert "Traceback" not in done.stderr
