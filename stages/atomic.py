"""Write whole or not at all: outputs appear under their name only once they are complete."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"  # also in .dvcignore and .gitignore


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own keeps the file's suffix, which many writers choose the format by.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=TEMPORARY) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # the content is on disk before the name points to it
        os.replace(temporary, path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it replaces `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=TEMPORARY))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp makes it private to its owner
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """JSON that every reader accepts: no NaN or Infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
