"""Mistakes a user can make, reported in one message instead of a traceback; and what of them may leave this machine.

What a stage prints ends in Prefect's logs and states. A file can be named after a patient and a label can be a
diagnosis, so a message that may travel says how many mistakes of which kind there are, and in which local file the
names stand:

    >>> wrong = [Private("rows whose file does not exist", f"metadata.csv:{i}: file {name} does not exist")
    ...          for i, name in ((2, "ann.png"), (7, "bob.png"))]
    >>> error = UserError("my-photos has 3 problem(s):", ["test_fraction: missing", *wrong])
    >>> print(error)
    my-photos has 3 problem(s):
      - test_fraction: missing
      - rows whose file does not exist: 2
    >>> error.details[1]
    'metadata.csv:2: file ann.png does not exist'

`run` writes the details to problems/, which neither git nor DVC looks at, and shows them only to a terminal. The
traceback of anything unexpected goes the same way: an exception's text holds whatever was being read.
"""

import contextlib
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages import logs
from stages.atomic import new_file

FOLDER = Path("problems")  # also in .gitignore and .dvcignore
WRONG_INPUT = 2  # the exit code after a UserError
SHOWN = 50  # problems that a terminal is shown; the file has all of them


@dataclass(frozen=True)
class Private:
    """A problem whose words hold something of private data. `kind` is a plural that holds nothing of it."""

    kind: str
    detail: str
    counted: bool = True  # False where there can only be one of its kind

    def within(self, where: str) -> "Private":
        return Private(f"{where}: {self.kind}", f"{where}: {self.detail}", self.counted)


Problem = str | Private


class UserError(Exception):
    """What was given, what was expected and what to do. `found` are reported together; str() may be sent anywhere."""

    def __init__(self, message: str, found: Sequence[Problem] = ()):
        self.message, self.found, self.kept = message, list(found), ""
        super().__init__(message)

    @property
    def problems(self) -> list[str]:
        """What everybody may read: private ones are counted by kind."""
        kinds = Counter((p.kind, p.counted) for p in self.found if isinstance(p, Private))
        counts = [f"{kind}: {count}" if counted else kind for (kind, counted), count in kinds.items()]
        return [p for p in self.found if isinstance(p, str)] + counts

    @property
    def details(self) -> list[str]:
        return [p if isinstance(p, str) else p.detail for p in self.found]

    def within(self, where: str) -> list[Problem]:
        """As part of a longer list."""
        found = self.found or [self.message]
        return [p.within(where) if isinstance(p, Private) else f"{where}: {p}" for p in found]

    def keep(self, name: str, root: Path = Path()) -> "UserError":
        """Write private details, if there are any, to a file that the message then names."""
        if not self.kept and any(isinstance(p, Private) for p in self.found):
            self.kept = f"details: {_kept(root / FOLDER / f'{name}.txt', _listed(self.message, self.details))}"
        return self

    def at_a_terminal(self) -> str:
        more = [f"... and {len(self.found) - SHOWN} more"] if len(self.found) > SHOWN else []
        return _listed(self.message, self.details[:SHOWN] + more, self.kept)

    def __str__(self) -> str:
        return _listed(self.message, self.problems, self.kept)

    def __repr__(self) -> str:
        return f"UserError({str(self)!r})"

    def __reduce__(self) -> tuple:
        return UserError, (str(self),)  # a copy for another process is one that leaves this one


def unusable(what: str, why: str) -> UserError:
    """Of a whole file: everybody may read what is wrong, but not why."""
    return UserError("the data cannot be used:", [Private(what, f"{what}; {why}", counted=False)])


def run(main: Callable[[], None]) -> None:
    """Run a command line entry point; a UserError prints its message and exits with WRONG_INPUT."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed on the way out
    logs.show()
    name = command()
    _forget(FOLDER / f"{name}.txt")  # of the time before
    try:
        _to_its_end(main)
    except UserError as error:
        error.keep(name)
        print(f"error: {error.at_a_terminal() if sys.stderr.isatty() else error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if sys.stderr.isatty():
            raise
        where = _kept(FOLDER / f"{name}.txt", traceback.format_exc())
        print(f"error: unexpected {type(error).__name__}; its traceback: {where}", file=sys.stderr)
        sys.exit(1)


def _to_its_end(main: Callable[[], None]) -> None:
    """Whatever comes after it, a signal ends at once: temporary files are gone, and Python's own clean-up, interrupted,
    would print a traceback over what was said (torchrun sends SIGTERM to processes that are about to end)."""
    try:
        main()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)


def remark(lines: Sequence[str]) -> None:
    """Say what is no mistake but worth a look. Lines are private: what others see is the same with and without any."""
    if sys.stderr.isatty():
        for line in lines:
            print(f"note: {line}", file=sys.stderr)
        return
    path = FOLDER / f"{command()}-notes.txt"
    _forget(path)
    if lines:
        _kept(path, "\n".join(lines))
    print(f"notes on private records, if there are any: {path}")


def command() -> str:
    """The running command as a file name: `python -m stages.prepare --dataset mine` is prepare-mine."""
    program = Path(sys.argv[0]).with_suffix("").parts
    parts = program[-2:-1] if program[-1] == "__main__" else [p for p in program[-2:] if p not in ("stages", "flows")]
    words = [*parts, *(a for a in sys.argv[1:] if not a.startswith("-"))]
    return re.sub(r"[^\w.-]+", "-", "-".join(words))[:150] or "command"


def _listed(message: str, problems: Sequence[str], last: str = "") -> str:
    return "\n".join([message, *(f"  - {p}" for p in problems), *([last] if last else [])])


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _kept(path: Path, text: str) -> str:
    """Where the text is now, or why it is nowhere."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_file(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        return f"none, {path} cannot be written ({error.strerror})"
    return f"{path} (on this machine only: they may hold private names)"
