import csv
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.sources.folder import Folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Where notes on private records may be written."""
    monkeypatch.chdir(tmp_path)


def config(path: Path, **more) -> Folder:
    return Folder(path=str(path), **more)


def make(root: Path, records: list[dict], name: str = "metadata.csv") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for i, record in enumerate(records):
        file = root / str(record["file_name"])
        if ".." not in str(record["file_name"]):
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 6), (i, 0, 0)).save(file)
    if name.endswith(".csv"):
        with (root / name).open("w", newline="") as out:
            writer = csv.DictWriter(out, records[0].keys())
            writer.writeheader()
            writer.writerows(records)
    else:
        (root / name).write_text("\n".join(json.dumps(r) for r in records))
    return root


def animals(n: int = 10) -> list[dict]:
    return [{"file_name": f"p{i}.png", "label": ("cat", "dog")[i % 2]} for i in range(n)]


def prepared(tmp_path: Path, source: Folder) -> dict[str, list]:
    write(tmp_path / "out", "mine", source.load())
    return {split: list(PreparedSplit(tmp_path / "out", split)) for split in ("train", "test")}


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_labels_become_classes_and_captions(tmp_path, name):
    root = make(tmp_path / "in", animals(), name)
    splits = prepared(
        tmp_path, config(root, test_fraction=0.3, classes=["cat", "dog"], templates=["a photo of a {}.", "one {}."])
    )
    everything = splits["train"] + splits["test"]
    assert len(everything) == 10 and splits["train"] and splits["test"]
    for row in everything:
        expected = ("cat", "dog")[int(row.unit[1:-4]) % 2]
        assert row.texts == (f"a photo of a {expected}.", f"one {expected}.")
        assert row.label == ("cat", "dog").index(expected)


def test_a_split_for_each_folder(tmp_path):
    make(tmp_path / "in" / "train", animals(4))
    make(tmp_path / "in" / "test", animals(2))  # the same names: other files all the same
    splits = prepared(tmp_path, config(tmp_path / "in"))
    assert (len(splits["train"]), len(splits["test"])) == (4, 2)


def test_several_texts_of_an_image_and_units_of_several_images(tmp_path):
    records = [
        {"file_name": "a.png", "text": "one", "unit": "ann", "split": "train"},
        {"file_name": "b.png", "text": "three", "unit": "ann", "split": "train"},
        {"file_name": "a.png", "text": "two", "unit": "ann", "split": "train"},
        {"file_name": "c.png", "text": "four", "unit": "bob", "split": "test"},
    ]
    source = config(make(tmp_path / "in", records))
    splits = prepared(tmp_path, source)
    assert [(r.unit, r.texts) for r in splits["train"]] == [("ann", ("one", "two")), ("ann", ("three",))]
    assert source.quick_look() == (1, False)
    assert source.load().unit == "all rows with one value in the column `unit`"


def test_a_private_test_split_gives_no_names_of_classes(tmp_path, capsys):
    records = [{"file_name": f"{s}.png", "label": "flu", "split": s} for s in ("train", "test")]
    root = make(tmp_path / "in", records)
    with pytest.raises(UserError, match="`classes` is missing"):
        config(root, private_test=True).load()
    config(root, private_test=True, classes=["flu", "cold"]).load()
    assert "cold" not in "".join(capsys.readouterr())  # which of them no test image has
    config(root, classes=["flu", "cold"]).load()
    assert "has no test image of cold" in capsys.readouterr().err


def test_the_names_of_a_folder_are_those_of_other_folders_unless_it_says_otherwise(tmp_path):
    records = [{"file_name": f"{split}.png", "text": "one", "split": split} for split in ("train", "test")]
    root = make(tmp_path / "in", records)
    assert config(root).load().unit == "one image with all of its texts"
    for id_space, unit in ((None, "train.png"), ("ward-7", "ward-7: train.png")):
        assert [row.unit for row in config(root, id_space=id_space).load().train] == [unit]


def test_the_split_of_a_unit_does_not_depend_on_the_other_rows(tmp_path):
    few = prepared(tmp_path / "a", config(make(tmp_path / "few", animals(20)), test_fraction=0.5))
    many = prepared(tmp_path / "b", config(make(tmp_path / "many", animals(60)), test_fraction=0.5))
    assert {r.unit for r in few["test"]} <= {r.unit for r in many["test"]}


def test_all_problems_are_listed_with_file_names_and_nothing_is_written(tmp_path):
    records = [
        {"file_name": "good.png", "label": "cat", "text": "a cat"},
        {"file_name": "broken.png", "label": "cat", "text": "x"},
        {"file_name": "short.png", "label": "cat", "text": "x"},
        {"file_name": "gone.png", "label": "cat", "text": "x"},
        {"file_name": "silent.png", "label": "cat", "text": "  "},
        {"file_name": "unknown.png", "label": "zebra", "text": "x"},
        {"file_name": "../outside.png", "label": "cat", "text": "x"},
        {"file_name": "nolabel.png", "label": "", "text": "x"},
    ]
    root = make(tmp_path / "in", records)
    Image.new("RGB", (8, 6)).save(tmp_path / "outside.png")
    (root / "broken.png").write_text("this is no image")
    (root / "short.png").write_bytes((root / "good.png").read_bytes()[:40])
    (root / "gone.png").unlink()
    with pytest.raises(UserError) as error:
        write(tmp_path / "out", "mine", config(root, classes=["cat", "dog"], test_fraction=0.5).load())
    names = ("broken.png", "short.png", "gone.png", "silent.png", "unknown.png", "outside.png", "nolabel.png")
    details = "\n".join(error.value.details)
    for name in names:
        assert name in details, name
    assert "good.png" not in details and "leaves the folder" in details
    assert not (tmp_path / "out").exists()
    assert not any(word in str(error.value) for word in (*names, "zebra")), "names and labels are private"
    assert set(error.value.problems) == {
        "image files that cannot be read: 2",
        "rows whose file does not exist: 1",
        "rows whose file_name is empty or leaves the folder: 1",
        "rows whose label has no class name (list all classes in `classes` of params.yaml): 1",
        "rows with an empty text: 1",
        "rows with an empty label: 1",
    }


def test_integer_labels_are_indices_of_the_class_names(tmp_path):
    records = [{"file_name": f"{i}.png", "label": i % 2, "split": ("train", "test")[i // 2]} for i in range(4)]
    splits = prepared(tmp_path, config(make(tmp_path / "in", records), classes=["cat", "dog"]))
    assert [r.texts[0] for r in splits["train"]] == ["a photo of a cat.", "a photo of a dog."]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "neither metadata.csv nor metadata.jsonl"),
        ("", "has no rows"),
        ("name,label\na.png,cat\n", "must have file_name"),
        ("file_name,size\na.png,3\n", "label or text"),
    ],
)
def test_unusable_metadata_gives_one_error(tmp_path, content, words):
    if content is not None:
        (tmp_path / "metadata.csv").write_text(content)
    with pytest.raises(UserError, match=words) as error:
        config(tmp_path).load()
    assert "a.png" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('["a.png"]', "must have file_name"),
        ('{"file_name": "a.png"}', "label or text"),
        ('{"ann smith": 1}', "has .'ann smith'."),
        ('{"file_name": "a.png", "text": ["x", "y"]}', "text must be one value"),
        ('{"file_name": "c\\u0000.png", "text": "x"}', "does not exist"),
        ('{"file_name": "a.png", "text": "x", "unit": " "}', "empty unit"),
        ('{"file_name": "a.png", "text": "x", "split": " "}', "empty split"),
        ('{"file_name": "a.png", "text": "x", "split": "dev"}', "neither train nor test"),
        ("not json", "cannot be read"),
    ],
)
def test_an_unusable_row_is_named(tmp_path, line, words):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    good = '{"file_name": "b.png", "text": "fine"}'
    (tmp_path / "metadata.jsonl").write_text(f"{good}\n{line}\n")
    for look in (Folder.load, Folder.quick_look):
        with pytest.raises(UserError) as error:
            look(config(tmp_path, test_fraction=0.5))
        assert any(re.search(words, detail) for detail in error.value.details), error.value.details
        assert not any(word in str(error.value) for word in ("a.png", "ann smith", "dev"))


def test_class_names_never_come_from_the_private_split(tmp_path):
    records = [
        {"file_name": "1.png", "label": "cat", "split": "test"},
        {"file_name": "2.png", "label": "cat", "split": "train"},
        {"file_name": "3.png", "label": "a rare illness", "split": "train"},
    ]
    root = make(tmp_path / "in", records)
    with pytest.raises(UserError, match=r"rows whose label has no class name \(list all classes .*\): 1$") as error:
        config(root).load()
    assert error.value.details == [
        "3.png: label 'a rare illness' has no class name; list all classes in `classes` of params.yaml"
    ]
    assert "illness" not in str(error.value)
    assert config(root, classes=["cat", "a rare illness"]).load().labels.classes == ("cat", "a rare illness")


def test_two_spellings_of_a_file_are_one_image(tmp_path):
    records = [
        {"file_name": "a.png", "text": "one", "split": "train"},
        {"file_name": "./a.png", "text": "two", "split": "train"},
        {"file_name": "b.png", "text": "three", "split": "test"},
    ]
    splits = prepared(tmp_path, config(make(tmp_path / "in", records)))
    assert [row.texts for row in splits["train"]] == [("one", "two")]
    records[1]["split"] = "test"
    with pytest.raises(UserError, match="there twice"):
        config(make(tmp_path / "in", records)).load()


def test_a_row_without_label_among_labelled_ones_is_named(tmp_path):
    root = make(tmp_path / "in", animals(6), "metadata.jsonl")
    with (root / "metadata.jsonl").open("a") as file:
        Image.new("RGB", (4, 4)).save(root / "x.png")
        file.write('\n{"file_name": "x.png", "text": "no label"}')
    with pytest.raises(UserError, match="rows without a label, while others have one: 1") as error:
        config(root, classes=["cat", "dog"], test_fraction=0.5).load()
    assert error.value.details[0].startswith("x.png: no label")


def test_a_folder_without_test_rows_says_how_to_get_some(tmp_path):
    with pytest.raises(UserError, match="test_fraction"):
        config(make(tmp_path / "in", animals()), classes=["cat", "dog"]).load()


def test_real_photos_with_captions_load(tmp_path, shared_data):
    """Flickr8k's COCO JSON, written as the metadata a user would write."""
    source = shared_data / "flickr8k"
    described = json.loads(next(source.glob("*.json")).read_text())
    names = {image["id"]: image["file_name"] for image in described["images"][:12]}
    root = tmp_path / "in"
    root.mkdir()
    for name in names.values():
        found = next(source.rglob(Path(name).name))
        (root / Path(name).name).write_bytes(found.read_bytes())
    captions = [a for a in described["annotations"] if a["image_id"] in names]
    lines = [json.dumps({"file_name": Path(names[a["image_id"]]).name, "text": a["caption"]}) for a in captions]
    (root / "metadata.jsonl").write_text("\n".join(lines))
    splits = prepared(tmp_path, config(root, test_fraction=0.4))
    rows = splits["train"] + splits["test"]
    assert len(rows) == 12 and all(len(row.texts) == 5 for row in rows)
    assert all(min(row.pixels().size) == 224 for row in rows)


def people(n: int = 40) -> list[dict]:
    """Person i has 1 to 3 photos; every fourth person is a `dog` one."""
    train = [
        {"file_name": f"{i}-{k}.png", "label": "dog" if i % 4 == 0 else "cat", "unit": f"person {i}", "split": "train"}
        for k in range(3)  # the photos of a person are not next to each other
        for i in range(n)
        if k <= i % 3
    ]
    return [*train, *({"file_name": f"t{k}.png", "label": k, "unit": k, "split": "test"} for k in ("cat", "dog"))]


def test_a_part_of_a_folder_takes_units_whole_and_is_counted_before_it_is_made(tmp_path):
    root = make(tmp_path / "in", people())
    whole = prepared(tmp_path / "whole", config(root))["train"]
    source = config(root, train_fraction=0.2, subset_seed=4)
    part = prepared(tmp_path / "part", source)
    units = {row.unit for row in part["train"]}
    assert 0 < len(units) < 20 and source.quick_look() == (len(units), True)
    assert part["train"] == [row for row in whole if row.unit in units], "all rows of a chosen unit, and no other"
    assert len(part["test"]) == 2
    assert Manifest.read(tmp_path / "part" / "out").source.endswith(", train_fraction 0.2 (subset_seed 4)")


def test_the_subset_of_a_folder_follows_its_seed_and_not_the_order_of_rows(tmp_path):
    def units(name: str, records: list[dict], seed: int) -> set[str]:
        source = config(make(tmp_path / name, records), train_fraction=0.5, subset_seed=seed)
        return {row.unit for row in prepared(tmp_path / f"{name}-{seed}", source)["train"]}

    assert units("a", people(), 0) == units("b", people()[::-1], 0) != units("a", people(), 1)


def test_a_part_of_a_folder_without_labels(tmp_path):
    records = [{"file_name": f"{i}.png", "text": f"text {i}", "split": "train"} for i in range(10)]
    records.append({"file_name": "t.png", "text": "t", "split": "test"})
    source = config(make(tmp_path / "in", records), train_fraction=0.3)
    n = len(prepared(tmp_path, source)["train"])
    assert 0 < n < 10 and source.quick_look() == (n, False)


def test_the_place_of_a_unit_does_not_depend_on_any_other_record(tmp_path):
    """Neighbours: one person fewer, or with another label. All others are in or out as they were."""

    def units(name: str, records: list[dict]) -> set[str]:
        source = config(make(tmp_path / name, records), train_fraction=0.5)
        return {row.unit for row in prepared(tmp_path / f"{name}-out", source)["train"]}

    def other_label(record: dict) -> dict:
        return record | {"label": "dog" if record["label"] == "cat" else "cat"}

    everybody = people()
    whole = units("whole", everybody)
    for i in (0, 1, 4, 7):
        one = f"person {i}"
        assert units(f"without {i}", [r for r in everybody if r["unit"] != one]) == whole - {one}
        assert units(f"other {i}", [other_label(r) if r["unit"] == one else r for r in everybody]) == whole
