"""Peak memory does not depend on n: ten times the data, the same memory."""

import json
import sys

import pytest

from stages.models import clip as clips
from stages.models import saved
from tests.conftest import Project, small_params

pytestmark = pytest.mark.xdist_group("memory")  # measured once

SMALL, MORE = 1_000, 10_000
SLACK = 30 * 2**20  # bytes; the larger dataset is 90 MB of decoded images


@pytest.fixture(scope="module")
def peaks(tmp_path_factory) -> dict[str, list[int]]:
    """By stage, bytes of resident memory at each n."""
    towers = "classification/digits/tiny-clip/batch/eps-inf/seed-0"
    projection = "classification/digits/tiny-clip/example/eps-10/seed-0"
    stages = {
        "prepare": ("prepare", "--dataset", "digits"),
        "encode": ("encode", "--dataset", "digits", "--model", "tiny-clip"),
        "calibrate towers": ("calibrate", "--cell", towers),
        "train towers": ("train", "--cell", towers),
        "calibrate on features": ("calibrate", "--cell", projection),
        "train on features": ("train", "--cell", projection),
    }
    folders = {n: tmp_path_factory.mktemp(str(n)) for n in (SMALL, MORE)}
    for n, folder in folders.items():
        params = small_params()
        params["sweep"] |= {"dataset": ["digits"], "method": ["batch", "example"], "epsilon": [10, "inf"]}
        params["prepare"]["digits"] = {"source": "font-digits", "train": n, "test": 20, "seed": 1}
        params["privacy"]["public_n"] = {"digits": MORE}  # what the accountants take depends on q
        steps = {"epochs": None, "steps": 5, "batch_size": 64}
        params["train"]["methods"]["batch"] |= steps | {"batch_size": 64 * MORE // n}  # as many records in a step
        params["train"]["methods"]["example"] |= steps | {"trainable": "image-projection"}
        Project.copy_to(folder, params)
        saved.save(clips.create("stages/models/configs/tiny-clip"), folder / "models/tiny-clip")
    commands = json.dumps([[str(folder), *stage] for folder in folders.values() for stage in stages.values()])
    done = Project(folders[SMALL]).run(sys.executable, "-m", "tests.peaks", commands)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[k :: len(stages)] for k, name in enumerate(stages)}


@pytest.mark.parametrize("stage", ["prepare", "encode", "train towers", "train on features"])
def test_ten_times_the_data_take_no_more_memory(peaks, stage):
    small, more = peaks[stage]
    assert more < small + SLACK, f"{small / 2**20:.0f} MB at n = {SMALL}, {more / 2**20:.0f} MB at n = {MORE}"
