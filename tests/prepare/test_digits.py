"""The public digits that stand for MNIST."""

import hashlib

import numpy as np
import pytest

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.sources.optical_digits import OpticalDigits


@pytest.mark.slow
def test_optical_digits_are_as_many_as_wanted_and_vary(tmp_path):
    config = OpticalDigits(source="optical-digits", train=1500, seed=0)
    manifest = write(tmp_path / "d", "optical-digits", config.load())
    assert (manifest.n, manifest.test.rows) == (1500, 797) and config.quick_look() == (1500, True)
    rows = list(PreparedSplit(tmp_path / "d", "train"))
    assert len({hashlib.sha256(row.image).digest() for row in rows}) == 1500
    assert {row.label for row in rows} == set(range(10))
    assert all(np.asarray(row.pixels()).max() > 100 for row in rows), "a digit must be visible"
    again = write(tmp_path / "again", "optical-digits", config.load())
    assert again.data_hash == Manifest.read(tmp_path / "d").data_hash
