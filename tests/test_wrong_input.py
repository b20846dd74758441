"""What a user gets for a mistake on the command line: one clear error, no traceback, nothing half-written."""

import pytest
from PIL import Image

CELL = "classification/mnist5k/tiny-clip/batch/eps-1/seed-0"


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    from tests.conftest import Project

    return Project.copy_to(tmp_path_factory.mktemp("untouched"))


def by_hand(batch_size: str = "10", epsilon: str = "1") -> list[str]:
    numbers = ["--n", "100", "--batch-size", batch_size, "--epochs", "1", "--epsilon", epsilon]
    return ["calibrate", *numbers, "--method", "batch"]


COMMANDS = [
    (["params", "--nonsense"], "unrecognized arguments"),
    (["prepare"], "--dataset"),
    (["prepare", "--dataset", "nope"], "'nope' is in none of prepare, folders, coco and vqa"),
    (["pretrain", "--model", "nope"], "'nope' is in none of pretrain, align and weights"),
    (["pretrain", "--model", "tiny-clip"], "python -m stages.prepare --dataset font-digits"),
    (["calibrate"], "--epsilon is missing"),
    (by_hand(batch_size="200"), "between 1 and n=100"),
    (by_hand(epsilon="-1"), "epsilon '-1'"),
    (by_hand(epsilon="inf"), "positive and finite"),
    (["calibrate", "--cell", CELL], "python -m stages.prepare --dataset mnist5k"),
    (["train", "--cell", "not-a-cell"], "is not a key"),
    (["train", "--cell", CELL.replace("eps-1", "eps-1.0")], "eps-1/seed-0"),
    (["train", "--cell", CELL.replace("batch", "magic")], "method one of"),
    (["train", "--cell", CELL], "no calibration"),
    (["evaluate", "--cell", CELL], "stages.prepare --dataset mnist5k"),
    (["report"], "dvc repro"),
    (["report", "--show"], "dvc repro"),
    (["report.publish"], "dvc repro"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), COMMANDS, ids=lambda value: "_".join(value)[:40] if isinstance(value, list) else ""
)
def test_a_wrong_command_gives_one_clear_error(untouched, arguments, words):
    before = sorted(p for p in untouched.folder.rglob("*") if ".git/" not in str(p) and "__pycache__" not in str(p))
    done = untouched.stage(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    after = sorted(p for p in untouched.folder.rglob("*") if ".git/" not in str(p) and "__pycache__" not in str(p))
    assert after == before


def test_wrong_params_stop_dvc_before_anything_runs(project):
    params = project.params()
    params["sweep"]["epsilon"] = [0, -1, "inf"]
    params["train"]["bach_size"] = 3
    project.write_params(params)
    done = project.run("dvc", "repro")
    told = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in told
    assert "train.bach_size: unknown key" in told and "sweep.epsilon" in told
    assert not (project.folder / "data").exists()


def test_a_broken_image_stops_prepare_with_its_name(project):
    folder = project.folder / "photos"
    folder.mkdir()
    Image.new("RGB", (9, 9)).save(folder / "fine.png")
    (folder / "broken.png").write_bytes(b"not an image")
    (folder / "metadata.csv").write_text("file_name,label,split\nfine.png,cat,train\nbroken.png,dog,test\n")
    params = project.params()
    params["folders"]["photos"] = {"path": "photos", "classes": ["cat", "dog"]}
    project.write_params(params)
    done = project.stage("prepare", "--dataset", "photos")
    assert done.returncode == 2 and "broken.png" in done.stderr and "fine.png" not in done.stderr
    assert "Traceback" not in done.stderr and not (project.folder / "data").exists()
