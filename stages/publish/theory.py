"""Log the study to MLflow as an experiment of its own, with its plots. Publishing twice adds nothing.

python -m stages.publish.theory
"""

import hashlib
import json
from pathlib import Path

import mlflow
from mlflow import MlflowClient

from stages import commands, params
from stages.atomic import write_json
from stages.errors import UserError, run
from stages.publish import store
from stages.publish.runs import experiment_named
from stages.theory.report import FOLDER

EXPERIMENT = "dp-clip theory"


def main() -> None:
    parser = commands.parser("stages.publish.theory", __doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where the study is (default: {FOLDER})")
    folder = parser.parse_args().folder
    if not (folder / "points.json").is_file():
        raise UserError(f"no study in {folder}; run: dvc --cd stages/theory repro, or: dp-clip theory")
    with store.publishing():
        identity = publish(params.load().theory, folder)
    write_json(folder.with_name(f"{folder.name}-published.json"), {"run": identity})
    place = store.hidden(mlflow.get_tracking_uri())
    print(f"the theory is in {place}, experiment {EXPERIMENT!r}; look at it with: make ui")


def publish(config: params.Theory, folder: Path) -> str:
    """The run that holds exactly these files; runs of earlier studies stay, to compare."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    experiment = experiment_named(MlflowClient(), EXPERIMENT)
    same = MlflowClient().search_runs([experiment], f"tags.content = '{content}'")
    if same:
        return same[0].info.run_id
    name = f"{config.trials} trials, seed {config.seed}"
    with mlflow.start_run(experiment_id=experiment, run_name=name, log_system_metrics=False) as active:
        mlflow.log_params(config.model_dump())
        mlflow.log_metrics(json.loads((folder / "exponents.json").read_text(encoding="utf-8")))
        mlflow.log_artifacts(str(folder))
        mlflow.set_tag("content", content)  # last: a run without it was interrupted
    return active.info.run_id


if __name__ == "__main__":
    run(main)
