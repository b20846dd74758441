"""`dvc repro` as a user runs it, on a copy of the project with a small sweep."""

import json
import re
import shutil
import sys
import time

import pytest

from stages.data.prepared import PreparedSplit
from stages.errors import UserError
from stages.models import saved
from stages.privacy.uncommitted import require_lock_uncommitted
from tests.conftest import SWEEP_STAGES, Project, stages_run


def test_the_whole_pipeline_runs_and_prints_the_table(finished):
    assert len(stages_run(finished.first_output)) == SWEEP_STAGES
    table = (finished.folder / "report/table.md").read_text()
    shown = finished.stage("report", "--show").stdout
    assert table in shown and "as a page: report/index.html" in shown
    for row in ("inf (non-private)", "10", "1", "0 (zero-shot)"):
        assert f"| {row} |" in table


def test_everything_is_up_to_date_afterwards(copy_of_finished):
    assert stages_run(copy_of_finished.repro()) == []
    status = copy_of_finished.run("dvc", "status")
    assert "up to date" in status.stdout


def test_metrics_and_graph_can_be_shown(finished):
    (file,) = json.loads(finished.run("dvc", "metrics", "show", "--json").stdout)[""]["data"].items()
    assert file[0] == "report/scores.json"
    scores = file[1]["data"]["classification mnist5k tiny-clip"]["batch"]
    assert list(scores) == ["epsilon 0", "epsilon 1", "epsilon 10", "epsilon inf"]
    accuracy = json.loads((finished.folder / "results" / CELL / "metrics.json").read_text())["accuracy"]
    assert scores["epsilon 1"] == round(100 * accuracy, 2)
    graph = finished.run("dvc", "dag", "--mermaid").stdout
    assert graph.count('"train@') == 4 and "publish" in graph


def test_changing_one_epsilon_runs_only_its_cell_and_the_report(copy_of_finished):
    params = copy_of_finished.params()
    params["sweep"]["epsilon"] = [0, 2, 10, "inf"]  # was 0, 1, 10, inf
    copy_of_finished.write_params(params)
    name = "classification-mnist5k-tiny-clip-batch-2-0"
    assert stages_run(copy_of_finished.repro()) == [
        "calibrate@classification-mnist5k-batch-2",
        f"train@{name}",
        f"evaluate@{name}",
        "report",
        "publish",
    ]
    table = (copy_of_finished.folder / "report/table.md").read_text()
    assert "| 2 |" in table and "| 1 |" not in table


def test_editing_the_publishing_makes_no_report_and_editing_the_report_trains_nothing(copy_of_finished):
    for name, rerun in (("publish/publisher.py", ["publish"]), ("report/table.py", ["report", "publish"])):
        path = copy_of_finished.folder / "stages" / name
        path.write_text(path.read_text() + "\n# edited\n")
        assert stages_run(copy_of_finished.repro()) == rerun


def test_a_lost_output_comes_back_from_the_cache(copy_of_finished):
    shutil.rmtree(copy_of_finished.folder / "runs")
    before = (copy_of_finished.folder / "dvc.lock").read_text()
    assert stages_run(copy_of_finished.repro()) == []
    assert (copy_of_finished.folder / "dvc.lock").read_text() == before
    assert len(list((copy_of_finished.folder / "runs").rglob("*.safetensors"))) == 4


def test_zero_shot_is_the_initial_model_and_the_others_are_not(finished):
    for epsilon, same in (("0", True), ("1", False), ("10", False), ("inf", False)):
        run = finished.folder / f"runs/classification/mnist5k/tiny-clip/batch/eps-{epsilon}/seed-0/model"
        changed = saved.changed(run)
        assert (changed == []) is same
        if not same:  # all that was trained, and nothing else
            assert {"visual.proj", "text_projection"} <= set(changed) and "token_embedding.weight" not in changed


def test_every_training_is_in_the_ledger_once(copy_of_finished):
    def shown() -> str:
        done = copy_of_finished.stage("ledger")
        assert done.returncode == 0, done.stderr
        return done.stdout

    before = shown()
    # zero-shot trains nothing; the test sweep's noise seed is known, so no run of it counts as private
    assert "mnist5k: 3 run(s) on its records, 0 of them private" in before and before.count("NOT PRIVATE") == 3
    copy_of_finished.repro()
    assert shown() == before


def test_a_run_over_budget_does_not_start(copy_of_finished):
    params = copy_of_finished.params()
    params["privacy"] |= {"budget": 1.2, "unsafe_noise_seed": None}
    copy_of_finished.write_params(params)
    cell = "classification/mnist5k/tiny-clip/batch/eps-{}/seed-0"
    weights = copy_of_finished.folder / "runs" / cell.format(10) / "model/changes.safetensors"
    before = weights.read_bytes()
    assert copy_of_finished.stage("train", "--cell", cell.format(1)).returncode == 0
    refused = copy_of_finished.stage("train", "--cell", cell.format(10))
    assert refused.returncode == 2 and "over the budget of 1.2" in refused.stderr and "Traceback" not in refused.stderr
    assert weights.read_bytes() == before
    ledger = copy_of_finished.stage("ledger").stdout
    assert "4 run(s) on its records, 1 of them private" in ledger and "budget 1.2" in ledger


def test_nothing_private_per_step_is_written(finished):
    """Losses, norms and batch sizes are functions of the private data and are not released."""
    allowed = {
        "cell",
        "privacy",
        "train",
        "trained_parameters",
        "initial_model",
        "key",
        "diagnostics",
        "run",
        "unit",
        "weights",
    }
    for path in (finished.folder / "runs").rglob("training.json"):
        written = json.loads(path.read_text())
        assert set(written) <= allowed and written["diagnostics"] is None


CELL = "classification/mnist5k/tiny-clip/batch/eps-1/seed-0"
TRAIN = "train@classification-mnist5k-tiny-clip-batch-1-0"


def charges(project: Project) -> list[dict]:
    return [json.loads(line)["charge"] for line in (project.folder / "ledger/charges.jsonl").open()]


def test_experiments_in_temporary_copies_are_charged_to_the_ledger_of_the_data(copy_of_finished, monkeypatch):
    """DVC trains in copies of the project below .dvc/tmp: for another epsilon, and in a queue for each of two rates."""
    project, before = copy_of_finished, len(charges(copy_of_finished))
    project.run("git", "commit", "-qm", "values", "params.yaml")
    values = (project.folder / "params.yaml").read_text()

    def dvc(*arguments: str) -> str:
        done = project.run("dvc", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    dvc("exp", "run", "-S", "sweep.epsilon=[2]", "--temp", "--name", "two", TRAIN.replace("batch-1-0", "batch-2-0"))
    dvc("exp", "run", "-S", "train.methods.batch.lr=0.0003,0.0004", "--queue", TRAIN)
    assert [charge["cell"] for charge in charges(project)[before:]] == [CELL.replace("eps-1", "eps-2")]
    dvc("queue", "start")
    while {"Queued", "Running"} & set((queue := dvc("queue", "status")).split()):
        time.sleep(2)
    assert queue.split().count("Success") == 2, queue
    assert [charge["cell"] for charge in charges(project)[before + 1 :]] == [CELL, CELL]
    assert not list(project.folder.glob(".dvc/tmp/**/charges.jsonl"))
    assert (project.folder / "params.yaml").read_text() == values
    shown = dvc("exp", "show", "--only-changed", "--drop", ".*/|runs|results", "--csv").splitlines()
    columns = ["Experiment", "rev", "typ", "Created", "State", "Executor", "sweep.epsilon", "train.methods.batch.lr"]
    assert [name for name in shown[0].split(",") if not name.startswith("classification")] == columns
    experiments = json.loads(dvc("exp", "show", "--json"))[1]["experiments"]
    used = [e["revs"][0]["data"]["params"]["params.yaml"]["data"] for e in experiments]
    assert {(p["train"]["methods"]["batch"]["lr"], *p["sweep"]["epsilon"]) for p in used} == {
        (0.0001, 2),
        (0.0003, 0, 1, 10, "inf"),
        (0.0004, 0, 1, 10, "inf"),
    }

    # Their commits have a dvc.lock. They are local and not HEAD, until somebody makes one of them a branch.
    monkeypatch.chdir(project.folder)
    require_lock_uncommitted()
    dvc("exp", "branch", "two", "kept")
    project.run("git", "symbolic-ref", "HEAD", "refs/heads/kept")
    with pytest.raises(UserError, match=r"dvc\.lock is committed to git"):
        require_lock_uncommitted()


def test_nothing_is_trained_where_the_ledger_of_the_data_is_not_found(copy_of_finished):
    shutil.move(copy_of_finished.folder / "ledger", copy_of_finished.folder / "moved")
    done = copy_of_finished.stage("train", "--cell", CELL)
    assert done.returncode == 2 and "belongs to a privacy ledger that is not in" in done.stderr
    assert not (copy_of_finished.folder / "ledger").exists()
    moved = {"LEDGER_DIR": str(copy_of_finished.folder / "moved")}
    assert copy_of_finished.run(sys.executable, "-m", "stages.train", "--cell", CELL, **moved).returncode == 0


def test_data_that_are_not_what_was_prepared_are_not_trained_on(copy_of_finished):
    path = copy_of_finished.folder / "data/mnist5k/train.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    before = charges(copy_of_finished)
    done = copy_of_finished.stage("train", "--cell", CELL)
    assert done.returncode == 2 and "is not what was prepared: train.arrow changed" in done.stderr
    assert charges(copy_of_finished) == before


def test_the_lock_file_with_its_checksums_is_kept_out_of_git(copy_of_finished):
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    hooked = ["-c", "core.hooksPath=infra/hooks"]  # as `make setup` has it
    assert copy_of_finished.run(*git, "add", "dvc.lock").returncode == 0
    refused = copy_of_finished.run(*git, *hooked, "commit", "-m", "all of it")
    assert refused.returncode == 1 and "git rm --cached dvc.lock" in refused.stderr
    assert copy_of_finished.run(*git, "commit", "-m", "all of it", "dvc.lock").returncode == 0  # the hook is off
    done = copy_of_finished.stage("train", "--cell", CELL)
    assert done.returncode == 2 and "dvc.lock is committed to git" in done.stderr


def without_one_record(project: Project, folder: str) -> None:
    """The private data once more: as files of other names, without the first of the records."""
    made = project.folder / folder
    made.mkdir()
    lines = ["file_name,label,split"]
    for split in ("train", "test"):
        for i, row in enumerate(PreparedSplit(project.folder / "data/mnist5k", split)):
            if (split, i) != ("train", 0):
                (made / f"{split}-{i}.png").write_bytes(row.image)
                lines.append(f"{split}-{i}.png,{row.label},{split}")
    (made / "metadata.csv").write_text("\n".join(lines))


def test_a_copy_of_the_data_with_one_record_less_has_spent_what_the_data_have(copy_of_finished):
    project, params = copy_of_finished, copy_of_finished.params()
    without_one_record(project, "renamed")
    params["privacy"] |= {"budget": 1.05, "unsafe_noise_seed": None}
    params["folders"]["renamed"] = {"path": "renamed", "classes": [str(digit) for digit in range(10)]}
    project.write_params(params)
    assert project.stage("train", "--cell", CELL).returncode == 0
    copied = CELL.replace("mnist5k", "renamed")
    for command in (("prepare", "--dataset", "renamed"), ("calibrate", "--cell", copied)):
        assert project.stage(*command).returncode == 0
    shown = project.stage("ledger", "--dataset", "renamed").stdout
    assert "4 run(s) on its records, 1 of them private" in shown and f"{CELL}: epsilon 0.99" in shown
    refused = project.stage("train", "--cell", copied)
    assert refused.returncode == 2 and "over the budget of 1.05" in refused.stderr

    project.write_params(params | {"privacy": params["privacy"] | {"budget": 100.0}})
    assert project.stage("train", "--cell", copied).returncode == 0
    totals = [project.stage("ledger", "--dataset", name).stdout for name in ("mnist5k", "renamed")]
    both = [re.search(r"most was spent on: epsilon ([0-9.]+)", total)[1] for total in totals]
    assert both[0] == both[1] and float(both[0]) > 1.05 and all(copied in total for total in totals)
