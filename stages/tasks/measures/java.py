"""The Java programs of pycocoevalcap: whether they can be started, and what they say when they fail."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stages.errors import UserError


class NotRun(Exception):
    """Why there is no such score."""


def require_java() -> None:
    if shutil.which("java") is None:
        raise UserError(
            "the caption metrics need Java, and there is no `java` on the PATH; install it with: "
            "sudo apt-get install default-jre-headless"
        )


@contextmanager
def options(variable: str, values: str) -> Iterator[None]:
    """For the programs that are started in the block; options that the user set stay, and come first."""
    kept = os.environ.get(variable)
    os.environ[variable] = f"{kept or ''} {values}".strip()
    try:
        yield
    finally:
        if kept is None:
            del os.environ[variable]
        else:
            os.environ[variable] = kept


@contextmanager
def stderr_kept() -> Iterator[BinaryIO]:
    """What the programs print goes to a file instead of the terminal."""
    with tempfile.TemporaryFile() as file:
        terminal = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def last_words(printed: str) -> str:
    """Of a program that failed, in one line: the innermost cause it names."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and "Picked up J" not in line]
    causes = [line for line in lines if "Error" in line or "Exception" in line]
    return (causes or lines or ["it said nothing"])[-1][:300]
