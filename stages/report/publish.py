"""Fill MLflow from the files of the sweep: an experiment a task, a parent run a sweep, a child run a cell.

Files are the truth: publishing twice adds nothing, publishing after the store was deleted restores everything, and a
cell that was trained again replaces its run. The store is MLFLOW_TRACKING_URI, by default mlflow.db in this folder.

    python -m stages.report.publish
"""

import argparse
import hashlib
import logging
import os
import subprocess
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema
from tqdm import tqdm

from stages import params
from stages.atomic import write_json
from stages.errors import run
from stages.keys import Cell, data_dir
from stages.prepare.format import Manifest
from stages.report.__main__ import CSV, PLOTS, REPORT, TABLE
from stages.report.fingerprint import fingerprint
from stages.report.statement import statement
from stages.report.table import Outcome, read_outcome

STORE = "sqlite:///mlflow.db"
PUBLISHED = REPORT / "published.json"
SIGNATURE = ModelSignature(
    Schema([ColSpec("string", "image")]), Schema([ColSpec("string", "label"), ColSpec("double", "similarity")])
)
REQUIREMENTS = ("torch", "open_clip_torch", "transformers", "pydantic", "pyarrow", "pandas", "pillow", "tqdm")


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m stages.report.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    quiet()
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", STORE))
    p = params.load()
    outcomes = [read_outcome(cell) for cell in p.cells()]
    models = {}
    for outcome in tqdm(outcomes, desc="publish to MLflow", unit=" runs", disable=None):
        models[str(outcome.cell)] = Publisher(p, outcome).publish()
    for sweep in dict.fromkeys(o.cell.sweep for o in outcomes):
        publish_report(next(o.cell for o in outcomes if o.cell.sweep == sweep))
    write_json(PUBLISHED, models)
    print(f"{len(models)} runs are in {mlflow.get_tracking_uri()}; look at them with: make ui")


def quiet() -> None:
    """One line a run would hide what matters; errors still show."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is written out


class Publisher:
    """Brings one cell's run and model version in line with its files."""

    def __init__(self, p: params.Params, outcome: Outcome):
        self.params, self.outcome, self.cell = p, outcome, outcome.cell
        self.client = MlflowClient()
        self.content = content_hash(self.cell, p)
        self.registered = f"dp-clip.{self.cell.sweep.replace('/', '.')}.{self.cell.method}"

    def publish(self) -> str:
        """The URI under which the model can be loaded."""
        runs = find_runs(self.client, self.cell, {"cell": str(self.cell)})
        current = [r for r in runs if r.data.tags.get("content") == self.content]
        for stale in [r for r in runs if r not in current[:1]]:
            self._remove(stale)
        if not current:
            self._log()
        return f"models:/{self.registered}@{alias(self.cell)}"

    def _remove(self, stale: Run) -> None:
        for version in self.client.search_model_versions(f"name = '{self.registered}'"):
            if version.run_id == stale.info.run_id:
                self.client.delete_model_version(self.registered, version.version)
        self.client.delete_run(stale.info.run_id)

    def _log(self) -> None:
        cell, o = self.cell, self.outcome
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
            mlflow.log_text(statement(o.facts, o.training), "privacy-statement.txt")
            for path in (cell.privacy_json, cell.training_json, cell.metrics_json, cell.details_json, cell.picture):
                mlflow.log_artifact(str(path))
            self._log_model()
            mlflow.set_tag("content", self.content)  # last: a run without it was interrupted, and is made again

    def _log_model(self) -> None:
        labels = Manifest.read(data_dir(self.cell.dataset)).labels
        with tempfile.TemporaryDirectory() as folder:
            labels_json = Path(folder) / "labels.json"
            write_json(labels_json, labels.model_dump())
            info = mlflow.pyfunc.log_model(
                name=f"model-{alias(self.cell)}",
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"model": str(self.cell.model_dir), "labels": str(labels_json)},
                code_paths=["stages"],
                signature=SIGNATURE,
                pip_requirements=_pinned(REQUIREMENTS),
                metadata={"cell": str(self.cell), "guarantee": self.outcome.tag},
            )
        if not self.client.search_registered_models(f"name = '{self.registered}'"):
            self.client.create_registered_model(self.registered)
        version = self.client.create_model_version(
            self.registered,
            info.model_uri,
            run_id=info.run_id,
            model_id=info.model_id,
            tags={"cell": str(self.cell), "guarantee": self.outcome.tag},
        )
        # An alias names one model: the first seed's. The best one's would be a choice made on the test split.
        if self.cell.seed == self.params.sweep.seed[0]:
            self.client.set_registered_model_alias(self.registered, alias(self.cell), version.version)

    def _params(self) -> dict:
        """Epsilons are numbers, so that the page sorts and plots them; a non-private run has only the tag."""
        cell, o, g = self.cell, self.outcome, self.outcome.facts.guarantee
        values = {
            "dataset": cell.dataset,
            "model": cell.model,
            "method": cell.method,
            "seed": cell.seed,
        }
        if cell.epsilon != "inf":
            values |= {"epsilon": cell.epsilon, "epsilon_sound": o.epsilon_sound, "epsilon_paper": o.epsilon_paper}
        if cell.epsilon != "0":
            values |= {f"train.{key}": value for key, value in self.params.train.model_dump().items()}
        if g is not None:
            facts = ("delta", "sigma", "z", "q", "n", "accountant", "adjacency", "convention", "sampler", "sensitivity")
            values |= {f"privacy.{name}": getattr(g, name) for name in facts}
            values |= {"privacy.T": g.steps, "privacy.clip_norm": o.training["clip_norm"]}
        return values

    def _metrics(self) -> dict[str, float]:
        m = self.outcome.metrics
        return {**m.scores, f"{m.primary}_low": m.low, f"{m.primary}_high": m.high, "n_test": m.n}

    def _tags(self) -> dict[str, str]:
        c = self.cell
        return {
            "cell": str(c),
            "epsilon": c.epsilon,
            "guarantee": self.outcome.tag,
            "data_hash": fingerprint(Manifest.read(data_dir(c.dataset)).data_hash),
            "git_commit": git_commit(),
            "dvc_stage": f"train@{c.task}-{c.dataset}-{c.model}-{c.method}-{c.epsilon}-{c.seed}",
        }


def alias(cell: Cell) -> str:
    """eps-0_5: an alias may hold letters, digits, - and _ only."""
    return f"eps-{cell.epsilon.replace('.', '_')}"


def experiment_id(client: MlflowClient, cell: Cell) -> str:
    name = f"dp-clip {cell.task}"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    # A local store keeps its artifacts beside it; a server decides for itself.
    local = mlflow.get_tracking_uri().startswith("sqlite:")
    location = Path("mlartifacts").resolve().as_uri() if local else None
    kind = {"mlflow.experimentKind": "custom_model_development"}  # the page opens on runs, not on chat traces
    return client.create_experiment(name, location, tags=kind)


def find_runs(client: MlflowClient, cell: Cell, tags: dict[str, str]) -> list[Run]:
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment_id(client, cell)], query))


def parent_run(client: MlflowClient, cell: Cell) -> Run:
    """The run that holds the sweep together; its children are the cells."""
    if found := find_runs(client, cell, {"sweep": cell.sweep}):
        return found[0]
    name = f"{cell.dataset}, {cell.model}"
    created = client.create_run(experiment_id(client, cell), run_name=name, tags={"sweep": cell.sweep})
    client.log_param(created.info.run_id, "dataset", cell.dataset)
    client.log_param(created.info.run_id, "model", cell.model)
    client.set_terminated(created.info.run_id)
    return created


def publish_report(cell: Cell) -> None:
    client = MlflowClient()
    run_id = parent_run(client, cell).info.run_id
    for path in (TABLE, CSV, PLOTS / f"{cell.sweep.replace('/', '-')}.png"):
        client.log_artifact(run_id, str(path))
    client.set_tag(run_id, "mlflow.note.content", TABLE.read_text(encoding="utf-8"))


def content_hash(cell: Cell, p: params.Params) -> str:
    """Of all that is published for a cell. The git commit is left out: it changes without the cell changing."""
    digest = hashlib.sha256(p.train.model_dump_json().encode())
    files = [cell.privacy_json, cell.training_json, cell.metrics_json, cell.details_json]
    for path in [*files, *sorted(cell.model_dir.iterdir())]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def git_commit() -> str:
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _pinned(packages: tuple[str, ...]) -> list[str]:
    from importlib.metadata import version

    return [f"{name}=={version(name)}" for name in packages]


if __name__ == "__main__":
    run(main)
