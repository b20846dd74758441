"""What an unfinished training keeps on disk, and what it refuses."""

import json

import pytest
import torch

from stages.errors import UserError
from stages.keys import Cell
from stages.privacy.randomness import Key
from stages.train.checkpoints import KEPT, Checkpoint, UnfinishedRun

CELL = Cell.parse("classification/d/m/batch/eps-1/seed-0")
FACTS = {"charge": {"sigma": 2.0, "steps": 9}, "train": {"lr": 0.1}, "data": "0123abcd" * 8}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def begin(facts=FACTS):
    return UnfinishedRun.open(CELL, facts, Key.from_os())


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"weights.a": torch.full((3,), float(step))})


def test_a_run_keeps_its_id_and_key_until_it_is_finished():
    with begin() as run:
        first = (run.id, run.key)
        assert run.is_new and run.newest() is None
    with begin() as run:
        assert (run.id, run.key) == first and not run.is_new
        assert (CELL.checkpoints / "key").stat().st_mode & 0o777 == 0o600
        told = (CELL.checkpoints / "run.json").read_text()
        assert run.key.secret.hex() not in told and run.key.id in told
        run.finish()
    assert not CELL.checkpoints.exists()
    with begin() as run:
        assert run.is_new and run.id != first[0] and run.key != first[1]


def test_the_newest_whole_checkpoint_is_taken(capsys):
    with begin() as run:
        for step in (1, 2, 3, 4):
            run.save(checkpoint(step))
        assert len(list(CELL.checkpoints.glob("step-*.safetensors"))) == KEPT
        assert run.newest().tensors["weights.a"].tolist() == [4.0] * 3
        path = CELL.checkpoints / "step-4.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"?")  # it still loads, as other weights
        assert run.newest().step == 3
        assert "the checkpoint of step 4 is damaged" in capsys.readouterr().err
        (CELL.checkpoints / "step-3.json").write_text("{")
        assert run.newest() is None


def test_what_a_killed_process_was_writing_is_removed():
    with begin() as run:
        run.save(checkpoint(1))
        (CELL.checkpoints / ".tmp-torn").mkdir()
        (CELL.checkpoints / "step-2.safetensors").write_bytes(b"its checksum was never written")
    with begin() as run:
        assert run.newest().step == 1 and not list(CELL.checkpoints.glob(".tmp-*"))


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"charge": {"sigma": 1.0, "steps": 9}}, "sigma was 2.0 and is 1.0"),
        ({"train": {"lr": 0.2}}, "lr was 0.1 and is 0.2"),
        ({"data": "f" * 64}, "the data have changed"),
    ],
)
def test_other_facts_are_refused_and_no_checksum_of_the_data_is_told(changed, words):
    with begin():
        pass
    with pytest.raises(UserError, match=words) as refused, begin(FACTS | changed):
        pass
    assert "0123abcd" not in str(refused.value) and "start anew" in str(refused.value)


def test_another_key_in_its_place_is_refused():
    with begin():
        pass
    (CELL.checkpoints / "key").write_bytes(Key.from_os().secret)
    with pytest.raises(UserError, match="is not the key that this run began with"), begin():
        pass


def test_a_checkpoint_of_another_run_is_passed_over(capsys):
    with begin() as run:
        run.save(checkpoint(5))
        about = CELL.checkpoints / "step-5.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"key": Key.from_os().id}))
        assert run.newest() is None and "step 5 is damaged" in capsys.readouterr().err


def test_two_processes_cannot_train_one_cell():
    with begin(), pytest.raises(UserError, match="is being trained by another process"), begin():
        pass


def test_a_folder_that_cannot_be_written_is_told_in_one_message():
    CELL.checkpoints.parent.mkdir(parents=True)
    CELL.checkpoints.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="no training can be begun in"), begin():
        pass
