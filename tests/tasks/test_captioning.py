"""Captioning from prepared data to scores, by the stages' own commands, and on real photos where they are there."""

import json
import sys

import pytest
import torch
from ruamel.yaml import YAML

from stages import params
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Row, png
from stages.errors import UserError
from stages.models import saved, writing
from stages.models.batches import decoded
from stages.params.schema import merge
from stages.sources import scenes
from stages.tasks import captioning
from stages.tasks.base.task import HeldOut
from tests.conftest import Project, small_params
from tests.report.test_publish import SCRIPT

CPU = torch.device("cpu")
METRICS = {"bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor"}


def captioning_params(**sections) -> dict:
    values = small_params()
    values["sweep"] |= {"task": ["captioning"], "dataset": ["mine"], "model": ["tiny-blip"], "epsilon": [1]}
    values["privacy"]["unsafe_noise_seed"] = None  # models with a guarantee are published without being named
    public = {"source": "scenes", "style": "public", "public": True}
    values["prepare"]["public-scenes"] = public | {"train": 60, "test": 5, "seed": 0}
    values["pretrain"]["tiny-blip"] = {
        "architecture": "stages/models/configs/tiny-blip",
        "data": "public-scenes",
        "steps": 3,
        "batch_size": 8,
        "lr": 0.001,
        "seed": 0,
    }
    batch = {"batch_size": 8, "epochs": None, "steps": 2, "trainable": "image-tower"}
    values["train"]["methods"]["batch"] |= batch
    values["evaluate"] |= {"caption_tokens": 12, "batch_size": 64}
    return values | sections


def run_cell(project: Project, cell: str) -> tuple[dict, list[dict]]:
    """Every stage up to the scores; returns metrics and captions."""
    _, dataset, model, *_ = cell.split("/")
    for command in [
        ("prepare", "--dataset", dataset),
        ("prepare", "--dataset", "public-scenes"),
        ("pretrain", "--model", model),
        ("encode", "--dataset", dataset, "--model", model),
        *((stage, "--cell", cell) for stage in ("calibrate", "train", "evaluate")),
    ]:
        done = project.stage(*command)
        assert done.returncode == 0, done.stderr[-2000:]
    results = project.folder / "results" / cell
    assert (results / "picture.png").stat().st_size > 10_000
    return json.loads((results / "metrics.json").read_text()), json.loads((results / "details.json").read_text())


def test_real_photos_from_their_json_to_scores(project, shared_data):
    """Flickr8k's sample: a record is a photo with its five captions."""
    coco = {
        "path": str(shared_data / "flickr8k"),
        "train": {"annotations": "captions_train.json", "images": "images"},
        "test": {"annotations": "captions_test.json", "images": "images", "units": 20},
    }
    project.write_params(captioning_params(coco={"mine": coco}))
    metrics, details = run_cell(project, "captioning/mine/tiny-blip/batch/eps-1/seed-0")
    assert metrics["n"] == len(details["examples"]) and metrics["primary"] == "cider"
    assert metrics.keys() >= METRICS and ("spice" in metrics) != ("spice" in metrics.get("not_run", {}))
    assert all(len(c["references"]) == 5 for c in details["examples"])
    manifest = json.loads((project.folder / "data/mine/manifest.json").read_text())
    assert 5 < manifest["test"]["rows"] == metrics["n"] < 40
    training = (project.folder / "runs/captioning/mine/tiny-blip/batch/eps-1/seed-0/training.json").read_text()
    assert json.loads(training)["privacy"]["guarantee"]["n"] == manifest["n"] > 400
    moved = saved.changed(project.folder / "runs/captioning/mine/tiny-blip/batch/eps-1/seed-0/model")
    assert moved and all(name.startswith(("vision_model.", "vision_proj.")) for name in moved)


def photos(folder, counts: dict[str, int]) -> dict:
    """Scenes as files with COCO's JSON beside them; returns the entry for params.yaml."""
    entry = {"path": folder.name}
    for split, count in counts.items():
        (folder / split).mkdir(parents=True)
        made = scenes.Scenes(source="scenes", style="private", train=count, test=count, seed=len(split))
        rows = list(getattr(made.load(), split))
        for i, row in enumerate(rows):
            (folder / split / f"{i}.png").write_bytes(row.image)
        annotations = [{"image_id": i, "caption": text} for i, row in enumerate(rows) for text in row.texts]
        listed = [{"id": i, "file_name": f"{i}.png"} for i in range(count)]
        (folder / f"{split}.json").write_text(json.dumps({"images": listed, "annotations": annotations}))
        entry[split] = {"annotations": f"{split}.json", "images": split}
    return entry


def test_dvc_brings_photos_to_a_published_model_that_captions_an_image_file(project, tmp_path):
    entry = photos(project.folder / "photos", {"train": 40, "test": 6})
    project.write_params(captioning_params(coco={"mine": entry}))
    done = project.run("dvc", "repro", "publish")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    table, paper = (project.folder / f"report/{name}.md" for name in ("table", "paper"))
    assert "CIDEr x 100" in table.read_text() and "published: DP-BLIP" in paper.read_text()
    assert (project.folder / "report/gallery/captioning-mine-tiny-blip.html").stat().st_size > 5_000
    details = project.folder / "results/captioning/mine/tiny-blip/batch/eps-1/seed-0/details.json"
    expected = json.loads(details.read_text())["examples"][3]
    where = [f"sqlite:///{project.folder / 'mlflow.db'}", "models:/dp-clip.captioning.mine.tiny-blip.batch@eps-1"]
    image = project.folder / "photos/test/3.png"
    said = Project(tmp_path).run(sys.executable, "-c", SCRIPT, *where, json.dumps({"image": [str(image)]}))
    assert said.returncode == 0, said.stderr[-2000:]
    assert json.loads(said.stdout.splitlines()[-1]) == [{"caption": expected["said"]}]


def odd_data(folder) -> PreparedSplit:
    """Captions that are not plain English, one that is very long, and an image whose one caption has no words."""
    picture = png(torch.randint(255, (64, 64, 3), dtype=torch.uint8).numpy())
    texts = [("ein größerer Kreis, 赤い丸 🙂",), ("word " * 500,), ("...",), ("a red circle", "one circle")]
    rows = [Row(picture, text, None, f"row-{i}") for i, text in enumerate(texts)]
    train = [Row(picture, ("a circle",), None, "train")]
    write(folder, "odd", Dataset("made by the test", "none", None, train, rows))
    return PreparedSplit(folder, "test")


@pytest.mark.slow
def test_odd_captions_and_a_model_that_says_nothing_have_scores(tmp_path, monkeypatch):
    data = odd_data(tmp_path / "odd")
    encoder = saved.create("stages/models/configs/tiny-blip", [*scenes.PUBLIC.one, "a red circle"])
    config = params.load().evaluate
    said = iter(["", "one red circle", "größer \n | ||| word", "a red circle"])
    monkeypatch.setattr(writing, "captions", lambda _, images, **__: [next(said) for _ in images])
    result = captioning.TASK.evaluate(encoder, HeldOut(data, decoded(data, encoder)), config, CPU)
    metrics = result.metrics()
    assert metrics.n == 4 and metrics.scores.keys() >= METRICS
    assert result.scores.per_image["rouge_l"][3] == 1.0 and result.scores.per_image["rouge_l"][0] == 0.0
    result.draw("odd", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


def test_a_clip_cannot_caption_and_says_so(tmp_path):
    clip = saved.create("stages/models/configs/tiny-clip")
    data = odd_data(tmp_path / "odd")
    with pytest.raises(UserError, match="needs a model with a decoder"):
        captioning.TASK.evaluate(clip, HeldOut(data, decoded(data, clip)), params.load().evaluate, CPU)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"sweep": {"model": ["tiny-clip"]}},
            "captioning needs a model that writes captions, and 'tiny-clip' does not",
        ),
        (
            {"sweep": {"method": ["example"]}},
            "prompts needs classes, which the task does not have",
        ),
        ({"train": {"methods": {"batch": {"trainable": "image-projection"}}}}, "reaches no caption"),
    ],
)
def test_what_can_move_no_caption_is_refused_before_anything_runs(tmp_path, section, message):
    values = captioning_params()
    values["prepare"]["mine"] = {"source": "scenes", "style": "private", "train": 60, "test": 5, "seed": 0}
    merge(values, section)
    path = tmp_path / "params.yaml"
    YAML(typ="safe").dump(values, path)
    with pytest.raises(UserError, match=message):
        params.load(path)
