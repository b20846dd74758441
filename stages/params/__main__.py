"""Check params.yaml and print the cells of the sweep; or put a named sweep into it.

python -m stages.params                all mistakes at once, or the cells
python -m stages.params --use NAME     write the values of presets.NAME into the other sections
"""

import argparse

from stages import params
from stages.errors import run
from stages.params.presets import use


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.params", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--use", metavar="NAME", help="a name in the section `presets`")
    if name := parser.parse_args().use:
        use(name)
        print(f"params.yaml now has the values of preset {name}; back to what was committed: git checkout params.yaml")
    for cell in params.load(check_sources=True).cells():
        print(cell)


if __name__ == "__main__":
    run(main)
