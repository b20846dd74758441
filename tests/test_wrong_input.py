"""What a user gets for a mistake on the command line: one clear error, no traceback, nothing half-written."""

import stat
import sys

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
    (["pretrain", "--model", "nope"], "'nope' is in none of pretrain, align, weights and banks"),
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
    (["release", "--cell", CELL], "no trained model"),
    (["report"], "dvc repro"),
    (["report", "--show"], "dvc repro"),
    (["publish"], "dvc repro"),
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


PATIENT, DIAGNOSIS = "ann-smith", "a-rare-illness"


def with_photos(project, rows: str) -> None:
    """A private folder, whose names and labels nobody else may read."""
    folder = project.folder / "photos"
    folder.mkdir()
    for name in ("fine.png", "other.png"):
        Image.new("RGB", (9, 9)).save(folder / name)
    (folder / f"{PATIENT}.png").write_bytes(b"not an image")
    (folder / "metadata.csv").write_text(f"file_name,label,split\nfine.png,cat,train\nother.png,cat,test\n{rows}")
    params = project.params()
    params["folders"]["photos"] = {"path": "photos", "classes": ["cat", "dog"]}
    project.write_params(params)


def test_a_broken_image_stops_prepare_and_its_name_stays_in_a_local_file(project):
    with_photos(project, f"{PATIENT}.png,dog,train\n")
    done = project.stage("prepare", "--dataset", "photos")
    told = done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in told and not (project.folder / "data").exists()
    assert "photos has 1 problem(s):\n  - image files that cannot be read: 1\n" in done.stderr
    assert "details: problems/prepare-photos.txt" in done.stderr and PATIENT not in told
    details = project.folder / "problems" / "prepare-photos.txt"
    assert f"{PATIENT}.png: not a readable image" in details.read_text() and "fine.png" not in details.read_text()
    assert stat.S_IMODE(details.stat().st_mode) == 0o600
    assert "problems" not in project.run("git", "status", "--short", "--untracked-files=all").stdout

    Image.new("RGB", (9, 9)).save(project.folder / "photos" / f"{PATIENT}.png")
    assert project.stage("prepare", "--dataset", "photos").returncode == 0
    assert not details.exists(), "what was said of the time before is gone"


def test_wrong_metadata_is_counted_where_params_are_checked(project):
    with_photos(project, f"{PATIENT}-2.png,cat,train\nfine.png,{DIAGNOSIS},val\n")
    for stage in (["params"], ["prepare", "--dataset", "photos"]):
        done = project.stage(*stage)
        assert done.returncode == 2 and not {w for w in (PATIENT, DIAGNOSIS) if w in done.stdout + done.stderr}
        assert "folders.photos: rows whose file does not exist: 1" in done.stderr
        assert "folders.photos: rows whose split is neither train nor test: 1" in done.stderr
        assert "details: problems/params.txt" in done.stderr
    assert f"file {PATIENT}-2.png does not exist" in (project.folder / "problems" / "params.txt").read_text()


def test_prefect_never_hears_a_private_name(project):
    """Of an image that a stage refuses, and of metadata that a flow refuses before any stage runs."""
    with_photos(project, f"{PATIENT}.png,dog,train\n")
    done = project.run(sys.executable, "-m", "flows.pipeline", "prepare-folder@photos")
    assert done.returncode == 1 and "image files that cannot be read: 1" in done.stdout + done.stderr
    metadata = project.folder / "photos" / "metadata.csv"
    metadata.write_text(metadata.read_text() + f"{PATIENT}-2.png,{DIAGNOSIS},train\n")
    sweep = "from flows.sweep import sweep; print(sweep(return_state=True).message)"
    refused = project.run(sys.executable, "-c", sweep)
    assert "folders.photos: rows whose file does not exist: 1" in refused.stdout
    assert "details: problems/params.txt" in refused.stdout
    for told in (done, refused):
        assert not {word for word in (PATIENT, DIAGNOSIS) if word in told.stdout + told.stderr}
    kept = [p for p in (project.folder / ".prefect").rglob("*") if p.is_file()]
    assert any(b"cannot be read: 1" in p.read_bytes() for p in kept), "this is where Prefect keeps what it was told"
    assert not [p.name for p in kept if PATIENT.encode() in p.read_bytes() or DIAGNOSIS.encode() in p.read_bytes()]
