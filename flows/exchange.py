"""What one clone tells another about stages: their entries of dvc.lock, through the DVC remote that both use.

An entry names the outputs by their content, so a clone that has it can `dvc pull` them. It also holds checksums of
private data, so it goes where the data are, in the remote, and never to Prefect's server. Every job has a folder with a
random name there, which is removed when the job's results were taken.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flows.dvc import c_library
from stages.atomic import new_file
from stages.errors import UserError

FOLDER = "sweep-jobs"  # in the remote, beside DVC's own `files` and `runs`
LOCK = Path("dvc.lock")
_one_at_a_time = threading.Lock()


def require_remote() -> None:
    with _remote_folder("none"):
        pass


def offer(job: str, name: str, stages: list[str]) -> None:
    """Put what this clone knows of `stages` into the remote."""
    known = _read(LOCK).get("stages", {})
    if missing := [stage for stage in stages if stage not in known]:
        raise UserError(f"{LOCK} has nothing about {', '.join(missing)}; bring them up to date first")
    with _remote_folder(job) as (fs, folder):
        fs.makedirs(folder, exist_ok=True)
        with fs.open(fs.join(folder, name), "wb") as file:
            c_library().dump({stage: known[stage] for stage in stages}, file)


def take(job: str, name: str) -> list[str]:
    """Know of the stages what the other clone knows of them; returns their names."""
    with _remote_folder(job) as (fs, folder):
        path = fs.join(folder, name)
        if not fs.exists(path):
            raise UserError(
                f"job {job} has no {name} in the DVC remote; do all clones use the same one? (dvc remote list)"
            )
        with fs.open(path, "rb") as file:
            entries = c_library().load(file)
    from dvc.repo import Repo

    with _one_at_a_time, Repo(_wait_for_lock=True) as repo, repo.lock:
        lock = {"schema": "2.0", "stages": {}} | _read(LOCK)
        lock["stages"] |= entries
        with new_file(LOCK) as temporary, temporary.open("wb") as file:
            c_library().dump(lock, file)
    return list(entries)


def forget(job: str) -> None:
    with _remote_folder(job) as (fs, folder), suppress(FileNotFoundError):
        fs.remove(folder, recursive=True)


@contextmanager
def _remote_folder(job: str) -> Iterator[tuple[Any, str]]:
    from dvc.config import NoRemoteError
    from dvc.repo import Repo

    with _one_at_a_time, Repo() as repo:
        try:
            remote = repo.cloud.get_remote()
        except NoRemoteError:
            raise UserError(
                "machines hand data and results to each other through a DVC remote, and this clone has no default one: "
                "dvc remote add --local --default sweep FOLDER-OR-S3-ADDRESS, the same in every clone"
            ) from None
        yield remote.fs, remote.fs.join(remote.path, FOLDER, job)


def _read(path: Path) -> dict:
    return c_library().load(path) if path.is_file() else {}
