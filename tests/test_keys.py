import math

import pytest

from stages.errors import UserError
from stages.keys import Cell, canonical_epsilon


@pytest.mark.parametrize(
    ("given", "canonical"),
    [(0, "0"), ("0.0", "0"), (1, "1"), (1.0, "1"), ("0.50", "0.5"), (100, "100"), (1e-5, "0.00001"), (math.inf, "inf")],
)
def test_an_epsilon_has_one_spelling(given, canonical):
    assert canonical_epsilon(given) == canonical


@pytest.mark.parametrize("given", [-1, "-0.5", "nan", "abc", "", None, True, [1]])
def test_what_is_no_epsilon_is_refused(given):
    with pytest.raises(UserError, match="write 0, inf or a positive number"):
        canonical_epsilon(given)


def test_a_key_reads_back_as_its_cell():
    cell = Cell("classification", "mnist5k", "tiny-clip", "batch", "0.5", 3)
    assert Cell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "t/d/m/batch/1/0", "t/d/m/batch/eps-1.0/seed-0", "t/d/m/batch/eps-1/seed-x"]
)
def test_other_text_is_no_key(text):
    with pytest.raises(UserError, match="cell"):
        Cell.parse(text)


def test_cells_never_share_a_file():
    cells = [
        Cell(task, dataset, model, "batch", epsilon, seed)
        for task in ("classification",)
        for dataset in ("a", "b")
        for model in ("m", "n")
        for epsilon in ("0", "1", "10", "inf")
        for seed in (0, 1, 10)
    ]
    for path in ("model_dir", "training_json", "costs_json", "metrics_json", "details_json", "picture"):
        assert len({getattr(cell, path) for cell in cells}) == len(cells)
