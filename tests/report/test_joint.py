"""What is published together is summed up, and what has no guarantee is not published without being asked for."""

import dataclasses

import pytest
from PIL import Image

from stages.data.prepared import write
from stages.data.rows import Dataset, Labels, Row, png
from stages.errors import UserError
from stages.keys import Cell
from stages.privacy.facts import round_up
from stages.privacy.ledger import Charge, Ledger, total_epsilon
from stages.privacy.records import Records
from stages.report.joint import Spending
from stages.report.statement import statement
from stages.report.table import Outcome, markdown, summarise
from tests.report.test_table import outcome

LABELS = Labels(classes=("a", "b"), templates=("a photo of {}.",))


def charge_for(made: Outcome) -> Charge:
    g = made.training.privacy.guarantee
    if g is None:
        return Charge(str(made.cell), False, 4000, 0.008, 125, 0.0, 0.5, 0.0)
    clip_norm = made.training.train["clip_norm"]
    return Charge(str(made.cell), made.training.key == "os", g.n, g.q, g.steps, g.sigma, clip_norm, g.z)


def charged(epsilon: str, seed: int = 0, dataset: str = "digits") -> Outcome:
    """A trained model of a cell, with its charge in the ledger."""
    made = outcome(epsilon, 0.8, seed)
    cell = dataclasses.replace(made.cell, dataset=dataset)
    run = f"{dataset}-{epsilon}-{seed}"
    charge = dataclasses.replace(charge_for(made), cell=str(cell))
    Ledger().charge(run, charge, Records.read(_folder(dataset)), 1 / 8000)
    return Outcome(cell, made.metrics, made.training.model_copy(update={"run": run, "cell": str(cell)}))


def _folder(dataset: str):
    from stages.keys import data_dir

    return data_dir(dataset)


def prepare(dataset: str, numbers) -> None:
    rows = [Row(png(Image.new("L", (2, 2), i)), ("a photo of a.",), 0, f"digit-{i}") for i in numbers]
    test = [Row(png(Image.new("L", (2, 2), 250)), ("a photo of a.",), 0, "test")]
    write(_folder(dataset), dataset, Dataset("made here", "none", LABELS, rows, test))


@pytest.fixture(autouse=True)
def in_project(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path / "ledger"))
    prepare("digits", range(20))


def test_models_published_together_have_a_joint_epsilon_beside_their_own():
    outcomes = [charged("3"), charged("10"), charged("inf"), outcome("0", 0.6)]
    earlier = charge_for(outcome("3", 0.8))
    Ledger().charge("last year", earlier, Records.read(_folder("digits")), 1 / 8000)
    joint = Spending(outcomes).joint("digits")
    both = [charge_for(o) for o in outcomes[:2]]
    assert (joint.models, joint.runs, joint.without) == (2, 3, 1)
    assert joint.published == total_epsilon(both, 1 / 8000) < joint.ever == total_epsilon([*both, earlier], 1 / 8000)
    for text in (
        statement(outcomes[0].training, joint.sentence()),
        markdown(summarise(outcomes), {"digits": joint.sentence()}),
    ):
        assert f"together have epsilon {round_up(joint.published, 4)}" in text
        assert f"ever charged to these records {round_up(joint.ever, 4)}" in text
        assert "1 run(s) on these records are covered by no epsilon" in text


def test_models_of_another_dataset_with_some_of_the_same_records_count_too():
    prepare("copy", range(1, 20))
    prepare("others", range(40, 60))
    outcomes = [charged("3"), charged("3", dataset="copy"), charged("3", dataset="others")]
    spending, one = Spending(outcomes), charge_for(outcomes[0])
    assert spending.joint("digits").published == spending.joint("copy").published == total_epsilon([one, one], 1 / 8000)
    assert spending.joint("others").published == total_epsilon([one], 1 / 8000)


def test_a_mean_over_trials_has_the_epsilon_of_all_of_them():
    outcomes = [charged("3", seed) for seed in range(3)]
    summary = summarise(outcomes, Spending(outcomes).together)
    row = summary.iloc[0]
    assert row["epsilon_of_mean"] > total_epsilon([charge_for(outcomes[0])], 1 / 8000)
    assert row["epsilon_of_mean"] == total_epsilon([charge_for(outcomes[0])] * 3, 1 / 8000)
    header, _, cells = markdown(summary).splitlines()[2:5]
    assert "of the mean of 3" in header and f"| {round_up(row['epsilon_of_mean'], 3)} |" in cells


def test_a_model_that_was_charged_nowhere_or_for_other_noise_is_refused():
    made = charged("3")
    stranger = Outcome(made.cell, made.metrics, made.training.model_copy(update={"run": "elsewhere"}))
    with pytest.raises(UserError, match="not in the ledger"):
        Spending([stranger])
    facts = made.training.privacy
    quiet = facts.model_copy(update={"guarantee": facts.guarantee.model_copy(update={"sigma": 4.0})})
    louder = Outcome(made.cell, made.metrics, made.training.model_copy(update={"privacy": quiet}))
    with pytest.raises(UserError, match="claims another cell, noise or number of steps"):
        Spending([louder])


def test_the_scores_of_a_non_private_row_are_marked():
    text = markdown(summarise([charged("inf")]))
    assert "Scores of a non-private row are functions of the private data that no epsilon covers" in text


def test_cells_to_be_published_without_a_guarantee_are_named_one_by_one():
    from stages.params.schema import Publish

    name = str(Cell("classification", "digits", "tiny-clip", "batch", "inf", 0))
    assert Publish(models="all", not_private=[name]).not_private == [name]
    with pytest.raises(ValueError, match="is not a key"):
        Publish(models="all", not_private=["everything"])


def test_a_claim_that_the_ledger_knows_nothing_of_is_refused():
    """Edited files: no run at all, a fixed noise seed called one of the system's, the model of another cell."""
    made = charged("3")
    seeded = Charge(str(made.cell), False, 4000, 0.008, 125, 2.0, 0.5, 1.0)
    Ledger().charge("seeded", seeded, Records.read(_folder("digits")), 1 / 8000)
    for change in ({"run": None}, {"run": "seeded"}, {"cell": str(charged("10").cell)}):
        edited = Outcome(made.cell, made.metrics, made.training.model_copy(update=change))
        with pytest.raises(UserError, match=r"not in the ledger|claims another cell"):
            Spending([edited])


def test_models_of_earlier_sweeps_that_are_in_the_store_count_too():
    first, second = charged("3"), charged("10")
    alone, both = Spending([second]).joint("digits"), Spending([second], ["digits-3-0"]).joint("digits")
    assert (alone.models, both.models) == (1, 2) and both.published > alone.published
    assert first.training.run == "digits-3-0"
