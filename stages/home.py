"""The working copy that the others belong to: what is kept for the data and not for one run is there.

DVC makes temporary copies of the project (`dvc exp run --queue`, `--temp`), git makes worktrees. The privacy ledger and
the MLflow store of such a copy are those of the copy it was made from: in the temporary one they would be empty at the
start and gone at the end, and with them what was charged.

A separate clone is a home of its own: set LEDGER_DIR and MLFLOW_TRACKING_URI where clones share data.
"""

import subprocess
from pathlib import Path

TEMPORARY = (".dvc", "tmp", "exps")  # DVC's copies are below this folder of the copy they were made from


def home(here: Path | None = None) -> Path:
    """The project's folder in the copy that `here` (the current folder) was made from; itself if from none.

    >>> str(home(Path("/data/project/.dvc/tmp/exps/standalone/tmp1234")))
    '/data/project'
    """
    here = (here or Path.cwd()).resolve()
    parts = here.parts
    for i in range(len(parts) - len(TEMPORARY)):
        if parts[i : i + len(TEMPORARY)] == TEMPORARY:
            return home(Path(*parts[:i]))  # a worktree has temporary copies too
    return _main_worktree(here) or here


def _main_worktree(here: Path) -> Path | None:
    """`here` in git's main worktree; None where git knows no such folder."""
    asked = ["git", "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix"]
    try:
        said = subprocess.run(asked, cwd=here, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    common, prefix = Path(said[0]), said[1] if len(said) > 1 else ""
    return common.parent / prefix if common.name == ".git" else None
