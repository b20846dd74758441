"""What became of a stage, by exit code: a real DVC repository whose stages are lines of shell."""

import subprocess
import sys

import pytest

from flows.dvc import Outcome
from tests.conftest import ROOT, Project

MISLEADING = "Stage 'x' didn't change, skipping; exited with 2"
STAGES = f"""
stages:
  copy:
    cmd: cp given made && echo "{MISLEADING}"
    deps: [given]
    outs: [made]
  broken:
    cmd: echo "{MISLEADING}" && exit 1
  refused:
    cmd: exit 2
"""


@pytest.fixture
def repository(tmp_path) -> Project:
    project = Project(tmp_path)
    project.cold = True  # there are none of our stages
    (tmp_path / "given").write_text("one")
    (tmp_path / "dvc.yaml").write_text(STAGES)
    for command in (["git", "init", "--quiet"], ["dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=tmp_path, env=project.environment(), check=True)
    return project


def reproduce(project: Project, *arguments: str) -> tuple[Outcome, str]:
    done = project.run(sys.executable, "-m", "flows.reproduce", *arguments, PYTHONPATH=str(ROOT))
    return Outcome(done.returncode), done.stdout + done.stderr


@pytest.mark.slow
def test_a_stage_that_ran_one_that_is_up_to_date_and_one_from_the_run_cache_are_told_apart(repository):
    given, made = (repository.folder / name for name in ("given", "made"))
    outcome, output = reproduce(repository, "copy")
    assert outcome == Outcome.RAN and MISLEADING in output and "git add" not in output
    assert reproduce(repository, "copy")[0] == Outcome.UNCHANGED
    given.write_text("two")
    assert reproduce(repository, "copy")[0] == Outcome.RAN and made.read_text() == "two"
    given.write_text("one")
    assert reproduce(repository, "copy")[0] == Outcome.UNCHANGED and made.read_text() == "one"


@pytest.mark.slow
def test_what_another_clone_pushed_is_not_run_again(repository, tmp_path_factory):
    remote = tmp_path_factory.mktemp("remote")
    for command in (["remote", "add", "--default", "shared", str(remote)], ["repro", "copy"], ["push", "--run-cache"]):
        done = repository.run("dvc", *command)
        assert done.returncode == 0, done.stderr
    (repository.folder / "made").unlink()
    (repository.folder / "dvc.lock").unlink()
    subprocess.run(["rm", "-r", ".dvc/cache"], cwd=repository.folder, check=True)
    assert reproduce(repository, "copy", "--pull")[0] == Outcome.UNCHANGED
    assert (repository.folder / "made").read_text() == "one"


@pytest.mark.parametrize(
    ("stage", "outcome", "words"),
    [
        ("refused", Outcome.REFUSED, "exited with 2"),
        ("broken", Outcome.FAILED, "exited with 1"),
        ("unknown", Outcome.FAILED, "not found"),
    ],
)
def test_a_failure_is_one_line_and_only_wrong_input_is_a_refusal(repository, stage, outcome, words):
    became, output = reproduce(repository, stage)
    last = output.strip().splitlines()[-1]
    assert became == outcome and last.startswith("ERROR: ") and words in last and "Traceback" not in output
