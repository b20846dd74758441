"""A unit's gradient is the same to the last bit, whoever else is in the batch, wherever it stands, however many."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stages.data.rows import Labels
from stages.losses import About, objective_of
from stages.models import saved
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.heads import Heads, trunks
from stages.models.parts import trainable_parameters
from stages.privacy import factored, gradients
from stages.privacy.methods.group import poisson_units
from stages.privacy.passes import members_of, no_limit, passes, rung, units_in_pass

LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a photo of a {}.", "a drawing of a {}."))
TEXTS = [LABELS.captions(i % 3)[i % 2] for i in range(6)]
SIZES = (1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7)  # records of each unit
C, AT_ONCE = 0.01, 64
EXPECTED = {1: 3, 2: 3, 4: 3, 5: 3}  # rungs 1 to 6 have passes of several units, 8 has not
CASES = [
    ("tiny-clip", "prompts", "image-tower"),
    ("tiny-clip", "contrastive", "all"),
    ("tiny-clip", "contrastive", "image-lora"),
    ("tiny-blip", "contrastive", "all"),
    ("heads", "prompts", "image-projection"),
    ("heads", "contrastive", "projections"),
]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def prepared(model: str, loss: str, part: str):
    """Objective, trained parameters, and records of all units."""
    torch.manual_seed(0)
    encoder = saved.create(str(Path("stages/models/configs") / model.replace("heads", "tiny-clip")), TEXTS)
    encoder.model.eval()
    count, side = sum(SIZES), 64 if model == "tiny-blip" else 28
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))
    if model == "heads":
        with torch.no_grad(), trunks(encoder.model):
            images, words = encoder.model.encode_image(images), encoder.model.encode_text(encoder.tokenize(TEXTS))
        known = dict(zip(TEXTS, words, strict=True))
        encoder = Encoder(
            Heads(dict(encoder.model.named_parameters())), lambda texts: torch.stack([known[t] for t in texts])
        )
    trained = trainable_parameters(encoder.model, part)
    objective = objective_of(loss, encoder, trained, About(LABELS))
    labels = [i % 3 for i in range(count)]
    return objective, trained, objective.records(Batch(images, [TEXTS[i % 6] for i in range(count)], labels))


def computed(objective, trained, records, units: np.ndarray, expected=EXPECTED, at_once=AT_ONCE):
    """The sum in steps of the grid, and the norms in the order of the units."""
    module = factored if objective.factors else gradients
    total, figures = module.clipped_sum(objective, trained, records, units, C, at_once, expected)
    order = np.argsort([units[members[0]] for members in members_of(units)])
    return torch.cat([t.double().flatten() for t in total]), np.array(figures.norms)[order]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "loss", "part"), CASES)
def test_each_unit_adds_what_it_adds_alone(threads, model, loss, part):
    objective, trained, records = prepared(model, loss, part)
    names = np.repeat(np.arange(len(SIZES)), SIZES)
    alone = []
    for unit in range(len(SIZES)):
        own = torch.from_numpy(names == unit)
        alone.append(computed(objective, trained, {k: t[own] for k, t in records.items()}, names[own]))
    steps = []
    for order in (np.arange(len(SIZES)), np.random.default_rng(0).permutation(len(SIZES))):
        total, norms = computed(objective, trained, records, order[names])  # they stand in another order
        assert norms[order].tolist() == [norm.item() for _, norm in alone]
        steps.append((total - sum(t for t, _ in alone)).abs().max().item())
        assert norms.max() > C
    # where units go through one product, their sum is rounded to the grid as a whole
    assert max(steps) <= (len(SIZES) if objective.factors else 0)


def test_a_record_more_moves_no_other_unit(threads):
    objective, trained, records = prepared("tiny-clip", "contrastive", "all")
    names = np.repeat(np.arange(len(SIZES)), SIZES)
    _, norms = computed(objective, trained, records, names)
    for left_out in (3, 7, 21):  # of units of 2, 3 and 5 records: all but the second are then of another rung
        fewer = np.delete(np.arange(len(names)), left_out)
        _, others = computed(objective, trained, {k: t[fewer] for k, t in records.items()}, names[fewer])
        assert np.flatnonzero(norms != others).tolist() == [names[left_out]]


def test_identical_groups_do_not_move_together():
    """Did a pass of another shape change the last digits of each of 300 equal groups, it would move their sum by 300
    times as much."""
    objective, trained, records = prepared("tiny-clip", "contrastive", "image-tower")
    plan = {"expected": poisson_units(300, 3), "at_once": 1024}
    places, names = np.tile([0, 1, 2], 300), np.repeat(np.arange(300), 3)
    total, _ = computed(objective, trained, {k: t[places] for k, t in records.items()}, names, **plan)
    more, others = np.append(places, [3, 4, 5, 6]), np.append(names, [300] * 4)
    with_more, _ = computed(objective, trained, {k: t[more] for k, t in records.items()}, others, **plan)
    alone, _ = computed(objective, trained, {k: t[3:7] for k, t in records.items()}, np.zeros(4, int), **plan)
    assert torch.equal(with_more, total + alone)


def test_every_record_is_in_one_pass_and_shapes_are_of_public_values():
    rng = np.random.default_rng(0)
    for expected in (None, {}, {1: 500.0}, poisson_units(40, 5)):
        for at_once, most in ((4, no_limit), (64, no_limit), (10_000, lambda size: 7)):
            units = rng.integers(40, size=200)
            seen, shapes = [], {}
            for each in passes(units, at_once, most, expected):
                assert each.count <= len(each.members) <= min(most(1), at_once)
                assert each.members.size <= at_once or len(each.members) == 1
                for members, present in zip(each.members[: each.count], each.present, strict=False):
                    own = members[present.numpy()]
                    assert len(set(units[members])) == 1  # padding is of the unit itself
                    seen += own.tolist()
                    if len(each.members) > 1:
                        assert shapes.setdefault(rung(len(own)), each.members.shape) == each.members.shape
                        assert each.members.shape == (
                            units_in_pass(rung(len(own)), at_once, most, expected),
                            rung(len(own)),
                        )
                    else:
                        assert len(own) == len(members)
            assert sorted(seen) == list(range(200))


def test_the_ladder_wastes_at_most_half():
    rungs = [rung(size) for size in range(1, 5000)]
    assert all(size <= r <= 1.5 * size for size, r in enumerate(rungs, start=1)) and rungs == sorted(rungs)


def test_a_step_of_one_unit_goes_by_itself():
    (only,) = passes(np.zeros(33, int), 256, no_limit, {})
    assert only.members.shape == (1, 33) and only.present.all()
