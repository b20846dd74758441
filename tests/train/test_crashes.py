"""Trainings that are killed or stopped, find their disk full or checkpoints damaged: by the stage's own command."""

import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

from tests.patience import patience
from tests.train.conftest import CELL, STEPS, TRAIN, charges, same, weights
from tests.train.forked import newest

pytestmark = pytest.mark.xdist_group("crashes")


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
    project, reference = long_training.begun_again(cold=True)
    process = subprocess.Popen(TRAIN, cwd=project.folder, env=project.environment(), stderr=subprocess.PIPE, text=True)
    long_training.wait_for_step(project, 10, process)
    folder = project.folder / "checkpoints" / CELL
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=patience(60))
    assert process.returncode == 130 and f"of {STEPS}; the same command goes on from step" in said
    assert "Traceback" not in said and not (project.folder / "runs" / CELL / "training.json").exists()

    # The newest checkpoint is damaged: the one before it serves, and what was lost is made again as it was.
    step = newest(folder)
    damaged = folder / f"step-{step}.safetensors"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    project.cold = False
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
