"""What `python -m stages.report --show` ends with: the command that gives the best private model away."""

import pandas as pd

from stages import params
from stages.report import __main__ as report
from stages.report.table import summarise
from tests.conftest import ROOT
from tests.report.test_table import outcome


def of(tmp_path, outcomes) -> pd.DataFrame:
    """As it is read back from report/table.csv, of the demo's dataset."""
    summarise(outcomes).assign(dataset="mnist5k").to_csv(tmp_path / "table.csv", index=False)
    return pd.read_csv(tmp_path / "table.csv", dtype={"epsilon": str})


def test_the_best_model_with_a_sound_guarantee_is_the_one_to_give_away(tmp_path):
    demo = params.load(ROOT / "params.yaml")
    sweep = [outcome("inf", 0.95), outcome("3", 0.8), outcome("0.5", 0.85), outcome("0", 0.9)]
    cell = "classification/mnist5k/tiny-clip/batch/eps-0.5/seed-0"
    assert report.releases(of(tmp_path, sweep), demo) == [f"python -m stages.release --cell {cell}"]
    assert report.releases(of(tmp_path, [outcome("inf", 0.95), outcome("0", 0.9)]), demo) == []
    for unsound in ({"key": "fixed"}, {"convention": "paper"}, {"diagnostics": {}}):
        assert report.releases(of(tmp_path, [outcome("3", 0.8, **unsound)]), demo) == []

    mine = demo.prepare["mnist5k"].model_copy(update={"private_test": True})
    private = demo.model_copy(update={"prepare": demo.prepare | {"mnist5k": mine}})
    assert report.releases(of(tmp_path, sweep), private) == []  # its scores must not choose what leaves
