"""The key of a run on its way to the other processes, as someone sees it who listens to all they send."""

import json
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from tests.conftest import ROOT

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")


@pytest.mark.slow
def test_every_process_has_the_key_and_a_listener_has_not(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*TORCHRUN, "-m", "tests.train.test_handover", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert len({process["key"] for process in seen}) == 1 and len(seen[0]["key"]) == 64
    sent = [bytes.fromhex(message) for process in seen for message in process["sent"]]
    assert any(len(message) == 3 * 48 for message in sent)  # what was listened to is the whole exchange
    key = bytes.fromhex(seen[0]["key"])
    assert not any(key in message or key.hex().encode() in message for message in sent)
    assert not any(key[i : i + 8] in message for message in sent for i in range(25))


def listen(sent: list[str]) -> None:
    """Keep a copy of every tensor that this process gives away."""
    broadcast, gather = dist.broadcast, dist.all_gather

    def heard_broadcast(tensor, src):
        broadcast(tensor, src=src)
        sent.append(tensor.numpy().tobytes().hex())

    def heard_gather(tensors, tensor):
        sent.append(tensor.numpy().tobytes().hex())
        gather(tensors, tensor)

    dist.broadcast, dist.all_gather = heard_broadcast, heard_gather


def main(folder: str) -> None:
    """Begin a training, as each of its processes does."""
    import torch

    from stages import params
    from stages.distributed.ranks import Ranks
    from stages.keys import Cell
    from stages.privacy.accounting import Plan
    from stages.privacy.methods.batch import BatchClipping
    from stages.privacy.records import Records
    from stages.privacy.sampling import PoissonSampling
    from stages.train.beginning import begun

    privacy = params.load().privacy
    os.chdir(folder)
    os.environ["LEDGER_DIR"] = f"{folder}/ledger"
    ranks, sent = Ranks.of_environment(torch.device("cpu"), sharded=False), []
    listen(sent)
    cell = Cell.parse("classification/digits/tiny-clip/batch/eps-1/seed-0")
    plan = Plan(PoissonSampling(100, 10), BatchClipping(1.0, 2.0), 5)
    with (
        begun(cell, privacy, plan, {}, Records.of(range(100)), ranks) as begin,
        open(f"{ranks.rank}.json", "w") as file,
    ):
        json.dump({"key": begin.key.secret.hex(), "sent": sent}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
