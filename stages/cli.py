"""The command `dp-clip`: every stage by its name. `dp-clip calibrate` is `python -m stages.calibrate`.

The list of them imports none: what a stage does is the first line of its docstring, which is read from its file.
"""

import ast
import difflib
import importlib.metadata
import runpy
import sys
from pathlib import Path

from stages import commands

PACKAGES = Path(__file__).parents[1]  # the folder of `stages` and `flows`
GROUPS = {
    "a project": ("init", "params", "plan"),
    "the stages, in the order they run": (
        "prepare", "pretrain", "encode", "calibrate", "train", "evaluate", "report", "publish",
    ),
    "afterwards": ("serve", "ledger", "release"),
    "section 5 of the paper": ("theory",),
    "all stages, in a clone of the project": ("pipeline", "sweep"),
}  # fmt: skip
FLOWS = ("pipeline", "sweep")
NAMES = tuple(name for names in GROUPS.values() for name in names)


def main() -> None:
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
    elif name == "--version":
        print(f"dp-clip {importlib.metadata.version('dp-clip')}")
    elif name in NAMES:
        commands.called_as = f"dp-clip {name}"
        sys.argv[1:] = rest
        runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)
    else:
        near = difflib.get_close_matches(name, NAMES)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(NAMES)}"
        print(f"error: dp-clip has no command {name!r}; {hint} (dp-clip --help)", file=sys.stderr)
        sys.exit(2)


def module_of(name: str) -> str:
    return f"{'flows' if name in FLOWS else 'stages'}.{name}"


def overview() -> str:
    lines = [
        "usage: dp-clip COMMAND [OPTIONS]",
        "",
        "Differentially private fine-tuning of CLIP and BLIP. All values are in params.yaml of the current folder.",
    ]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<10} {summary(name)}" for name in names)]
    return "\n".join(
        [*lines, "", "dp-clip COMMAND --help shows the options of one; dp-clip --version, what is installed."]
    )


def summary(name: str) -> str:
    """The first line of the docstring of the command's file."""
    path = PACKAGES.joinpath(*module_of(name).split("."))
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]
