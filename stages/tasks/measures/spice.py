"""SPICE, by the program that pycocoevalcap carries, with Stanford CoreNLP's files from where the user has them.

pycocoevalcap's own wrapper fetches those files from the web as soon as it is made. Nothing is fetched here: the program
is started with the same arguments and with the files on its class path, so nothing is written beside it either.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pycocoevalcap.spice

from stages.tasks.measures.java import NotRun, last_words, options

PROGRAM = Path(pycocoevalcap.spice.__file__).parent
ARCHIVE = "http://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
FILES = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
# Since Java 16 its serialisation library may look into these only where it is allowed to.
OPENED = [f"java.base/java.{part}" for part in ("lang", "math", "net", "text", "util", "util.concurrent")]
OPTIONS = " ".join(f"--add-opens={package}=ALL-UNNAMED" for package in (*OPENED, "java.sql/java.sql"))


def scores(references: Sequence[Sequence[str]], captions: Sequence[str], jars: Path | None) -> list[float]:
    """One a caption, each of which has words. `jars` is the folder that the user set, if any."""
    command = ["java", "-Xmx8G", "-cp", class_path(jars), "edu.anu.spice.SpiceScorer"]
    pairs = enumerate(zip(references, captions, strict=True))
    asked = [{"image_id": i, "test": caption, "refs": list(texts)} for i, (texts, caption) in pairs]
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "captions.json", Path(folder) / "scores.json"
        question.write_text(json.dumps(asked), encoding="utf-8")
        # without -cache: its native library is for some processors only, and long captions do not fit into it
        command += [str(question), "-out", str(answer), "-subset", "-silent"]
        with options("JDK_JAVA_OPTIONS", OPTIONS):  # Java 8 does not know the options, nor the variable
            done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True, errors="replace")
        if done.returncode or not answer.is_file():
            raise NotRun(f"its program failed: {last_words(done.stderr or done.stdout)}")
        found = {item["image_id"]: item["scores"]["All"]["f"] for item in json.loads(answer.read_text("utf-8"))}
    return [float(found[i] or 0) for i in range(len(asked))]  # null: nothing is claimed on either side


def class_path(jars: Path | None) -> str:
    """Of the program, with CoreNLP's files; NotRun says which of them are missing and what to do."""
    folder = jars.resolve() if jars else PROGRAM / "lib"
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        where = f"{jars} (evaluate.spice_jars)" if jars else "pycocoevalcap's folder spice/lib"
        raise NotRun(
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not in {where}; "
            f"unpack {ARCHIVE} and set evaluate.spice_jars to the folder with both jars"
        )
    corenlp = [str(folder / name) for name in FILES]
    return os.pathsep.join([str(PROGRAM / "spice-1.0.jar"), *corenlp, str(PROGRAM / "lib" / "*")])
