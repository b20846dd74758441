"""SPICE, whose files nobody may ship: found where the user has them, never fetched, and not run with the reason."""

import json
import os
import socket
from pathlib import Path

import pytest

from stages.tasks.measures import spice
from tests.tasks.measures.test_caption_scores import CASES, fake_java, needs_java, scored


@pytest.mark.slow
@needs_java
@pytest.mark.skipif((spice.PROGRAM / "lib" / spice.FILES[0]).exists(), reason="SPICE's files are installed")
def test_without_its_files_spice_is_not_run_with_the_reason_and_nothing_is_fetched(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("urllib.request.urlretrieve", refuse)
    found = scored(CASES)
    assert "spice" not in found.corpus and "spice" not in found.per_image
    assert found.not_run == {
        "spice": "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar are not in pycocoevalcap's folder "
        "spice/lib; unpack http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip and set "
        "evaluate.spice_jars to the folder with both jars"
    }


def jars(folder: Path, names=spice.FILES) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"no jar")
    return folder


def test_an_incomplete_folder_is_named_with_what_it_lacks(tmp_path):
    with pytest.raises(spice.NotRun) as told:
        spice.class_path(jars(tmp_path / "half", spice.FILES[:1]))
    reason = str(told.value)
    assert reason.startswith(f"stanford-corenlp-3.6.0-models.jar is not in {tmp_path / 'half'} (evaluate.spice_jars)")
    with pytest.raises(spice.NotRun, match="are not in nowhere"):
        spice.class_path(Path("nowhere"))


@pytest.mark.slow
@needs_java
def test_files_in_the_users_folder_reach_the_program(tmp_path, monkeypatch):
    body = f"""
command = sys.argv[1:]
items = json.load(open(command[4]))
json.dump([command, items, os.environ["JDK_JAVA_OPTIONS"]], open({str(tmp_path / "seen.json")!r}, "w"))
values = [0.25, None, 0.75]
answers = [{{"image_id": item["image_id"], "scores": {{"All": {{"f": values[item["image_id"]]}}}}}} for item in items]
json.dump(answers[::-1], open(command[command.index("-out") + 1], "w"))
print("Parsing captions")
"""
    fake_java(tmp_path, monkeypatch, "SpiceScorer", body)
    monkeypatch.chdir(tmp_path)
    jars(tmp_path / "mine")
    installed = sorted(spice.PROGRAM.rglob("*"))
    found = scored(
        [("A cat.", ["One cat.", "a cat"]), ("", ["a dog"]), ("so", ["it is"]), ("a cow", ["a café"])], Path("mine")
    )
    assert not found.not_run
    assert found.per_image["spice"] == [0.25, 0, 0, 0.75] and found.corpus["spice"] == 0.25
    command, items, options = json.loads((tmp_path / "seen.json").read_text())
    assert command[:2] == ["-Xmx8G", "-cp"] and command[3] == "edu.anu.spice.SpiceScorer"
    expected = [*(str(tmp_path / "mine" / name) for name in spice.FILES), str(spice.PROGRAM / "lib" / "*")]
    assert command[2].split(os.pathsep)[1:] == expected
    assert Path(command[2].split(os.pathsep)[0]).is_file()
    assert [(item["test"], item["refs"]) for item in items] == [
        ("a cat", ["one cat", "a cat"]),
        ("so", ["it is"]),
        ("a cow", ["a café"]),
    ]
    assert "--add-opens=java.base/java.lang=ALL-UNNAMED" in options and "JDK_JAVA_OPTIONS" not in os.environ
    assert sorted(spice.PROGRAM.rglob("*")) == installed  # nothing is left beside the program


@needs_java
def test_files_that_are_not_what_they_say_are_a_reason_too(tmp_path):
    """The real program, which looks for classes in them."""
    with pytest.raises(spice.NotRun, match=r"its program failed: .*edu.stanford.nlp"):
        spice.scores([["a cat"]], ["a cat"], jars(tmp_path / "wrong"))
