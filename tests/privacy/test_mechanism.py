import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation

from stages import keys
from stages.errors import UserError
from stages.privacy.methods import METHODS
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key

ADD_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("mechanism", "add_remove", "replace"),
    [
        (BatchClipping(0.25, 1.84), 0.5, 0.5),
        (GroupClipping(0.25, 1.84, groups=9), 0.5, 0.5),
        (ExampleClipping(0.25, 1.84), 0.25, 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_event_is_relative_to_the_sensitivity_of_the_relation(mechanism, add_remove, replace):
    assert mechanism.sensitivity(ADD_REMOVE) == add_remove and mechanism.sensitivity(REPLACE) == replace
    assert mechanism.event(ADD_REMOVE) == GaussianDpEvent(1.84 * 0.25 / add_remove)
    with pytest.raises(ValueError, match="no sensitivity is proven"):
        mechanism.sensitivity(NeighboringRelation.REPLACE_SPECIAL)


@pytest.mark.slow
def test_groups_are_drawn_uniformly_and_independently_for_each_record():
    mechanism, key, records = GroupClipping(1.0, 1.0, groups=4), Key.from_os(), np.arange(10)
    draws = np.array([mechanism.assign(records, key, t) for t in range(20_000)])
    for group in range(4):
        share = (draws == group).mean(axis=0)
        assert np.abs(share - 0.25).max() < 6 * (0.25 * 0.75 / 20_000) ** 0.5
    together = [(draws[:, i] == draws[:, j]).mean() for i in range(10) for j in range(i)]
    assert np.abs(np.array(together) - 0.25).max() < 6 * (0.25 * 0.75 / 20_000) ** 0.5


def test_one_more_record_moves_no_other_record_to_another_group():
    mechanism = GroupClipping(1.0, 1.0, groups=7)
    for t in range(50):
        without = mechanism.assign(np.array([1, 5, 8]), Key.from_seed(3), t)
        assert mechanism.assign(np.array([1, 3, 5, 8]), Key.from_seed(3), t)[[0, 2, 3]].tolist() == without.tolist()
        assert mechanism.assign(np.array([1, 5, 8, 10]), Key.from_seed(3), t)[:3].tolist() == without.tolist()


def test_a_batch_is_one_unit_and_under_example_every_record_is_one():
    records, key = np.array([2, 4, 9]), Key.from_seed(0)
    assert BatchClipping(1.0, 1.0).assign(records, key, 0).tolist() == [0, 0, 0]
    assert GroupClipping(1.0, 1.0, groups=1).assign(records, key, 0).tolist() == [0, 0, 0]
    assert ExampleClipping(1.0, 1.0).assign(records, key, 0).tolist() == [0, 1, 2]


def test_example_refuses_a_loss_that_is_not_a_sum_over_records_and_says_why():
    with pytest.raises(UserError, match=r"not a sum over records.*changes the terms of all others"):
        ExampleClipping(1.0, 1.0).accept("contrastive", is_sum_over_records=False)
    ExampleClipping(1.0, 1.0).accept("prompts", is_sum_over_records=True)
    BatchClipping(1.0, 1.0).accept("contrastive", is_sum_over_records=False)


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0, "sigma": 1}, {"clip_norm": -1, "sigma": 1}, {"clip_norm": 1, "sigma": -1}]
)
@pytest.mark.parametrize("method", METHODS)
def test_facts_that_make_no_mechanism_are_refused(method, wrong):
    with pytest.raises(ValueError, match="must"):
        METHODS[method](**wrong)


def test_the_names_of_the_methods_are_those_of_the_cells():
    assert tuple(METHODS) == keys.METHODS


def test_no_group_at_all_is_refused():
    with pytest.raises(ValueError, match="groups must be at least 1; got 0"):
        GroupClipping(1.0, 1.0, groups=0)


def test_a_mechanism_is_planned_from_the_values_of_its_section():
    values = {"clip_norm": 0.1, "groups": 8, "batch_size": 64, "lr": 1e-3}
    assert METHODS["group"].planned(values, 2.0) == GroupClipping(0.1, 2.0, groups=8)
    assert METHODS["batch"].planned(values, 2.0) == BatchClipping(0.1, 2.0)
    with pytest.raises(KeyError, match="groups"):
        METHODS["group"].planned({"clip_norm": 0.1}, 2.0)


def test_a_step_is_expected_to_have_the_units_that_it_draws():
    assert BatchClipping(1.0, 1.0).expected_units(32) == {}
    assert ExampleClipping(1.0, 1.0).expected_units(32) == {1: 32}
    groups = GroupClipping(1.0, 1.0, groups=8).expected_units(32)
    assert sum(groups.values()) == pytest.approx(8 * (1 - math.exp(-4))), "the others are empty"
    assert sum(size * units for size, units in groups.items()) == pytest.approx(32)
    for method in (ExampleClipping, GroupClipping):
        assert method(1.0, 1.0).expected_units(None) is None
