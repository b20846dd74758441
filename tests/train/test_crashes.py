"""Trainings that are killed or stopped, find their disk full or checkpoints damaged: by the stage's own command."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Project
from tests.train.forked import newest

pytestmark = pytest.mark.xdist_group("crashes")

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

    def begun_again(self) -> tuple[Project, dict[str, torch.Tensor]]:
        """A copy in which the run is at its first step, and the weights it must end with."""
        self._copies += 1
        folder = self._folder / f"copy-{self._copies}"
        shutil.copytree(self._project.folder, folder, symlinks=True)
        return Project(folder), self.reference

    @staticmethod
    def wait_for_step(project: Project, step: int, process: subprocess.Popen) -> None:
        deadline = time.monotonic() + 240
        while newest(project.folder / "checkpoints" / CELL) < step:
            assert process.poll() is None and time.monotonic() < deadline, "no such step was reached"
            time.sleep(0.01)


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
    shutil.rmtree(project.folder / "ledger")
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


def test_twenty_kills_at_random_moments_change_no_bit_and_cost_nothing(long_training):
    project, reference = long_training.begun_again()
    seed = str(random.SystemRandom().randrange(10**6))
    done = project.run(sys.executable, "-m", "tests.train.forked", CELL, "20", seed)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr[-3000:]}"
    assert "killed 20 times" in done.stdout and ", 0 of them while" not in done.stdout
    assert same(weights(project), reference), done.stdout
    assert len(charges(project)) == 1 and charges(project)[0]["charge"]["private"]
    assert not (project.folder / "checkpoints" / CELL).exists()


def test_sigterm_stops_after_a_step_and_the_same_command_goes_on(long_training):
    project, reference = long_training.begun_again()
    process = subprocess.Popen(TRAIN, cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True)
    long_training.wait_for_step(project, 10, process)
    folder = project.folder / "checkpoints" / CELL
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and f"of {STEPS}; the same command goes on from step" in said
    assert "Traceback" not in said and not (project.folder / "runs" / CELL / "training.json").exists()

    # The newest checkpoint is damaged: the one before it serves, and what was lost is made again as it was.
    step = newest(folder)
    damaged = folder / f"step-{step}.safetensors"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    done = project.run(*TRAIN)
    assert done.returncode == 0, done.stderr
    assert f"the checkpoint of step {step} is damaged" in done.stderr
    assert f"going on after step {step - 1} of {STEPS}" in done.stderr
    assert same(weights(project), reference) and len(charges(project)) == 1


def test_other_values_another_epsilon_or_no_room_are_told_before_a_step(long_training):
    project, _ = long_training.begun_again()
    params = project.params()
    params["train"]["methods"]["batch"]["lr"] = 0.5
    project.write_params(params)
    done = project.run(*TRAIN)
    assert done.returncode == 2 and "lr was 0.0001 and is 0.5" in done.stderr and "to start anew" in done.stderr

    params["train"]["methods"]["batch"]["lr"] = 1e-4
    project.write_params(params)
    assert project.stage("calibrate", "--cell", CELL.replace("eps-10", "eps-1")).returncode == 0
    begun, other = (project.folder / "checkpoints" / cell for cell in (CELL, CELL.replace("eps-10", "eps-1")))
    shutil.copytree(begun, other)
    done = project.run(sys.executable, "-m", "stages.train", "--cell", CELL.replace("eps-10", "eps-1"))
    assert done.returncode == 2 and f"cell was '{CELL}'" in done.stderr and "Traceback" not in done.stderr
    assert len(charges(project)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_costs_checkpoints_and_not_the_training(long_training):
    project, reference = long_training.begun_again()
    folder = project.folder / "checkpoints" / CELL
    small, before = folder.parent, folder.parent.with_name("before")
    small.rename(before)
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(before, small, dirs_exist_ok=True)
        process = subprocess.Popen(
            TRAIN, cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True
        )
        for line in process.stderr:
            if "no checkpoint at step 3 " in line:
                break
        process.kill()
        process.wait()
        assert "No space left" in line and not list(folder.glob("step-*")), line
        done = project.run(*TRAIN)
        assert (
            done.returncode == 0
            and "training goes on, the last is of 0" in done.stderr
            and "Traceback" not in done.stderr
        )
        assert same(weights(project), reference) and len(charges(project)) == 1
    finally:
        subprocess.run(["umount", small], check=True)
