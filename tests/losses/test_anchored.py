"""The loss against a public bank: what it is, what it leaves out, and that a record's term is its own."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ruamel.yaml import YAML

from stages import params
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Labels
from stages.errors import UserError
from stages.losses import About, objective_of
from stages.models import bank as banks
from stages.models import clip, saved
from stages.models.bank import Bank
from stages.models.batches import Batch, BatchReader, decoded
from stages.models.encoder import Encoder
from stages.models.heads import Heads, trunks
from stages.models.parts import trainable_parameters
from stages.privacy.accounting import Plan
from stages.privacy.factored import clipped_sum as by_factors
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import grid_of
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.sources.scenes import Scenes
from tests.conftest import small_params
from tests.privacy.one_step_audit import Step, audit

CPU, C = torch.device("cpu"), 0.05
COLOURS = ("red", "green", "blue", "pink", "black", "white")
LABELS = Labels(classes=("cat", "dog", "bird"), templates=("a {}.",))


@pytest.fixture
def tiny() -> Encoder:
    torch.manual_seed(0)
    return clip.create("stages/models/configs/tiny-clip")


def small_blip() -> Encoder:
    torch.manual_seed(0)
    encoder = saved.create("stages/models/configs/tiny-blip", [f"a {c} circle" for c in COLOURS])
    encoder.model.eval()
    return encoder


def batch(count: int = 6, size: int = 28) -> Batch:
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    return Batch(images, [f"a {c} circle" for c in COLOURS][:count], [None] * count)


def a_bank(pairs: int = 5, d: int = 64, **more) -> Bank:
    """The texts of pair 1 have that of record 2, and those of pair 3 the one of record 0."""
    g = torch.Generator().manual_seed(2)
    features = [F.normalize(torch.randn(pairs, d, generator=g), dim=1) for _ in range(2)]
    texts = [[f"public {i}"] for i in range(pairs)]
    texts[1], texts[3] = ["public 1", "a blue circle"], ["a red circle"]
    return Bank(*features, **{"texts": texts, "data": "open", "sha256": "0"} | more)


def prepared(encoder: Encoder, part: str, a_batch: Batch | None = None, bank: Bank | None = None):
    parameters = trainable_parameters(encoder.model, part)
    objective = objective_of("anchored", encoder, parameters, About(bank=bank or a_bank()))
    return objective, parameters, objective.records(a_batch or batch())


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def terms(objective, records) -> list[float]:
    """Of each record alone."""
    rows = [{k: t[i : i + 1] for k, t in records.items()} for i in range(len(records["images"]))]
    one = torch.tensor([True])
    return [objective.loss({}, objective.features({}, row, merge=False), one).item() for row in rows]


@pytest.mark.parametrize("part", ["all", "image-tower"])
def test_it_is_the_softmax_of_both_directions_against_the_bank_made_by_hand(tiny, part):
    bank = a_bank()
    objective, parameters, records = prepared(tiny, part, bank=bank)
    with torch.no_grad():
        image = tiny.model.encode_image(batch().images, normalize=True)
        text = tiny.model.encode_text(tiny.tokenize(batch().texts), normalize=True)
        scale = tiny.model.logit_scale.exp().item()
    for i, found in enumerate(terms(objective, records)):
        others = [k for k in range(5) if batch().texts[i] not in bank.texts[k]]
        assert len(others) == (4 if i in (0, 2) else 5)
        own, expected = scale * (image[i] @ text[i]).item(), 0.0
        for feature, fixed in ((image[i], bank.text), (text[i], bank.image)):
            wrong = [scale * (feature @ fixed[k]).item() for k in others]
            expected += math.log(sum(math.exp(s) for s in (own, *wrong))) - own
        assert found == pytest.approx(expected, rel=1e-4)
    _, mean = gradient(objective, parameters, records, 100)
    assert mean.item() == pytest.approx(np.mean(terms(objective, records)), rel=1e-5)


def test_a_pair_with_the_records_text_is_no_wrong_choice(tiny):
    moved = a_bank()
    for features in (moved.image, moved.text):
        features[3] = -features[3]
    before, after = (terms(*prepared(tiny, "all", bank=bank)[::2]) for bank in (a_bank(), moved))
    assert before[0] == after[0] and all(a != b for a, b in zip(before[1:], after[1:], strict=True))


def test_prompts_are_its_special_case(tiny):
    """With each class prompt as a text of the bank, the direction from image to text is the loss prompts."""
    labels = [0, 1, 2, 1, 0, 2]
    a_batch = Batch(batch().images, [LABELS.captions(i)[0] for i in labels], labels)
    with torch.no_grad():
        prompts = tiny.model.encode_text(tiny.tokenize([LABELS.captions(i)[0] for i in range(3)]), normalize=True)
    bank = Bank(prompts, prompts, [LABELS.captions(i) for i in range(3)], "open", "0")
    objective, parameters, records = prepared(tiny, "image-tower", a_batch, bank)
    similarity, own = objective.choices({}, objective.features({}, records, merge=True))[0]
    theirs = objective_of("prompts", tiny, parameters, About(LABELS))
    expected = gradient(theirs, parameters, theirs.records(a_batch), 100)[1]
    assert F.cross_entropy(similarity, own).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "part"),
    [("clip", "all"), ("clip", "image-tower"), ("clip", "lora"), ("blip", "no-token-table"), ("blip", "image-lora")],
)
def test_records_through_one_vmapped_pass_are_those_of_a_plain_loop(tiny, model, part):
    encoder, size = (tiny, 28) if model == "clip" else (small_blip(), 64)
    objective, parameters, records = prepared(encoder, part, batch(3, size))
    units = np.arange(3)
    together, figures = clipped_sum(objective, parameters, records, units, C, 100)
    objective.one_by_one = True
    apart, _ = clipped_sum(objective, parameters, records, units, C, 100)
    assert all(norm > C for norm in figures.norms)  # clipped, and not zero
    assert torch.allclose(flat(together), flat(apart), atol=1e-5 * C / grid_of(C))


def test_a_large_unit_in_pieces_has_the_same_gradient(tiny):
    objective, parameters, records = prepared(tiny, "all")
    whole, _ = gradient(objective, parameters, records, 100)
    pieces, _ = gradient(objective, parameters, records, 2)
    assert (flat(whole) - flat(pieces)).norm() < 1e-5 * flat(whole).norm()


def test_the_bank_is_a_constant_when_both_towers_are_trained(tiny):
    bank = a_bank()
    objective, parameters, records = prepared(tiny, "all", bank=bank)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter += 0.01 * torch.randn_like(parameter)
    similarity, _ = objective.choices(parameters, objective.features(parameters, records, merge=True))[1]
    text = tiny.model.encode_text(tiny.tokenize(batch().texts), normalize=True)
    assert torch.allclose(similarity[1, 1:], tiny.model.logit_scale.exp() * text[1] @ bank.image.T, atol=1e-4)
    assert not bank.image.requires_grad and torch.equal(bank.image, a_bank().image)


@pytest.fixture
def captioned(tmp_path) -> PreparedSplit:
    write(tmp_path / "data", "scenes", Scenes(source="scenes", style="private", train=8, test=1, seed=3).load())
    return PreparedSplit(tmp_path / "data", "train")


def test_a_record_moves_a_step_by_at_most_the_sensitivity(tiny, captioned):
    """An image with all of its texts: with or without it, before the noise. One is huge, one is no image at all.

    A pair of the bank has its texts, which is no matter of anyone else's.
    """
    reader, key, everyone = BatchReader(captioned, decoded(captioned, tiny)), Key.from_seed(1), np.arange(8)
    bank = a_bank(texts=[captioned.texts_and_label(0)[0], *([f"public {i}"] for i in range(4))])
    objective, parameters, _ = prepared(tiny, "no-token-table", bank=bank)
    for mechanism, bound in ((ExampleClipping(C, 1.0), C), (GroupClipping(C, 1.0, groups=3), 2 * C)):
        for poison in (1.0, 1e6, np.nan):
            sums = []
            for drawn in (everyone, everyone[1:]):
                units = mechanism.assign(drawn, key, 0)
                records = objective.records(reader.batch(drawn, partial(key.by_record, "text", 0)))
                if drawn[0] == 0:
                    records["images"][0] *= poison
                total, _ = clipped_sum(objective, parameters, records, units, C, 100, mechanism.expected_units(8.0))
                sums.append(flat(total) * grid_of(C))
            moved = (sums[0] - sums[1]).norm().item()
            assert 0.9 * C * np.isfinite(poison) * (bound == C) <= moved <= bound


def on_frozen_towers(encoder: Encoder, part: str, count: int = 6):
    """As training has it: the towers' outputs are there, and their projections are trained."""
    with torch.no_grad(), trunks(encoder.model) as model:
        images = model.encode_image(batch(count).images)
        texts = dict(zip(batch(6).texts, model.encode_text(encoder.tokenize(batch(6).texts)), strict=True))
    heads = Encoder(
        Heads(dict(encoder.model.named_parameters())), lambda wanted: torch.stack([texts[t] for t in wanted])
    )
    return prepared(heads, part, Batch(images, batch(count).texts, [None] * count))


@pytest.mark.parametrize("part", ["image-projection", "projections"])
def test_on_frozen_towers_gradients_from_factors_are_those_of_a_plain_loop(tiny, part):
    objective, parameters, records = on_frozen_towers(tiny, part)
    assert objective.factors.keys() == parameters.keys()
    sums = [summed(objective, parameters, records, np.arange(6), C, 100)[0] for summed in (by_factors, clipped_sum)]
    ours, theirs = map(flat, sums)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


@pytest.mark.slow
def test_the_audit_of_one_step_finds_no_more_than_is_claimed(tiny):
    objective, parameters, records = on_frozen_towers(tiny, "image-projection", 4)
    plan = Plan(PoissonSampling(4, 2), ExampleClipping(C, 0.5), steps=1)
    claimed, found = audit(Step(plan, objective, parameters, (records,)), runs=1000)
    print(f"claimed {claimed:.2f}, at least {found:.2f}")
    assert 0.3 * claimed < found <= claimed


def open_scenes(folder, public: bool = True) -> None:
    scenes = Scenes(source="scenes", style="public", train=40, test=1, seed=0).load()
    write(folder, "open-scenes", replace(scenes, public=public))


def test_a_bank_is_public_pairs_as_the_initial_model_sees_them(tiny, tmp_path):
    open_scenes(tmp_path / "data")
    saved.save(tiny, tmp_path / "model")
    for name in ("one", "again"):
        banks.write(tmp_path / name, tmp_path / "model", tmp_path / "data", 20, CPU)
    bank, again = (banks.read(tmp_path / name) for name in ("one", "again"))
    assert bank.facts == again.facts and bank.facts | {"bank": "open-scenes", "bank_pairs": 20} == bank.facts
    split = PreparedSplit(tmp_path / "data", "train")
    assert list(bank.texts[19]) == list(split.texts_and_label(38)[0])  # from all over the data
    tiny.model.eval()
    with torch.no_grad():
        image = tiny.model.encode_image(tiny.preprocess(split.row(38).pixels())[None], normalize=True)
        text = tiny.model.encode_text(tiny.tokenize([bank.texts[19][19 % 5]]), normalize=True)
    assert torch.allclose(bank.image[19], image[0], atol=1e-6) and torch.allclose(bank.text[19], text[0], atol=1e-6)
    assert saved.sha256(tmp_path / "one") == saved.sha256(tmp_path / "model")  # it is that model
    banks.write(tmp_path / "other", tmp_path / "model", tmp_path / "data", 19, CPU)
    assert banks.read(tmp_path / "other").sha256 != bank.sha256


def test_private_data_and_more_pairs_than_there_are_make_no_bank(tiny, tmp_path):
    open_scenes(tmp_path / "open")
    open_scenes(tmp_path / "private", public=False)
    saved.save(tiny, tmp_path / "model")
    for data, pairs, message in (("open", 41, "has 40; lower `pairs`"), ("private", 5, "prepared as private data")):
        with pytest.raises(UserError, match=message):
            banks.write(tmp_path / "bank", tmp_path / "model", tmp_path / data, pairs, CPU)
    with pytest.raises(UserError, match="name the model in `banks`"):
        banks.read(tmp_path / "model")
    with pytest.raises(UserError, match="needs a model with a bank"):
        objective_of("anchored", tiny, {}, About())


def mistakes(folder, bank: dict, model: str = "with-bank") -> str:
    values = small_params()
    values["banks"] = {"with-bank": {"model": "tiny-clip", "data": "font-digits", "pairs": 10} | bank}
    values["sweep"] |= {"model": [model], "method": ["example"]}
    values["train"]["methods"]["example"] |= {"loss": "anchored", "trainable": "no-token-table"}
    values["prepare"]["other"] = values["prepare"]["font-digits"] | {"public": False, "seed": 5}
    YAML(typ="safe").dump(values, folder / "params.yaml")
    try:
        params.load(folder / "params.yaml", check_sources=True)
    except UserError as error:
        return "\n".join(map(str, error.problems))
    return ""


@pytest.mark.parametrize(
    ("bank", "message"),
    [
        ({"data": "nope"}, "banks.with-bank.data: 'nope' is in none of prepare, folders, coco and vqa"),
        ({"data": "mnist5k"}, "banks.with-bank.data: 'mnist5k' is the data of the sweep, so it is private"),
        ({"data": "other"}, "banks.with-bank.data: 'other' is not marked `public: true`; a bank gives it no privacy"),
        ({"model": "nope"}, "banks.with-bank.model: 'nope' is in none of pretrain, align and weights"),
        ({"pairs": 0}, "banks.with-bank.pairs: Input should be greater than 0"),
        ({"pairs": 301}, "banks.with-bank.pairs: 301 is over the 300 records of 'font-digits'; lower it"),
        ({"bank_size": 5}, "banks.with-bank.bank_size: unknown key"),
    ],
)
def test_mistakes_in_a_bank_are_found_before_anything_runs(tmp_path, bank, message):
    assert message in mistakes(tmp_path, bank)


def test_a_model_without_a_bank_is_refused_and_one_with_a_bank_is_not(tmp_path):
    refused = mistakes(tmp_path, {}, model="tiny-clip")
    assert (
        "train.methods.example.loss: anchored needs a bank of public pairs, and sweep.model has 'tiny-clip'" in refused
    )
    assert "write `banks: {tiny-clip-and-bank: {model: tiny-clip, data: PUBLIC, pairs: 512}}`" in refused
    assert mistakes(tmp_path, {}) == ""
