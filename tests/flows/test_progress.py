"""What is seen of stages while they run: lines in a real terminal, artifacts on a real server."""

import logging
import os
import re
import socket
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.settings import PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from flows import progress
from flows.live import Live, shown, size
from flows.progress import key, watched
from stages.progress import FILE, Count
from tests.conftest import Project
from tests.flows.conftest import STEPS
from tests.flows.stopping import STAGE, Terminal, screen
from tests.patience import patience, wait_for

EVALUATED, PREPARED = STAGE.replace("train", "evaluate"), "prepare@mnist5k"
LOG = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \| [A-Z]+ +\| ")


def artifacts(project: Project) -> dict[str, tuple[float, str]]:
    """By key, what the flow's own server was told last."""
    with sqlite3.connect(project.folder / ".prefect/prefect.db") as database:
        found = database.execute("SELECT key, data, description FROM artifact WHERE type = 'progress'").fetchall()
    return {key: (float(data), about) for key, data, about in found}


@pytest.mark.xdist_group("stopping")
def test_a_flow_shows_how_far_a_training_is_and_prefect_keeps_it(copied):
    safe, lock = YAML(typ="safe"), copied.folder / "dvc.lock"
    content = safe.load(lock)
    del content["stages"][PREPARED]  # so that it runs too
    safe.dump(content, lock)
    terminal = Terminal(copied, sys.executable, "-m", "flows.pipeline", EVALUATED)
    wait_for(lambda: (copied.folder / "results").exists() or terminal.process.poll() is not None, "evaluation")
    printed = terminal.end()
    assert terminal.process.returncode == 0, printed

    lines = re.findall(rf"{STAGE} +(\d+)/{STEPS} steps, (\S+) steps/s, (\S+) left", printed)
    counts = [int(done) for done, _, _ in lines]
    assert counts == sorted(counts) and len(set(counts)) > 3 and counts[0] < STEPS and set(counts) <= set(range(101))
    assert any(float(rate) > 0 and re.fullmatch(r"\d\d:\d\d", left) for _, rate, left in lines if rate != "?")
    assert re.search(rf"{EVALUATED}  \d\d:\d\d", printed)

    rows = screen(printed)
    assert not [row for row in rows if re.search(r"\d\d left|  \d\d:\d\d$", row)]  # no line is left
    logged = [row for row in rows if "|" in row]
    assert logged and all(LOG.match(row) for row in logged)
    for stage in (PREPARED, STAGE, EVALUATED):
        (end,) = [row for row in logged if f"'{stage}' - Finished" in row]
        assert end.endswith(f"| INFO    | Task run '{stage}' - Finished in state Completed('ran')")

    kept = artifacts(copied)
    assert kept.pop("stages-done")[0] == 100
    assert kept == {key(STAGE): (100, f"{STAGE}: {STEPS} of {STEPS} steps")}


@pytest.fixture
def terminal_and_text():
    """The inner side of a terminal, and what it was sent so far."""
    side, inner = os.openpty()
    os.set_blocking(side, False)
    sent = bytearray()

    def text() -> str:
        with pytest.raises(BlockingIOError):
            while True:
                sent.extend(os.read(side, 2**16))
        return sent.decode().replace("\r\n", "\n")

    with open(inner, "w") as file:
        yield file, text
    os.close(side)


def test_what_is_logged_goes_above_the_lines_which_go_when_their_stages_end(terminal_and_text, tmp_path):
    file, text = terminal_and_text
    logger = logging.getLogger("prefect.of_a_test")
    logger.addHandler(handler := PrefectConsoleHandler(file))
    live, first, second = Live(file), tmp_path / "first", tmp_path / "second"
    Count(3, 10, "steps", "train").write(first)
    try:
        with live.line("train@first", first):
            logger.error("one")
            with live.line("encode@second", second):
                Count(5, None, "rows", "rows").write(second)
                logger.error("two\nlines")
                assert screen(text()) == [
                    "one",
                    "two",
                    "lines",
                    "train@first    3/10 steps, ? steps/s, ? left",
                    "encode@second  5 rows, ? rows/s",
                ]
            logger.error("three")
            assert screen(text())[3:] == ["three", "train@first  3/10 steps, ? steps/s, ? left"]
            live.close()
            logger.error("four")
            assert screen(text())[3:] == ["three", "four", ""]
        assert screen(text())[3:] == ["three", "four", ""]
    finally:
        logger.removeHandler(handler)


def test_a_line_is_drawn_again_and_again_with_the_rate_since_the_first_look(terminal_and_text, tmp_path):
    file, text = terminal_and_text
    path = tmp_path / "count"
    Count(40, 100, "steps", "train").write(path)  # it goes on after forty
    with Live(file).line("train@cell", path):
        time.sleep(1)
        Count(50, 100, "steps", "train").write(path)
        seen = wait_for(lambda: re.search(r"50/100 steps, (\S+) steps/s, (\S+) left", text()), "line", every=0.1)
    assert 10 / patience(10) < float(seen[1]) < 10.5 and re.fullmatch(r"\d\d:\d\d", seen[2])
    assert screen(text()) == [""]


def test_without_a_terminal_nothing_is_shown(tmp_path):
    with (tmp_path / "output").open("w") as file:
        live = Live(file)
        with live.line("train@cell", tmp_path / "count"):
            Count(1, 2, "steps", "train").write(tmp_path / "count")
            time.sleep(0.6)
            assert not live._thread
        live.close()
    assert (tmp_path / "output").read_text() == ""


def test_a_terminal_that_is_gone_does_not_end_the_stage(tmp_path):
    side, inner = os.openpty()
    file = os.fdopen(inner, "w")
    live = Live(file)
    with live.line("train@cell", tmp_path / "count"):
        os.close(side)
        time.sleep(0.6)
    with suppress(OSError):  # what could not be sent cannot be sent now
        file.close()


def test_lines_fit_in_the_terminal(terminal_and_text):
    long = ("train@classification-mnist5k-tiny-clip-batch-10-0", "45/100 steps, 12.34 steps/s, 00:04 left")
    rows = shown([long] * 30, 80, 24)
    assert len(rows) == 23 and len(rows[0]) == 79
    assert set(rows) == {"train@classificati...y-clip-batch-10-0  45/100 steps, 12.34 steps/s, 00:04 left"}
    assert shown([long], 120, 24) == [f"{long[0]}  {long[1]}"] and all(len(row) < 30 for row in shown([long], 30, 24))
    assert size(terminal_and_text[0]) == (80, 24)  # this one does not know its size


@pytest.mark.xdist_group("flows")
def test_prefect_is_told_the_steps_of_trainings_and_nothing_else(server, api: SyncPrefectClient, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.2)
    one, other, private = "train@a-0.5", "pretrain@a", "evaluate@a"

    def data(stage: str) -> list[float]:
        return [each.data for each in api.read_artifacts() if each.key == key(stage)]

    with temporary_settings({PREFECT_API_URL: server}):
        with watched(one) as environment:
            path = Path(environment[FILE])
            assert path.parent.stat().st_mode & 0o77 == 0
            for done in (20, 40):
                Count(done, 80, "steps", "train").write(path)
                wait_for(lambda percent=done / 0.8: data(one) == [percent], "artifact", every=0.1)
            Count(80, 80, "steps", "train").write(path)
        assert data(one) == [100] and not path.parent.exists()
        for stage, unit in ((other, "batches"), (private, "steps")):
            with watched(stage) as environment:
                Count(1, 7, unit, "something").write(Path(environment[FILE]))
                time.sleep(0.5)
            assert data(stage) == []


@pytest.mark.parametrize("listening", [False, True], ids=["nobody is there", "it never answers"])
def test_a_server_that_is_gone_neither_fails_nor_delays_a_stage(monkeypatch, listening):
    monkeypatch.setattr(progress, "SECONDS", 0.05)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        if listening:
            s.listen()
        address = f"http://127.0.0.1:{s.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: address}):
            with watched("train@cell") as environment:
                Count(1, 2, "steps", "train").write(Path(environment[FILE]))
                time.sleep(0.5)
                start = time.monotonic()
            assert time.monotonic() - start < progress.LAST_SECONDS + patience(1)
