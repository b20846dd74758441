"""Mistakes a user can make, told in one message instead of a traceback."""

import signal
import sys
from collections.abc import Callable


class UserError(Exception):
    """What was given, what was expected and what to do. `problems` are reported together."""

    def __init__(self, message: str, problems: list[str] | None = None):
        self.problems = list(problems or [])
        super().__init__("\n".join([message, *(f"  - {p}" for p in self.problems)]))


def run(main: Callable[[], None]) -> None:
    """Run a command line entry point; a UserError prints its message and exits with code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed on the way out
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
