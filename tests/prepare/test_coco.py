import json
import re
from pathlib import Path

import pytest
from PIL import Image

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.errors import SHOWN, Private, UserError
from stages.sources.coco import Coco


def config(root: Path, train: dict | None = None, test: dict | None = None, **more) -> Coco:
    """VizWiz's layout."""
    return Coco(
        path=str(root),
        train={"annotations": "annotations/train.json", "images": "train", **(train or {})},
        test={"annotations": "annotations/val.json", "images": "val", **(test or {})},
        **more,
    )


def captioned(n: int, split: str = "train") -> dict:
    """n images with five captions each."""
    flags = {"is_precanned": False, "is_rejected": False}
    return {
        "images": [{"id": i, "file_name": f"VizWiz_{split}_{i:08d}.png", "text_detected": False} for i in range(n)],
        "annotations": [
            {"id": 5 * i + k, "image_id": i, "caption": f"{split} {i}, {k}", **flags}
            for i in range(n)
            for k in range(5)
        ],
    }


def make(root: Path, train: dict, test: dict | None = None) -> Path:
    """Write both files, and a PNG for each image that has an ordinary name."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for folder, content in (("train", train), ("val", test or captioned(2, "val"))):
        (root / folder).mkdir(exist_ok=True)
        (root / "annotations" / f"{folder}.json").write_text(json.dumps(content))
        for i, image in enumerate(content["images"]):
            name = str(image["file_name"]) if "file_name" in image else ""
            if re.fullmatch(r"\w+\.png", name):
                Image.new("RGB", (8, 6), (i, 0, 0)).save(root / folder / name)
    return root


def prepared(out: Path, source: Coco) -> dict[str, list]:
    write(out, "mine", source.load())
    return {split: list(PreparedSplit(out, split)) for split in ("train", "test")}


def problems_of(tmp_path: Path, source: Coco) -> list[str]:
    with pytest.raises(UserError) as error:
        write(tmp_path / "out", "mine", source.load())
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".tmp-*")), "nothing half-written"
    assert not [p.detail for p in error.value.found if isinstance(p, Private) and p.detail in str(error.value)]
    return error.value.details


def test_a_unit_is_an_image_with_all_of_its_captions(tmp_path):
    root = make(tmp_path / "in", captioned(3))
    splits = prepared(tmp_path / "out", config(root, licence="CC BY 4.0"))
    assert [row.unit for row in splits["train"]] == [f"train/VizWiz_train_0000000{i}.png" for i in range(3)]
    assert splits["train"][1].texts == tuple(f"train 1, {k}" for k in range(5))
    assert splits["train"][1].image == (root / "train" / "VizWiz_train_00000001.png").read_bytes()
    assert all(row.label is None for row in splits["train"] + splits["test"]) and len(splits["test"]) == 2
    manifest = Manifest.read(tmp_path / "out")
    assert (manifest.n, manifest.train.rows, manifest.labels, manifest.licence) == (3, 3, None, "CC BY 4.0")
    assert config(root).quick_look() == (3, False)


@pytest.mark.parametrize("flag", ["is_precanned", "is_rejected"])
def test_flagged_captions_and_images_that_have_no_other_are_left_out_and_counted(tmp_path, flag):
    train = captioned(5)
    train["annotations"][0][flag] = True  # one of image 0
    for caption in train["annotations"][5:15]:  # all of images 1 and 2
        caption[flag] = True
    train["annotations"][5]["caption"] = ""  # what is left out may be empty
    train["annotations"] = train["annotations"][:20]  # image 4 has none at all
    root = make(tmp_path / "in", train)
    (root / "train" / "VizWiz_train_00000001.png").unlink()  # and needs no file
    rows = prepared(tmp_path / "out", config(root))["train"]
    assert [row.unit[-5] for row in rows] == ["0", "3"]
    assert rows[0].texts == tuple(f"train 0, {k}" for k in range(1, 5))
    source = Manifest.read(tmp_path / "out").source
    assert "train annotations/train.json: all images;" in source  # it is printed: not even how many, n may be secret
    assert "test annotations/val.json: 2 images, 0 without a usable caption left out" in source
    assert config(root).quick_look() == (2, False)


def test_captions_without_flags_other_alphabets_and_five_hundred_words_are_kept(tmp_path):
    long = " ".join(f"word{i}" for i in range(500))
    texts = ["eine Tasse auf weißem Grund", "白いマグカップ ☕", "кружка", long, "  two\tspaces \n and a line  "]
    train = {
        "images": [{"id": "a", "file_name": "a.png"}],  # ids may be text
        "annotations": [{"image_id": "a", "caption": text} for text in texts],
    }
    (row,) = prepared(tmp_path / "out", config(make(tmp_path / "in", train)))["train"]
    assert row.texts == (*texts[:4], "two spaces and a line")


def test_all_problems_are_listed_with_ids_and_nothing_is_written(tmp_path):
    train = captioned(10)
    images, captions = train["images"], train["annotations"]
    images[2]["file_name"] = "../outside.png"
    images[3]["file_name"] = "./VizWiz_train_00000000.png"
    images[4]["file_name"] = 7
    del images[5]["file_name"]
    images += [{"id": 6, "file_name": "again.png"}, {"id": True}, "12.png", {"id": 10, "file_name": "not there.png"}]
    captions[35]["caption"] = " \n"
    captions[36]["caption"] = None
    captions[37]["is_rejected"] = "no"
    captions += [{"id": 899, "image_id": 10, "caption": ""}, {"id": 900, "image_id": 77}, {"id": 901}, "a caption"]
    root = make(tmp_path / "in", train)
    Image.new("RGB", (8, 6)).save(tmp_path / "outside.png")
    (root / "train" / "VizWiz_train_00000001.png").unlink()
    (root / "train" / "VizWiz_train_00000008.png").write_text("this is no image")
    short = root / "val" / "VizWiz_val_00000001.png"
    short.write_bytes(short.read_bytes()[:50])  # within its pixels
    expected = [
        "image 1: file VizWiz_train_00000001.png does not exist",
        "image 2: file_name '../outside.png' is empty or leaves the folder train",
        "image 3: file ./VizWiz_train_00000000.png is that of image 0 too",
        "images[4]: file_name of image 4 must be text; got 7",
        "images[5]: file_name of image 5 must be text; got None",
        "images[10]: image id 6 is there twice",
        "images[11] must have an id",
        "images[12] must have an id",
        "annotations[35] (id 35): empty caption for image 7",
        "annotations[36] (id 36): caption of image 7 must be text; got None",
        "annotations[37] (id 37): is_rejected of image 7 must be true or false; got 'no'",
        "annotations[50] (id 899): empty caption for image 10",
        "image 10: file not there.png does not exist",
        "annotations[51] (id 900): image_id 77 is not among the images",
        "annotations[52] must have an image_id",
        "annotations[53] must have an image_id",
        "image 8 (train/VizWiz_train_00000008.png): not a readable image",
        "image 1 (val/VizWiz_val_00000001.png): not a readable image",
        "test.units: 3 is more than the images with a usable caption in annotations/val.json, which are 2",
    ]
    found = problems_of(tmp_path, config(root, test={"units": 3}))
    for words in expected:
        assert sum(words in problem for problem in found) == 1, (words, found)
    assert len(found) == len(expected), found
    assert str(tmp_path) not in "\n".join(found)


def test_of_many_problems_the_first_are_shown_and_the_rest_counted(tmp_path):
    train = captioned(SHOWN + 20)
    root = make(tmp_path / "in", train)
    for image in train["images"]:
        (root / "train" / image["file_name"]).unlink()
    with pytest.raises(UserError) as error:
        config(root).load()
    shown = error.value.at_a_terminal().splitlines()[1:]
    assert len(shown) == SHOWN + 1 and shown[-1] == "  - ... and 20 more"
    assert len(error.value.details) == SHOWN + 20
    assert error.value.problems == [f"annotations/train.json: images whose file does not exist in train: {SHOWN + 20}"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "train.json does not exist"),
        (b"not json", "cannot be read"),
        (b'{"images": "\xff"}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1, 2]", "must have the lists images and annotations; it has list"),
        (b'{"images": [], "questions": []}', r"must have the lists .* it has \['images', 'questions'\]"),
        (b'{"images": {}, "annotations": []}', "must have the lists"),
        (b'{"images": [], "annotations": []}', "no image has a usable caption"),
    ],
    ids=["missing", "no JSON", "no UTF-8", "too deep", "a list", "other lists", "no list", "empty"],
)
def test_an_unusable_file_is_found_before_anything_runs(tmp_path, content, words):
    root = make(tmp_path / "in", captioned(1))
    (root / "annotations" / "train.json").unlink()
    if content is not None:
        (root / "annotations" / "train.json").write_bytes(content)
    for look in (Coco.quick_look, Coco.load):
        with pytest.raises(UserError) as error:
            look(config(root))
        (detail,) = error.value.details
        assert re.search(words, detail) and "it has" not in str(error.value), "keys of a file may be private"


def test_what_cannot_be_read_at_all_is_told_with_the_other_problems(tmp_path):
    root = make(tmp_path / "in", captioned(2))
    (root / "annotations" / "val.json").unlink()
    (root / "train" / "VizWiz_train_00000001.png").unlink()
    found = problems_of(tmp_path, config(root, train={"units": 9}, test={"images": "photos"}))
    for words in (
        "val.json does not exist",
        "no folder",
        "00000001.png does not exist",
        "units: 9 is more than",
    ):
        assert any(words in problem for problem in found), words
    assert len(found) == 4


@pytest.mark.parametrize(
    "name",
    ["", ".", "/etc/hostname", "sub/../../outside.png", "link", "a\0.png", "x" * 300, "\ud800.png", "sub"],
    ids=["empty", "dot", "absolute", "up and out", "link out", "zero byte", "too long", "half a character", "folder"],
)
def test_no_strange_file_name_gets_in_or_ends_in_a_traceback(tmp_path, name):
    train = captioned(1)
    train["images"].append({"id": 50, "file_name": name})
    train["annotations"].append({"image_id": 50, "caption": "strange"})
    root = make(tmp_path / "in", train)
    Image.new("RGB", (8, 6)).save(root / "train" / "a.png")
    Image.new("RGB", (8, 6)).save(tmp_path / "in" / "outside.png")
    (root / "train" / "link").symlink_to(root / "outside.png")
    (root / "train" / "sub").mkdir()
    (problem,) = problems_of(tmp_path, config(root))
    assert "image 50" in problem


@pytest.mark.parametrize(
    ("caption", "words"), [("", "empty caption for image 0"), ("half \ud83d", "caption of image 0 must be text")]
)
def test_a_wrong_caption_is_told_once(tmp_path, caption, words):
    """And not also as an image without captions, or as a split without images."""
    train = captioned(1)
    train["annotations"] = [train["annotations"][0] | {"caption": caption}]
    source = config(make(tmp_path / "in", train))
    (problem,) = problems_of(tmp_path, source)
    assert words in problem and source.quick_look() == (1, False)


@pytest.mark.parametrize("images", [("images", "images"), (".", "images"), ("images", "link")])
def test_a_file_in_both_splits_is_refused_however_it_is_called(tmp_path, images):
    root = tmp_path / "in"
    (root / "images").mkdir(parents=True)
    (root / "link").symlink_to("images")
    splits = []
    for image, folder in zip((11, 22), images, strict=True):
        names = {image: "images/both.png" if folder == "." else "both.png", image + 1: f"{folder}{image}.png"}
        content = {
            "images": [{"id": i, "file_name": name} for i, name in names.items()],
            "annotations": [{"image_id": i, "caption": "x"} for i in names],
        }
        for name in names.values():
            Image.new("RGB", (8, 6)).save(root / folder / name)
        (root / f"{image}.json").write_text(json.dumps(content))
        splits.append({"annotations": f"{image}.json", "images": folder})
    (problem,) = problems_of(tmp_path, config(root, *splits))
    assert problem.startswith("image 11 of train and image 22 of test are one file: images/both.png")


def test_the_same_name_in_two_folders_is_two_images(tmp_path):
    splits = prepared(tmp_path / "out", config(make(tmp_path / "in", captioned(2), captioned(1))))
    assert len({row.unit for row in splits["train"] + splits["test"]}) == 3


def test_prepare_says_how_many_test_images_were_left_out(tmp_path, monkeypatch, capsys):
    from stages.prepare import __main__ as stage

    test = captioned(3, "val")
    test["annotations"] = test["annotations"][:10]
    root = make(tmp_path / "in", captioned(3), test)
    privacy = type("Privacy", (), {"public_n": {}})
    known = type("Known", (), {"datasets": {"mine": config(root)}, "privacy": privacy})
    monkeypatch.setattr(stage.params, "load", lambda check_sources: known)
    monkeypatch.setattr("sys.argv", ["prepare", "--dataset", "mine"])
    monkeypatch.chdir(tmp_path)
    stage.main()
    told = capsys.readouterr().out
    assert "2 images, 1 without a usable caption left out" in told and "mine: 3 training units, 2 test rows" in told


def test_real_photos_with_captions_load(tmp_path, shared_data):
    root = shared_data / "flickr8k"
    if not root.is_dir():
        pytest.skip("flickr8k is not among the sample data beside the project")
    splits = {s: {"annotations": f"captions_{s}.json", "images": "images"} for s in ("train", "test")}
    source = config(root, **splits)
    assert source.quick_look() == (500, False)
    rows = prepared(tmp_path / "out", source)
    assert (len(rows["train"]), len(rows["test"])) == (500, 100)
    assert all(len(row.texts) == 5 for row in rows["train"] + rows["test"])
    assert all(min(row.pixels().size) == 224 for row in rows["test"])
    described = json.loads((root / "captions_test.json").read_text())
    first = described["images"][0]
    texts = [" ".join(a["caption"].split()) for a in described["annotations"] if a["image_id"] == first["id"]]
    (row,) = [row for row in rows["test"] if row.unit == f"images/{first['file_name']}"]
    assert list(row.texts) == texts and row.image == (root / "images" / first["file_name"]).read_bytes()
    part = prepared(tmp_path / "part", config(root, splits["train"] | {"units": 50}, splits["test"] | {"units": 10}))
    assert 20 < len(part["train"]) < 80 and 0 < len(part["test"]) < 30  # standard deviations of 7 and 3
    assert set(part["train"]) < set(rows["train"]) and set(part["test"]) < set(rows["test"])
