"""What leaves the machine has no function of private data without noise: not a checksum, nor eight digits of one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows.steps import last_words
from tests.conftest import ROOT, Project
from tests.flows.conftest import without_cells

UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # thousands of them, at random
DIGITS = 8  # as many as tell a guess from the truth


def private_checksums(project: Project) -> set[str]:
    """Of the prepared data, what was made of them without noise, and the raw data: by DVC, and by this project."""
    lock = YAML(typ="safe").load(project.folder / "dvc.lock")["stages"]
    found = set()
    for stage in lock.values():
        for entry in (*stage.get("deps", []), *stage.get("outs", [])):
            if re.match(r"(data/mnist5k|features/mnist5k|runs/.*eps-inf.*/model)", entry["path"]):
                found.add(entry["md5"].removesuffix(".dir"))
    manifest = json.loads((project.folder / "data/mnist5k/manifest.json").read_text())
    found |= {manifest[split][name] for split in ("train", "test") for name in ("sha256", "file")}
    return found | {line["md5"] for md5 in set(found) for line in listing(project, md5)}


def listing(project: Project, md5: str) -> list[dict]:
    """The files of a folder in DVC's cache, if it is one."""
    path = project.folder / f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}.dir"
    return json.loads(path.read_text()) if path.is_file() else []


def parts(checksums: set[str]) -> set[str]:
    return {c[i : i + DIGITS] for c in checksums for i in range(len(c) - DIGITS + 1)}


def hexadecimal(path: Path) -> set[str]:
    """Every eight digits in a row that stand in a file, whatever it is."""
    found = set()
    for run in re.findall(rb"[0-9a-f]{8,}", UUID.sub(b"", path.read_bytes())):
        text = run.decode()
        found |= {text[i : i + DIGITS] for i in range(len(text) - DIGITS + 1)}
    return found


def test_no_part_of_a_checksum_is_in_prefect_mlflow_or_git(copy_of_finished):
    project = without_cells(copy_of_finished)  # and without DVC's run-cache
    safe, lock = YAML(typ="safe"), project.folder / "dvc.lock"
    content = safe.load(lock)
    del content["stages"]["prepare@mnist5k"]  # so that the data are prepared again, and it is said of them what is said
    safe.dump(content, lock)
    done = project.run(sys.executable, "-m", "flows.pipeline")
    assert done.returncode == 0, done.stdout + done.stderr
    secret = parts(private_checksums(project))
    assert len(secret) > 200
    stores = [p for p in (project.folder / ".prefect").rglob("*") if p.is_file()]
    assert any(b"mnist5k: 4000 training units" in p.read_bytes() for p in stores if "prefect.db" in p.name)
    stores += [project.folder / "mlflow.db"]
    stores += [p for p in (project.folder / "mlartifacts").rglob("*") if p.is_file() and p.suffix != ".safetensors"]
    names = ["git", "ls-files"]
    tracked = subprocess.run(names, cwd=project.folder, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "dvc.lock" not in tracked
    stores += [project.folder / name for name in tracked]
    leaks = {str(p.relative_to(project.folder)): hexadecimal(p) & secret for p in stores if p.is_file()}
    assert {name: parts for name, parts in leaks.items() if parts} == {}


def test_nothing_that_is_tracked_here_is_made_of_private_data():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"dvc.lock", "ledger/key"} & set(names)


@pytest.mark.parametrize("words", ["sha256 1a2b3c4d5e6f", "md5: 00ff11ee.dir", "'ab/cdef0123' is missing"])
def test_the_first_digits_of_a_checksum_do_not_reach_prefect(words):
    assert not re.search(r"[0-9a-f]{8}|ab/cdef0123", last_words(words))
