"""Families of models: each is a file that declares itself, and no two claim the same tensors for different parts."""

import dataclasses
import os
import shutil
import subprocess
import sys
from itertools import combinations

import pytest
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.models import families, parts
from stages.models.families import FAMILIES, Published
from tests.conftest import ROOT, small_params

OF = {
    "stages/models/configs/tiny-clip": "open_clip",
    "stages/models/configs/tiny-siglip": "open_clip",
    "stages/models/configs/lite-minilm": "open_clip",
    "stages/models/configs/tiny-blip": "blip",
    "stages/models/configs/tiny-git": "git",
    "stages/models/configs/vectors": "vectors",
    "ViT-B-32": "open_clip",
    "blip": "blip",
    "git": "git",
}


@pytest.mark.parametrize("architecture", OF)
def test_an_architecture_is_of_one_family(architecture):
    takers = [name for name, family in families.known().items() if family.takes({"architecture": architecture})]
    assert takers == ([] if architecture == "ViT-B-32" else [OF[architecture]])
    assert families.of({"architecture": architecture}).name == OF[architecture]
    if (ROOT / architecture).is_dir():
        assert families.of_folder(ROOT / architecture).name == OF[architecture]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_has_the_family_of_its_name_and_knows_its_abilities(name):
    family = families.known()[name]
    assert family.name == name and family.abilities({"architecture": name}) <= families.ABILITIES.keys()


def test_no_tensor_is_one_part_in_one_family_and_another_in_the_next():
    claimed = {
        (name, prefix): field.name
        for name, family in families.known().items()
        for field in dataclasses.fields(family.names)
        if field.name not in ("cross_attention", "token_tables")
        for prefix in getattr(family.names, field.name)
    }
    for ((_, one), first), ((_, other), second) in combinations(claimed.items(), 2):
        assert first == second or not (one.startswith(other) or other.startswith(one)), (one, other)
    assert (
        parts.of_image("visual.proj") and parts.of_image("git.image_encoder.x") and not parts.of_image("git.encoder.x")
    )


def test_what_a_siglip_has_is_known_without_importing_open_clip():
    code = (
        "import sys; from stages.models import families; of = families.of;"
        "print([sorted(of({'architecture': a}).abilities({'architecture': a})) for a in sys.argv[1:]]);"
        "print(sorted({'torch', 'open_clip', 'transformers', 'numpy'} & sys.modules.keys()))"
    )
    names = ("ViT-B-16-SigLIP", "ViT-B-32", "MobileCLIP-S1", "../../escape", "stages/models/configs/tiny-siglip")
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    biased = "['compares', 'logit_bias']"
    assert done.stdout.splitlines() == [f"[{biased}, ['compares'], ['compares'], ['compares'], {biased}]", "[]"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"architecture": "git"}, "weights.w.captioner: missing"),
        ({"architecture": "git", "captioner": "a", "tag": 1}, "weights.w.tag: unknown key"),
        ({"architecture": "blip", "contrastive": "a"}, "weights.w: give either captioner or answerer"),
        ({"architecture": "ViT-B-32"}, "weights.w: pretrained is missing: one of the tags that open_clip has"),
        (
            {"architecture": "stages/models/configs/tiny-siglip", "pretrained": "webli"},
            "weights.w: the architecture is a folder, which has its weights; leave out pretrained and file",
        ),
    ],
)
def test_mistakes_in_published_weights_are_named_where_they_are(tmp_path, entry, problem):
    values = small_params() | {"weights": {"w": entry}}
    YAML(typ="safe").dump(values, tmp_path / "params.yaml")
    with pytest.raises(UserError) as error:
        params.load(tmp_path / "params.yaml")
    assert any(str(said).startswith(problem) for said in error.value.problems), error.value.problems


def test_entries_that_fit_are_accepted(tmp_path):
    entries = {
        "a": {"architecture": "ViT-B-16-SigLIP", "pretrained": "webli"},
        "b": {"architecture": "stages/models/configs/tiny-siglip"},
        "c": {"architecture": "git", "captioner": "microsoft/git-base-coco"},
    }
    YAML(typ="safe").dump(small_params() | {"weights": entries}, tmp_path / "params.yaml")
    found = params.load(tmp_path / "params.yaml").models
    assert all(isinstance(found[name], Published) for name in entries)
    assert [families.of(found[name].model_dump()).name for name in entries] == ["open_clip", "open_clip", "git"]


VECTORS = '''
"""A family that another file brings: it has no towers."""

from stages.models.families.base.family import Family, Names, Published
from stages.models.kinds import Layout


class VectorWeights(Published):
    dimensions: int


class Vectors(Family):
    name = "vectors"
    layout = Layout("vectors.json", "vectors.safetensors")
    names = Names()
    weights = VectorWeights

    def abilities(self, entry):
        return frozenset({"compares"})

    def create(self, folder, texts):
        raise NotImplementedError

    def load(self, folder, weights):
        raise NotImplementedError

    def pretraining(self, encoder):
        return "contrastive"


FAMILY = Vectors()
'''


def test_a_family_is_one_new_file(tmp_path):
    shutil.copytree(ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stages/models/families/vectors.py").write_text(VECTORS)
    mine = {"architecture": "vectors", "dimensions": 3}
    values = small_params() | {"weights": {"mine": mine, "other": mine | {"dimensions": "many"}}}
    values["sweep"] |= {"model": ["mine"], "task": ["captioning"]}
    YAML(typ="safe").dump(values, tmp_path / "params.yaml")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "stages.params"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "weights.other.dimensions: Input should be a valid integer" in done.stderr
    assert "captioning needs a model that writes captions, and 'mine' does not" in done.stderr
    assert "weights.mine" not in done.stderr
