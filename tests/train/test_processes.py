"""One training on two processes: the weights of one process, and no harm when one of them is killed."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from stages.distributed import processes
from stages.distributed.ranks import Ranks
from stages.privacy.noise import noised
from stages.privacy.randomness import Key
from tests.conftest import ROOT
from tests.patience import patience
from tests.train.conftest import CELL, TRAIN, charges
from tests.train.test_loop import write_noise

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
def test_two_processes_make_the_weights_of_one(tmp_path):
    folder = tmp_path / "noise"
    write_noise(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*TORCHRUN, "-m", "tests.train.on_ranks", folder], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    worst = json.loads(done.stdout.splitlines()[-1])
    assert len(worst) == 19
    assert max(worst.values()) < 1e-5, worst
    by_units = [worst[f"{name}, whole"] for name in ("group", "many groups", "example")]
    assert by_units == [0, 0, 0], worst  # whole units: the same to the last bit


def test_every_record_is_computed_by_one_process():
    units = np.random.default_rng(0).integers(5, size=23)
    whole = [Ranks(rank, 3).whole_units(units) for rank in range(3)]
    assert sorted(np.concatenate(whole)) == list(range(23))
    assert all(set(units[a]).isdisjoint(units[b]) for a in whole for b in whole if a is not b)
    parts = [Ranks(rank, 3, sharded=True).parts(units) for rank in range(3)]
    assert sorted(np.concatenate([part.records[: part.own] for mine in parts for part in mine])) == list(range(23))
    lengths = [[len(part.records) for part in mine] for mine in parts]
    assert lengths[0] == lengths[1] == lengths[2]  # or one would wait for a pass that another does not make
    assert Ranks(1, 3).whole_units(np.zeros(4, int), one_unit=True) is None  # one unit: its records are shared

    (left_out,) = Ranks(2, 3, sharded=True).parts(np.zeros(2, int))
    assert left_out.own == 0 and len(left_out.records) == 1  # it takes part in what all do, and adds nothing


def test_processes_with_parts_of_a_tensor_add_the_noise_of_one(monkeypatch):
    monkeypatch.setattr("stages.privacy.noise.BLOCK", 100)
    key, zeros = Key.from_seed(1), [torch.zeros(37, 11), torch.zeros(3)]
    expected = noised([z.clone() for z in zeros], 2.0**-30, 1.0, key, 5)
    parts = [
        noised([torch.zeros(rows, 11), torch.zeros(3)], 2.0**-30, 1.0, key, 5, [start * 11, 0])
        for start, rows in ((0, 13), (13, 13), (26, 11), (37, 0))
    ]
    assert torch.equal(torch.cat([part[0] for part in parts]), expected[0])
    assert all(torch.equal(part[1], expected[1]) for part in parts)


@pytest.mark.parametrize(
    ("exits", "first"),
    [((2, -signal.SIGKILL), 1), ((-signal.SIGTERM, -signal.SIGKILL), 1), ((-signal.SIGTERM, 2), 1), ((1, 2), 0)],
)
def test_of_processes_that_end_in_one_moment_the_killed_one_is_named(exits, first):
    failures = {rank: ProcessFailure(rank, 1000 + rank, code, "none") for rank, code in enumerate(exits)}
    if exits[0] == -signal.SIGTERM:
        failures[0].timestamp = failures[1].timestamp + 1  # it was ended because of the other
    assert processes._first(ChildFailedError("train", failures))[0] == first


@pytest.mark.xdist_group("crashes")
def test_a_killed_process_ends_the_training_with_one_message_and_it_goes_on(long_training):
    project, reference = long_training.begun_again(cold=True)
    params = project.params()
    params["compute"] |= {"processes": 2}
    project.write_params(params)
    run = subprocess.Popen(
        TRAIN,
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    long_training.wait_for_step(project, 5, run)
    ranks = [p for p in psutil.Process(run.pid).children(recursive=True) if "stages.train" in p.cmdline()]
    assert len(ranks) == 2
    ranks[-1].send_signal(signal.SIGKILL)
    _, said = run.communicate(timeout=patience(120))
    assert run.returncode == 2 and "was killed (SIGKILL), and the others were stopped" in said
    assert "Traceback" not in said, said
    time.sleep(0.5)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ranks)

    done = project.run(*TRAIN)
    assert done.returncode == 0 and "going on after step" in done.stderr, done.stderr
    mine = load_file(project.folder / "runs" / CELL / "model/changes.safetensors")
    assert max((mine[name] - reference[name]).abs().max().item() for name in reference) < 1e-5
    assert len(charges(project)) == 1
