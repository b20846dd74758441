"""One cell in MLflow: its run, its model as something that can be loaded, and what is said of both."""

import functools
import hashlib
import math
import os
import subprocess
import tempfile
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Map

from stages import tasks
from stages.atomic import write_json
from stages.data.manifest import Manifest
from stages.keys import Cell, data_dir, initial_model_dir
from stages.privacy import secret
from stages.privacy.facts import TrainingFacts, round_up
from stages.publish.runs import find_runs, parent_run
from stages.report.joint import Joint
from stages.report.statement import guarantee_tag, has_guarantee, paper_epsilon, sound_epsilon, statement
from stages.report.table import Outcome
from stages.tasks.base.task import Task

STAGES = Path(__file__).parents[1]  # wherever it is installed
STATEMENT = "privacy-statement.md"
NOT_PRIVATE = ".not-private"  # ends the registered name of a model without a guarantee
NOT_SOUND = ".not-sound"  # and that of one with the paper's noise, whose epsilon is larger than its name says
NAMES = 3  # raised when parameters or scores are called something else: runs with the old names are then replaced
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

    def __init__(self, client: MlflowClient, outcome: Outcome, with_model: bool, joint: Joint | None = None):
        self.client, self.outcome, self.cell, self.with_model = client, outcome, outcome.cell, with_model
        self.task = tasks.named(self.cell.task)
        self.joint, self.private_test = joint, Manifest.read(data_dir(self.cell.dataset)).private_test
        self.content = content_hash(outcome) + ("" if with_model else " without model")
        self.content += " without scores" if self.private_test else ""  # those that were published before are removed
        self.tag = guarantee_tag(outcome.training)
        # The newest version of a name that people load must never be one without a sound guarantee.
        g = outcome.training.privacy.guarantee
        kind = NOT_SOUND if g and g.convention == "paper" else ""
        kind = kind if has_guarantee(outcome.training) else NOT_PRIVATE
        self.registered = f"dp-clip.{self.cell.sweep.replace('/', '.')}.{self.cell.method}{kind}"

    def publish(self) -> str | None:
        """The version of the cell's model, if it is published. A run with the same content is left alone."""
        runs = find_runs(self.client, self.cell, {"cell": str(self.cell)})
        current = [r for r in runs if r.data.tags.get("content") == self.content]
        for stale in [r for r in runs if r not in current[:1]]:
            self._remove(stale)
        if current:
            self._say_together(current[0].info.run_id)
            return next((v.version for v in self._versions() if v.run_id == current[0].info.run_id), None)
        return self._log()

    def _versions(self) -> list:
        return self.client.search_model_versions(f"name = '{self.registered}'")

    def _remove(self, stale: Run) -> None:
        """Weights of an earlier training must not stay beside the new ones (`mlflow gc` erases what is deleted)."""
        for version in self.client.search_model_versions(f"run_id = '{stale.info.run_id}'"):  # under whatever name
            self.client.delete_model_version(version.name, version.version)
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
        ) as run:
            mlflow.log_params(self._params())
            mlflow.log_metrics({} if self.private_test else self._metrics())
            self._say_together(run.info.run_id)
            self._log_unsafe_diagnostics(run.info.run_id)
            scored = () if self.private_test else (cell.metrics_json, cell.details_json, cell.picture)
            for path in (cell.training_json, *scored):
                mlflow.log_artifact(str(path))
            version = self._log_model() if self.with_model else None
            mlflow.set_tag("content", self.content)  # last: a run without it was interrupted, and is made again
        return version

    def _say_together(self, run_id: str) -> None:
        """What is true of all models together changes with every other run: it is brought up to date each time."""
        self.client.log_text(run_id, self._statement(), STATEMENT)
        for name, value in together_tags(self.joint).items():
            self.client.set_tag(run_id, name, value)

    def _statement(self) -> str:
        return statement(self.outcome.training, self.joint.sentence() if self.joint else None)

    def _log_unsafe_diagnostics(self, run_id: str) -> None:
        """Private figures of each step, where the run was made to keep them; it is tagged as having no guarantee."""
        for name, values in (self.outcome.training.diagnostics or {}).items():
            points = [Metric(f"unsafe.{name}", value, timestamp=0, step=step) for step, value in enumerate(values)]
            for i in range(0, len(points), 1000):  # as many as one request may have
                self.client.log_batch(run_id, metrics=points[i : i + 1000])

    def _log_model(self) -> str:
        from stages.models import saved

        with tempfile.TemporaryDirectory() as folder:
            facts = Path(folder) / "facts.json"
            write_json(facts, self._facts())
            privacy = Path(folder) / STATEMENT
            privacy.write_text(self._statement(), encoding="utf-8")
            model = Path(folder) / "model"
            saved.save(saved.load(initial_model_dir(self.cell.model), self.cell.model_dir), model)
            info = mlflow.pyfunc.log_model(
                name=f"model-{alias(self.cell)}",
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"model": str(model), "facts": str(facts), "privacy": str(privacy)},
                code_paths=[str(STAGES)],
                signature=signature_of(self.task),
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
        return {"task": self.task.name, **self.task.facts(data_dir(self.cell.dataset), self.cell.details_json)}

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
            values |= {"privacy.T": g.steps, "privacy.clip_norm": (training.train or {})["clip_norm"]}
        return values

    def _metrics(self) -> dict[str, float]:
        """Shares in percent, as in the tables; other scores as their authors define them."""
        m = self.outcome.metrics

        def shown(score: str, value: float, end: str = "") -> tuple[str, float]:
            return (f"{score}_percent{end}", 100 * value) if self.task.is_share(score) else (f"{score}{end}", value)

        ends = [shown(m.primary, m.low, "_95_low"), shown(m.primary, m.high, "_95_high")]
        return dict([shown(*item) for item in m.scores.items()] + ends) | {"n_test": m.n}

    def _tags(self) -> dict[str, str]:
        c = self.cell
        return {
            "cell": str(c),
            "epsilon": c.epsilon,
            "guarantee": self.tag,
            "data_fingerprint": secret.keyed("data", Manifest.read(data_dir(c.dataset)).data_hash.encode()),
            "git_commit": git_commit(),
            "dvc_stage": f"train@{c.task}-{c.dataset}-{c.model}-{c.method}-{c.epsilon}-{c.seed}",
            "scores": scores_tag(self.outcome.training, self.private_test),
            **({"charge": self.outcome.training.run} if self.outcome.training.run else {}),
            **{f"not_run.{score}": reason for score, reason in self.outcome.metrics.not_run.items()},
        }


def signature_of(task: Task) -> ModelSignature:
    asked: list[ColSpec | TensorSpec] = [ColSpec("string", name) for name in task.inputs]
    kinds = {"map": Map(DataType.double)}  # numbers by name, where MLflow has no name for the type
    answered: list[ColSpec | TensorSpec] = [ColSpec(kinds.get(kind, kind), name) for name, kind in task.outputs.items()]
    return ModelSignature(Schema(asked), Schema(answered))


def scores_tag(training: TrainingFacts, private_test: bool) -> str:
    if private_test:
        return "stay with the data: the test split is private"
    return "public test split" if has_guarantee(training) else "NOT PRIVATE: of a model that no epsilon covers"


def together_tags(joint: Joint | None) -> dict[str, str]:
    if joint is None:
        return {}
    return {
        "joint_epsilon_published": round_up(joint.published, 4),
        "joint_epsilon_all_runs": round_up(joint.ever, 4),
        "joint_epsilon": joint.sentence(),
    }


def alias(cell: Cell) -> str:
    """eps-0_5: an alias may hold letters, digits, - and _ only."""
    return f"eps-{cell.epsilon.replace('.', '_')}"


def content_hash(outcome: Outcome) -> str:
    """Of what is published for a cell: its files and what is said of them. The git commit changes without it.

    It is published, and of a model without noise the plain hash would be a function of the private data: it is keyed.
    """
    cell = outcome.cell
    digest = hashlib.sha256(f"{NAMES} {statement(outcome.training)}".encode())
    for path in (cell.training_json, cell.metrics_json, cell.details_json, *sorted(cell.model_dir.iterdir())):
        digest.update(_hash(path))
    for path in sorted(initial_model_dir(cell.model).iterdir()):
        digest.update(_hash(path))
    return secret.keyed("published", digest.digest(), size=32)


@functools.cache
def _hash(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def git_commit() -> str:
    """Of the code; a container has no repository, and is given the commit when it is built."""
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GIT_COMMIT") or "unknown"


def _pinned(packages: tuple[str, ...]) -> list[str]:
    from importlib.metadata import version

    return [f"{name}=={version(name)}" for name in packages]
