"""About so many of the images that files describe: which ones, and how they are counted."""

from pathlib import Path

import pytest

from stages.data.manifest import Manifest
from stages.errors import UserError
from stages.sources.coco import Coco
from tests.prepare.test_coco import captioned, config, make, prepared


def units(root: Path, described: dict, seed: int, n: int = 12) -> list[str]:
    """Of the training images that are in a part of about n."""
    source = config(make(root, described), train={"units": n}, test={"units": 2}, seed=seed)
    splits = prepared(root.with_name(f"{root.name}-{seed}-{n}"), source)
    assert source.quick_look() == (len(splits["train"]), False) and len(splits["test"]) == 2
    return [row.unit for row in splits["train"]]


def test_units_are_a_random_subset_that_follows_its_seed_and_not_the_order_of_the_file(tmp_path):
    backwards = {key: entries[::-1] for key, entries in captioned(40).items()}
    chosen = units(tmp_path / "a", captioned(40), 3)
    assert chosen == units(tmp_path / "b", backwards, 3) != units(tmp_path / "a", captioned(40), 4)
    assert 3 < len(set(chosen)) < 24  # 12, with a standard deviation of 2.9
    assert chosen != [f"train/VizWiz_train_{i:08d}.png" for i in range(len(chosen))]
    source = Manifest.read(tmp_path / "a-3-12").source
    assert "train annotations/train.json: units 12, seed 3;" in source
    assert len(units(tmp_path / "a", captioned(40), 3, n=40)) == 40
    with pytest.raises(UserError, match=r"train\.units: 41 is more than the images"):
        config(tmp_path / "a", train={"units": 41}).quick_look()


def test_the_place_of_an_image_does_not_depend_on_any_other(tmp_path):
    """One image has other captions, or another of the same number of images is in its place."""
    whole = units(tmp_path / "whole", captioned(40), 3)
    for i in (0, 17, 39):
        one, other = f"train/VizWiz_train_{i:08d}.png", captioned(40)
        other["images"][i]["file_name"] = "another.png"
        renamed = units(tmp_path / f"other {i}", other, 3)
        assert [u for u in renamed if "another" not in u] == [u for u in whole if u != one]


def test_a_part_of_no_image_is_refused(tmp_path):
    """A single image of many is wanted: with some seed there is none."""
    root = make(tmp_path / "in", captioned(40))
    none = [seed for seed in range(30) if not _looks_right(config(root, train={"units": 1}, seed=seed))]
    assert 3 < len(none) < 20  # (1 - 1/40)^40 = 0.36 of the seeds


def _looks_right(source: Coco) -> bool:
    try:
        return source.quick_look()[0] > 0
    except UserError as error:
        assert "train.units: no image is in the part; raise 1, or change seed" in str(error)
        return False
