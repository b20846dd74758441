"""The study from params to the plots, the table and MLflow; and its exponents at a size that a test can take."""

import json

import numpy as np
import pytest
from ruamel.yaml import YAML

from stages import params
from stages.theory import report
from stages.theory.fit import fit
from stages.theory.study import Setting, measure, settings
from tests.conftest import ROOT, small_params, stages_run


@pytest.fixture(scope="module")
def config() -> params.Theory:
    return params.Theory.model_validate(small_params()["theory"])


def test_dvc_makes_the_study_in_a_pipeline_of_its_own_and_publishes_it_once(copy_of_finished):
    """What nobody asked for must not make the sweep look unfinished."""
    import mlflow

    dvc = ("dvc", "--cd", "stages/theory")
    done = copy_of_finished.run(*dvc, "repro")
    assert done.returncode == 0 and stages_run(done.stdout) == ["study", "publish"], done.stdout + done.stderr
    for command in (dvc, ("dvc",)):
        assert "up to date" in copy_of_finished.run(*command, "status").stdout
    folder = copy_of_finished.folder / "stages/theory/measured"
    points = json.loads((folder / "points.json").read_text())
    found = json.loads((folder / "exponents.json").read_text())
    assert len(points) == 25 and len(found) == len(report.LINES)
    assert {p.name for p in (folder / "plots").iterdir()} == {
        *(f"{name}.png" for name in ("n-epsilon", "epsilon", "n", "rd", "delta", "steps", "clip-norm"))
    }
    table = (folder / "table.md").read_text()
    assert "| privacy cost in n epsilon, group | -0.5 |" in table and "## Slips of the paper" in table
    again = copy_of_finished.run("python", "-m", "stages.publish.theory", "--folder", str(folder))
    assert again.returncode == 0, again.stderr
    client = mlflow.MlflowClient(f"sqlite:///{copy_of_finished.folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("dp-clip theory")
    (only,) = client.search_runs([experiment.experiment_id])
    assert only.data.metrics == pytest.approx(found)


def test_a_study_is_made_again_when_any_of_its_modules_changes():
    its = YAML(typ="safe").load(ROOT / "stages/theory/dvc.yaml")["stages"]["study"]["deps"]
    assert set(its) == {"../privacy", "__main__.py", *(path.name for path in ROOT.glob("stages/theory/[!_]*.py"))}


def test_a_point_depends_on_its_setting_and_the_seed_alone(config):
    setting = settings(config)[0]
    first, again = measure(setting, config), measure(setting, config)
    assert first == again
    assert measure(setting, config.model_copy(update={"seed": 1})).distance != first.distance


def test_what_is_not_met_is_said(config):
    tight = Setting("clip norm", "group", 500, 0.2, 1e-5, 8, 0.01)
    point = measure(tight, config)
    assert point.clipped > 0.5 and any(what.startswith("clipping inactive") for what in point.unmet)
    assert any(what.startswith("within gamma") for what in measure(settings(config)[0], config).unmet)


@pytest.mark.slow
def test_a_single_clip_does_not_gain_by_more_data_and_groups_do(config):
    """The noise of `batch` with b = nu n is the same for every n: its exponent in n is 0, not the theorem's -1/2."""
    config = config.model_copy(update={"trials": 16})

    def exponent(method: str) -> float:
        ns = [1000, 4000, 16000]
        points = [measure(Setting("n", method, n, 1.0, 1e-5, 8, 2.0), config) for n in ns]
        return fit("n", -0.5, ns, [p.distance for p in points]).fitted

    assert exponent("batch") == pytest.approx(0.0, abs=0.1)
    assert exponent("group") == pytest.approx(-0.5, abs=0.1)


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x = np.array([1.0, 3.0, 10.0, 30.0])
    covered = 0
    for trial in range(100):
        errors = [value**-0.5 * rng.lognormal(0, 0.2, 20) for value in x]
        found = fit("e", -0.5, x, errors, seed=trial)
        covered += found.low <= -0.5 <= found.high
    assert 85 <= covered <= 100


def test_two_points_make_no_exponent():
    with pytest.raises(ValueError, match="2 points"):
        fit("e", -0.5, [1, 2], [[1.0, 1.0], [0.5, 0.6]])
