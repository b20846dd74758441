"""Models that leave the house: they load where this project is not, and say what may be claimed of them."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from stages.data.prepared import PreparedSplit
from stages.keys import Cell
from stages.models import saved
from stages.privacy.facts import TrainingFacts, round_up
from stages.privacy.ledger import Ledger, total_epsilon
from stages.privacy.releases import Releases
from stages.release.__main__ import main as release
from tests.conftest import Project
from tests.release.plain import code_of, in_plain_python

pytestmark = pytest.mark.xdist_group("release")
CELL = "classification/mnist5k/tiny-clip/batch/eps-{}/seed-0"
ONE, TEN = CELL.format(1), CELL.format(10)
NAMES = {
    *("README.md", "privacy.md", "privacy.json", "task.json"),
    *("open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json", "tokenizer_config.json"),
}
LOGITS = """
import torch
from PIL import Image
model.eval()
with torch.no_grad():
    image, text, scale = model(preprocess(Image.open("../digit.png"))[None], tokenizer(["a four.", "a seven."]))
answer = (scale * image @ text.T).tolist()
"""


@pytest.fixture(scope="module")
def trained(finished, tmp_path_factory) -> Project:
    """Two cells trained with a key of the system's, and evaluated; nothing is released."""
    project = Project(tmp_path_factory.mktemp("trained") / "project")
    shutil.copytree(finished.folder, project.folder, symlinks=True, ignore=shutil.ignore_patterns("mlartifacts"))
    set_privacy(project, unsafe_noise_seed=None)
    for cell in (ONE, TEN):
        for stage in ("train", "evaluate"):
            done = project.stage(stage, "--cell", cell)
            assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def house(trained, tmp_path) -> Project:
    shutil.copytree(trained.folder, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


def set_privacy(project: Project, **values) -> None:
    params = project.params()
    params["privacy"] |= values
    project.write_params(params)


def released(project: Project, cell: str, *more: str) -> Path:
    done = project.stage("release", "--cell", cell, *more)
    assert done.returncode == 0, done.stderr
    return project.folder / "releases" / cell.replace("/", "-")


def refused(project: Project, cell: str, words: str, *more: str) -> None:
    """And nothing is written, in the ledger neither."""
    ledger = project.folder / "ledger" / "releases"
    before = {path: path.read_bytes() for path in ledger.glob("*.json*")}
    there = {path for path in project.folder.glob("releases/*")}
    done = project.stage("release", "--cell", cell, *more)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stdout == "" and done.stderr.startswith("error: ")
    assert {path: path.read_bytes() for path in ledger.glob("*.json*")} == before
    assert {path for path in project.folder.glob("releases/*")} == there


def run_of(project: Project, cell: str) -> str:
    return TrainingFacts.read(project.folder / Cell.parse(cell).training_json).run


def test_a_released_model_is_the_trained_one_in_plain_open_clip(house):
    folder = released(house, ONE)
    assert {path.name for path in folder.iterdir()} == NAMES
    image = PreparedSplit(house.folder / "data/mnist5k", "test").row(0).image
    (folder.parent / "digit.png").write_bytes(image)
    cell = Cell.parse(ONE)
    encoder = saved.load(house.folder / "models/tiny-clip", house.folder / cell.model_dir)
    encoder.model.eval()
    with torch.no_grad():
        ours = encoder.model(encoder.read(image)[None], encoder.tokenize(["a four.", "a seven."]))
        initial = saved.load(house.folder / "models/tiny-clip").model.eval()
        before = initial(encoder.read(image)[None], encoder.tokenize(["a four.", "a seven."]))
    expected, untrained = (scale * images @ texts.T for images, texts, scale in (ours, before))
    there = torch.tensor(in_plain_python(folder, code_of(folder / "README.md") + LOGITS))
    assert torch.allclose(there, expected, atol=1e-4) and not torch.allclose(there, untrained, atol=1e-3)


def test_the_card_is_one_that_hugging_face_reads_and_the_statement_is_of_these_weights(house):
    folder = released(house, ONE, "--licence", "cc-by-sa-4.0")
    card, facts = ModelCard.load(folder / "README.md"), json.loads((folder / "privacy.json").read_text())
    assert card.data.license == "cc-by-sa-4.0" and card.data.library_name == "open_clip"
    assert card.data.pipeline_tag == "zero-shot-image-classification" and "differential-privacy" in card.data.tags
    metrics = json.loads((house.folder / Cell.parse(ONE).metrics_json).read_text())
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", metrics["accuracy"])
    assert f"| {metrics['low']:.4g} to {metrics['high']:.4g} |" in card.text
    for words in (
        "(0.9997, 1e-05)-DP",
        "In plain words",
        "**Not covered**",
        "None was run",
        "CC BY-SA 3.0",
        "font-digits",
    ):
        assert words in card.text, words
    assert facts["cell"] == ONE and facts["weights"]["file"] == "open_clip_model.safetensors"
    assert facts["weights"]["sha256"] == hashlib.sha256((folder / facts["weights"]["file"]).read_bytes()).hexdigest()
    assert 0.99 < facts["guarantee"]["epsilon"] <= 1 and facts["guarantee"]["delta"] == 1e-5
    assert facts["joint"]["released_models"] == 1 and facts["charge"] == run_of(house, ONE) and facts["audit"] is None
    assert "**The released weights are (0.9996" in (folder / "privacy.md").read_text()
    everything = "".join(path.read_text(errors="ignore") for path in folder.iterdir())
    assert str(house.folder) not in everything  # where the house is


def test_releases_add_up_until_the_budget_is_spent(house):
    first = released(house, ONE)
    second = released(house, TEN)
    charges = {entry.run: entry.charge for entry in Ledger(house.folder / "ledger").entries()}
    runs = [run_of(house, ONE), run_of(house, TEN)]
    both = total_epsilon([charges[run] for run in runs], 1e-5)
    assert both > total_epsilon([charges[runs[1]]], 1e-5)
    together = f"the 2 private model(s) ever released, taken together, have epsilon {round_up(both, 4)}"
    for name in ("README.md", "privacy.md"):
        assert together in (second / name).read_text() and together not in (first / name).read_text()
    assert json.loads((second / "privacy.json").read_text())["joint"]["released_epsilon"] == pytest.approx(both)

    released(house, ONE)  # again: now its card counts the other, and nothing is charged
    assert together in (first / "README.md").read_text()
    assert [release.run for release in Releases(house.folder / "ledger").all()] == runs
    shown = house.stage("ledger").stdout
    assert f"released 2: {ONE}, {TEN}" in shown and f"together: epsilon {round_up(both, 4)} at" in shown

    set_privacy(house, release_budget=both)
    assert house.stage("train", "--cell", ONE).returncode == 0  # another run of the cell
    assert house.stage("evaluate", "--cell", ONE).returncode == 0
    refused(house, ONE, "over privacy.release_budget")
    refused(house, ONE, "over privacy.release_budget", "--to", "elsewhere")
    assert not (house.folder / "elsewhere").exists()
    assert run_of(house, ONE) not in runs and f"release budget {both:g}, of which" in house.stage("ledger").stdout


def test_a_model_whose_files_do_not_fit_together_is_refused(house):
    cell, folder = Cell.parse(ONE), house.folder
    changes, training = folder / cell.model_dir / "changes.safetensors", folder / cell.training_json
    other = (folder / Cell.parse(CELL.format("inf")).model_dir / "changes.safetensors").read_bytes()

    def with_content(path: Path, content: bytes, words: str) -> None:
        before = path.read_bytes()
        path.unlink()  # DVC may have linked it to its cache
        path.write_bytes(content)
        refused(house, ONE, words)
        path.write_bytes(before)

    with_content(changes, other, "is not the model that")
    said = json.loads(training.read_text())
    louder = {**said, "privacy": {**said["privacy"], "guarantee": {**said["privacy"]["guarantee"], "epsilon": 0.5}}}
    with_content(training, json.dumps(louder).encode(), "is not that of its noise")
    unused = {**said, "privacy": {**said["privacy"], "target": "0", "guarantee": None}}
    with_content(training, json.dumps(unused).encode(), "target is '0' there and '1' here")
    scores = json.loads((folder / cell.metrics_json).read_text())
    older = json.dumps({**scores, "weights": None}).encode()
    with_content(folder / cell.metrics_json, older, "the scores of another model")
    weights = folder / "models/tiny-clip/open_clip_model.safetensors"
    with_content(weights, weights.read_bytes()[:-4] + b"\0\0\0\1", "initial_model is")
    refused(house, CELL.format("inf"), "trained without privacy")
    (folder / "mine").mkdir()
    (folder / "mine/thesis.txt").write_text("five years")
    refused(house, ONE, "is not a release alone", "--to", "mine")
    assert (folder / "mine/thesis.txt").exists()
    released(house, ONE)  # all is as it was


def test_scores_on_a_private_test_split_stay(house):
    manifest = house.folder / "data/mnist5k/manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.unlink()
    manifest.write_text(json.dumps({**facts, "private_test": True}))
    scores = json.loads((house.folder / Cell.parse(ONE).metrics_json).read_text())
    folder = released(house, ONE)
    said = "".join((folder / name).read_text() for name in NAMES if not name.endswith(".safetensors"))
    assert "The test split is private" in said and "model-index" not in said and "accuracy" not in said
    assert not any(f"{scores[name]:.4g}" in (folder / "README.md").read_text() for name in ("low", "high"))


def test_the_public_model_is_released_and_said_to_be_public(house):
    folder = released(house, CELL.format(0))
    facts = json.loads((folder / "privacy.json").read_text())
    assert "**No private record was used.**" in (folder / "README.md").read_text()
    assert facts["guarantee"] is None and facts["claim"] == "no private data used" and facts["joint"] is None
    assert facts["weights"]["sha256"] == saved.sha256(house.folder / "models/tiny-clip")
    assert Releases(house.folder / "ledger").all() == []


def test_a_release_is_in_the_ledger_before_its_folder_is_there(house, monkeypatch):
    """As if the process ended between the two: one is counted that nobody was given."""
    monkeypatch.chdir(house.folder)
    monkeypatch.setenv("LEDGER_DIR", str(house.folder / "ledger"))
    monkeypatch.setattr(sys, "argv", ["release", "--cell", ONE])
    renamed = os.replace

    def ends(source, target):
        if Path(target).parent.name == "releases" and Path(target).suffix == "":
            raise KeyboardInterrupt
        renamed(source, target)

    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", ends)
        with pytest.raises(KeyboardInterrupt):
            release()
    assert [each.run for each in Releases().all()] == [run_of(house, ONE)]
    assert list((house.folder / "releases").iterdir()) == []
    release()
    assert len(Releases().all()) == 1 and len(list((house.folder / "releases").iterdir())) == 1
