"""The best private model of each epsilon: chosen among all methods, never without a sound guarantee, and moved."""

import json
from pathlib import Path

import mlflow
import pytest

from stages.publish import descriptions
from tests.publish.conftest import BEST, trained

QUERY = {
    "filter_string": "metrics.sound_epsilon <= 3",
    "order_by": [{"field_name": "metrics.accuracy_percent", "ascending": False}],
}


def best_of_parent(sweep) -> dict[str, float]:
    return {name: pytest.approx(value) for name, value in sweep.parent.data.metrics.items()}


def test_the_best_of_all_methods_has_an_alias_and_says_how_it_was_chosen(sweep):
    assert sweep.aliases() == {"best-eps-1": "group, 1", "best-eps-3": "batch, 3"}
    assert best_of_parent(sweep) == {"best_accuracy_percent_eps_1": 80, "best_accuracy_percent_eps_3": 75}
    version = sweep.client.get_model_version_by_alias(BEST, "best-eps-1")
    guarantee, score = version.description.splitlines()
    assert guarantee.endswith("-DP, zero-out") and score.startswith(
        "group: accuracy_percent 80.00, chosen by its score"
    )
    assert "so that score is optimistic" in score and "Together: the 4 published have epsilon" in score
    # The weights are those of the method's own name.
    own = sweep.client.get_model_version_by_alias(f"{BEST}.group", "eps-1")
    assert own.run_id == version.run_id and own.model_id == version.model_id


def test_one_search_finds_the_best_private_model_under_an_epsilon(sweep):
    found = mlflow.search_logged_models([sweep.parent.info.experiment_id], output_format="list", **QUERY)
    names = [model.tags["cell"].split("/", 3)[3] for model in found]
    assert names == ["group/eps-1/seed-0", "batch/eps-3/seed-0", "batch/eps-1/seed-0"]
    assert found[0].params["epsilon"] == "1" and found[0].tags["sound"] == "yes"
    note = sweep.client.get_experiment(sweep.parent.info.experiment_id).tags["mlflow.note.content"]
    assert all(json.dumps(value) in note for value in QUERY.values() if isinstance(value, str))
    assert '{"field_name": "metrics.accuracy_percent", "ascending": False}' in note


def test_the_alias_moves_to_a_better_one_and_back_when_that_is_not_sound_any_more(sweep):
    before = sweep.outcomes["batch, 1"]
    try:
        sweep.outcomes["batch, 1"] = trained("1", 0.90)
        sweep.publish()
        assert sweep.aliases() == {"best-eps-1": "batch, 1", "best-eps-3": "batch, 3"}
        assert best_of_parent(sweep)["best_accuracy_percent_eps_1"] == 90
        versions = sweep.client.search_model_versions(f"name = '{BEST}'")
        assert len(versions) == 2  # not that of the model that was outdone

        sweep.outcomes["batch, 1"] = trained("1", 0.99, convention="paper")
        sweep.publish()
        assert sweep.aliases() == {"best-eps-1": "group, 1", "best-eps-3": "batch, 3"}
        assert best_of_parent(sweep)["best_accuracy_percent_eps_1"] == 80

        sweep.outcomes["batch, 3"] = trained("3", 0.75, convention="paper")
        sweep.publish()
        assert sweep.aliases() == {"best-eps-1": "group, 1"}
        assert best_of_parent(sweep) == {"best_accuracy_percent_eps_1": 80}
        assert len(sweep.runs()) == 5
    finally:
        sweep.outcomes |= {"batch, 1": before, "batch, 3": trained("3", 0.75)}
        sweep.outcomes["batch, 1"] = trained("1", 0.70)
        sweep.publish()


def test_what_an_earlier_sweep_published_on_the_same_data_takes_part(sweep):
    sweep.publish("group, 1")
    assert sweep.aliases()["best-eps-1"] == "group, 1"
    assert sweep.run("group, 1").data.tags["joint_epsilon"] == sweep.parent.data.tags["joint_epsilon"]


def test_a_private_test_split_has_no_best_model_and_takes_back_what_was_said(sweep):
    manifest = Path("data/mnist5k/manifest.json")
    public = manifest.read_text()
    try:
        manifest.parent.chmod(0o755)
        manifest.unlink()
        manifest.write_text(json.dumps(json.loads(public) | {"private_test": True}))
        sweep.publish("batch, 3")  # of the last sweep
        assert sweep.aliases() == {} and not sweep.client.search_registered_models(f"name = '{BEST}'")
        notes = [sweep.parent.data.tags["mlflow.note.content"]]
        notes += [e.tags.get("mlflow.note.content", "") for e in sweep.client.search_experiments()]
        notes += [v.description for v in sweep.client.search_model_versions()]
        assert not any("|" in note or "accuracy_percent" in note for note in notes)
        assert descriptions.STAY in notes[0]
        for run in sweep.runs():
            assert set(run.data.metrics) <= {"sound_epsilon"}
        assert not sweep.client.list_artifacts(sweep.parent.info.run_id)
    finally:
        manifest.write_text(public)
        sweep.publish()
    assert sweep.aliases() == {"best-eps-1": "group, 1", "best-eps-3": "batch, 3"}
