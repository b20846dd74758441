"""A private training that has just begun, for tests that interrupt it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Project, forget_charges
from tests.patience import wait_for
from tests.train.forked import newest

CELL = "classification/mnist5k/tiny-clip/batch/eps-10/seed-0"
TRAIN = (sys.executable, "-m", "stages.train", "--cell", CELL)
STEPS = 120


def charges(project: Project) -> list[dict]:
    (ledger,) = (project.folder / "ledger").glob("*.jsonl")
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [entry for entry in entries if entry["charge"]["cell"] == CELL]


class LongTraining:
    """A project with a private training that has just begun, and what it comes to if nothing happens to it."""

    def __init__(self, project: Project, folder: Path):
        self._project, self._folder, self._copies = project, folder, 0
        self.begun = project.folder / "checkpoints" / CELL
        self.reference: dict[str, torch.Tensor] = {}

    def begun_again(self, cold: bool = False) -> tuple[Project, dict[str, torch.Tensor]]:
        """A copy in which the run is at its first step, and the weights it must end with.

        Warm, a process that is killed has its child killed by the server it was forked from; cold, it is itself.
        """
        self._copies += 1
        folder = self._folder / f"copy-{self._copies}"
        shutil.copytree(self._project.folder, folder, symlinks=True)
        copy = Project(folder)
        copy.cold = cold
        return copy, self.reference

    @staticmethod
    def wait_for_step(project: Project, step: int, process: subprocess.Popen) -> None:
        def reached() -> bool:
            assert process.poll() is None, "it ended before"
            return newest(project.folder / "checkpoints" / CELL) >= step

        wait_for(reached, f"step {step}", every=0.01)


def weights(project: Project) -> dict[str, torch.Tensor]:
    return load_file(project.folder / "runs" / CELL / "model/changes.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="session")
def long_training(finished, tmp_path_factory) -> LongTraining:
    folder = tmp_path_factory.mktemp("long")
    project = Project(folder / "project")
    shutil.copytree(finished.folder, project.folder, symlinks=True)
    params = project.params()
    params["privacy"]["unsafe_noise_seed"] = None  # a key of the operating system's
    params["compute"]["checkpoint_minutes"] = 1e-6  # after every step
    del params["train"]["methods"]["batch"]["epochs"]
    params["train"]["methods"]["batch"]["steps"] = STEPS
    project.write_params(params)
    forget_charges(project.folder / "ledger")
    shutil.rmtree(project.folder / "runs" / CELL)
    assert project.stage("calibrate", "--cell", CELL).returncode == 0
    # A run that was killed with its first checkpoint, without that checkpoint: it has its key and nothing else.
    process = subprocess.Popen(TRAIN, cwd=project.folder, env=project.environment())
    LongTraining.wait_for_step(project, 1, process)
    process.kill()
    process.wait()
    made = LongTraining(project, folder)
    for path in made.begun.glob("step-*"):
        path.unlink()
    uninterrupted, _ = made.begun_again()
    done = uninterrupted.run(*TRAIN)
    assert done.returncode == 0 and "going on" not in done.stderr, done.stderr
    assert not (uninterrupted.folder / "checkpoints" / CELL).exists(), "the key must not outlive the training"
    made.reference = weights(uninterrupted)
    return made
