"""Where float32 products differ by place, units do not go through the model together."""

import numpy as np
import pytest
import torch

from stages.models import features
from stages.privacy import factored, onepass, places
from stages.privacy.methods.group import poisson_units
from stages.privacy.passes import no_limit
from tests.privacy.test_passes import AT_ONCE, EXPECTED, SIZES, computed, prepared

CASES = [("heads", "prompts", "image-projection"), ("tiny-clip", "prompts", "image-tower")]


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 15, 16, 40])
def test_equal_rows_of_a_product_are_equal_in_all_places(columns):
    generator = torch.Generator().manual_seed(0)
    for inner in (32, 64, 96, 384):
        shared = torch.randn(columns, inner, generator=generator).T
        for rows in (2, 3, 5, 9, 13, 50):
            same = torch.randn(1, inner, generator=generator).expand(rows, -1)
            found = places.product(same.contiguous(), shared)
            assert torch.equal(found, found[:1].expand_as(found)), (rows, inner)
            assert torch.allclose(found, same @ shared, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_places_are_found_not_to_matter_here(case):
    """A model for which they did would be trained one unit at a time: nothing wrong, but slow."""
    objective, trained, records = prepared(*case)
    assert not places.matter(objective, trained, records, AT_ONCE, EXPECTED)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", [1, -1])
def test_a_processor_on_which_places_matter_is_found(case, place, monkeypatch):
    """As if the last digit of one unit came out otherwise."""

    def off(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] *= 1 + 2**-22
        return tensor

    by_unit, factors_of = onepass.by_unit, factored.factors_of

    def by_unit_off(*given):
        return (off(each.detach().clone()) for each in by_unit(*given))

    def factors_off(*given):
        inputs, outputs, losses = factors_of(*given)
        return inputs, {name: off(d) for name, d in outputs.items()}, losses

    monkeypatch.setattr(onepass, "by_unit", by_unit_off)
    monkeypatch.setattr(factored, "factors_of", factors_off)
    objective, trained, records = prepared(*case)
    assert places.matter(objective, trained, records, AT_ONCE, EXPECTED)


def test_shapes_that_are_asked_for_are_those_of_the_plan():
    assert places.sizes(256, no_limit, {}) == []  # batch: one unit, which goes by itself
    assert places.sizes(256, no_limit, {1: 512.0}) == [1]
    assert places.sizes(256, no_limit, poisson_units(128, 4)) == [1, 2, 4, 6, 8]
    assert places.sizes(256, lambda size: 1, poisson_units(128, 4)) == []  # large models
    assert places.sizes(16, no_limit, None) == [1, 2, 4]


def test_where_they_matter_units_go_one_by_one(monkeypatch):
    names, found = np.repeat(np.arange(len(SIZES)), SIZES), []
    objective, trained, records = prepared("tiny-clip", "prompts", "image-tower")
    objective.one_by_one = True
    monkeypatch.setattr(onepass, "clipped_sum", lambda *_: pytest.fail("units went together"))
    assert computed(objective, trained, records, names)[0].abs().max() > 0

    objective, trained, records = prepared("heads", "prompts", "image-projection")
    objective.one_by_one, factors_of = True, factored.factors_of
    monkeypatch.setattr(factored, "factors_of", lambda *given: found.append(given[-1].count) or factors_of(*given))
    computed(objective, trained, records, names)
    assert found == [1] * len(SIZES)


@pytest.mark.parametrize("processor", ["even", "uneven"])
def test_features_of_frozen_towers_are_those_of_a_record_by_itself(processor, tmp_path, caplog):
    """An uneven one gives the last row of a batch other last digits."""

    def encode(batch: list[float]) -> torch.Tensor:
        rows = torch.tensor(batch).unsqueeze(1).repeat(1, 4) / 3
        if processor == "uneven" and len(rows) > 1:
            rows[-1] *= 1 + 2**-22
        return rows

    items = [1.0, 2.0, 5.0, 7.0, 11.0]
    features._write_rows(tmp_path / "all.npy", items, encode, 2, "encode")
    assert np.array_equal(np.load(tmp_path / "all.npy"), torch.cat([encode([item]) for item in items]).numpy())
    assert ("records go one by one" in caplog.text) is (processor == "uneven")


def test_a_record_whose_numbers_are_not_finite_does_not_tip_the_answer():
    nothing = torch.tensor([[1.0, float("nan"), float("inf")], [1.0, float("inf"), float("nan")]])
    assert places.alike(nothing)
    nothing[1, 0] += 2**-23
    assert not places.alike(nothing)
