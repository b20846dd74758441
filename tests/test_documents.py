"""The documents: links lead somewhere, what is named is there, and every command is run by a test or marked."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

NOT_TRIED = "not tried here"  # stands in a comment of a line, or in the paragraph before a block
HARMLESS = re.compile(r"source |export |cp |#")
# By the beginning of a command: the file that runs it, and what of it is there.
RUN_BY = {
    "make demo": ("Makefile", "demo: setup"),  # in a fresh clone, by hand: it is the main job and takes ten minutes
    "make setup": ("Makefile", "test: setup"),
    "make test-fast": ("Makefile", "test-fast: setup"),
    "make lint": (".ci/run", "make lint"),
    "make test": (".ci/run", "make test"),
    "python -m stages.params": ("tests/test_presets.py", '"--use", name'),
    "python -m stages.plan": ("tests/plan/test_plan.py", "stages.plan"),
    "python -m stages.release --cell": ("tests/release/test_release.py", '"release", "--cell"'),
    "python -m stages.report --show": ("tests/report/test_paper.py", '"report", "--show"'),
    "python -m flows.pipeline": ("tests/flows/test_pipeline.py", '"flows.pipeline"'),
    "python -m flows.sweep --on-workers": ("tests/flows/conftest.py", '"flows.sweep", "--on-workers"'),
    "python -m flows.sweep --epsilon": ("tests/flows/test_stopped_sweep.py", '"--epsilon"'),
    "dvc --cd stages/theory repro": ("tests/theory/test_study.py", 'dvc = ("dvc", "--cd", "stages/theory")'),
    "dvc repro": ("tests/test_dvc.py", ".repro("),
    "dvc exp run -S 'sweep": ("tests/test_dvc.py", '"-S", "sweep.epsilon=[2]", "--temp"'),
    "dvc exp run -S 'train": ("tests/test_dvc.py", '"--queue"'),
    "dvc queue start": ("tests/test_dvc.py", '"queue", "start"'),
    "dvc exp show": ("tests/test_dvc.py", '"exp", "show"'),
    "dvc remote add": ("tests/flows/conftest.py", '"remote", "add"'),
    "python -m stages.serve": ("tests/test_package.py", '"serve", MODEL, "--images"'),
    "mlflow models serve": ("tests/test_package.py", '"mlflow", "models", "serve"'),
    "prefect work-pool create dp-clip-kubernetes": ("tests/infra/test_prefect.py", '"dp-clip-kubernetes"'),
    "prefect work-pool create": ("tests/flows/conftest.py", '"work-pool", "create"'),
    "prefect --no-prompt deploy": ("tests/flows/conftest.py", '"--no-prompt", "deploy"'),
    "prefect server start": ("tests/infra/test_background.py", '"prefect server start --background"'),
    "prefect server status": ("tests/infra/test_background.py", '"prefect server status --wait --timeout 180"'),
    "prefect worker start": ("tests/flows/conftest.py", '"worker", "start"'),
}


def documents() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split()]


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> list[tuple[str, bool]]:
    """The lines of blocks without a language, and whether each is marked as not tried."""
    found, language, before = [], None, ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("```"):
            language = line[3:] if language is None else None
            before = before if language == "" else ""
        elif language == "":
            command, _, comment = line.partition("  #")
            found.append((command.strip(), NOT_TRIED in comment or NOT_TRIED in before))
        elif language is None and line:
            before += f" {line}"
    return found


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_named_is_there(path):
    text = path.read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:stages|flows|tests)[.\w]*)", text):
        file = ROOT / module.replace(".", "/")
        assert file.with_suffix(".py").is_file() or (file / "__main__.py").is_file(), module
    for name in re.findall(r"`((?:stages|flows|tests|infra)/[a-z0-9_./-]+\.\w+)`", text):
        assert (ROOT / name).is_file(), name
    for preset in re.findall(r"--use ([a-z0-9-]+)", text):
        assert (ROOT / f"stages/params/presets/{preset}.yaml").is_file(), preset
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= set(targets)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_run_by_a_test_or_marked(path):
    for command, is_marked in commands(path.read_text(encoding="utf-8")):
        if is_marked or not command or HARMLESS.match(command) or "," in command.split()[0]:  # the last: a CSV file
            continue
        runs = next((where for start, where in RUN_BY.items() if command.startswith(start)), None)
        assert runs, f"{command!r} is run by no test; say so in {path.name}: `{NOT_TRIED}`"
        assert runs[1] in (ROOT / runs[0]).read_text(encoding="utf-8"), runs


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
