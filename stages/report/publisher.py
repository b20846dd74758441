"""One cell in MLflow: its run, its model as something that can be loaded, and what is said of both."""

import functools
import hashlib
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema

from stages.atomic import write_json
from stages.keys import Cell, data_dir, initial_model_dir
from stages.prepare.format import Manifest
from stages.report import gallery
from stages.report.fingerprint import fingerprint
from stages.report.runs import find_runs, parent_run
from stages.report.statement import guarantee_tag, paper_epsilon, sound_epsilon, statement
from stages.report.table import Outcome

STATEMENT = "privacy-statement.md"
NAMES = 2  # raised when parameters or scores are called something else: runs with the old names are then replaced
SIGNATURES = {  # columns in and out
    "classification": (["image"], [ColSpec("string", "label"), ColSpec("double", "similarity")]),
    "captioning": (["image"], [ColSpec("string", "caption")]),
    "vqa": (["image", "question"], [ColSpec("string", "answer")]),
}
REQUIREMENTS = (
    "torch",
    "torchvision",
    "timm",
    "open_clip_torch",
    "transformers",
    "pydantic",
    "pyarrow",
    "pandas",
    "pillow",
    "tqdm",
)


class Publisher:
    """Brings one cell's run and model version in line with its files."""

    def __init__(self, client: MlflowClient, outcome: Outcome, with_model: bool):
        self.client, self.outcome, self.cell, self.with_model = client, outcome, outcome.cell, with_model
        self.content = content_hash(outcome) + ("" if with_model else " without model")
        self.tag = guarantee_tag(outcome.training)
        self.registered = f"dp-clip.{self.cell.sweep.replace('/', '.')}.{self.cell.method}"

    def publish(self) -> str | None:
        """The version of the cell's model, if it is published. A run with the same content is left alone."""
        runs = find_runs(self.client, self.cell, {"cell": str(self.cell)})
        current = [r for r in runs if r.data.tags.get("content") == self.content]
        for stale in [r for r in runs if r not in current[:1]]:
            self._remove(stale)
        if current:
            return next((v.version for v in self._versions() if v.run_id == current[0].info.run_id), None)
        return self._log()

    def _versions(self) -> list:
        return self.client.search_model_versions(f"name = '{self.registered}'")

    def _remove(self, stale: Run) -> None:
        """Weights of an earlier training must not stay beside the new ones (`mlflow gc` erases what is deleted)."""
        for version in self._versions():
            if version.run_id == stale.info.run_id:
                self.client.delete_model_version(self.registered, version.version)
        for model in stale.outputs.model_outputs if stale.outputs else []:
            self.client.delete_logged_model(model.model_id)
        self.client.delete_run(stale.info.run_id)

    def _log(self) -> str | None:
        cell = self.cell
        parent = parent_run(self.client, cell)
        with mlflow.start_run(
            experiment_id=parent.info.experiment_id,
            parent_run_id=parent.info.run_id,
            run_name=f"epsilon {cell.epsilon}, {cell.method}, seed {cell.seed}",
            tags=self._tags(),
            log_system_metrics=False,
        ):
            mlflow.log_params(self._params())
            mlflow.log_metrics(self._metrics())
            mlflow.log_text(statement(self.outcome.training), STATEMENT)
            self._log_unsafe_diagnostics()
            for path in (cell.training_json, cell.metrics_json, cell.details_json, cell.picture):
                mlflow.log_artifact(str(path))
            version = self._log_model() if self.with_model else None
            mlflow.set_tag("content", self.content)  # last: a run without it was interrupted, and is made again
        return version

    def _log_unsafe_diagnostics(self) -> None:
        """Private figures of each step, where the run was made to keep them; it is tagged as having no guarantee."""
        for name, values in (self.outcome.training.diagnostics or {}).items():
            points = [Metric(f"unsafe.{name}", value, timestamp=0, step=step) for step, value in enumerate(values)]
            for i in range(0, len(points), 1000):  # as many as one request may have
                self.client.log_batch(mlflow.active_run().info.run_id, metrics=points[i : i + 1000])

    def _log_model(self) -> str:
        from stages.models import saved

        with tempfile.TemporaryDirectory() as folder:
            facts = Path(folder) / "facts.json"
            write_json(facts, self._facts())
            privacy = Path(folder) / STATEMENT
            privacy.write_text(statement(self.outcome.training), encoding="utf-8")
            model = Path(folder) / "model"
            saved.save(saved.load(initial_model_dir(self.cell.model), self.cell.model_dir), model)
            columns, answer = SIGNATURES[self.cell.task]
            info = mlflow.pyfunc.log_model(
                name=f"model-{alias(self.cell)}",
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"model": str(model), "facts": str(facts), "privacy": str(privacy)},
                code_paths=["stages"],
                signature=ModelSignature(Schema([ColSpec("string", name) for name in columns]), Schema(answer)),
                pip_requirements=_pinned(REQUIREMENTS),
                metadata={"cell": str(self.cell), "guarantee": self.tag},
            )
        if not self.client.search_registered_models(f"name = '{self.registered}'"):
            self.client.create_registered_model(self.registered)
        tags = {"cell": str(self.cell), "guarantee": self.tag}
        return self.client.create_model_version(
            self.registered, info.model_uri, run_id=info.run_id, model_id=info.model_id, tags=tags
        ).version

    def _facts(self) -> dict:
        """What the served model must know of its task."""
        if self.cell.task in gallery.TITLES:
            details = json.loads(self.cell.details_json.read_text(encoding="utf-8"))
            return {"task": self.cell.task, "settings": details["settings"]}
        return {"task": self.cell.task, "labels": Manifest.read(data_dir(self.cell.dataset)).labels.model_dump()}

    def _params(self) -> dict:
        """Epsilons are numbers, so that the page sorts and plots them; where there is no bound there is none.

        The page that compares runs plots the first score against the first parameter: no name comes before `epsilon`.
        """
        cell, training, g = self.cell, self.outcome.training, self.outcome.training.privacy.guarantee
        values = {"private_dataset": cell.dataset, "model": cell.model, "method": cell.method, "seed": cell.seed}
        epsilons = {
            "epsilon": float(cell.epsilon),
            "epsilon_sound": sound_epsilon(training),
            "epsilon_paper": paper_epsilon(training),
        }
        values |= {name: f"{value:.10g}" for name, value in epsilons.items() if value < math.inf}
        values |= {f"train.{key}": value for key, value in (training.train or {}).items()}
        if g is not None:
            facts = ("delta", "sigma", "z", "q", "n", "accountant", "adjacency", "convention", "sampler", "sensitivity")
            values |= {f"privacy.{name}": getattr(g, name) for name in facts}
            values |= {"privacy.T": g.steps, "privacy.clip_norm": training.train["clip_norm"]}
        return values

    def _metrics(self) -> dict[str, float]:
        """Shares in percent, as in the tables; scores of captions as their authors define them."""
        m = self.outcome.metrics
        unit, factor = ("", 1) if self.cell.task == "captioning" else ("_percent", 100)
        values = {f"{name}{unit}": factor * value for name, value in m.scores.items()}
        ends = {f"{m.primary}{unit}_95_low": factor * m.low, f"{m.primary}{unit}_95_high": factor * m.high}
        return {**values, **ends, "n_test": m.n}

    def _tags(self) -> dict[str, str]:
        c = self.cell
        return {
            "cell": str(c),
            "epsilon": c.epsilon,
            "guarantee": self.tag,
            "data_fingerprint": fingerprint(Manifest.read(data_dir(c.dataset)).data_hash),
            "git_commit": git_commit(),
            "dvc_stage": f"train@{c.task}-{c.dataset}-{c.model}-{c.method}-{c.epsilon}-{c.seed}",
            **{f"not_run.{score}": reason for score, reason in self.outcome.metrics.not_run.items()},
        }


def alias(cell: Cell) -> str:
    """eps-0_5: an alias may hold letters, digits, - and _ only."""
    return f"eps-{cell.epsilon.replace('.', '_')}"


def content_hash(outcome: Outcome) -> str:
    """Of what is published for a cell: its files and what is said of them. The git commit changes without it."""
    cell = outcome.cell
    digest = hashlib.sha256(f"{NAMES} {statement(outcome.training)}".encode())
    for path in (cell.training_json, cell.metrics_json, cell.details_json, *sorted(cell.model_dir.iterdir())):
        digest.update(_hash(path))
    for path in sorted(initial_model_dir(cell.model).iterdir()):
        digest.update(_hash(path))
    return digest.hexdigest()


@functools.cache
def _hash(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def git_commit() -> str:
    """Of the code; a container has no repository, and is told the commit when it is built."""
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GIT_COMMIT") or "unknown"


def _pinned(packages: tuple[str, ...]) -> list[str]:
    from importlib.metadata import version

    return [f"{name}=={version(name)}" for name in packages]
