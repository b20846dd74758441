"""dvc.lock must not be in git: it has checksums and sizes of private data, without noise and without a key.

Whoever knows all records but one could try candidates for the last one until they fit. DVC refuses to work with a
dvc.lock that git ignores (its FileIsGitIgnored), so that no line of .gitignore can keep it out; a hook that `make
setup` turns on does (infra/hooks/pre-commit), and where one was committed all the same, nothing private is trained.
"""

import subprocess

from stages.errors import UserError
from stages.home import home

LOCK = "dvc.lock"


def require_lock_uncommitted() -> None:
    """Of the home: DVC's temporary copies commit theirs to experiments, which stay in this repository."""
    asked = ["git", "cat-file", "-e", f"HEAD:./{LOCK}"]
    try:
        committed = subprocess.run(asked, cwd=home(), capture_output=True).returncode == 0
    except OSError:
        return  # no git, so nothing leaves with it
    if committed:
        raise UserError(
            f"{LOCK} is committed to git. It has checksums of private data, against which guesses about single records "
            f"can be tested. Nothing was trained. Take it out: git rm --cached {LOCK} && git commit; if it was pushed, "
            "it is public"
        )
