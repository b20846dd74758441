"""The list of releases: it only grows, a run is in it once, and what is not as it was written is refused."""

import pytest

from stages.errors import UserError
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.records import Records
from stages.privacy.releases import Releases

DELTA = 1 / 8000
PEOPLE = Records.of(range(100))
ONE = Charge("a/cell", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)


def test_a_run_is_released_once_however_often_it_is(tmp_path):
    releases = Releases(tmp_path)
    assert releases.runs() == set() and not (tmp_path / "releases").exists()
    for run in ("r1", "r2", "r1"):
        releases.add(run, "a/cell", known=("r1", "r2"))
    assert [(release.run, release.cell) for release in releases.all()] == [("r1", "a/cell"), ("r2", "a/cell")]


def test_a_release_that_another_one_overtook_is_refused(tmp_path):
    """Its joint epsilon was computed before."""
    releases = Releases(tmp_path)
    releases.add("r1", "a/cell", known=())
    with pytest.raises(UserError, match="at the same time"):
        releases.add("r2", "a/cell", known=())
    assert releases.runs() == {"r1"}
    releases.add("r1", "a/cell", known=())  # the same again counts nothing that is not there


def test_a_list_that_was_changed_is_refused(tmp_path):
    releases = Releases(tmp_path)
    for run in ("r1", "r2"):
        releases.add(run, "a/cell", known=("r1", "r2"))
    whole = releases.chain.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged in (lines[0], lines[1], whole.replace(b"r1", b"r3"), b""):
        releases.chain.path.write_bytes(damaged)
        for use in (releases.runs, lambda: releases.add("r3", "a/cell", known=("r1", "r2"))):
            with pytest.raises(UserError, match=r"list of releases .* is damaged"):
                use()
    releases.chain.path.unlink()
    with pytest.raises(UserError, match="2 lines were written and 0 are there"):
        releases.runs()


def test_trainings_are_charged_beside_a_list_of_releases(tmp_path):
    """Its file is none of the ledgers of old, which nothing is trained with."""
    ledger = Ledger(tmp_path)
    ledger.charge("r1", ONE, PEOPLE, DELTA)
    Releases(tmp_path).add("r1", "a/cell", known=())
    ledger.charge("r2", ONE, PEOPLE, DELTA)
    assert ledger.total(PEOPLE, DELTA, Releases(tmp_path).runs()) < ledger.total(PEOPLE, DELTA)
