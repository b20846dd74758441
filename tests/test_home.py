"""The working copy that temporary ones belong to."""

import subprocess
from pathlib import Path

import pytest

from stages.errors import UserError
from stages.home import home
from stages.privacy import secret


def git(folder: Path, *command: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def main_copy(tmp_path) -> Path:
    folder = tmp_path / "main" / "project"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder.resolve()


def test_copies_that_dvc_and_git_make_belong_to_the_one_they_were_made_from(main_copy, monkeypatch):
    worktree = main_copy.parent / "worktree"
    git(main_copy, "worktree", "add", "-q", str(worktree))
    for copy in (main_copy, main_copy / ".dvc/tmp/exps/standalone/tmpab", worktree, worktree / ".dvc/tmp/exps/tmpcd"):
        copy.mkdir(parents=True, exist_ok=True)
        if ".dvc" in copy.parts:
            git(copy, "init", "-q")  # DVC's copies are repositories of their own
        assert home(copy) == main_copy
        monkeypatch.chdir(copy)
        monkeypatch.delenv("LEDGER_DIR", raising=False)
        assert secret.folder() == main_copy / "ledger"


def test_a_clone_and_a_folder_outside_git_are_homes_of_their_own(main_copy, tmp_path):
    git(tmp_path, "clone", "-q", str(main_copy), "clone")
    assert home(tmp_path / "clone") == (tmp_path / "clone").resolve()
    (tmp_path / "plain").mkdir()
    assert home(tmp_path / "plain") == (tmp_path / "plain").resolve()


def test_a_project_in_a_folder_of_a_repository(main_copy):
    (main_copy / "inner").mkdir()
    assert home(main_copy / "inner") == main_copy / "inner"


def test_a_ledger_folder_that_depends_on_where_one_stands_is_refused(monkeypatch):
    monkeypatch.setenv("LEDGER_DIR", "ledger")
    with pytest.raises(UserError, match="whole path"):
        secret.folder()
