"""A task is one file: nothing else knows it by name, and a new one goes from params.yaml to MLflow by itself."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from stages import tasks
from stages.errors import UserError
from stages.keys import TASKS
from tests.conftest import ROOT, small_params

# `vqa` is also the section of params.yaml for VQA's files: that name is in these constants, and in lists of sections.
SECTION = {"stages/params/checks.py": ["vqa"], "stages/params/schema.py": ["vqa"]}
SECTIONS = re.compile(r"coco`? (and|or) `?vqa\b")


def texts(path: Path) -> Iterator[str]:
    """The string constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def mentions(path: Path, names: Iterable[str] = TASKS) -> list[str]:
    """The constants in which a task's name is a word of its own."""
    word = re.compile(rf"\b({'|'.join(names)})\b")
    return [text for text in texts(path) if word.search(SECTIONS.sub("", text))]


def test_no_other_file_knows_a_task_by_its_name():
    found = {}
    for path in (p for folder in ("stages", "flows") for p in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("stages/tasks/") or name == "stages/keys.py":  # its message shows a cell as an example
            continue
        sources = name.startswith("stages/sources/")  # VQA's files and easy-vqa are data
        if said := mentions(path, set(TASKS) - {"vqa"} if sources else TASKS):
            found[name] = said
    assert found == SECTION


def test_the_search_for_names_finds_a_switch(tmp_path):
    code = 'def f(cell):\n    "docs of captioning"\n    if cell.task == "captioning":\n        return f"{cell} vqa"\n'
    (tmp_path / "switch.py").write_text(code)
    assert mentions(tmp_path / "switch.py") == ["captioning", " vqa"]


@pytest.mark.parametrize("name", TASKS)
def test_a_file_has_the_task_of_its_name(name):
    task = tasks.named(name)
    assert task.name == name and task.inputs and task.outputs


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"no task 'painting'; known: captioning, classification"):
        tasks.named("painting")


@pytest.mark.parametrize(
    ("imported", "light"),
    [
        ("from stages import tasks; [tasks.named(name) for name in tasks.TASKS]", ()),
        ("import stages.params", ("numpy",)),
    ],
    ids=["tasks", "params"],
)
def test_reading_params_imports_nothing_that_takes_seconds(imported, light):
    heavy = {"torch", "transformers", "mlflow", "matplotlib", "pandas", "sklearn", "pycocoevalcap", "pyarrow", "numpy"}
    code = f"import sys; {imported}; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) <= set(light)


MATCHING = '''
"""The text of the test split that is nearest to an image."""

from dataclasses import dataclass

from stages.sections import PositiveInt
from stages.tasks.base import examples
from stages.tasks.base.examples import Example, Examples
from stages.tasks.base.results import Metrics, wilson_interval
from stages.tasks.base.task import ScoresInPaper, Settings, Task


class MatchingSettings(Settings):
    images: PositiveInt = 6  # so many of the test split


class Matching(Task):
    name = "matching"
    settings = MatchingSettings
    page_title = "Matches"
    outputs = {"text": "string"}
    in_paper = ScoresInPaper(
        "Matching, ours", "images", {"right": "right", "rank": "rank of its own"}, "None.", "Of scenes."
    )

    def evaluate(self, encoder, test, settings, device):
        import torch

        rows = range(settings.images)
        own = [test.data.texts_and_label(row)[0][0] for row in rows]
        with torch.no_grad():
            images = encoder.model.encode_image(test.images(rows), normalize=True)
            texts = encoder.model.encode_text(encoder.tokenize(own), normalize=True)
        similar = images @ texts.T
        ranks = (similar >= similar.diag()[:, None]).sum(dim=1).tolist()
        return Matches(test.data, own, [own[i] for i in similar.argmax(dim=1)], ranks)

    def is_share(self, score):
        return score != "rank"

    def facts(self, data, details):
        return {"texts": sorted({e["said"] for e in __import__("json").loads(details.read_text())["examples"]})}

    def serve(self, encoder, facts):
        import pandas as pd

        from stages.tasks.base.pictures import pictures

        texts = encoder.model.encode_text(encoder.tokenize(facts["texts"]), normalize=True)

        def answer(table):
            images = encoder.model.encode_image(pictures(encoder, table["image"]), normalize=True)
            return pd.DataFrame({"text": [facts["texts"][i] for i in (images @ texts.T).argmax(dim=1)]})

        return answer


@dataclass(frozen=True)
class Matches:
    data: object
    own: list
    said: list
    ranks: list

    def metrics(self):
        n, right = len(self.own), sum(a == b for a, b in zip(self.own, self.said))
        low, high = wilson_interval(right, n)
        return Metrics(primary="right", n=n, low=low, high=high, right=right / n, rank=sum(self.ranks) / n)

    def details(self):
        pairs = enumerate(zip(self.own, self.said))
        found = [Example(row=i, said=said, references=[own], score=float(own == said)) for i, (own, said) in pairs]
        return Examples(settings={}, examples=found).model_dump()

    def draw(self, title, path):
        examples.draw(Examples.model_validate(self.details()), self.data, title, path)


TASK = Matching()
'''
CELL = "matching/scenes/tiny-clip/batch/eps-0/seed-0"
# One process: every stage would import torch anew.
STAGES = f"""
import runpy, sys, torch
from pathlib import Path
from stages.models import saved

torch.manual_seed(0)
saved.save(saved.create("stages/models/configs/tiny-clip"), Path("models/tiny-clip"))
for command in (
    "params",
    "prepare --dataset scenes",
    "encode --dataset scenes --model tiny-clip",
    "calibrate --cell {CELL}",
    "train --cell {CELL}",
    "evaluate --cell {CELL}",
    "report",
    "publish",
):
    sys.argv = command.split()
    runpy.run_module(f"stages.{{sys.argv[0]}}", run_name="__main__")

import mlflow, pandas
from stages.data.prepared import PreparedSplit
Path("one.png").write_bytes(PreparedSplit(Path("data/scenes"), "test").row(0).image)
model = mlflow.pyfunc.load_model("models:/dp-clip.matching.scenes.tiny-clip.batch@eps-0")
print(model.predict(pandas.DataFrame({{"image": ["one.png"]}}))["text"][0])
metrics = mlflow.search_runs(search_all_experiments=True, filter_string="tags.epsilon = '0'").iloc[0]
print(sorted(name for name in metrics.index if name.startswith("metrics.")))
"""


def test_a_new_task_is_one_new_file_from_params_to_a_served_model(project):
    (project.folder / "stages/tasks/matching.py").write_text(textwrap.dedent(MATCHING))
    values = small_params()
    values["sweep"] |= {"task": ["matching"], "dataset": ["scenes"], "epsilon": [0]}
    scenes = {"source": "scenes", "style": "private", "train": 40, "test": 8, "seed": 0}
    values["prepare"]["scenes"] = scenes
    values["evaluate"]["images"] = 7  # a setting of its own

    values["train"]["methods"]["batch"] |= {"loss": "prompts", "trainable": "image-tower"}
    project.write_params(values)
    refused = project.stage("params")
    assert refused.returncode == 2
    assert "train.methods.batch.loss: prompts needs classes, which the task does not have" in refused.stderr

    values["train"]["methods"]["batch"]["loss"] = "contrastive"
    project.write_params(values)
    done = project.run(sys.executable, "-c", STAGES)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    metrics = json.loads((project.folder / "results" / CELL / "metrics.json").read_text())
    details = json.loads((project.folder / "results" / CELL / "details.json").read_text())
    assert metrics["primary"] == "right" and metrics["n"] == 7 and 1 <= metrics["rank"] <= 7
    report = project.folder / "report"
    assert "**matching, tiny-clip**: right in % on the test split" in (report / "table.md").read_text()
    paper = (report / "paper.md").read_text()
    assert "# Matching, ours" in paper and "| rank of its own |" in paper and "published" not in paper
    assert "Matches: scenes, tiny-clip" in (report / "gallery/matching-scenes-tiny-clip.html").read_text()
    said, published = done.stdout.splitlines()[-2:]
    assert said == details["examples"][0]["said"]
    assert "'metrics.right_percent'" in published and "'metrics.rank'" in published
