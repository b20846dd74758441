"""A sweep with private models in a real store: those of the finished project, as if their noise had been secret."""

import dataclasses
import json
import secrets
import shutil
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from stages.keys import Cell
from stages.privacy.facts import TrainingFacts
from stages.privacy.ledger import Ledger
from stages.privacy.records import Records
from stages.publish import publisher, store
from stages.publish.publishing import Wanted, publish
from stages.report.table import Outcome
from stages.tasks.base.results import Metrics
from tests.conftest import Project, forget_charges
from tests.report.test_joint import charge_for

SWEEP = "classification/mnist5k/tiny-clip"
BEST = "dp-clip.classification.mnist5k.tiny-clip"


def trained(epsilon: str, score: float, method: str = "batch", seed: int = 0, convention: str = "sound") -> Outcome:
    """In the current folder: the finished model of another epsilon with its files and a charge, under this name."""
    made = Cell.parse(f"{SWEEP}/batch/eps-{'10' if epsilon == '10' else '1'}/seed-0")
    cell = dataclasses.replace(made, epsilon=epsilon, method=method, seed=seed)
    originals = Path("originals") / str(made)
    for kind in ("runs", "results"):
        if not (originals / kind).exists():
            shutil.copytree(Path(kind) / str(made), originals / kind)
        shutil.rmtree(Path(kind) / str(cell), ignore_errors=True)
        shutil.copytree(originals / kind, Path(kind) / str(cell))
    training = TrainingFacts.read(cell.training_json)
    g = training.privacy.guarantee.model_copy(update={"convention": convention})
    privacy = training.privacy.model_copy(update={"target": epsilon, "method": method, "guarantee": g})
    facts = {"cell": str(cell), "key": "os", "run": secrets.token_hex(8), "privacy": privacy}
    training = training.model_copy(update=facts)
    metrics = Metrics(primary="accuracy", n=1000, low=score - 0.03, high=score + 0.02, accuracy=score)
    for path, values in ((cell.training_json, training.model_dump()), (cell.metrics_json, metrics.model_dump())):
        path.unlink()
        path.write_text(json.dumps(values))
    outcome = Outcome(cell, metrics, training)
    Ledger().charge(training.run, charge_for(outcome), Records.read(Path("data/mnist5k")), g.delta)
    return outcome


@dataclasses.dataclass
class Sweep:
    """Outcomes, and the store they are published to."""

    folder: Path
    outcomes: dict[str, Outcome]

    @property
    def client(self) -> MlflowClient:
        return MlflowClient()

    def publish(self, *without: str, costs: bool = False) -> dict[str, str | None]:
        publisher._hash.cache_clear()  # a command is a process of its own
        chosen = [outcome for name, outcome in self.outcomes.items() if name not in without]
        return publish(chosen, Wanted(first_seed=0, costs=costs))

    def runs(self) -> list:
        return self.client.search_runs([e.experiment_id for e in self.client.search_experiments()])

    @property
    def parent(self):
        (found,) = [run for run in self.runs() if "sweep" in run.data.tags]
        return found

    def run(self, name: str):
        (found,) = [run for run in self.runs() if run.data.tags.get("cell") == str(self.outcomes[name].cell)]
        return found

    def aliases(self) -> dict[str, str]:
        """By alias of the best models: whose it is."""
        found = self.client.search_registered_models(f"name = '{BEST}'")
        versions = {v.version: v for v in self.client.search_model_versions(f"name = '{BEST}'")}
        cells = {str(outcome.cell): name for name, outcome in self.outcomes.items()}
        return {alias: cells[versions[v].tags["cell"]] for model in found for alias, v in model.aliases.items()}


@pytest.fixture(scope="module")
def sweep(finished, tmp_path_factory):
    """Four private models, published once. Tests that change it put it back."""
    folder = tmp_path_factory.mktemp("sweep") / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    (folder / "mlflow.db").unlink()
    shutil.rmtree(folder / "mlartifacts")
    forget_charges(folder / "ledger")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Project(folder).folder)
        patch.delenv("LEDGER_DIR", raising=False)
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        store.quiet()
        made = {
            "batch, 1": trained("1", 0.70),
            "group, 1": trained("1", 0.80, "group"),
            "batch, 3": trained("3", 0.75),
            "paper's, 10": trained("10", 0.95, convention="paper"),
        }
        its = Sweep(folder, made)
        its.publish()
        yield its
        mlflow.set_tracking_uri(None)


@pytest.fixture(autouse=True)
def in_the_sweep(sweep, monkeypatch, ledger_of_the_tests):
    """After the ledger of other tests was set."""
    monkeypatch.chdir(sweep.folder)
    monkeypatch.delenv("LEDGER_DIR", raising=False)
