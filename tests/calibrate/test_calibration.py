import json
import subprocess
import sys

import pytest

from stages.calibrate import calibration
from stages.errors import UserError

SMALL = {"n": 4000, "batch_size": 32, "epochs": 2, "method": "batch"}


@pytest.fixture(scope="module")
def sound():
    return calibration.calibrate(epsilon=1.0, **SMALL)


def test_sigma_is_twice_the_multiplier_and_meets_the_target(sound):
    assert sound.sigma == 2 * sound.z and sound.sensitivity == 2
    assert sound.epsilon == min(sound.epsilon_rdp, sound.epsilon_pld) <= 1
    assert sound.epsilon > 0.99
    assert sound.delta == 1 / 8000 and sound.q == 0.008 and sound.steps == 250
    assert (sound.adjacency, sound.sampler) == ("ADD_OR_REMOVE_ONE", "poisson")


def test_the_papers_convention_claims_less_than_the_truth(sound):
    assert sound.epsilon_paper < sound.epsilon
    paper = calibration.calibrate(epsilon=1.0, convention="paper", **SMALL)
    assert paper.epsilon_paper == pytest.approx(1, rel=1e-3)
    assert paper.sigma < sound.sigma and paper.epsilon > 1.5
    assert paper.convention == "paper"


def test_tensorflow_privacy_agrees(sound):
    assert sound.tensorflow_privacy.epsilon == pytest.approx(sound.epsilon_rdp, abs=1e-6)
    assert "with microbatching" in " ".join(sound.tensorflow_privacy.statement.split())
    assert f"{sound.epsilon_rdp:.3f}" in sound.tensorflow_privacy.statement


def test_disagreement_with_tensorflow_privacy_stops_the_run(monkeypatch):
    right = calibration.epsilon_rdp
    monkeypatch.setattr(calibration, "epsilon_rdp", lambda *args: right(*args) + 1e-5)
    with pytest.raises(UserError, match="must agree"):
        calibration.calibrate(epsilon=1.0, **SMALL)


def test_by_hand_prints_the_facts_of_the_papers_mnist_setting():
    command = ["--n", "60000", "--batch-size", "32", "--epochs", "30", "--epsilon", "1", "--method", "batch"]
    run = subprocess.run(
        [sys.executable, "-m", "stages.calibrate", *command], capture_output=True, text=True, check=True
    )
    facts = json.loads(run.stdout)
    assert facts["steps"] == 56_250
    assert facts["noise_by_accountant"]["rdp"]["sigma"] == pytest.approx(1.84, abs=0.01)
    assert facts["noise_by_accountant"]["pld"]["sigma"] == facts["sigma"] < 1.84
