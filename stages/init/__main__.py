"""Start a project in this folder, outside a clone: params.yaml, and a .gitignore for what must not leave the machine.

    dp-clip init
    dp-clip init --preset captions      one of those that dp-clip params --list names

Then the stages run one by one, by their names. DVC's graph and the Prefect flows follow the code itself, to run again
what an edited stage makes, and so they are for a clone of the project.
"""

from importlib import resources
from pathlib import Path

from stages import commands
from stages.atomic import write_text
from stages.errors import UserError, run
from stages.params.presets.using import use

PARAMS, IGNORE = Path("params.yaml"), Path(".gitignore")


def main() -> None:
    parser = commands.parser("stages.init", __doc__)
    parser.add_argument("--preset", metavar="NAME", default="demo", help="what params.yaml starts from (default: demo)")
    preset = parser.parse_args().preset
    if PARAMS.exists():
        raise UserError(f"{PARAMS} is here already; to put a preset into it: dp-clip params --use {preset}")
    use(preset)
    written = [PARAMS]
    if not IGNORE.exists():
        write_text(IGNORE, resources.files("stages.init").joinpath("gitignore.txt").read_text(encoding="utf-8"))
        written.append(IGNORE)
    print(f"wrote {' and '.join(map(str, written))}; next: dp-clip plan, dp-clip prepare --dataset NAME")


if __name__ == "__main__":
    run(main)
