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
from stages.ledger.spent import show
from stages.privacy.accounting import Plan, calibrate_pld, calibrate_rdp, epsilon_rdp
from stages.privacy.facts import round_up
from stages.privacy.ledger import Charge, Ledger, total_epsilon
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.records import Records
from stages.privacy.sampling import PoissonSampling
from tests.patience import patience

DELTA = 1 / 8000
PEOPLE = Records.of(range(100))
ONE = Charge("a/cell", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger(tmp_path)
    for run in ("r1", "r2", "r3"):
        made.charge(run, ONE, PEOPLE, DELTA)
    return made


def charges(ledger: Ledger) -> dict[str, Charge]:
    return {entry.run: entry.charge for entry in ledger.entries()}


def refused(ledger: Ledger, words: str = "damaged") -> None:
    before = ledger.chain.path.read_bytes() if ledger.chain.path.exists() else None
    for use in (ledger.entries, lambda: ledger.charge("new", ONE, PEOPLE, DELTA)):
        with pytest.raises(UserError, match=words):
            use()
    assert (ledger.chain.path.read_bytes() if ledger.chain.path.exists() else None) == before


def edit(ledger: Ledger, change) -> None:
    lines = ledger.chain.path.read_bytes().split(b"\n")[:-1]
    ledger.chain.path.write_bytes(b"".join(line + b"\n" for line in change(lines)))


def test_every_run_is_charged_and_equal_runs_are_two(ledger):
    assert charges(ledger) == {"r1": ONE, "r2": ONE, "r3": ONE}


def test_a_resumed_run_is_charged_once(ledger):
    ledger.charge("r2", ONE, PEOPLE, DELTA)
    assert len(charges(ledger)) == 3


@pytest.mark.parametrize(
    "change", [{"sigma": 1.0}, {"z": 0.5}, {"steps": 501}, {"q": 0.01}, {"n": 4001}, {"clip_norm": 2.0}]
)
def test_a_run_cannot_go_on_with_other_values(ledger, change):
    with pytest.raises(UserError, match=f"{next(iter(change))} was"):
        ledger.charge("r2", dataclasses.replace(ONE, **change), PEOPLE, DELTA)
    assert len(charges(ledger)) == 3


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
    ledger.chain.path.unlink()
    refused(ledger)


def test_reordered_lines_are_refused(ledger):
    edit(ledger, lambda lines: [lines[1], lines[0], lines[2]])
    refused(ledger)


def test_a_line_that_is_no_json_is_refused(ledger):
    edit(ledger, lambda lines: [*lines, b"rubbish"])
    refused(ledger)


def test_a_damaged_head_is_refused(ledger):
    ledger.chain.head.write_text("rubbish")
    refused(ledger)


def test_an_old_copy_of_the_file_is_refused(ledger):
    old = ledger.chain.path.read_bytes()
    ledger.charge("r4", ONE, PEOPLE, DELTA)
    ledger.chain.path.write_bytes(old)
    refused(ledger)


def test_a_torn_last_line_was_never_a_run_and_is_replaced(ledger):
    with ledger.chain.path.open("ab") as file:
        file.write(b'{"charge": {"cell": "torn')
    assert len(charges(ledger)) == 3
    ledger.charge("r4", ONE, PEOPLE, DELTA)
    assert list(charges(ledger)) == ["r1", "r2", "r3", "r4"]


def test_a_line_whose_head_was_not_written_counts(ledger):
    """The process ended between the two: the run may have been charged, so it is."""
    head = ledger.chain.head.read_bytes()
    ledger.charge("r4", ONE, PEOPLE, DELTA)
    ledger.chain.head.write_bytes(head)
    assert len(charges(ledger)) == 4
    ledger.charge("r5", ONE, PEOPLE, DELTA)
    assert len(charges(ledger)) == 5


WRITER = """
import sys
from pathlib import Path
from stages.privacy.facts import round_up
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.records import Records
one = Charge("a/cell", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)
ledger = Ledger(Path(sys.argv[1]))
for i in range(int(sys.argv[3])):
    ledger.charge(f"{sys.argv[2]}-{i}", one, Records.of(range(100)), 1 / 8000)
    print(i, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(count)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_concurrent_runs_are_all_charged(tmp_path):
    writers = [writer(tmp_path, f"w{k}", 25) for k in range(4)]
    assert [w.wait(patience(120)) for w in writers] == [0, 0, 0, 0]
    assert len(charges(Ledger(tmp_path))) == 100


@pytest.mark.slow
def test_killed_writers_leave_every_charge_that_they_reported(tmp_path):
    for attempt in range(6):
        process = writer(tmp_path, f"k{attempt}", 10_000)
        for _ in range(5 + attempt):
            process.stdout.readline()
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
        process.wait()
        kept = {run for run in charges(Ledger(tmp_path)) if run.startswith(f"k{attempt}-")}
        assert {f"k{attempt}-{i}" for i in range(5 + attempt)} <= kept
    lines = Ledger(tmp_path).chain.path.read_bytes().split(b"\n")[:-1]
    assert all(json.loads(line) for line in lines)


@pytest.mark.slow
def test_over_budget_nothing_is_written(tmp_path):
    ledger = Ledger(tmp_path)
    alone = total_epsilon([ONE], DELTA)
    ledger.charge("r1", ONE, PEOPLE, DELTA, budget=1.5 * alone)
    with pytest.raises(UserError, match="over the budget"):
        for i in range(2, 10):
            ledger.charge(f"r{i}", ONE, PEOPLE, DELTA, budget=1.5 * alone)
    spent = total_epsilon(list(charges(ledger).values()), DELTA)
    assert alone <= spent <= 1.5 * alone


@pytest.mark.slow
def test_a_run_calibrated_to_the_whole_budget_fits_into_it(tmp_path):
    plan = Plan(PoissonSampling(4000, 32), BatchClipping(1.0, 1.0), 1250)
    found = calibrate_pld(calibrate_rdp(plan, 1.0, DELTA), 1.0, DELTA)
    whole = dataclasses.replace(ONE, z=found.z, sigma=found.sigma, steps=1250)
    Ledger(tmp_path).charge("r1", whole, PEOPLE, DELTA, budget=1.0)
    assert len(charges(Ledger(tmp_path))) == 1


def test_a_budget_admits_no_run_without_privacy(tmp_path):
    with pytest.raises(UserError, match="gives no privacy"):
        Ledger(tmp_path).charge("r1", dataclasses.replace(ONE, private=False), PEOPLE, DELTA, budget=100.0)
    assert charges(Ledger(tmp_path)) == {}


@pytest.mark.slow
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
    ledger.charge("r4", dataclasses.replace(ONE, cell="b/cell", private=False), PEOPLE, DELTA)
    text = show("digits", ledger, PEOPLE, DELTA, budget=50.0)
    assert "4 run(s) on its records, 3 of them private" in text and "b/cell: NOT PRIVATE" in text
    assert f"most was spent on: epsilon {round_up(total_epsilon([ONE] * 3, DELTA), 4)}" in text and "budget 50" in text


def test_runs_with_other_neighbours_have_no_common_total_and_are_refused(ledger):
    other = dataclasses.replace(ONE, sampler="fixed-size")
    with pytest.raises(UserError, match="different neighbours"):
        ledger.charge("r4", other, PEOPLE, DELTA)
    assert len(charges(ledger)) == 3
    ledger.charge("r4", dataclasses.replace(other, private=False), PEOPLE, DELTA)  # it has no epsilon to add


def test_fixed_size_runs_are_added_up_for_replaced_records(tmp_path):
    fixed = dataclasses.replace(ONE, sampler="fixed-size")
    ledger = Ledger(tmp_path)
    ledger.charge("r1", fixed, PEOPLE, DELTA)
    ledger.charge("r2", fixed, PEOPLE, DELTA)
    assert total_epsilon([fixed], DELTA) < total_epsilon([fixed, fixed], DELTA)
    assert "replace-one" in show("digits", ledger, PEOPLE, DELTA, budget=None)
