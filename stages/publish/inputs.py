"""What a run was made of, as MLflow shows it: the dataset, and the stage and commit in place of a script.

A dataset is its name and a keyed fingerprint. MLflow's own digest would be a plain hash of private data, and its
profile has their number: neither is made.
"""

import json
import os
import subprocess

from mlflow.entities import Dataset, DatasetInput, InputTag

from stages.data.manifest import Manifest
from stages.keys import Cell, data_dir
from stages.privacy import secret

SOURCE = ("mlflow.source.name", "mlflow.source.type", "mlflow.source.git.commit")


def fingerprint(dataset: str) -> str:
    return secret.keyed("data", Manifest.read(data_dir(dataset)).data_hash.encode())


def dataset_input(dataset: str, used: str = "training") -> DatasetInput:
    source = json.dumps({"folder": str(data_dir(dataset))})
    named = Dataset(name=dataset, digest=fingerprint(dataset), source_type="dvc", source=source)
    return DatasetInput(named, [InputTag("mlflow.data.context", used)])


def dvc_stage(cell: Cell) -> str:
    return f"train@{cell.task}-{cell.dataset}-{cell.model}-{cell.method}-{cell.epsilon}-{cell.seed}"


def source(stage: str) -> dict[str, str]:
    """Tags that fill the columns Source and Version."""
    tags = dict(zip(SOURCE, (stage, "LOCAL", git_commit()), strict=True))
    return {name: value for name, value in tags.items() if value != "unknown"}


def git_commit() -> str:
    """Of the code; a container has no repository, and is given the commit when it is built."""
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GIT_COMMIT") or "unknown"
