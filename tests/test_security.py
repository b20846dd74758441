"""What no source of this project does, and what no archive or weights file can make it do."""

import ast
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from infra.audit import verdict
from stages.sources import registries
from tests.conftest import ROOT

ALLOWED = {
    "stages/models/torchscript.py": "import pickle",  # a reader of TorchScript, with every name that it may find listed
    "tests/models/test_weights.py": "import pickle",  # shows that a bad pickle is not run
    "tests/prepare/test_local_files.py": "import pickle",  # the same
    "tests/test_errors.py": "import pickle",  # Prefect pickles errors: what is private in one must not go along
    "tests/theory/test_lemmas.py": "exec",  # of our own source with one sign changed
}


def tracked(*endings: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    paths = [ROOT / name for name in names if name.endswith(endings)]
    return [path for path in paths if path.is_file()]


def dangers(source: str) -> list[str]:
    """Calls and imports that run what they read, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
            risky = names & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
            found += [f"{node.lineno}: import {name}" for name in risky]
        if isinstance(node, ast.Call):
            name, keywords = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"):
                found.append(f"{node.lineno}: {name}")
            if keywords.get("shell", "False") != "False":
                found.append(f"{node.lineno}: shell={keywords['shell']}")
            if name == "torch.load" and keywords.get("weights_only") != "True":
                found.append(f"{node.lineno}: torch.load without weights_only=True")
            if name.endswith(("np.load", "numpy.load")) and keywords.get("allow_pickle", "False") != "False":
                found.append(f"{node.lineno}: allow_pickle")
            if keywords.get("trust_remote_code", "False") != "False":
                found.append(f"{node.lineno}: trust_remote_code")
            if name.endswith(".extractall") and keywords.get("filter") != "'data'":
                found.append(f"{node.lineno}: extractall without filter='data'")
    return found


def test_no_source_runs_what_it_reads():
    sources = tracked(".py")
    assert len(sources) > 100
    found = {path.relative_to(ROOT).as_posix(): dangers(path.read_text()) for path in sources}
    assert {name: {w.split(": ")[1] for w in what} for name, what in found.items() if what} == {
        name: {what} for name, what in ALLOWED.items()
    }


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "yaml.load(f)",
        "subprocess.run(c, shell=True)",
        "eval(x)",
        "archive.extractall(f)",
        "np.load(p, allow_pickle=True)",
        "AutoModel.from_pretrained(n, trust_remote_code=True)",
    ],
)
def test_the_search_finds_what_it_is_for(source):
    assert len(dangers(source)) == 1


def test_no_file_holds_a_path_of_a_machine_or_a_password():
    """Addresses of servers have no user; `somebody` is the one of the tests."""
    home = re.compile(r"/(?:home|Users)/\w+|/root/\w+")
    address = re.compile(r"\w+://(?!somebody)[\w.-]+:[^\s/${}@\"'\[\]]+@")
    for path in tracked(".py", ".yaml", ".toml", ".json", ".sql", ".env", "Makefile", "Dockerfile", ".md", ".lock"):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        assert not home.search(text), path
        assert [a for a in address.findall(text) if "mlflow:s3cret" not in a] == [], path


def test_the_page_of_make_ui_is_on_the_loopback_interface():
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "mlflow ui" in line]
    assert "--host 127.0.0.1" in line


def hostile(kind: str, where: Path) -> None:
    with tarfile.open(where, "w:gz") as archive:
        names = {"parent": "../outside.txt", "absolute": str(where.parent / "outside.txt")}
        member = tarfile.TarInfo(names.get(kind, "package/link"))
        if kind in ("parent", "absolute"):
            content = b"was here"
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            return
        member.type, member.linkname = tarfile.SYMTYPE, {"link": "../../outside.txt", "abslink": "/etc/hostname"}[kind]
        archive.addfile(member)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "abslink"])
def test_an_archive_puts_nothing_outside_its_folder(kind, tmp_path, monkeypatch):
    """npm is a program that leaves an archive where it is called, as the real one does with what a registry sends."""
    inside, programs = tmp_path / "inside", tmp_path / "bin"
    inside.mkdir()
    programs.mkdir()
    hostile(kind, tmp_path / "hostile.tgz")
    npm = programs / "npm"
    npm.write_text(f"#!/bin/sh\ncp {tmp_path / 'hostile.tgz'} package.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    if kind == "absolute":  # read as relative to the folder
        registries._unpacked_npm("anything", inside)
        assert (inside / str(tmp_path).lstrip("/") / "outside.txt").is_file()
    else:
        with pytest.raises(tarfile.FilterError):
            registries._unpacked_npm("anything", inside)
    assert not (tmp_path / "outside.txt").exists()
    assert not (inside / "package" / "link").exists()


@pytest.mark.parametrize("section", ["coco", "vqa"])
def test_names_in_annotations_cannot_leave_their_folder(section, tmp_path):
    """As a path, as a link to a file and as a link to a folder; told all together, and nothing is read."""
    from stages.errors import UserError
    from stages.sources.coco import Coco
    from stages.sources.vqa import Vqa

    (tmp_path / "secret.png").write_bytes(b"private")
    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    names = ["../../secret.png", "link.png", "up/secret.png", str(tmp_path / "secret.png")]
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    captions = [{"image_id": i, "caption": "x"} for i in range(len(names))]
    if section == "coco":
        written = {"images": images, "annotations": captions}
        split, kind = {"annotations": "a.json", "images": "images"}, Coco
    else:
        asked = [{"question_id": i, "image_id": n, "question": "x?"} for i, n in enumerate(names)]
        answers = [{"question_id": i, "answers": [{"answer": "no"}]} for i in range(len(names))]
        written = {"questions": asked, "annotations": answers}
        files = {"questions": "a.json", "annotations": "a.json"}
        split, kind = files | {"images": "images", "file_names": "{}"}, Vqa
    (tmp_path / "data" / "a.json").write_text(json.dumps(written))
    with pytest.raises(UserError) as error:
        kind.model_validate({"path": str(tmp_path / "data"), "train": split, "test": split}).load()
    assert "\n".join(error.value.details).count("leaves the folder images") >= len(names)


def test_an_audit_that_could_ask_nothing_does_not_pass_for_one():
    skipped = {"name": "torch", "skip_reason": "not found"}
    assert verdict([skipped]) == (0, "audit not run: its service knew none of 1 packages (not found)")
    well = {"name": "six", "version": "1", "vulns": []}
    assert verdict([skipped, well]) == (0, "audit of 1 of 2 packages: no known hole")
    ill = well | {"vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    code, message = verdict([ill, well])
    assert code == 1 and "six 1: PYSEC-1, fixed in: 2" in message
