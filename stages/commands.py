"""The parser of a command, under the name it was called by: `python -m stages.NAME`, or `dp-clip NAME` (cli.py)."""

import argparse

called_as = ""  # set by stages/cli.py: dp-clip NAME


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=called_as or f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
