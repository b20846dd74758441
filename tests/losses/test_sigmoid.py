"""SigLIP's pairwise loss: what it is, which pairs it leaves out, and what one record can do to a step."""

from functools import partial

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from open_clip.loss import SigLipLoss
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.models import saved
from stages.models.batches import Batch, Chosen
from stages.models.encoder import Encoder
from stages.models.heads import Heads, trunks
from stages.models.parts import trainable_parameters
from stages.privacy import factored
from stages.privacy.accounting import Plan
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import MARGIN, grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import RANGES, Execution, Learner, train
from tests.conftest import small_params
from tests.privacy.one_step_audit import Step, audit

ALL, C = 10_000, 0.05
SMALL = "stages/models/configs/tiny-siglip"


@pytest.fixture(scope="module")
def created() -> Encoder:
    torch.manual_seed(0)
    return saved.create(SMALL)


@pytest.fixture
def tiny(created) -> Encoder:
    with torch.no_grad():
        created.model.logit_bias.fill_(-2.0)  # near the similarities of a random model, so that no term is flat
    created.model.eval()
    return created


def batch(count: int = 12, distinct: int = 12) -> Batch:
    images = torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    return Batch(images, [f"number {i % distinct}" for i in range(count)], [None] * count)


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def prepared(encoder, part="all", distinct=12):
    parameters = trainable_parameters(encoder.model, part, reached=partial(named("sigmoid").reaches, about=About()))
    objective = objective_of("sigmoid", encoder, parameters, About())
    return objective, parameters, objective.records(batch(distinct=distinct))


def test_of_distinct_texts_it_is_open_clips_own_with_its_gradient(tiny):
    objective, parameters, records = prepared(tiny)
    grads, ours = gradient(objective, parameters, records, ALL)
    image = tiny.model.encode_image(batch().images, normalize=True)
    text = tiny.model.encode_text(tiny.tokenize(batch().texts), normalize=True)
    theirs = SigLipLoss()(image, text, tiny.model.logit_scale.exp(), tiny.model.logit_bias)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert torch.allclose(flat(grads), flat(torch.autograd.grad(theirs, list(parameters.values()))), atol=1e-5)
    moved = dict(zip(parameters, grads, strict=True))
    assert moved["logit_bias"].any() and moved["logit_scale"].any()


def test_equal_texts_are_no_negatives_of_each_other(tiny):
    objective, parameters, records = prepared(tiny, distinct=5)
    with torch.no_grad():
        features = objective.features(parameters, records, merge=True)
        ours = objective.loss(parameters, features, torch.ones(12, dtype=torch.bool))
        logits = tiny.model.logit_scale.exp() * features["image"] @ features["text"].T + tiny.model.logit_bias
    terms = [
        -torch.nn.functional.logsigmoid(logits[i, j] if i == j else -logits[i, j]).item()
        for i in range(12)
        for j in range(12)
        if i == j or i % 5 != j % 5
    ]
    assert len(terms) == 12 + 12 * 12 - (3 * 3 + 3 * 3 + 2 * 2 * 3) and ours.item() == pytest.approx(sum(terms) / 12)


@pytest.mark.parametrize("part", ["all", "image-tower"])
@pytest.mark.parametrize("at_once", [5, 8, ALL])
def test_clip_units_agree_with_a_plain_loop(tiny, part, at_once):
    objective, parameters, records = prepared(tiny, part, distinct=7)
    for units in (np.zeros(12, int), np.array([0, 0, 1, 2, 2, 2, 2, 2, 2, 3, 3, 1]), np.arange(12)):
        expected = 0
        for unit in np.unique(units):
            mine = {name: t[torch.from_numpy(units == unit)] for name, t in records.items()}
            features = objective.features(parameters, mine, merge=False)
            value = objective.loss(parameters, features, torch.ones(len(mine["images"]), dtype=torch.bool))
            g = flat(torch.autograd.grad(value, list(parameters.values()), materialize_grads=True))
            expected = expected + g * min(1.0, (1 - MARGIN) * C / g.norm().item())
        got = flat(clipped_sum(objective, parameters, records, units, C, at_once)[0]) * grid_of(C)
        assert (got - expected).norm() <= 1e-5 * expected.norm() + 1e-7, (units, at_once)


def test_padding_adds_nothing(tiny):
    objective, parameters, records = prepared(tiny)
    features = objective.features(parameters, records, merge=True)
    present = torch.arange(12) < 5
    first = objective.loss(parameters, {k: v[:5] for k, v in features.items()}, present[:5])
    assert objective.loss(parameters, features, present).item() == pytest.approx(first.item(), rel=1e-6)


def test_a_batch_in_pieces_has_the_gradient_of_the_whole_batch(tiny):
    objective, parameters, records = prepared(tiny, distinct=7)
    whole, loss = gradient(objective, parameters, records, ALL)
    for at_once in (1, 5):
        pieces, again = gradient(objective, parameters, records, at_once)
        assert (flat(pieces) - flat(whole)).norm() < 1e-5 * flat(whole).norm()
        assert again.item() == pytest.approx(loss.item(), rel=1e-5)
    halves = [gradient(objective, parameters, {k: v[i : i + 6] for k, v in records.items()}, ALL)[0] for i in (0, 6)]
    mean = (flat(halves[0]) + flat(halves[1])) / 2
    assert (mean - flat(whole)).norm() > 1e-3 * flat(whole).norm()  # it is no sum over records


@pytest.mark.parametrize("mechanism", [BatchClipping(C, 1.0), GroupClipping(C, 1.0, groups=4)], ids=["batch", "group"])
@pytest.mark.parametrize("poison", [1.0, 1e6, np.nan])
def test_a_record_moves_a_step_by_at_most_twice_the_clip(tiny, mechanism, poison):
    objective, parameters, records = prepared(tiny, distinct=7)
    records["images"][0] *= poison

    def summed(drawn: np.ndarray) -> torch.Tensor:
        units = mechanism.assign(drawn, Key.from_seed(5), 0)
        chosen = {k: t[torch.from_numpy(drawn)] for k, t in records.items()}
        return flat(clipped_sum(objective, parameters, chosen, units, C, ALL)[0]) * grid_of(C)

    moved = (summed(np.arange(12)) - summed(np.arange(1, 12))).norm().item()
    assert mechanism.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 2 * C
    assert 0 < moved <= 2 * C


@pytest.mark.slow
def test_the_audit_of_one_step_finds_no_more_than_is_claimed(tiny):
    """The same image with other texts, and a bias above all similarities: one more record turns the gradient around."""
    with torch.no_grad():
        tiny.model.logit_bias.fill_(3.0)
    objective, parameters, records = prepared(tiny, "image-projection")
    same = {k: v[:2] for k, v in records.items()} | {"images": records["images"][:1].repeat(2, 1, 1, 1)}
    sums = [
        flat(clipped_sum(objective, parameters, {k: v[:n] for k, v in same.items()}, np.zeros(n, int), 1e-3, ALL)[0])
        for n in (1, 2)
    ]
    assert (sums[0] - sums[1]).norm() * grid_of(1e-3) > 1.8e-3  # nearly all of 2C
    plan = Plan(PoissonSampling(2, 2), BatchClipping(1e-3, 1.0), steps=1)
    claimed, found = audit(Step(plan, objective, parameters, (same,)), runs=600)
    print(f"claimed {claimed:.2f}, at least {found:.2f}")
    assert 0.3 * claimed < found <= claimed


def test_scale_and_bias_are_trained_and_stay_within_public_bounds():
    model = (encoder := saved.create(SMALL)).model
    before = {name: model.get_parameter(name).item() for name in RANGES}
    objective, parameters, _ = prepared(encoder)

    class Reader:
        units = 12
        views, variation = 1, None

        def batch(self, units, stream, view=0):
            return batch(len(units))

        def choose(self, units, stream, view):
            chosen = batch(len(units))
            return Chosen(list(range(len(units))), chosen.texts, chosen.labels, None)

        def images(self, rows):
            return batch(len(rows)).images

    learner = Learner(model, parameters, torch.optim.SGD(parameters.values(), lr=1e6), objective)
    plan = Plan(PoissonSampling(12, 6), BatchClipping(C, 1.0), steps=1)
    train(learner, Reader(), plan, Key.from_seed(1), Execution(100), private=True)
    for name, (low, high) in RANGES.items():
        assert model.get_parameter(name).item() != before[name]
        assert low <= model.get_parameter(name).item() <= high + 1e-6
    assert abs(model.logit_bias.item()) == 100  # so far does noise times this rate take it


def test_frozen_towers_with_their_biases_give_the_gradient_of_the_whole_model(tiny):
    """A SigLIP's text projection has a bias: it is used as it is, and not trained."""
    torch.nn.init.normal_(tiny.model.text.text_projection.bias)
    with torch.no_grad(), trunks(tiny.model) as model:
        inputs = model.encode_image(batch().images), model.encode_text(tiny.tokenize(batch().texts))
    objective, parameters, records = prepared(tiny, "projections")
    assert set(parameters) == {"visual.proj", "text.text_projection.weight"}
    heads = Encoder(
        Heads(dict(tiny.model.named_parameters())), lambda texts: inputs[1][[batch().texts.index(t) for t in texts]]
    )
    on_heads = trainable_parameters(
        heads.model, "projections", reached=partial(named("sigmoid").reaches, about=About())
    )
    theirs = objective_of("sigmoid", heads, on_heads, About())
    assert theirs.factors
    features = theirs.records(Batch(inputs[0], batch().texts, [None] * 12))
    units = np.arange(12) // 3
    whole = clipped_sum(objective, parameters, records, units, C, ALL)[0]
    few = factored.clipped_sum(theirs, on_heads, features, units, C, ALL)[0]
    assert (flat(whole) - flat(few)).norm() < 1e-4 * flat(whole).norm()


def refused(folder, **values) -> list[str]:
    changed = small_params()
    changed["train"]["methods"]["batch"]["loss"] = "sigmoid"
    changed["pretrain"]["tiny-clip"]["architecture"] = values["architecture"]
    changed["train"]["methods"]["example"]["loss"] = values.get("example", "prompts")
    YAML(typ="safe").dump(changed, folder / "params.yaml")
    try:
        params.load(folder / "params.yaml")
    except UserError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_model_without_a_bias_and_the_method_example_are_refused_before_anything_runs(tmp_path):
    assert refused(tmp_path, architecture=SMALL) == refused(tmp_path, architecture="ViT-B-16-SigLIP") == []
    for other in ("stages/models/configs/tiny-clip", "ViT-B-32"):
        assert any(
            "batch.loss: sigmoid needs a model that has a logit_bias, as a SigLIP, and 'tiny-clip' does not" in said
            for said in refused(tmp_path, architecture=other)
        )
    said = refused(tmp_path, architecture=SMALL, example="sigmoid")
    assert any("train.methods.example.loss: 'sigmoid' is not a sum over records" in problem for problem in said)
    clip = saved.create("stages/models/configs/tiny-clip")
    with pytest.raises(UserError, match="needs a model with a logit_bias"):
        objective_of("sigmoid", clip, {}, About())


def test_the_contrastive_loss_leaves_the_bias_alone(tiny):
    parameters = trainable_parameters(tiny.model, "all")
    assert "logit_bias" not in parameters and "logit_scale" in parameters
