"""Peak memory does not depend on n: ten times the data, the same memory."""

import os
import subprocess
import sys

import pytest

from stages.models import clip as clips
from stages.models import saved
from tests.conftest import Project, small_params

pytestmark = pytest.mark.xdist_group("memory")  # measured once

SMALL, MORE = 1_000, 10_000
SLACK = 30 * 2**20  # bytes; the larger dataset is 90 MB of decoded images


def peak(project: Project, *command: str) -> int:
    """Bytes of resident memory that the command had at most."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    error = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, error
    return usage.ru_maxrss * 1024


@pytest.fixture(scope="module")
def peaks(tmp_path_factory) -> dict[str, list[int]]:
    found = {}
    for n in (SMALL, MORE):
        params = small_params()
        params["sweep"] |= {"dataset": ["digits"], "method": ["batch", "example"], "epsilon": [10, "inf"]}
        params["prepare"]["digits"] = {"source": "font-digits", "train": n, "test": 20, "seed": 1}
        steps = {"epochs": None, "steps": 5, "batch_size": 64}
        params["train"]["methods"]["batch"] |= steps
        params["train"]["methods"]["example"] |= steps | {"trainable": "image-projection"}
        project = Project.copy_to(tmp_path_factory.mktemp(str(n)), params)
        measured = Project(project.folder)
        measured.cold = True  # its memory is its own
        saved.save(clips.create("stages/models/configs/tiny-clip"), project.folder / "models/tiny-clip")
        towers = "classification/digits/tiny-clip/batch/eps-inf/seed-0"
        projection = "classification/digits/tiny-clip/example/eps-10/seed-0"
        for name, command in {
            "prepare": ("prepare", "--dataset", "digits"),
            "encode": ("encode", "--dataset", "digits", "--model", "tiny-clip"),
            "train towers": ("train", "--cell", towers),
            "train on features": ("train", "--cell", projection),
        }.items():
            if command[0] == "train":
                done = project.stage("calibrate", *command[1:])
                assert done.returncode == 0, done.stderr
            found.setdefault(name, []).append(peak(measured, f"stages.{command[0]}", *command[1:]))
    return found


@pytest.mark.parametrize("stage", ["prepare", "encode", "train towers", "train on features"])
def test_ten_times_the_data_take_no_more_memory(peaks, stage):
    small, more = peaks[stage]
    assert more < small + SLACK, f"{small / 2**20:.0f} MB at n = {SMALL}, {more / 2**20:.0f} MB at n = {MORE}"
