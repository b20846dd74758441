"""What must stay in the house is refused with the reason, before anything else is looked at."""

import pytest

from stages.atomic import write_text
from stages.errors import UserError
from stages.privacy.ledger import Ledger
from stages.privacy.releases import Releases
from stages.release.allowed import released_outcome
from stages.release.folder import require_replaceable
from stages.report.joint import Spending
from tests.report.test_joint import charged, in_project  # noqa: F401 - a fixture
from tests.report.test_table import outcome


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (outcome("inf", 0.9), "trained without privacy"),
        (outcome("3", 0.9, key="fixed"), "fixed seed"),
        (outcome("3", 0.9, diagnostics={"mean_loss": [1.0]}), "unsafe_diagnostics"),
        (outcome("3", 0.9, convention="paper"), "paper's convention, which is not sound"),
    ],
    ids=["non-private", "fixed key", "diagnostics", "paper"],
)
def test_what_has_no_sound_guarantee_is_refused(made, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(made.cell.training_json, made.training.model_dump_json())
    with pytest.raises(UserError, match=why):
        released_outcome(made.cell)


def test_what_was_released_counts_as_published_in_every_statement():
    first, second = charged("3"), charged("10")
    alone = Spending([second]).joint("digits")
    Releases().add(first.training.run, str(first.cell), known=())
    both = Spending([second]).joint("digits")
    assert (alone.models, both.models) == (1, 2) and both.published > alone.published
    assert "the 2 private model(s) published together" in both.sentence()


def test_a_released_run_that_the_ledger_has_lost_is_refused():
    """Its epsilon could not be added up."""
    made = charged("3")
    Releases().add("elsewhere", "a/cell", known=())
    assert "elsewhere" not in {entry.run for entry in Ledger().entries()}
    with pytest.raises(UserError, match="released are not in the ledger"):
        Spending([made])


def test_a_folder_with_anything_else_in_it_is_not_replaced(tmp_path):
    release = {"privacy.json", "README.md"}
    (tmp_path / "new").mkdir()
    for name in ("there", "new"):
        require_replaceable(tmp_path / name, release)
    for name in release:
        (tmp_path / "new" / name).touch()
    require_replaceable(tmp_path / "new", release)
    (tmp_path / "new" / ".git").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").touch()
    for name, words in (("new", r"\.git"), ("mine", "no privacy.json"), ("mine/README.md", "is a file")):
        with pytest.raises(UserError, match=words):
            require_replaceable(tmp_path / name, release)
