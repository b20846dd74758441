"""Which files of this machine a published model may open for whoever asks it.

    with DP_CLIP_IMAGE_FOLDER      what is in that folder, named relative to it
    without it, MLflow's server    none: whoever can send a request must not learn what is on the machine
    without it, your own Python    any: `mlflow.pyfunc.load_model(...).predict(...)` runs as you

MLflow's scoring server (`mlflow models serve`, its images for Docker and SageMaker, `mlflow models predict`) says in
its own process that it is one. A server that you write yourself around `load_model` does not: set the folder there.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "DP_CLIP_IMAGE_FOLDER"
# Of MLflow 3.17: the first is set by its server before it takes a request, the second when it starts the server.
SERVING = ("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "__pyfunc_model_path__")
LARGEST = 20 * 2**20  # bytes of a file that is sent, or read from the folder


class Refused(ValueError):
    """What was asked cannot be answered; str() is a sentence for whoever asked."""


def is_served() -> bool:
    """Whether those who ask are others than who started this process."""
    return any(os.environ.get(name) for name in SERVING) or "mlflow.pyfunc.scoring_server.app" in sys.modules


def named(name: str) -> Path:
    """The file or folder of that name, links followed, whether it exists or not; Refused where it may not be opened."""
    folder = os.environ.get(FOLDER)
    if not folder:
        if is_served():
            raise Refused(
                f"this server opens none of its files: send the image itself in base64, or start it with "
                f"`dp-clip serve --images FOLDER` and name a file of that folder, not {shown(name)}"
            )
        return Path(name)
    whole = Path(os.path.realpath(folder))
    found = Path(os.path.realpath(whole / name.replace("\0", "\ufffd")))
    if Path(name).is_absolute() or not found.is_relative_to(whole):
        raise Refused(f"{shown(name)} is not in the folder of images; give a path relative to it that stays inside")
    return found


def file(name: str) -> Path:
    """The file of that name, of a size that is read."""
    path = named(name)
    if not os.path.isfile(path):  # False too for names that no file can have, where Path.is_file raises
        raise Refused(f"not an image file, and not an image in base64: {shown(name)}")
    if os.environ.get(FOLDER):
        require_small(path.stat().st_size)
    return path


def require_texts(table: "pd.DataFrame", columns: Sequence[str]) -> None:
    """In these columns; of nothing else is a path or an image made."""
    if table.empty:
        raise Refused("there is no row in what was sent")
    for column in columns:
        for value in table[column]:
            if not isinstance(value, str):
                raise Refused(f"{column!r} is a text, and {shown(value)} is none")


def require_small(size: int) -> None:
    if size > LARGEST:
        raise Refused(f"a file of {size / 2**20:.1f} MB is too large; send at most {LARGEST // 2**20} MB")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
