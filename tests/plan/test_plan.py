"""What a sweep would take: the same noise as the calibration, a time from measured steps, and nothing is done."""

import json
import re

import pytest

from stages import params
from stages.models.families.open_clip import Towers, Weights
from stages.models.families.vectors import Plain
from stages.params import Pretrain
from stages.plan import timing
from tests.conftest import ROOT


def rows(output: str, columns: int) -> list[list[str]]:
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in output.splitlines() if line.startswith("|")]
    return [row for row in cells if len(row) == columns and row[0] not in ("dataset", "---")]


def test_the_plan_has_the_noise_of_the_calibration_and_a_time_and_trains_nothing(project):
    done = project.stage("plan")
    assert done.returncode == 0, done.stderr
    assert "4 cells: 1 dataset x 1 model x 1 method x 4 epsilons x 1 seed" in done.stdout
    noise = {row[6]: row for row in rows(done.stdout, 10)}
    assert set(noise) == {"1", "10"}  # 0 and inf have none
    dataset, method, n, batch, steps, delta, *_ = noise["1"]
    assert (dataset, method, n, batch, steps, delta) == ("mnist5k", "batch", "4000", "32", "13", "1e-05")
    (timed,) = rows(done.stdout, 5)
    assert timed[:3] == ["mnist5k", "tiny-clip", "batch"] and 0 < float(timed[3]) < 60
    assert re.search(r"one after the other on this machine: [0-9.]+ hours", done.stdout)
    made = {path.name for path in project.folder.iterdir()}
    assert not made & {"data", "models", "runs", "ledger", "calibration", "mlflow.db"}

    assert project.stage("prepare", "--dataset", "mnist5k").returncode == 0
    cell = "classification/mnist5k/any/batch/eps-1/seed-0"
    assert project.stage("calibrate", "--cell", cell).returncode == 0
    path = project.folder / "calibration/classification/mnist5k/batch/eps-1/privacy.json"
    guarantee = json.loads(path.read_text())["guarantee"]
    assert float(noise["1"][9]) == pytest.approx(guarantee["sigma"], rel=1e-3)
    assert float(noise["1"][8]) == pytest.approx(guarantee["epsilon_paper"], rel=1e-2)


def test_without_timing_there_is_none(project):
    done = project.stage("plan", "--no-timing")
    assert done.returncode == 0 and "hours" not in done.stdout and len(rows(done.stdout, 10)) == 2


def test_it_says_what_was_spent_and_what_would_be_left_of_the_budget(copy_of_finished):
    project, params = copy_of_finished, copy_of_finished.params()
    params["sweep"]["epsilon"], params["privacy"]["unsafe_noise_seed"] = [0, 1], None

    def said(budget: float | None) -> str:
        params["privacy"]["budget"] = budget
        project.write_params(params)
        done = project.stage("plan", "--no-timing")
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("mnist5k: epsilon")]
        return line

    cell = "classification/mnist5k/tiny-clip/batch/eps-1/seed-0"
    assert re.search(r"epsilon 0 was spent on its records so far, 0\.99\d* if all 1 private cells", said(None))
    assert re.search(r"of the budget of 1\.5, 0\.50\d* would be left", said(1.5))
    assert project.stage("train", "--cell", cell).returncode == 0
    twice = said(1.05)
    assert "epsilon 0.99" in twice and "OVER the budget of 1.05" in twice
    assert float(twice.split("so far, ")[1].split(" ")[0]) > 1.05  # as much as the ledger would say, which composes
    assert project.stage("train", "--cell", cell).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        Pretrain(architecture="stages/models/configs/tiny-clip", data="d", steps=1, batch_size=1, lr=0.1, seed=0),
        Weights(architecture="ViT-S-32-alt", pretrained="none"),
        Towers(architecture="stages/models/configs/lite-minilm", data="d", ridge=0.1),
        Plain(architecture="stages/models/configs/vectors", width=512),
    ],
)
def test_steps_are_measured_for_every_kind_of_model(config, monkeypatch):
    monkeypatch.setattr(timing, "ENOUGH", 0.05)
    p = params.load(ROOT / "params.yaml")
    values = p.train.model_dump()
    values["methods"]["batch"]["trainable"] = "all" if isinstance(config, Pretrain | Weights) else "image-projection"
    train = params.Train.model_validate(values)
    assert 0 < timing.seconds_a_step("model", config, "batch", train, p.compute) < 600


def test_from_the_last_two_sizes_on_the_time_is_a_straight_line(monkeypatch):
    def step(size: int) -> None:
        clock[0] += 1.0 + 0.5 * size

    clock = [0.0]
    monkeypatch.setattr(timing, "_step", lambda *_: step)
    monkeypatch.setattr(timing, "_model", lambda *_: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    p = params.load(ROOT / "params.yaml")
    config = Weights(architecture="a stand-in with a known time", pretrained="none")
    assert timing.seconds_a_step("model", config, "batch", p.train, p.compute) == pytest.approx(1.0 + 0.5 * 32)
