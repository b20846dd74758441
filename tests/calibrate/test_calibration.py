import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from stages.calibrate import calibration
from stages.calibrate.__main__ import main
from stages.errors import UserError
from stages.privacy.accounting import Plan, calibrate_rdp, epsilon_rdp
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.sampling import FixedSizeSampling, PoissonSampling, ShuffledBatches

DELTA = 1 / 8000


def plan(mechanism=BatchClipping, sampling=PoissonSampling) -> Plan:
    return Plan(sampling(4000, 32), mechanism(clip_norm=1.0, sigma=1.0), steps=250)


def calibrated(convention="sound", sampler="poisson", **what):
    return calibration.calibrate(plan(**what), sampler, epsilon=1.0, delta=DELTA, convention=convention)


@pytest.fixture(scope="module")
def sound():
    return calibrated()


@pytest.mark.slow
def test_sigma_is_twice_the_multiplier_and_meets_the_target(sound):
    assert sound.sigma == 2 * sound.z and sound.sensitivity == 2
    assert sound.epsilon == min(sound.epsilon_rdp, sound.epsilon_pld) <= 1
    assert sound.epsilon > 0.99
    assert sound.delta == 1 / 8000 and sound.q == 0.008 and sound.steps == 250
    assert (sound.adjacency, sound.sampler) == ("zero-out", "poisson")


def test_the_papers_convention_claims_less_than_the_truth(sound):
    assert sound.epsilon_paper < sound.epsilon
    paper = calibrated(convention="paper")
    assert paper.epsilon_paper == pytest.approx(1, rel=1e-3)
    assert paper.sigma < sound.sigma and paper.epsilon > 1.5
    assert paper.convention == "paper"


@pytest.mark.slow
def test_tensorflow_privacy_agrees(sound):
    assert sound.tensorflow_privacy.epsilon == pytest.approx(sound.epsilon_rdp, abs=1e-6)
    assert "with microbatching" in " ".join(sound.tensorflow_privacy.statement.split())
    assert f"{sound.epsilon_rdp:.3f}" in sound.tensorflow_privacy.statement


def test_disagreement_with_tensorflow_privacy_stops_the_run(monkeypatch):
    right = calibration.epsilon_rdp
    monkeypatch.setattr(calibration, "epsilon_rdp", lambda *args: right(*args) + 1e-5)
    with pytest.raises(UserError, match="must agree"):
        calibrated()


def test_group_has_the_noise_of_batch_and_example_half_of_it(sound):
    assert calibrated(mechanism=GroupClipping).sigma == sound.sigma
    example = calibrated(mechanism=ExampleClipping)
    assert example.z == sound.z and example.sigma == sound.z and example.sensitivity == 1
    assert example.tensorflow_privacy.epsilon == pytest.approx(example.epsilon_rdp, abs=1e-6)
    assert "without microbatching" in " ".join(example.tensorflow_privacy.statement.split())
    assert example.epsilon_paper == example.epsilon_rdp  # with sensitivity C the paper's reading is right


@pytest.mark.slow
def test_fixed_size_sampling_is_calibrated_by_rdp_alone():
    fixed = calibrated(sampler="fixed-size", sampling=FixedSizeSampling)
    assert (fixed.adjacency, fixed.accountant, fixed.sampler) == ("replace-one", "rdp", "fixed-size")
    assert fixed.epsilon_pld is None and fixed.tensorflow_privacy is None and 0.99 < fixed.epsilon <= 1


def test_a_shuffled_loader_has_no_calibration():
    with pytest.raises(UserError, match="no privacy accounting"):
        calibrated(sampler="shuffled", sampling=ShuffledBatches)


@pytest.mark.parametrize(("n", "epochs"), [(60_000, 30), (50_000, 30), (73_257, 15)])
@pytest.mark.parametrize("epsilon", [0.25, 0.5, 1, 3, 10])
def test_the_papers_settings_agree_with_tensorflow_privacy(n, epochs, epsilon):
    sampling = PoissonSampling(n, 32)
    found = calibrate_rdp(Plan(sampling, BatchClipping(1.0, 1.0), sampling.steps(epochs)), epsilon, 1 / (2 * n))
    by_rdp = epsilon_rdp(found, 1 / (2 * n))
    second = calibration._tensorflow_privacy(found, 1 / (2 * n), by_rdp)  # stops when they are more than 1e-6 apart
    assert second.epsilon == pytest.approx(by_rdp, abs=1e-6)


ASKED = ["--epsilon", "1", "--method", "batch"]


@pytest.fixture
def by_hand(monkeypatch, capsys) -> Callable:
    """What the command prints, in this process: TensorFlow is imported once."""

    def facts(*arguments: str) -> dict:
        monkeypatch.setattr("sys.argv", ["calibrate", *ASKED, *arguments])
        main()
        return json.loads(capsys.readouterr().out)

    return facts


@pytest.mark.parametrize(("setting", "delta"), [("auto", 1e-5), ("paper", 1 / 8000), ("1e-4", 1e-4)])
def test_delta_by_hand_is_auto_the_papers_or_a_number(by_hand, setting, delta):
    assert by_hand("--n", "4000", "--batch-size", "512", "--steps", "60", "--delta", setting)["delta"] == delta


@pytest.mark.parametrize("wrong", ["0", "1", "half", "nan"])
def test_another_delta_is_refused(wrong):
    command = [sys.executable, "-m", "stages.calibrate", *ASKED, "--n", "400", "--batch-size", "32", "--steps", "3"]
    run = subprocess.run([*command, "--delta", wrong], capture_output=True, text=True)
    assert run.returncode == 2 and "--delta must be auto, paper or a number between 0 and 1" in run.stderr


@pytest.mark.slow
def test_by_hand_prints_the_facts_of_the_papers_mnist_setting(by_hand):
    facts = by_hand("--n", "60000", "--batch-size", "32", "--epochs", "30")
    assert (facts["steps"], facts["delta"]) == (56_250, 1 / 120_000)
    assert facts["noise_by_accountant"]["rdp"]["sigma"] == pytest.approx(1.84, abs=0.01)
    assert facts["noise_by_accountant"]["pld"]["sigma"] == facts["sigma"] < 1.84
