from collections import Counter

import numpy as np
import pytest

from stages.errors import UserError
from stages.prepare.subset import size, stratified

SKEWED = [0] * 700 + [1] * 200 + [2] * 95 + [3] * 5


@pytest.mark.parametrize("fraction", [0.004, 0.01, 0.1, 0.333, 0.5, 0.999])
def test_the_size_is_exact_and_every_class_has_its_share(fraction):
    labels = np.random.default_rng(0).permutation(SKEWED)
    chosen = stratified(labels, fraction, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == round(fraction * 1000) == size(fraction, 1000)
    assert chosen.tolist() == sorted(chosen.tolist())
    counts = Counter(labels[chosen].tolist())
    assert set(counts) == {0, 1, 2, 3}, "at least one of every class"
    for label, n in Counter(SKEWED).items():
        assert counts[label] == 1 or abs(counts[label] - n * fraction) <= 1.5


def test_largest_remainders_get_what_is_left_over():
    labels = [0] * 14 + [1] * 13 + [2] * 13  # 7/2, 13/4 and 13/4 are due: 3 each, and one for the largest remainder
    assert Counter(labels[i] for i in stratified(labels, 0.25, 0)) == {0: 4, 1: 3, 2: 3}


def test_fewer_than_there_are_classes_go_to_those_with_most_due():
    # 2.1, 0.6, 0.285 and 0.015 are due
    assert [SKEWED[i] for i in stratified(SKEWED, 0.003, seed=0)] == [0, 0, 1]


def test_the_seed_fixes_the_subset():
    first, again, other = (stratified(SKEWED, 0.1, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert Counter(SKEWED[i] for i in first) == Counter(SKEWED[i] for i in other)


def test_every_member_of_a_class_is_as_likely():
    taken = Counter(i for seed in range(400) for i in stratified([0] * 10 + [1] * 10, 0.3, seed).tolist())
    # binomial(400, 0.3): mean 120, standard deviation 9
    assert len(taken) == 20 and all(70 < count < 170 for count in taken.values())


def test_without_a_fraction_all_are_taken():
    assert stratified(SKEWED, None, seed=5).tolist() == list(range(1000)) and size(None, 7) == 7


def test_a_fraction_that_leaves_nothing_is_refused():
    with pytest.raises(UserError, match=r"train_fraction 0\.01 of 10 training units is none"):
        stratified([0] * 10, 0.01, seed=0)
