"""One cell in MLflow: its run, its model as something that can be loaded, and what is said of both."""

import functools
import hashlib
import tempfile
import time
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.models import ModelSignature
from mlflow.models.model import ModelInfo
from mlflow.tracking.context.registry import resolve_tags
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Map

from stages import tasks
from stages.atomic import write_json
from stages.costs import Costs
from stages.data.manifest import Manifest
from stages.keys import Cell, data_dir, initial_model_dir
from stages.privacy import secret
from stages.privacy.facts import TrainingFacts, round_up
from stages.publish import descriptions, figures
from stages.publish.inputs import SOURCE, dataset_input, dvc_stage, fingerprint, git_commit, source
from stages.publish.runs import find_runs, parent_run, remove
from stages.report.joint import Joint
from stages.report.statement import guarantee_tag, has_guarantee, statement
from stages.report.table import Outcome
from stages.tasks.base.task import Task

STAGES = Path(__file__).parents[1]  # wherever it is installed
STATEMENT = "privacy-statement.md"
NOT_PRIVATE = ".not-private"  # ends the registered name of a model without a guarantee
NOT_SOUND = ".not-sound"  # and that of one with the paper's noise, whose epsilon is larger than its name says
OF_A_MODEL = ("cell", "epsilon", "guarantee", "sound", *SOURCE)  # tags
NAMES = 4  # raised when parameters or scores are called something else: runs with the old names are then replaced
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

    def __init__(
        self, client: MlflowClient, outcome: Outcome, with_model: bool, joint: Joint | None = None, costs: bool = False
    ):
        self.client, self.outcome, self.cell, self.with_model = client, outcome, outcome.cell, with_model
        self.task = tasks.named(self.cell.task)
        self.joint, self.private_test = joint, Manifest.read(data_dir(self.cell.dataset)).private_test
        self.costs = Costs.read(self.cell.costs_json) if self.cell.costs_json.is_file() else None
        self.with_costs = costs and self.costs is not None and self.costs.made > 0
        self.content = content_hash(outcome) + ("" if with_model else " without model")
        self.content += " without scores" if self.private_test else ""  # those that were published before are removed
        self.content += " with costs" if self.with_costs else ""
        self.tag = guarantee_tag(outcome.training)
        # The newest version of a name that people load must never be one without a sound guarantee.
        kind = "" if is_sound(outcome.training) else NOT_SOUND if has_guarantee(outcome.training) else NOT_PRIVATE
        self.registered = f"{descriptions.sweep_name(self.cell)}.{self.cell.method}{kind}"

    def publish(self) -> str | None:
        """The version of the cell's model, if it is published. A run with the same content is left alone."""
        runs = find_runs(self.client, self.cell, {"cell": str(self.cell)})
        current = [r for r in runs if r.data.tags.get("content") == self.content]
        for stale in [r for r in runs if r not in current[:1]]:
            remove(self.client, stale)
        run_id = current[0].info.run_id if current else self._log()
        version = next((v.version for v in self._versions() if v.run_id == run_id), None)
        self._say_together(run_id)
        if version:
            self._describe(version)
        return version

    def _versions(self) -> list:
        return self.client.search_model_versions(f"name = '{self.registered}'")

    def _log(self) -> str:
        cell, began = self.cell, figures.minutes(self.costs) if self.costs and self.with_costs else None
        parent = parent_run(self.client, cell)
        run_id = self.client.create_run(
            parent.info.experiment_id,
            start_time=began and began[0],
            run_name=f"epsilon {cell.epsilon}, {cell.method}, seed {cell.seed}",
            tags=resolve_tags({"mlflow.parentRunId": parent.info.run_id, **self._tags()}),
        ).info.run_id
        with mlflow.start_run(run_id=run_id, log_system_metrics=False):
            mlflow.log_params(figures.parameters(self.outcome, self.costs))
            used = "evaluation" if cell.epsilon == "0" else "training"
            self.client.log_inputs(run_id, [dataset_input(cell.dataset, used)])
            self._log_unsafe_diagnostics(run_id)
            self.client.log_text(run_id, self._statement(), STATEMENT)
            scored = () if self.private_test else (cell.metrics_json, cell.details_json, cell.picture)
            for path in (cell.training_json, *scored):
                mlflow.log_artifact(str(path))
            model = self._log_model() if self.with_model else None
            self._log_metrics(run_id, model)
            if model:
                self._register(model)
            mlflow.set_tag("content", self.content)  # last: a run without it was interrupted, and is made again
        if began:
            self.client.set_terminated(run_id, end_time=began[1])
        return run_id

    def _log_metrics(self, run_id: str, model: ModelInfo | None) -> None:
        """Of the run, and of its model too: so the page ranks models, and a search finds the best one."""
        values = figures.bound(self.outcome) | ({} if self.private_test else figures.scores(self.outcome))
        of_model = {"model_id": model.model_id, "run_id": run_id} if model else {}
        on_data = {"dataset_name": self.cell.dataset, "dataset_digest": fingerprint(self.cell.dataset)}
        now = int(1000 * time.time())
        metrics = [Metric(key, value, now, 0, **of_model, **on_data) for key, value in values.items()]
        if not self.private_test:
            metrics += [Metric(key, value, now, step) for step, key, value in figures.learning(self.outcome)]
        if self.costs and self.with_costs:
            metrics += [Metric(key, value, now, 0) for key, value in figures.cost(self.costs).items()]
        self.client.log_batch(run_id, metrics)

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

    def _log_model(self) -> ModelInfo:
        from stages.models import saved

        tags = self._tags()
        with tempfile.TemporaryDirectory() as folder:
            facts = Path(folder) / "facts.json"
            write_json(facts, self._facts())
            privacy = Path(folder) / STATEMENT
            privacy.write_text(self._statement(), encoding="utf-8")
            model = Path(folder) / "model"
            saved.save(saved.load(initial_model_dir(self.cell.model), self.cell.model_dir), model)
            return mlflow.pyfunc.log_model(
                name=f"model-{alias(self.cell)}",
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"model": str(model), "facts": str(facts), "privacy": str(privacy)},
                code_paths=[str(STAGES)],
                signature=signature_of(self.task),
                pip_requirements=_pinned(REQUIREMENTS),
                metadata={"cell": str(self.cell), "guarantee": self.tag},
                tags={name: tags[name] for name in OF_A_MODEL if name in tags},
            )

    def _register(self, model: ModelInfo) -> None:
        if not self.client.search_registered_models(f"name = '{self.registered}'"):
            self.client.create_registered_model(self.registered)
        tags = {"cell": str(self.cell), "guarantee": self.tag}
        self.client.create_model_version(
            self.registered, model.model_uri, run_id=model.run_id, model_id=model.model_id, tags=tags
        )

    def _describe(self, version: str) -> None:
        training = self.outcome.training
        guaranteed, sound = has_guarantee(training), is_sound(training)
        about = descriptions.of_registered(self.cell, guaranteed, sound, self.joint)
        self.client.update_registered_model(self.registered, about)
        name = figures.primary(self.outcome)
        score = None if self.private_test else f"{name} {figures.scores(self.outcome)[name]:.2f}"
        self.client.update_model_version(self.registered, version, descriptions.of_version(self.tag, score, self.joint))

    def _facts(self) -> dict:
        """What the served model must know of its task."""
        return {"task": self.task.name, **self.task.facts(data_dir(self.cell.dataset), self.cell.details_json)}

    def _tags(self) -> dict[str, str]:
        c = self.cell
        return {
            "cell": str(c),
            "epsilon": c.epsilon,
            "guarantee": self.tag,
            "sound": sound_tag(self.outcome.training),
            "data_fingerprint": fingerprint(c.dataset),
            "git_commit": git_commit(),
            "dvc_stage": dvc_stage(c),
            **source(dvc_stage(c)),
            **({"device": self.costs.device} if self.costs else {}),
            "scores": scores_tag(self.outcome.training, self.private_test),
            **({"charge": self.outcome.training.run} if self.outcome.training.run else {}),
            **{f"not_run.{score}": reason for score, reason in self.outcome.metrics.not_run.items()},
        }


def signature_of(task: Task) -> ModelSignature:
    asked: list[ColSpec | TensorSpec] = [ColSpec("string", name) for name in task.inputs]
    kinds = {"map": Map(DataType.double)}  # numbers by name, where MLflow has no name for the type
    answered: list[ColSpec | TensorSpec] = [ColSpec(kinds.get(kind, kind), name) for name, kind in task.outputs.items()]
    return ModelSignature(Schema(asked), Schema(answered))


def is_sound(training: TrainingFacts) -> bool:
    """Whether its epsilon is that of its name. The paper's convention has a guarantee, with a larger one."""
    g = training.privacy.guarantee
    return has_guarantee(training) and (g is None or g.convention == "sound")


def sound_tag(training: TrainingFacts) -> str:
    return "yes" if is_sound(training) else "no"


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


def _pinned(packages: tuple[str, ...]) -> list[str]:
    from importlib.metadata import version

    return [f"{name}=={version(name)}" for name in packages]
