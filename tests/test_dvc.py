"""`dvc repro` as a user runs it, on a copy of the project with a small sweep."""

import json
import shutil

import pytest

from stages.models import saved
from tests.conftest import SWEEP_STAGES, THEORY_STAGES, stages_run

pytestmark = pytest.mark.xdist_group("pipeline")  # what needs it waits together


def test_the_whole_pipeline_runs_and_prints_the_table(finished):
    assert len(stages_run(finished.first_output)) == SWEEP_STAGES + THEORY_STAGES
    table = (finished.folder / "report/table.md").read_text()
    assert table in finished.stage("report", "--show").stdout
    for row in ("inf (non-private)", "10", "1", "0 (zero-shot)"):
        assert f"| {row} |" in table


def test_everything_is_up_to_date_afterwards(copy_of_finished):
    assert stages_run(copy_of_finished.repro()) == []
    status = copy_of_finished.run("dvc", "status")
    assert "up to date" in status.stdout


def test_metrics_and_graph_can_be_shown(finished):
    metrics = json.loads(finished.run("dvc", "metrics", "show", "--json").stdout)
    assert "theory/exponents.json" in metrics[""]["data"]
    files = {name: value for name, value in metrics[""]["data"].items() if name.startswith("results")}
    assert len(files) == 4 and all(0 <= value["data"]["accuracy"] <= 1 for value in files.values())
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


def test_editing_the_report_or_the_publishing_trains_nothing(copy_of_finished):
    for name in ("table.py", "publish.py", "statement.py"):
        path = copy_of_finished.folder / "stages/report" / name
        path.write_text(path.read_text() + "\n# edited\n")
    assert stages_run(copy_of_finished.repro()) == ["report", "publish"]


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
        done = copy_of_finished.stage("privacy.ledger")
        assert done.returncode == 0, done.stderr
        return done.stdout

    before = shown()
    # zero-shot trains nothing; the test sweep's noise seed is known, so no run of it counts as private
    assert "mnist5k: 3 run(s), 0 of them private" in before and before.count("NOT PRIVATE") == 3
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
    ledger = copy_of_finished.stage("privacy.ledger").stdout
    assert "4 run(s), 1 of them private" in ledger and "budget 1.2" in ledger


def test_nothing_private_per_step_is_written(finished):
    """Losses, norms and batch sizes are functions of the private data and are not released."""
    allowed = {"cell", "privacy", "train", "trained_parameters", "initial_model", "key", "diagnostics"}
    for path in (finished.folder / "runs").rglob("training.json"):
        written = json.loads(path.read_text())
        assert set(written) <= allowed and written["diagnostics"] is None
