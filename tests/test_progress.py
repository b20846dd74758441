"""The count of a loop in a file: always whole, always true, and only where somebody asked for it."""

import threading
import time

import pytest

from stages import progress
from stages.progress import FILE, Count, bar


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv(FILE, str(tmp_path / "count"))
    return tmp_path / "count"


def test_whoever_looks_sees_a_whole_count_that_is_true(path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0)
    made, wrong, counts, over = [0], [], [], threading.Event()

    def look() -> None:
        while not over.wait(0.0003):
            before, count, after = made[0], Count.read(path), made[0]
            if count:
                counts.append(count.done)
                # written between the end of a step and the first word of the next
                if not before - 1 <= count.done <= after + 1 or str(count) != f"{count.done} 300 steps some words":
                    wrong.append((before, count, after))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in bar(range(300), "some words", "steps"):
        made[0] += 1
    over.set()
    thread.join()
    assert not wrong and counts == sorted(counts) and len(set(counts)) > 10
    assert Count.read(path) == Count(300, 300, "steps", "some words")
    assert [each.name for each in path.parent.iterdir()] == ["count"]


def test_a_step_counts_when_it_is_made_and_those_of_before_count_too(path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0)
    seen = [(i, Count.read(path).done) for i in bar(range(30, 33), "train", "steps", done=30, total=33)]
    assert seen == [(30, 30), (31, 31), (32, 32)] and Count.read(path) == Count(33, 33, "steps", "train")


def test_it_is_written_twice_a_second_at_most(path):
    start, seen = time.monotonic(), set()
    for _ in bar(range(300), "train", "steps"):
        time.sleep(0.003)
        seen.add(path.read_text())
    assert 2 <= len(seen) <= 1 + (time.monotonic() - start) / progress.SECONDS


def test_a_loop_of_unknown_length_is_counted(path):
    assert list(bar(iter("abc"), "rows", "rows")) == ["a", "b", "c"]
    assert path.read_text() == "3 ? rows rows" and Count.read(path) == Count(3, None, "rows", "rows")


def test_nothing_is_written_unasked_or_by_other_processes_than_the_first(path, monkeypatch):
    assert list(bar(range(3), "train", "steps", hidden=True)) == [0, 1, 2]
    monkeypatch.delenv(FILE)
    assert list(bar(range(3), "train", "steps")) == [0, 1, 2]
    assert list(path.parent.iterdir()) == [] and Count.read(path) is None


def test_a_folder_that_is_gone_ends_no_loop(path, monkeypatch):
    monkeypatch.setenv(FILE, str(path / "gone" / "count"))
    assert list(bar(range(3), "train", "steps")) == [0, 1, 2]
