"""Where a worker works: in the clone that its environment belongs to.

Prefect starts flow runs in an empty temporary folder. `prefect deploy` records `enter` as the pull step of our
deployments: it goes to the folder that the package `flows` was imported from, which is the clone whose .venv (or the
folder of the image) the worker runs with. So every worker has its own clone, and no deployment names a folder.
"""

import os
from pathlib import Path


def enter() -> dict[str, str]:
    folder = Path(__file__).resolve().parent.parent
    os.chdir(folder)
    return {"directory": str(folder)}
