"""One stage of DVC brought up to date by DVC's API, in a process of its own so that it can be stopped.

    python -m flows.reproduce STAGE           what `dvc repro --single-item STAGE` does
    python -m flows.reproduce STAGE --pull    the same; what the DVC remote has is taken from there

The exit code says what became of the stage (flows/dvc.py), so that nobody has to understand DVC's words, or can take
those of a stage for them. DVC returns the same for a stage that ran and for one from its run-cache, and has the exit
code of a command in a sentence only: both are noted where it runs the command.
"""

import argparse
import logging
import sys

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage import run as commands
from dvc.stage.exceptions import StageCmdFailedError

from flows.dvc import Outcome, listen, use_c_library
from stages.errors import WRONG_INPUT

logger = logging.getLogger("dvc")  # writes an exception in one line, with its causes


class CommandFailed(StageCmdFailedError):
    def __init__(self, command: str, exit_code: int | None = None):
        super().__init__(command, exit_code)
        self.exit_code = exit_code


def reproduce(name: str, pull: bool) -> Outcome:
    ran = []
    run_command = commands.cmd_run

    def noted(stage: PipelineStage, **options: object) -> None:
        ran.append(stage)
        run_command(stage, **options)

    commands.cmd_run, commands.StageCmdFailedError = noted, CommandFailed
    try:
        with Repo(_wait_for_lock=True) as repo:
            repo.scm_context.quiet = True  # no hints about git
            repo.reproduce(name, single_item=True, pull=pull)
    except DvcException as error:
        logger.exception("")
        why = error.__cause__
        refused = isinstance(why, CommandFailed) and why.exit_code == WRONG_INPUT
        return Outcome.REFUSED if refused else Outcome.FAILED
    except KeyboardInterrupt:
        logger.error("interrupted by the user")
        return Outcome.INTERRUPTED
    return Outcome.RAN if ran else Outcome.UNCHANGED


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m flows.reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", help="a stage of dvc.yaml (see: dvc stage list)")
    parser.add_argument("--pull", action="store_true", help="take what the DVC remote has instead of running it again")
    args = parser.parse_args()
    listen()
    use_c_library()
    sys.exit(reproduce(args.stage, args.pull))


if __name__ == "__main__":
    main()
