"""Gradients of all units from one backward pass are those of one unit at a time, and none that is added is too long."""

import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

from stages.data.rows import Labels
from stages.losses import About, named, objective_of
from stages.models import saved
from stages.models.bank import Bank
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.privacy import gradients, onepass, unit_gradients
from stages.privacy.gradients import clipped_sum
from stages.privacy.grid import MARGIN, clip_factors, grid_of
from stages.privacy.unit_gradients import Lookup, Made, Matrix, Together
from stages.privacy.uses import Product, Table, Unknown

CONFIGS = Path("stages/models/configs")
LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a photo of a {}.", "a drawing of a {}."))
TEXTS = [LABELS.captions(i % 3)[i % 2] for i in range(6)]
SIZES = (1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7)
EXPECTED = {1: 3, 2: 3, 4: 3, 6: 3, 8: 3}  # all rungs have passes of several units
C, AT_ONCE = 0.01, 96
ASKED = About(LABELS, has_questions=True)
CASES = [
    ("tiny-clip", "prompts", "image-tower"),
    ("tiny-clip", "contrastive", "all"),
    ("tiny-clip", "contrastive", "no-token-table"),
    ("tiny-clip", "contrastive", "lora"),
    ("tiny-clip", "anchored", "all"),
    ("tiny-siglip", "sigmoid", "all"),
    ("tiny-blip", "contrastive", "all"),
    ("tiny-blip", "writing", "all"),
    ("tiny-blip", "writing", "image-tower+decoder"),
    ("tiny-blip-vqa", "writing", "no-token-table"),
    ("tiny-blip-vqa", "writing", "lora"),
    ("tiny-git", "writing", "all"),
]


def prepared(config: str, loss: str, part: str, bf16: bool = False, sizes=SIZES, dtype=torch.float32):
    """Objective, trained parameters, and records of all units."""
    torch.manual_seed(0)
    encoder = saved.create(str(CONFIGS / config), TEXTS)
    encoder.model.eval().to(dtype)
    return learning(encoder, loss, part, ASKED if config.endswith("vqa") else About(LABELS), bf16, sizes)


def learning(encoder, loss: str, part: str, about: About, bf16: bool = False, sizes=SIZES):
    count, (example, _) = sum(sizes), encoder.example()
    if named(loss).needs_bank:
        generator = torch.Generator().manual_seed(2)
        image, text = (
            torch.nn.functional.normalize(torch.randn(20, width, generator=generator, dtype=torch.float64), dim=1)
            for width in (encoder.model.text_projection.shape[1],) * 2
        )
        about = About(LABELS, bank=Bank(image, text, [(f"text {i}",) for i in range(20)], "", ""))
    reached = partial(named(loss).reaches, about=about)
    trained = trainable_parameters(encoder.model, part, lora_rank=2, reached=reached)
    for name, parameter in trained.items():
        if ".lora_B" in name:  # zero at first: what is before it would have no gradient
            torch.nn.init.normal_(parameter, std=0.05)
    objective = objective_of(loss, encoder, trained, about, bf16)
    dtype = next(iter(trained.values())).dtype
    images = torch.randn(count, *example.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    asked = [[("what is it?" * (1 + i % 2), f"a {LABELS.classes[i % 3]}")] for i in range(count)]
    batch = Batch(images, [TEXTS[i % 6] for i in range(count)], [i % 3 for i in range(count)], asked)
    return objective, trained, objective.records(batch)


def units_of(sizes=SIZES) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def flat(total) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in total]) * grid_of(C)


def summed(objective, trained, records, units, one_by_one: bool = False):
    objective.one_by_one = one_by_one
    try:
        total, figures = clipped_sum(objective, trained, records, units, C, AT_ONCE, EXPECTED)
    finally:
        objective.one_by_one = False
    return flat(total), figures


@pytest.mark.slow
@pytest.mark.parametrize("ghost", [True, False], ids=["products of rows", "as made"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_sums_are_those_of_one_unit_at_a_time(case, ghost, monkeypatch):
    """In float64, where the two may be told from each other."""
    objective, trained, records = prepared(*case, dtype=torch.float64)
    monkeypatch.setattr(gradients, "several", lambda *_: pytest.fail("units went through vmap"))
    monkeypatch.setattr(Matrix, "is_measured_as_made", property(lambda _: not ghost))
    monkeypatch.setattr(unit_gradients, "COVERED", 1.0)  # as if float32 rounded nothing, which it does not here
    together, seen = summed(objective, trained, records, units_of())
    apart, alone = summed(objective, trained, records, units_of(), one_by_one=True)
    assert np.allclose(sorted(seen.norms), sorted(alone.norms), rtol=1e-6, atol=1e-9)
    assert sum(norm > C for norm in seen.norms) >= len(SIZES) - 3  # of one record alone, contrastive losses say nothing
    assert (together - apart).norm() < 1e-6 * C < together.norm()


def test_a_parameter_that_the_loss_alone_reads_has_its_gradient_too():
    objective, trained, records = prepared("tiny-siglip", "sigmoid", "all")
    known = onepass.known(objective, trained, records)
    assert set(known.direct) == {"logit_scale", "logit_bias"}


@pytest.mark.slow
def test_bf16_shares_a_pass_and_is_near_float32():
    sums = []
    for bf16 in (False, True):
        objective, trained, records = prepared("tiny-clip", "contrastive", "all", bf16)
        sums.append(summed(objective, trained, records, units_of())[0])
        assert onepass.known(objective, trained, records)
    assert 1e-4 < (sums[0] - sums[1]).norm() / sums[0].norm() < 0.2


def test_a_model_that_does_something_else_goes_the_vmapped_way(caplog):
    """A ResNet of CLIP's: batch normalisation has no rule."""
    torch.manual_seed(0)
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "patch_size": None}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).eval()
    encoder = Encoder(model, open_clip.get_tokenizer("ViT-B-32", context_length=16))
    trained = trainable_parameters(model, "image-tower")
    objective = objective_of("prompts", encoder, trained, About(LABELS))
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    records = objective.records(Batch(images, TEXTS, [i % 3 for i in range(6)]))
    with pytest.raises(Unknown, match="Norm"):
        onepass.learned(objective, trained, records)
    together, _ = summed(objective, trained, records, np.arange(6))
    apart, _ = summed(objective, trained, records, np.arange(6), one_by_one=True)
    assert (together - apart).norm() < 1e-5 * C


def test_a_record_that_is_not_finite_zeroes_its_own_unit_alone():
    objective, trained, records = prepared("tiny-clip", "contrastive", "all")
    units = units_of()
    with_all, _ = summed(objective, trained, records, units)
    for bad in (math.nan, math.inf, 1e38):
        spoilt = {k: t.clone() for k, t in records.items()}
        spoilt["images"][7, 0, 3, 3] = bad  # of the unit 5
        found, figures = summed(objective, trained, spoilt, units)
        kept = {k: t[units != 5] for k, t in records.items()}
        expected, _ = summed(objective, trained, kept, units[units != 5])
        if math.isfinite(bad):
            assert (found - with_all).norm() <= 2 * C
        else:
            assert figures.not_finite == 1 and torch.equal(found, expected)


def exact_square(X: torch.Tensor, D: torch.Tensor) -> Fraction:
    x, d = ([[Fraction(v) for v in row] for row in t.tolist()] for t in (X, D))
    pairs = [(i, j) for i in range(len(x[0])) for j in range(len(d[0]))]
    return sum(sum(a[i] * b[j] for a, b in zip(x, d, strict=True)) ** 2 for i, j in pairs)


def cancelling(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """X and D of a unit: pairs of rows that cancel up to the last digits, and one that is left; or any rows."""
    rng = np.random.default_rng(seed)
    pairs, inputs, outputs = rng.integers(1, 12), *rng.integers(1, 7, size=2)
    x, d = rng.standard_normal((pairs, inputs)), rng.standard_normal((pairs, outputs))
    one = [rng.standard_normal((1, k)) * 10.0 ** -rng.integers(0, 6) for k in (inputs, outputs)]
    slip = 1 + rng.integers(0, 2) * 2.0**-22
    scale = 10.0 ** rng.integers(-8, 8)
    others = -slip * d if seed % 2 else rng.standard_normal(d.shape)
    X, D = np.concatenate((x, x, one[0])), np.concatenate((d, others, one[1])) * scale
    order = rng.permutation(len(X))
    return torch.from_numpy(X[order]).float(), torch.from_numpy(D[order]).float()


def test_the_norm_that_counts_is_below_neither_the_true_one_nor_that_of_what_is_added():
    tight = 0
    for seed in range(300):
        X, D = cancelling(seed)
        matrix = Matrix(torch.Size([X.shape[1], D.shape[1]]), Product(X[None], D[None]))
        between = [rows.double() @ rows.double().T for rows in (X, D)]
        squares, slack = unit_gradients.bounded(between[0][None], between[1][None], sum(matrix.shape))
        norm = (squares.sqrt() + slack.sqrt()).item()
        made = matrix.block(0, matrix.rows)[0].double()
        assert norm >= made.norm().item() * (1 - 1e-12), seed
        assert Fraction(squares.item()) >= exact_square(X, D) * (1 - Fraction(1, 10**12)), seed
        tight += norm <= 1.001 * made.norm().item()
    assert tight > 100  # it is not always the bound that counts


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6, 1e12])
def test_no_unit_whose_rows_cancel_is_added_longer_than_C(length):
    """Float64 and float32 lose nearly all of such a gradient: what is left of it must still be at most C."""
    generator = torch.Generator().manual_seed(0)
    x, d = torch.randn(12, 200, generator=generator), length * torch.randn(12, 150, generator=generator)
    X = torch.cat([x, x * (1 + 2**-22), torch.randn(1, 200, generator=generator)])
    D = torch.cat([d, -d, torch.randn(1, 150, generator=generator)])
    order = torch.randperm(25, generator=generator)
    X, D = X[order], D[order]
    matrix = Matrix(torch.Size([200, 150]), Product(X[None], D[None]))
    assert not matrix.is_measured_as_made
    norms = unit_gradients.norms_of({"W": matrix}, 1, torch.device("cpu"))
    steps = matrix.clipped(clip_factors(norms, C), True)
    assert torch.equal(steps, steps.round())
    assert steps.norm() * grid_of(C) <= C
    if length <= 1e-6:
        assert steps.norm() * grid_of(C) > 0.999 * (1 - MARGIN) * C


def test_terms_beyond_float32_count_as_not_finite():
    X, D = torch.full((1, 4, 300), 1e19), torch.full((1, 4, 300), 1e19)
    assert unit_gradients.norms_of({"W": Matrix(torch.Size([300, 300]), Product(X, D))}, 1, X.device).isinf().all()


def test_tables_and_sums_of_several_operations():
    generator = torch.Generator().manual_seed(0)
    tokens, D = torch.randint(7, (3, 10), generator=generator), torch.randn(3, 10, 4, generator=generator)
    table = Lookup(torch.Size([7, 4]), Table(tokens, D))
    whole = torch.stack([torch.zeros(7, 4).index_add_(0, t, d) for t, d in zip(tokens, D, strict=True)])
    pieces = torch.cat([table.block(0, 3), table.block(3, 5), table.block(5, 7)], dim=1)
    assert torch.allclose(pieces, whole, atol=1e-6)
    squares, slack = table.squares()
    assert torch.allclose(squares.sqrt() + slack.sqrt(), whole.double().flatten(1).norm(dim=1), rtol=1e-5)

    X, E = torch.randn(3, 5, 7, generator=generator), torch.randn(3, 5, 4, generator=generator)
    both = Together([table, Matrix(torch.Size([7, 4]), Product(X, E)), Made(torch.ones(3, 7, 4))])
    assert torch.allclose(both.block(2, 6), (whole + X.mT @ E + 1)[:, 2:6], atol=1e-5)
    assert torch.allclose(both.squares()[0], (whole + X.mT @ E + 1).double().square().sum((1, 2)), rtol=1e-4)


def test_a_gradient_made_in_blocks_is_clipped_like_one_made_at_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    X, D = torch.randn(5, 30, 64, generator=generator), torch.randn(5, 30, 48, generator=generator)
    factors = clip_factors(torch.tensor([1.0, math.inf, 1e-3, 50.0]), C)  # the last unit is a copy, to fill the pass
    sums = []
    for at_once in (2**21, 5 * 48 * 7):
        monkeypatch.setitem(unit_gradients.AT_ONCE, "cpu", at_once)
        sums.append(Matrix(torch.Size([64, 48]), Product(X, D)).clipped(factors, all_finite=True))
    expected = sum((factors[i] * (X[i].T @ D[i])).round().double() for i in range(4))
    made, measured = torch.bmm(X.mT, D), []
    for at_once in (2**21, 5 * 48 * 7):
        monkeypatch.setitem(unit_gradients.AT_ONCE, "cpu", at_once)
        monkeypatch.setattr(Matrix, "is_measured_as_made", True)
        measured.append(Matrix(torch.Size([64, 48]), Product(X, D)).squares()[0])
    for squares in measured:
        assert torch.allclose(squares, made.double().square().sum((1, 2)), rtol=1e-5)
    for total in sums:
        assert (total - expected).abs().max() <= 1e-6 * expected.abs().max() + 4
        assert torch.equal(total, total.round())


def test_rows_that_a_factor_takes_beyond_float32_reach_no_other_unit():
    """Huge inputs with tiny derivatives: their product is an ordinary gradient."""
    generator = torch.Generator().manual_seed(0)
    X, D = torch.randn(3, 4, 300, generator=generator), torch.randn(3, 4, 300, generator=generator)
    X[1], D[1] = 1e33 * X[1], 1e-36 * D[1]
    matrix = Matrix(torch.Size([300, 300]), Product(X, D))
    norms = unit_gradients.norms_of({"W": matrix}, 3, X.device)
    assert not matrix.is_measured_as_made and norms.isfinite().all() and norms[1] < C * 1e3
    both = [Matrix(matrix.shape, Product(X[k], D[k])) for k in ([0, 1, 2], [0, 2])]
    sums = [each.clipped(clip_factors(norms[k], C), True) for each, k in zip(both, ([0, 1, 2], [0, 2]), strict=True)]
    assert sums[0].isfinite().all() and (sums[0] - sums[1]).norm() * grid_of(C) <= C


def test_a_scaled_sum_has_no_rule():
    class Scaled:
        def features(self, parameters, records, merge):
            return {"x": torch.add(records["x"], parameters["p"], alpha=2.0)}

        def loss(self, parameters, features, present):
            return features["x"].sum()

    with pytest.raises(Unknown, match="scaled"):
        onepass.learned(Scaled(), {"p": torch.zeros(4, requires_grad=True)}, {"x": torch.ones(6, 4)})


class Toy(torch.nn.Module):
    """A layer in front of features of which the loss weighs each differently."""

    def __init__(self, layer: torch.nn.Module, use):
        super().__init__()
        self.layer, self._use = layer, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._use(self.layer, x)


class OfToy:
    one_by_one = bf16 = False

    def __init__(self, model: Toy):
        self._model = model

    def features(self, parameters, records, merge):
        return {"f": torch.func.functional_call(self._model, dict(parameters), (records["x"],))}

    def loss(self, parameters, features, present):
        each = torch.tanh(features["f"].flatten(1) * torch.arange(1.0, 1 + features["f"][0].numel())).sum(1)
        return torch.where(present, each, 0.0).sum()


class Scale(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def flat_norm(layer, x):
    return layer(x.reshape(-1, 2)).view(len(x), 3, 2)


def looks(layer, x):
    return layer(x) if (x > -100).all() else layer(x) * 1


IMAGES, ROWS, TOKENS = (6, 3, 2), (6, 6), (6, 5)
TOYS = {
    "a norm that becomes a sequence of one": (torch.nn.LayerNorm(6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a scale that becomes a sequence of one": (Scale(6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a layer that becomes a sequence of one": (torch.nn.Linear(6, 6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a table, words first": (torch.nn.Embedding(11, 4), lambda f, x: f(x.T).mean(0), TOKENS, True),
    "a layer, words first": (torch.nn.Linear(2, 3), lambda f, x: f(x.transpose(0, 1)).transpose(0, 1), IMAGES, True),
    "a norm of flat rows": (torch.nn.LayerNorm(2), flat_norm, IMAGES, False),
    "records turned around inside": (torch.nn.Linear(6, 6), lambda f, x: f(x.flip(0)).flip(0), ROWS, False),
    "windows": (torch.nn.Linear(2, 2), lambda f, x: f(x.reshape(-1, 1, 2)).reshape(len(x), 3, 2), IMAGES, False),
    "a convolution over records": (
        torch.nn.Conv2d(2, 3, 1),
        lambda f, x: f(x.permute(1, 2, 0)[..., None])[..., 0].permute(2, 0, 1),
        IMAGES,
        False,
    ),
    "a look at the records": (torch.nn.Linear(6, 6), looks, ROWS, False),
}


@pytest.mark.parametrize("name", TOYS)
def test_no_unit_has_a_part_of_another(name):
    """Where the walk through the graph could take rows of one record for those of another, it must see it."""
    layer, use, shape, is_known = TOYS[name]
    generator = torch.Generator().manual_seed(0)
    some = [torch.randn(shape, generator=generator) for _ in range(2)]
    if shape == TOKENS:
        some = [torch.randint(11, shape, generator=generator) for _ in range(2)]
    other = torch.cat([some[0][:2], some[1][2:]])
    model = Toy(layer, use)
    objective, parameters = OfToy(model), dict(model.named_parameters())
    if not is_known:
        with pytest.raises(Unknown):
            onepass.learned(objective, parameters, {"x": some[0]})
        return
    known, present = onepass.learned(objective, parameters, {"x": some[0]}), torch.ones(3, 2, dtype=torch.bool)
    made = [
        onepass.gradients(objective, parameters, {"x": x.reshape(3, 2, *shape[1:])}, present, known)[0]
        for x in (some[0], other)
    ]
    alone = objective.loss(parameters, objective.features(parameters, {"x": some[0][:2]}, False), present[0])
    for key, expected in zip(parameters, torch.autograd.grad(alone, list(parameters.values())), strict=True):
        first, second = (each[key].whole(each[key].block(0, each[key].rows))[0] for each in made)
        assert torch.equal(first, second), key
        assert torch.allclose(first, expected, atol=1e-5), key


def test_a_token_that_is_added_in_another_order_leaves_its_unit_within_C(monkeypatch):
    """As on a GPU: what is measured is then not to the last digit what is added."""
    generator = torch.Generator().manual_seed(0)
    D = 1e7 * torch.randn(1, 40, 8, generator=generator)
    D[:, 20:] = -D[:, :20]
    table = Lookup(torch.Size([3, 8]), Table(torch.ones(1, 40, dtype=torch.long), D))

    def in_any_order(self, first, last):
        order = torch.randperm(40)
        whole = torch.zeros(1, 3, 8)
        whole[0, 1] = sum(D[0, order], torch.zeros(8))
        return whole[:, first:last]

    monkeypatch.setattr(Lookup, "block", in_any_order)
    tied = Together([table, Made(torch.zeros(1, 3, 8))])
    for _ in range(20):
        factors = clip_factors(unit_gradients.norms_of({"table": tied}, 1, D.device), C)
        assert tied.clipped(factors, True).norm() * grid_of(C) <= C
