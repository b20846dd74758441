"""Tables and claims, from results written by hand."""

import math

import pytest

from stages.keys import Cell
from stages.privacy.facts import Guarantee, PrivacyFacts, TensorFlowPrivacy, TrainingFacts, round_up
from stages.report import plot
from stages.report.statement import guarantee_tag, sound_epsilon, statement
from stages.report.table import Outcome, markdown, summarise
from stages.tasks.base.results import Metrics


def guarantee(epsilon: float, convention: str = "sound") -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        epsilon_rdp=1.1 * epsilon,
        epsilon_pld=epsilon,
        epsilon_paper=0.4 * epsilon,
        delta=1 / 8000,
        convention=convention,
        accountant="pld",
        adjacency="zero-out",
        sampler="poisson",
        n=4000,
        batch_size=32,
        q=0.008,
        steps=125,
        z=1.0,
        sigma=2.0,
        sensitivity=2.0,
        noise_by_accountant={},
        tensorflow_privacy=TensorFlowPrivacy(epsilon=1.1 * epsilon, statement="it says so"),
    )


def outcome(
    epsilon: str, score: float, seed: int = 0, key: str = "os", convention: str = "sound", diagnostics=None
) -> Outcome:
    cell = Cell("classification", "digits", "tiny-clip", "batch", epsilon, seed)
    g = guarantee(0.99996 * float(epsilon), convention) if cell.is_private else None
    training = TrainingFacts(
        cell=str(cell),
        privacy=PrivacyFacts(task=cell.task, dataset="digits", method="batch", target=epsilon, guarantee=g),
        train={"clip_norm": 0.5},
        trained_parameters=10,
        initial_model="0" * 64,
        unit="one image with all of its texts",
        key=key if cell.is_private else "none",
        diagnostics=diagnostics,
    )
    metrics = Metrics(primary="accuracy", n=100, low=score - 0.1, high=score + 0.05, accuracy=score)
    return Outcome(cell, metrics, training)


SWEEP = [outcome("inf", 0.95), outcome("3", 0.8), outcome("0.5", 0.7), outcome("0", 0.6)]


def test_rows_are_epsilons_from_weak_to_strong_privacy():
    rows = [line.split("|")[1].strip() for line in markdown(summarise(SWEEP)).splitlines() if line.startswith("| ")]
    assert rows == ["epsilon (target)", "inf (non-private)", "3", "0.5", "0 (zero-shot)"]


def test_both_readings_of_epsilon_stand_side_by_side():
    assert "| 3 | 3 | 80.00 | 1.2 |" in markdown(summarise(SWEEP))


def test_several_seeds_give_mean_and_deviation():
    table = summarise([outcome("3", 0.8, 0), outcome("3", 0.9, 1), outcome("3", 0.7, 2)])
    row = table.iloc[0]
    assert (row["mean"], row["std"], row["trials"]) == (pytest.approx(80), pytest.approx(10), 3)
    assert (row["low"], row["high"]) == (pytest.approx(70), pytest.approx(90))
    text = markdown(table)
    assert "80.00 ± 10.00" in text and "mean ± standard deviation of 3 trials" in text


def test_one_seed_has_the_interval_of_the_test_split():
    row = summarise([outcome("3", 0.8)]).iloc[0]
    assert math.isnan(row["std"]) and (row["low"], row["high"]) == (pytest.approx(70), pytest.approx(85))


def test_methods_are_columns():
    import dataclasses

    other = outcome("3", 0.9)
    other = dataclasses.replace(other, cell=dataclasses.replace(other.cell, dataset="letters"))
    header = markdown(summarise([*SWEEP, other])).splitlines()[2]
    assert "digits / batch" in header and "letters / batch" in header


def test_a_bound_is_never_rounded_down():
    assert guarantee_tag(outcome("3", 0.8).training) == "(3, 0.000125)-DP, zero-out"
    for value in (9.99731, 0.99988, 1e-5, 123.456, 0.000125):
        for digits in (3, 4, 6):
            assert value * (1 - 1e-9) <= float(round_up(value, digits)) <= value * (1 + 10 ** (1 - digits))


def claim(text: str) -> str:
    """What stands under the title and the name of the model."""
    title, model, first, *_ = text.split("\n\n")
    assert title == "# Privacy statement" and model.startswith("Model: `classification/digits")
    return first.replace("**", "")


def test_a_sound_statement_names_all_that_the_claim_rests_on():
    text = statement(outcome("3", 0.8).training)
    assert claim(text) == "The released weights are (2.99988, 0.000125)-differentially private."
    for words in (
        "C = 0.5",
        "sigma = 2",
        "z = 1",
        "Poisson",
        "zero-out",
        "2.99988 by PLD",
        "q = 0.008",
        "n = 4000",
        "T = 125",
        "one image with all of its texts",
        "TensorFlow Privacy's RDP epsilon",
    ):
        assert words in text, words


def test_a_statement_names_the_unit_of_its_data_and_quotes_no_other():
    """TensorFlow Privacy's sentence speaks of examples and of users, which the records of these data may not be."""
    training = outcome("3", 0.8).training.model_copy(update={"unit": "all rows with one value in the column `unit`"})
    text = statement(training)
    assert "| protected unit | one record: all rows with one value in the column `unit` |" in text
    assert "it says so" not in text and "an image with all of its texts, or" not in text


@pytest.mark.parametrize(
    ("made", "tag", "words"),
    [
        (outcome("3", 0.8, key="fixed"), "none (fixed noise seed: for tests only)", "NO GUARANTEE"),
        (outcome("3", 0.8, convention="paper"), "paper-convention (not sound)", "NOT CALIBRATED SOUNDLY"),
        (
            outcome("3", 0.8, diagnostics={"mean_loss": [1.0]}),
            "none (unsafe_diagnostics: private figures are released)",
            "PRIVATE FIGURES ARE KEPT",
        ),
    ],
)
def test_what_is_not_sound_says_so_everywhere(made, tag, words):
    assert guarantee_tag(made.training) == tag
    assert claim(statement(made.training)).startswith(words)
    assert f"NOT A SOUND GUARANTEE: {tag}" in markdown(summarise([made]))


def test_a_fixed_noise_seed_bounds_nothing_and_no_claim_is_made():
    made = outcome("3", 0.8, key="fixed")
    assert sound_epsilon(made.training) == math.inf
    assert "differentially private" not in statement(made.training)


def test_one_unsound_trial_makes_the_row_unsound():
    text = markdown(summarise([outcome("3", 0.8), outcome("3", 0.8, seed=1, key="fixed")]))
    assert "NOT A SOUND GUARANTEE: none (fixed noise seed" in text


def test_non_private_and_zero_shot_are_called_so():
    assert claim(statement(outcome("inf", 0.9).training)).startswith("NON-PRIVATE")
    assert guarantee_tag(outcome("0", 0.6).training) == "no private data used"


def test_the_plot_is_drawn_for_one_and_several_seeds(tmp_path):
    for name, outcomes in (("one", SWEEP), ("several", [*SWEEP, outcome("3", 0.82, 1)]), ("none", SWEEP[:1])):
        plot.draw(summarise(outcomes), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
