import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.params import schema

ROOT = Path(__file__).parent.parent


@pytest.fixture
def raw() -> dict:
    return YAML(typ="safe").load(ROOT / "params.yaml")


def load(raw: dict, tmp_path: Path) -> params.Params:
    with (tmp_path / "params.yaml").open("w") as file:
        YAML(typ="safe").dump(raw, file)
    return params.load(tmp_path / "params.yaml", check_sources=True)


def mistakes(raw: dict, tmp_path: Path) -> list[str]:
    with pytest.raises(UserError) as error:
        load(raw, tmp_path)
    return error.value.problems


def test_the_projects_own_params_are_right_and_frozen():
    loaded = params.load(ROOT / "params.yaml")
    assert len(list(loaded.cells())) == len(set(loaded.cells())) >= 5
    with pytest.raises(Exception, match="frozen"):
        loaded.train.eps = 1.0


def test_the_defaults_of_the_optimizer_are_the_papers():
    train = params.load(ROOT / "params.yaml").train
    assert (train.betas, train.eps, train.weight_decay) == ((0.9, 0.98), 1e-6, 0.01)


def batch(raw: dict) -> dict:
    return raw["train"]["methods"]["batch"]


def photos(path: str, **train: object) -> dict:
    """An entry of `coco`."""
    train = {"annotations": "train.json", "images": ".", **train}
    return {"path": path, "train": train, "test": {"annotations": "test.json", "images": "."}}


CHANGES = {
    "unknown section": (lambda r: r.update(trian={}), "trian"),
    "missing section": (lambda r: r.pop("privacy"), "privacy"),
    "unknown key": (lambda r: r["train"].update(momentum=0.9), "train.momentum"),
    "missing key": (lambda r: batch(r).pop("lr"), "train.methods.batch.lr"),
    "wrong type": (lambda r: batch(r).update(batch_size="32"), "train.methods.batch.batch_size"),
    "not positive": (lambda r: batch(r).update(clip_norm=0), "train.methods.batch.clip_norm"),
    "negative epsilon": (lambda r: r["sweep"].update(epsilon=[0, -1]), "sweep.epsilon"),
    "epsilon twice": (lambda r: r["sweep"].update(epsilon=[1, 3, 1]), "more than once"),
    "epsilon two ways": (lambda r: r["sweep"].update(epsilon=[1, "1.0"]), "more than once"),
    "inf two ways": (lambda r: r["sweep"].update(epsilon=["inf", float("inf")]), "more than once"),
    "epsilon not canonical": (lambda r: r["sweep"].update(epsilon=["0.50"]), "write '0.5'"),
    "no template": (lambda r: r["folders"].update(mine={"path": ".", "templates": []}), "folders.mine.templates"),
    "class twice": (lambda r: r["folders"].update(mine={"path": ".", "classes": ["a", "a"]}), "folders.mine.classes"),
    "empty axis": (lambda r: r["sweep"].update(seed=[]), "sweep.seed"),
    "seed twice": (lambda r: r["sweep"].update(seed=[0, 0]), "sweep.seed"),
    "unknown method": (lambda r: r["sweep"].update(method=["magic"]), "sweep.method"),
    "missing dataset": (
        lambda r: r["sweep"].update(dataset=["nope"]),
        "'nope' is in none of prepare, folders, coco and vqa",
    ),
    "missing model": (
        lambda r: r["sweep"].update(model=["nope"]),
        "'nope' is in none of pretrain, align, weights and banks",
    ),
    "pretraining on a part of private data": (
        lambda r: (
            r["prepare"].update({name: {"source": "easy-vqa", "test": i} for i, name in ((1, "one"), (2, "two"))}),
            r["sweep"].update(dataset=["one"]),
            r["pretrain"]["tiny-clip"].update(data="two"),
        ),
        "pretrain.tiny-clip.data: 'two' is the data of the sweep, so it is private",
    ),
    "pretraining on more of private scenes": (
        lambda r: (
            r["prepare"].update(
                {
                    name: {"source": "scenes", "style": "private", "train": n, "test": 5, "seed": 1}
                    for name, n in (("one", 4000), ("two", 9000))
                }
            ),
            r["sweep"].update(dataset=["one"]),
            r["pretrain"]["tiny-clip"].update(data="two"),
        ),
        "pretrain.tiny-clip.data: 'two' is the data of the sweep, so it is private",
    ),
    "more test images than there are": (
        lambda r: r["prepare"].update(mine={"source": "easy-vqa", "test": 1001}),
        "prepare.mine.test",
    ),
    "pretraining on data that nobody called public": (
        lambda r: r["prepare"]["font-digits"].pop("public"),
        "'font-digits' is not marked `public: true`",
    ),
    "a part of so many images whose number is secret": (
        lambda r: (
            r["coco"].update(mine={**photos("."), "train": {**photos(".")["train"], "units": 5}}),
            r["privacy"].update(public_n={"mine": 5000}),
        ),
        "which images `units` of 'mine' takes depends on how many there are, which is secret",
    ),
    "private training on public data": (
        lambda r: r["prepare"]["mnist5k"].update(public=True),
        "'mnist5k' is declared public, so there is nothing to protect",
    ),
    "pretraining on private data": (lambda r: r["pretrain"]["tiny-clip"].update(data="mnist5k"), "it is private"),
    "batch over n": (lambda r: batch(r).update(batch_size=4001), "4001 is over n = 4000"),
    "batch over n of a subset": (
        lambda r: (
            r["prepare"].update(low={"source": "gtsrb", "train_fraction": 0.001}),
            r["sweep"].update(dataset=["low"]),
        ),
        "batch_size: 32 is over n = 31 of dataset 'low'",
    ),
    "fraction of all": (
        lambda r: r["prepare"].update(mine={"source": "mnist", "train_fraction": 1.0}),
        "prepare.mine.train_fraction",
    ),
    "public n of no dataset": (
        lambda r: r["privacy"].update(public_n={"nope": 5000}),
        "privacy.public_n: 'nope' is no dataset; known: ",
    ),
    "public n with fixed-size batches": (
        lambda r: r["privacy"].update(public_n={"mnist5k": 5000}, sampling="fixed-size"),
        "n of 'mnist5k' cannot be secret with fixed-size batches",
    ),
    "batch over public n": (
        lambda r: r["privacy"].update(public_n={"mnist5k": 31}),
        "train.methods.batch.batch_size: 32 is over n = 31 of dataset 'mnist5k'",
    ),
    "public n that is no number": (
        lambda r: r["privacy"].update(public_n={"mnist5k": "many"}),
        "privacy.public_n.mnist5k",
    ),
    "batch of one dataset over its n": (
        lambda r: r["train"].update(overrides={"mnist5k": {"methods": {"batch": {"batch_size": 4001}}}}),
        "train.overrides.mnist5k.methods.batch.batch_size: 4001 is over n = 4000",
    ),
    "delta by another word": (lambda r: r["privacy"].update(delta="half"), "`paper` (1/(2n)) or a number"),
    "delta out of range": (lambda r: r["privacy"].update(delta=1.5), "privacy.delta"),
    "missing folder": (lambda r: r["folders"].update(mine={"path": "/no/such"}), "does not exist"),
    "one name twice": (
        lambda r: r["folders"].update(mnist5k={"path": "/no/such"}),
        "mnist5k: more than one of prepare, folders, coco and vqa has a dataset",
    ),
    "one name in folders and coco": (
        lambda r: (r["folders"].update(mine={"path": "."}), r["coco"].update(mine=photos("."))),
        "mine: more than one of prepare, folders, coco and vqa has a dataset",
    ),
    "missing folder of captions": (lambda r: r["coco"].update(mine=photos("/no/such")), "coco.mine: folder '/no/such'"),
    "missing annotations": (
        lambda r: r["coco"].update(mine=photos(".")),
        "coco.mine: test: test.json does not exist",
    ),
    "annotations elsewhere": (
        lambda r: r["coco"].update(mine=photos(".", images="../other")),
        "coco.mine.train.images: '../other' must be relative to `path`",
    ),
    "annotations by an absolute path": (
        lambda r: r["coco"].update(mine=photos(".", annotations="/train.json")),
        "coco.mine.train.annotations: '/train.json' must be relative to `path`",
    ),
    "no image at all": (lambda r: r["coco"].update(mine=photos(".", units=0)), "coco.mine.train.units"),
    "unknown key of a split": (lambda r: r["coco"].update(mine=photos(".", unit=5)), "coco.mine.train.unit: unknown"),
    "pretraining on captions that nobody called public": (
        lambda r: (r["coco"].update(mine=photos(".")), r["pretrain"]["tiny-clip"].update(data="mine")),
        "'mine' is not marked `public: true`",
    ),
    "pretraining on another part of the same captions": (
        lambda r: (
            r["coco"].update(mine=photos("."), other={**photos("./stages/.."), "public": True}),
            r["sweep"].update(dataset=["mine"]),
            r["pretrain"]["tiny-clip"].update(data="other"),
        ),
        "'other' is the data of the sweep, so it is private",
    ),
    "pretraining on a folder in the folder of the private captions": (
        lambda r: (
            r["coco"].update(mine=photos("stages")),
            r["folders"].update(other={"path": "stages/models", "public": True}),
            r["sweep"].update(dataset=["mine"]),
            r["pretrain"]["tiny-clip"].update(data="other"),
        ),
        "'other' is the data of the sweep, so it is private",
    ),
    "pretraining on the same data by another name": (
        lambda r: (r["prepare"].update(again={"source": "mnist5k"}), r["pretrain"]["tiny-clip"].update(data="again")),
        "it is private",
    ),
    "pretraining on another part of the same data": (
        lambda r: (
            r["prepare"].update(
                half={"source": "gtsrb", "train_fraction": 0.5},
                other={"source": "gtsrb", "train_fraction": 0.1, "subset_seed": 1},
            ),
            r["sweep"].update(dataset=["half"]),
            r["pretrain"]["tiny-clip"].update(data="other"),
        ),
        "it is private",
    ),
    "pretraining on all digits when 5,000 of them are private": (
        lambda r: (r["prepare"].update(all={"source": "mnist"}), r["pretrain"]["tiny-clip"].update(data="all")),
        "it is private",
    ),
    "pretraining on a folder that nobody called public": (
        lambda r: (r["folders"].update(mine={"path": "."}), r["pretrain"]["tiny-clip"].update(data="mine")),
        "not marked `public: true`",
    ),
    "a number in quotes": (lambda r: batch(r).update(lr="0.1"), "train.methods.batch.lr"),
    "infinite weight decay": (lambda r: r["train"].update(weight_decay=float("inf")), "train.weight_decay"),
    "epochs and steps": (lambda r: batch(r).update(steps=7), "give either epochs or steps"),
    "neither epochs nor steps": (lambda r: batch(r).pop("epochs"), "give either epochs or steps"),
    "no number of groups": (lambda r: r["train"]["methods"]["group"].pop("groups"), "train.methods.group.groups"),
    "groups for a batch": (lambda r: batch(r).update(groups=3), "train.methods.batch.groups: unknown key"),
    "example with a loss that is no sum": (
        lambda r: r["train"]["methods"]["example"].update(loss="contrastive"),
        "is not a sum over records",
    ),
    "prompts with a text tower that is trained": (
        lambda r: r["train"]["methods"]["example"].update(trainable="all"),
        "write one of image-tower",
    ),
    "a shuffled loader with a finite epsilon": (
        lambda r: r["privacy"].update(sampling="shuffled"),
        "no privacy accounting",
    ),
    "dataset that is a list": (lambda r: r["sweep"].update(dataset=[["x"]]), "sweep.dataset"),
    "datasets that are a number": (lambda r: r["sweep"].update(dataset=5), "sweep.dataset"),
    "data that are a list": (lambda r: r["pretrain"]["tiny-clip"].update(data=["x"]), "pretrain.tiny-clip.data"),
    "unknown source": (lambda r: r["prepare"].update(mine={"source": "zip"}), "prepare.mine"),
    "template without a place": (
        lambda r: r["folders"].update(mine={"path": ".", "templates": ["a photo"]}),
        "folders.mine.templates[0]",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_mistake_is_named(raw, tmp_path, name):
    change, words = CHANGES[name]
    change(raw)
    problems = mistakes(raw, tmp_path)
    assert any(words in problem for problem in problems), problems


def test_all_mistakes_are_reported_together(raw, tmp_path):
    chosen = [
        "unknown section",
        "wrong type",
        "negative epsilon",
        "missing dataset",
        "delta out of range",
        "missing folder",
    ]
    for name in chosen:
        CHANGES[name][0](raw)
    problems = mistakes(raw, tmp_path)
    for name in chosen:
        assert any(CHANGES[name][1] in problem for problem in problems), name


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "sweep: [1, 2\n", "sweep: {}\nsweep: {}\n"])
def test_a_file_that_is_no_mapping_gives_one_error(tmp_path, text):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=r"params\.yaml"):
        params.load(tmp_path / "params.yaml")


def test_models_may_be_pretrained_on_public_captions(raw, tmp_path):
    raw["coco"]["mine"] = {**photos(str(tmp_path)), "public": True}
    raw["pretrain"]["tiny-clip"]["data"] = "mine"
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "a"}]}
    for split in ("train", "test"):
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    assert load(raw, tmp_path).datasets["mine"].train.annotations == "train.json"


def test_classification_on_captions_is_refused(raw, tmp_path):
    raw["coco"]["mine"] = photos(str(tmp_path))
    raw["sweep"]["dataset"] = ["mine"]
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "a"}]}
    for split in ("train", "test"):
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    problems = mistakes(raw, tmp_path)
    assert any("coco.mine: classification needs labels" in p for p in problems)
    assert any("32 is over n = 1 of dataset 'mine'" in p for p in problems)


def test_a_shuffled_loader_is_fine_without_privacy(raw, tmp_path):
    raw["privacy"]["sampling"] = "shuffled"
    raw["sweep"]["epsilon"] = [0, "inf"]
    assert load(raw, tmp_path).privacy.sampling == "shuffled"


def test_where_n_is_secret_a_batch_is_compared_with_the_public_number(raw, tmp_path):
    batch(raw)["batch_size"] = 4001
    raw["privacy"]["public_n"] = {"mnist5k": 10_000}
    assert load(raw, tmp_path).privacy.public_n == {"mnist5k": 10_000}
    raw["privacy"]["public_n"] = {"mnist5k": 3000}
    problems = mistakes(raw, tmp_path)
    assert any("4001 is over n = 3000" in p for p in problems) and not any("4000" in p for p in problems)


def test_a_dataset_is_prepared_whatever_is_wrong_with_the_raw_data_of_another(raw, tmp_path):
    raw["prepare"]["low"] = {"source": "gtsrb", "train_fraction": 0.001}  # n = 31, under the batch size
    raw["folders"]["gone"] = {"path": str(tmp_path / "gone")}
    raw["sweep"]["dataset"] = ["mnist5k", "low", "gone"]
    assert len(mistakes(raw, tmp_path)) > 1
    assert "low" in params.load(tmp_path / "params.yaml", check_sources="mnist5k").datasets
    for name, why in (("low", "is over n = 31 of dataset 'low'"), ("gone", "folders.gone: ")):
        with pytest.raises(UserError) as refused:
            params.load(tmp_path / "params.yaml", check_sources=name)
        assert refused.value.problems and all(why in problem for problem in refused.value.problems)
    raw["privacy"]["public_n"] = {"low": 20}  # secret: compared with the number that stands for it
    mistakes(raw, tmp_path)
    assert params.load(tmp_path / "params.yaml", check_sources="mnist5k").privacy.public_n == {"low": 20}


@pytest.mark.parametrize("wrong", ["lots", -1, 2.5, True])
def test_what_is_auto_or_a_number_is_one_mistake(wrong):
    with pytest.raises(ValueError, match="1 validation error") as error:
        schema.Compute(records_at_once=1, device="cpu", input_workers=wrong)
    assert f"write auto, or a whole number from 0 on; got {wrong!r}" in str(error.value)
