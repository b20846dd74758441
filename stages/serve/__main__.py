"""Serve a published model on this machine, by MLflow's own server.

    python -m stages.serve models:/dp-clip.classification.mnist5k.tiny-clip.group@eps-3
    python -m stages.serve FOLDER                  where MLflow saved a model
    echo '{"dataframe_records": [{"image": "'$(base64 -w 0 digit.png)'"}]}' |
        curl http://127.0.0.1:5001/invocations -H 'Content-Type: application/json' -d @-

An image is the file's bytes in base64, or a `data:` URI of them; a model that answers takes a column `question` too.
Files of this machine are read with --images alone: then an image may be a path relative to that folder, and a model
that finds images takes such a `folder`. The server has no login: it listens to this machine alone. The model runs with
the code that was published with it.
"""

import os
import socket
import sys
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models.model import ModelInfo

from stages import commands
from stages.errors import UserError, run
from stages.publish import store
from stages.tasks.base import reach

HOST = "127.0.0.1"


def main() -> None:
    parser = commands.parser("stages.serve", __doc__)
    parser.add_argument("model", metavar="MODEL", help="models:/NAME@ALIAS, models:/NAME/VERSION or a folder")
    parser.add_argument("--port", type=int, default=5001, help="default 5001")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="in which callers may name files; default none")
    args = parser.parse_args()
    require_free(args.port)
    if args.images and not args.images.is_dir():
        raise UserError(f"--images {args.images} is no folder; give the one in which callers may name files")
    store.quiet()
    about = find(args.model).metadata or {}
    print(f"{about.get('cell', args.model)}: {about.get('guarantee', 'states no guarantee')}")
    print(f"http://{HOST}:{args.port}/invocations once it is loaded; Ctrl-C stops it", flush=True)
    programs = Path(sys.executable).parent  # MLflow calls uvicorn by its name
    os.environ |= {
        "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri(),
        **({reach.FOLDER: str(args.images.resolve())} if args.images else {}),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    served = ["-m", "mlflow", "models", "serve", "--env-manager", "local", "--host", HOST, "--port", str(args.port)]
    os.execv(sys.executable, [sys.executable, *served, "--model-uri", args.model])  # noqa: S606 - no shell is meant


def require_free(port: int) -> None:
    try:
        with socket.create_server((HOST, port)):
            pass
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port} cannot be used ({error}); give another one") from None


def find(model: str) -> ModelInfo:
    """What MLflow knows of the model; a folder needs no store."""
    if ":/" not in model:
        if not (Path(model) / "MLmodel").is_file():
            raise UserError(f"{model} is neither models:/NAME@ALIAS nor a folder with MLmodel, as MLflow saves one")
        return mlflow.models.get_model_info(model)
    store.connect()
    try:
        return mlflow.models.get_model_info(model)
    except MlflowException as error:
        known = [
            f"models:/{registered.name}@{alias}"
            for registered in MlflowClient().search_registered_models()
            for alias in registered.aliases
        ]
        message = f"{store.shown()} has no model {model}: {store.hidden(error.message)}"
        raise UserError(f"{message}\nwhat it has:" if known else f"{message}; run: dp-clip publish", known) from None


if __name__ == "__main__":
    run(main)
