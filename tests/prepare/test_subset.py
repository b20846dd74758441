"""A part of the records: what it depends on, and how large it is."""

import numpy as np
import pytest

from stages.errors import UserError
from stages.sources import benchmarks
from stages.sources.benchmarks import Benchmark
from stages.sources.subset import position, require_some, taken

UNITS = [f"photo-{i}.png" for i in range(6000)]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_about_the_fraction_is_taken_and_of_every_class_too(fraction):
    part = set(taken(UNITS, fraction, seed=0))
    for group in (UNITS, UNITS[::3], UNITS[:700]):
        n, deviation = len(group), np.sqrt(len(group) * fraction * (1 - fraction))
        assert abs(len(part & set(group)) - n * fraction) < 4 * deviation


def test_one_record_more_less_or_other_changes_no_other():
    part = taken(UNITS, 0.1, seed=0)
    outside = next(u for u in UNITS if u not in part)
    for one in (part[0], part[100], part[-1], outside):
        i = UNITS.index(one)
        rest = [u for u in part if u != one]
        assert taken(UNITS[:i] + UNITS[i + 1 :], 0.1, seed=0) == rest
        assert [u for u in taken([*UNITS[:i], "somebody else", *UNITS[i + 1 :]], 0.1, seed=0) if u in UNITS] == rest
    assert set(taken(UNITS[::-1], 0.1, seed=0)) == set(part), "the order does not matter"


def test_the_part_of_a_benchmark_set_is_counted_before_it_is_read_and_asks_for_no_labels():
    config = Benchmark(source="gtsrb", train_fraction=0.1)
    whole = benchmarks._part(config, 26_640)
    assert benchmarks._part(config, 26_639) == [i for i in whole if i != 26_639]
    assert config.quick_look() == (len(whole), True)


def test_the_seed_chooses_and_parts_of_two_seeds_are_independent():
    first, again, other = (set(taken(UNITS, 0.3, seed)) for seed in (0, 0, 1))
    assert first == again
    expected, deviation = 6000 * 0.09, np.sqrt(6000 * 0.09 * 0.91)
    assert abs(len(first & other) - expected) < 4 * deviation


def test_a_smaller_part_is_in_the_larger_one():
    assert set(taken(UNITS, 0.1, seed=2)) < set(taken(UNITS, 0.2, seed=2))


def test_the_part_is_independent_of_the_test_split_that_a_fraction_makes():
    """Both come of the same hash; were they of the same words, a part would be all or none of what is left."""
    train = [u for u in UNITS if position(u) >= 0.2]
    part = taken(train, 0.1, seed=0)
    assert abs(len(part) - len(train) * 0.1) < 4 * np.sqrt(len(train) * 0.09)


def test_positions_are_uniform():
    counts, _ = np.histogram([position(u) for u in UNITS], bins=20, range=(0, 1))
    assert ((counts - 300) ** 2 / 300).sum() < 44  # chi-squared of 19 degrees: one in a thousand is above


def test_without_a_fraction_all_are_taken():
    assert taken(UNITS, None, seed=5) == UNITS


def test_a_fraction_that_leaves_nothing_is_refused():
    with pytest.raises(UserError, match=r"train_fraction 0\.01 took no unit; give a larger one"):
        require_some([], "train_fraction", 0.01)
