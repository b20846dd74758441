"""A dataset source and a clip method are each added as one new file; no other file of the code knows of them."""

import json
import re

import pytest

from tests.conftest import Project

TILES = '''
"""Plain tiles, of which each is a class."""

from typing import Literal

import numpy as np

from stages.data.rows import Dataset, Labels, Row, png
from stages.sections import PositiveInt
from stages.sources.source import QuickLook, Source

LABELS = Labels(classes=("black", "white"), templates=("a {} tile",))


class Tiles(Source):
    source: Literal["tiles"]
    count: PositiveInt

    @property
    def origin(self):
        return "tiles"

    def quick_look(self):
        return QuickLook(self.count, has_labels=True)

    def load(self):
        def rows(split):
            for i in range(self.count):
                pixels = np.full((4, 4), 255 * (i % 2), np.uint8)
                yield Row(png(pixels), LABELS.captions(i % 2), i % 2, f"{split}-{i}")

        return Dataset("painted", "none", LABELS, rows("train"), rows("test"))
'''
LINES = '''
"""Files of one's own: a line of text per record, drawn as nothing at all."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from stages.data.rows import Dataset, Row, png
from stages.errors import UserError
from stages.sources.source import QuickLook, Source


class Lines(Source):
    section: ClassVar[str] = "folders"

    source: Literal["lines"]
    path: str

    @property
    def origin(self):
        return Path(self.path).resolve()

    def quick_look(self):
        if not Path(self.path).is_dir():
            raise UserError(f"folder {self.path!r} does not exist")
        return QuickLook(len(self.texts("train")), has_labels=False)

    def texts(self, split):
        return Path(self.path, f"{split}.txt").read_text().splitlines()

    def load(self):
        image = png(np.zeros((4, 4), np.uint8))

        def rows(split):
            return (Row(image, (text,), None, f"{split}-{i}") for i, text in enumerate(self.texts(split)))

        return Dataset(f"lines in {self.path}", "none", None, rows("train"), rows("test"))
'''
STRIPES = '''
"""`stripes`: every so many records are a unit, by their place in the data."""

from dataclasses import dataclass

from stages.privacy.mechanism import Mechanism
from stages.sections import PositiveInt


@dataclass(frozen=True)
class StripeClipping(Mechanism):
    width: PositiveInt = 1

    factor = {"ADD_OR_REMOVE_ONE": 2.0, "REPLACE_ONE": 2.0}
    clipped = "the gradient of each stripe"

    def assign(self, records, size, stream):
        return records // self.width

    def expected_units(self, batch_size):
        return None


METHOD = StripeClipping
'''
CLAIMED = """
from stages.calibrate.guarantee import guarantee_of
from stages.privacy import claim
from stages.privacy.facts import PrivacyFacts, TrainingFacts
from stages.report.statement import statement
plan = {"batch_size": 32, "steps": 10}
g = guarantee_of("stripes", "fixed-size", n=4000, epochs=None, epsilon=2.0, delta="auto", convention="sound", **plan)
facts = PrivacyFacts(task="classification", dataset="d", method="stripes", target="2", guarantee=g)
used = plan | {"clip_norm": 0.1, "width": 3}
training = TrainingFacts(cell="c", privacy=facts, train=used, trained_parameters=1, initial_model="0", key="os")
claim.verify_training(training)
print(statement(training))
"""


def added(project: Project, name: str, source: str) -> None:
    (project.folder / name).write_text(source)
    touched = project.run("git", "status", "--porcelain", "--untracked-files=all").stdout.splitlines()
    assert {line[3:] for line in touched} <= {name, "params.yaml"}


def test_a_source_is_one_new_file(project):
    params = project.params()
    params["prepare"]["floor"] = {"source": "tiles", "count": 6}
    params["sweep"]["dataset"] = ["floor"]
    params["train"]["methods"]["batch"]["batch_size"] = 6
    project.write_params(params)
    before = project.stage("params")
    assert before.returncode == 2 and "Input tag 'tiles' found using 'source' does not match any" in before.stderr
    added(project, "stages/sources/tiles.py", TILES)
    accepted, prepared = project.stage("params"), project.stage("prepare", "--dataset", "floor")
    assert accepted.returncode == 0 and "classification/floor/" in accepted.stdout, accepted.stderr
    assert prepared.returncode == 0 and "floor: 6 training units, 6 test rows" in prepared.stdout, prepared.stderr
    assert json.loads((project.folder / "data/floor/manifest.json").read_text())["source"] == "painted"

    params["prepare"]["floor"]["count"] = params["train"]["methods"]["batch"]["batch_size"] = 5
    params["pretrain"]["tiny-clip"]["data"] = "walls"
    params["prepare"]["walls"] = {"source": "tiles", "count": 0, "public": True}
    project.write_params(params)
    refused = project.stage("params").stderr
    assert "prepare.walls.count: Input should be greater than 0; got 0" in refused
    assert "pretrain.tiny-clip.data: 'walls' is the data of the sweep" in refused, "a wrong key hides no origin"


def test_a_source_of_ones_own_files_stands_beside_folders(project):
    added(project, "stages/sources/lines.py", LINES)
    params = project.params()
    params["folders"] = {"poems": {"source": "lines", "path": "poems"}, "photos": {"path": "photos", "licenze": "mine"}}
    project.write_params(params)
    refused = project.stage("prepare", "--dataset", "poems")
    assert refused.returncode == 2 and "2 mistake(s)" in refused.stderr
    assert "folders.photos.licenze: unknown key" in refused.stderr
    assert "folders.poems: folder 'poems' does not exist" in refused.stderr
    del params["folders"]["photos"]
    project.write_params(params)
    (project.folder / "poems").mkdir()
    (project.folder / "poems/train.txt").write_text("one\ntwo\n")
    (project.folder / "poems/test.txt").write_text("three\n")
    done = project.stage("prepare", "--dataset", "poems")
    assert done.returncode == 0 and "poems: 2 training units, 1 test rows" in done.stdout, done.stderr
    watched = project.run("dvc", "status", "prepare-folder@poems")
    assert re.search(r"modified:\s+poems$", watched.stdout, re.M), watched.stdout + watched.stderr


@pytest.fixture
def with_stripes(project) -> Project:
    added(project, "stages/privacy/methods/stripes.py", STRIPES)
    params = project.params()
    params["train"]["methods"]["stripes"] = params["train"]["methods"]["batch"] | {"width": 3}
    params["sweep"]["method"] = ["stripes"]
    project.write_params(params)
    return project


@pytest.mark.slow
def test_a_clip_method_is_one_new_file_and_its_values(with_stripes):
    accepted = with_stripes.stage("params")
    assert accepted.returncode == 0 and "/tiny-clip/stripes/eps-1/" in accepted.stdout, accepted.stderr
    said = with_stripes.run("python", "-c", CLAIMED)
    assert "| clipping | the gradient of each stripe, to norm C = 0.1" in said.stdout, said.stderr
    assert "| sensitivity | 2 C" in said.stdout

    params = with_stripes.params()
    params["train"]["methods"]["stripes"]["width"] = 0
    with_stripes.write_params(params)
    assert "train.methods.stripes.width: Input should be greater than 0" in with_stripes.stage("params").stderr
    del params["train"]["methods"]["stripes"]
    with_stripes.write_params(params)
    assert "train.methods.stripes: missing" in with_stripes.stage("params").stderr
