"""Attempts to break the ledger. Each ends with the spend intact, or with a refusal."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.errors import UserError
from stages.privacy.accounting import Plan, calibrate_pld, calibrate_rdp, epsilon_rdp
from stages.privacy.facts import round_up
from stages.privacy.ledger import Charge, Ledger, show, total_epsilon
from stages.privacy.mechanism import BatchClipping
from stages.privacy.sampling import PoissonSampling

DATA, DELTA = "d" * 64, 1 / 8000
ONE = Charge("a/cell", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger(DATA, tmp_path)
    for run in ("r1", "r2", "r3"):
        made.charge(run, ONE, DELTA)
    return made


def refused(ledger: Ledger, words: str = "damaged") -> None:
    before = ledger.path.read_bytes() if ledger.path.exists() else None
    for use in (ledger.charges, lambda: ledger.charge("new", ONE, DELTA)):
        with pytest.raises(UserError, match=words):
            use()
    assert (ledger.path.read_bytes() if ledger.path.exists() else None) == before


def edit(ledger: Ledger, change) -> None:
    lines = ledger.path.read_bytes().split(b"\n")[:-1]
    ledger.path.write_bytes(b"".join(line + b"\n" for line in change(lines)))


def test_every_run_is_charged_and_equal_runs_are_two(ledger):
    assert ledger.charges() == {"r1": ONE, "r2": ONE, "r3": ONE}


def test_a_resumed_run_is_charged_once(ledger):
    ledger.charge("r2", ONE, DELTA)
    assert len(ledger.charges()) == 3


@pytest.mark.parametrize(
    "change", [{"sigma": 1.0}, {"z": 0.5}, {"steps": 501}, {"q": 0.01}, {"n": 4001}, {"clip_norm": 2.0}]
)
def test_a_run_cannot_go_on_with_other_values(ledger, change):
    with pytest.raises(UserError, match=f"{next(iter(change))} was"):
        ledger.charge("r2", dataclasses.replace(ONE, **change), DELTA)
    assert len(ledger.charges()) == 3


def test_an_edited_line_is_refused(ledger):
    edit(ledger, lambda lines: [lines[0].replace(b'"z": 1.0', b'"z": 9.0'), *lines[1:]])
    refused(ledger)


def test_the_last_line_cannot_be_edited_either(ledger):
    edit(ledger, lambda lines: [*lines[:-1], lines[-1].replace(b'"z": 1.0', b'"z": 9.0')])
    refused(ledger)


def test_a_removed_line_is_refused(ledger):
    edit(ledger, lambda lines: [lines[0], lines[2]])
    refused(ledger)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_truncated_file_is_refused(ledger, left):
    edit(ledger, lambda lines: lines[:left])
    refused(ledger)


def test_a_deleted_file_is_refused(ledger):
    ledger.path.unlink()
    refused(ledger)


def test_reordered_lines_are_refused(ledger):
    edit(ledger, lambda lines: [lines[1], lines[0], lines[2]])
    refused(ledger)


def test_the_ledger_of_other_data_is_refused(ledger, tmp_path):
    other = Ledger("e" * 64, tmp_path)
    other.path.write_bytes(ledger.path.read_bytes())
    other.head.write_bytes(ledger.head.read_bytes())
    refused(other)


def test_a_line_that_is_no_json_is_refused(ledger):
    edit(ledger, lambda lines: [*lines, b"rubbish"])
    refused(ledger)


def test_a_damaged_head_is_refused(ledger):
    ledger.head.write_text("rubbish")
    refused(ledger)


def test_an_old_copy_of_the_file_is_refused(ledger):
    old = ledger.path.read_bytes()
    ledger.charge("r4", ONE, DELTA)
    ledger.path.write_bytes(old)
    refused(ledger)


def test_a_torn_last_line_was_never_a_run_and_is_replaced(ledger):
    with ledger.path.open("ab") as file:
        file.write(b'{"charge": {"cell": "torn')
    assert len(ledger.charges()) == 3
    ledger.charge("r4", ONE, DELTA)
    assert list(ledger.charges()) == ["r1", "r2", "r3", "r4"]


def test_a_line_whose_head_was_not_written_counts(ledger):
    """The process ended between the two: the run may have been charged, so it is."""
    head = ledger.head.read_bytes()
    ledger.charge("r4", ONE, DELTA)
    ledger.head.write_bytes(head)
    assert len(ledger.charges()) == 4
    ledger.charge("r5", ONE, DELTA)
    assert len(ledger.charges()) == 5


WRITER = """
import sys
from pathlib import Path
from stages.privacy.facts import round_up
from stages.privacy.ledger import Charge, Ledger
one = Charge("a/cell", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)
ledger = Ledger("d" * 64, Path(sys.argv[1]))
for i in range(int(sys.argv[3])):
    ledger.charge(f"{sys.argv[2]}-{i}", one, 1 / 8000)
    print(i, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_concurrent_runs_are_all_charged(tmp_path):
    writers = [writer(tmp_path, f"w{k}", 25) for k in range(4)]
    assert [w.wait(120) for w in writers] == [0, 0, 0, 0]
    assert len(Ledger(DATA, tmp_path).charges()) == 100


def test_killed_writers_leave_every_charge_that_they_reported(tmp_path):
    for attempt in range(6):
        process = writer(tmp_path, f"k{attempt}", 10_000)
        for _ in range(5 + attempt):
            process.stdout.readline()
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
        process.wait()
        kept = {run for run in Ledger(DATA, tmp_path).charges() if run.startswith(f"k{attempt}-")}
        assert {f"k{attempt}-{i}" for i in range(5 + attempt)} <= kept
    lines = Ledger(DATA, tmp_path).path.read_bytes().split(b"\n")[:-1]
    assert all(json.loads(line) for line in lines)


def test_over_budget_nothing_is_written(tmp_path):
    ledger = Ledger(DATA, tmp_path)
    alone = total_epsilon([ONE], DELTA)
    ledger.charge("r1", ONE, DELTA, budget=1.5 * alone)
    with pytest.raises(UserError, match="over the budget"):
        for i in range(2, 10):
            ledger.charge(f"r{i}", ONE, DELTA, budget=1.5 * alone)
    spent = total_epsilon(list(ledger.charges().values()), DELTA)
    assert alone <= spent <= 1.5 * alone


def test_a_run_calibrated_to_the_whole_budget_fits_into_it(tmp_path):
    plan = Plan(PoissonSampling(4000, 32), BatchClipping(1.0, 1.0), 1250)
    found = calibrate_pld(calibrate_rdp(plan, 1.0, DELTA), 1.0, DELTA)
    whole = dataclasses.replace(ONE, z=found.z, sigma=found.sigma, steps=1250)
    Ledger(DATA, tmp_path).charge("r1", whole, DELTA, budget=1.0)
    assert len(Ledger(DATA, tmp_path).charges()) == 1


def test_a_budget_admits_no_run_without_privacy(tmp_path):
    with pytest.raises(UserError, match="gives no privacy"):
        Ledger(DATA, tmp_path).charge("r1", dataclasses.replace(ONE, private=False), DELTA, budget=100.0)
    assert Ledger(DATA, tmp_path).charges() == {}


def test_the_total_composes_all_runs():
    plan = Plan(PoissonSampling(4000, 32), BatchClipping(1.0, sigma=2.0), 500)
    assert plan.event() == ONE.event()
    assert total_epsilon([], DELTA) == 0
    assert total_epsilon([ONE], DELTA) <= epsilon_rdp(plan, DELTA)
    # three runs of 500 steps are one of 1,500
    three = total_epsilon([ONE, ONE, ONE], DELTA)
    assert three == pytest.approx(total_epsilon([dataclasses.replace(ONE, steps=1500)], DELTA), rel=1e-3)
    other = dataclasses.replace(ONE, z=3.0)
    assert max(total_epsilon([ONE], DELTA), total_epsilon([other], DELTA)) < total_epsilon([ONE, other], DELTA)


def test_what_is_shown(ledger):
    ledger.charge("r4", dataclasses.replace(ONE, cell="b/cell", private=False), DELTA)
    text = show("digits", ledger, DELTA, budget=50.0)
    assert "4 run(s), 3 of them private" in text and "b/cell: NOT PRIVATE" in text
    assert f"together: epsilon {round_up(total_epsilon([ONE] * 3, DELTA), 4)}" in text and "budget 50" in text


def test_runs_with_other_neighbours_have_no_common_total_and_are_refused(ledger):
    other = dataclasses.replace(ONE, sampler="fixed-size")
    with pytest.raises(UserError, match="different neighbours"):
        ledger.charge("r4", other, DELTA)
    assert len(ledger.charges()) == 3
    ledger.charge("r4", dataclasses.replace(other, private=False), DELTA)  # it has no epsilon to add


def test_fixed_size_runs_are_added_up_for_replaced_records(tmp_path):
    fixed = dataclasses.replace(ONE, sampler="fixed-size")
    ledger = Ledger(DATA, tmp_path)
    ledger.charge("r1", fixed, DELTA)
    ledger.charge("r2", fixed, DELTA)
    assert total_epsilon([fixed], DELTA) < total_epsilon([fixed, fixed], DELTA)
    assert "replace-one" in show("digits", ledger, DELTA, budget=None)
