"""The loss of writing: what it is, what it reaches, and that a record's term is its own."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from stages import params
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Question, Row, png
from stages.errors import UserError
from stages.losses import About, named, objective_of
from stages.models import blip, clip, saved
from stages.models.batches import Batch, BatchReader, decoded
from stages.models.parts import merge_adapters, trainable_parameters
from stages.privacy.accounting import Plan
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import grid_of
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.sources import scenes
from stages.sources.scenes import Scenes
from stages.train.loop import Execution, Learner, train
from tests.conftest import small_params
from tests.privacy.one_step_audit import Step, audit

TINY = Path("stages/models/configs/tiny-blip-vqa")
TEXTS = [caption for style in scenes.STYLES.values() for caption in (*style.one, *style.two, *style.many)]
COLOURS = ("red", "green", "blue", "pink", "black", "white")
CAPTIONS, QUESTIONS = About(), About(has_questions=True)
C = 0.05


@pytest.fixture
def tiny() -> blip.BlipEncoder:
    torch.manual_seed(0)
    encoder = saved.create(str(TINY), TEXTS)
    encoder.model.eval()
    return encoder


def batch(count: int = 6) -> Batch:
    images = torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    asked = [[(f"what is left of the {c} one?" * (1 + i % 2), c)] for i, c in enumerate(COLOURS)]
    return Batch(images, [f"a {c} circle" * (1 + i % 3) for i, c in enumerate(COLOURS)][:count], [None] * count, asked)


def parameters_of(encoder, part: str, about: About = CAPTIONS) -> dict:
    return trainable_parameters(encoder.model, part, reached=partial(named("writing").reaches, about=about))


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


@pytest.mark.parametrize("about", [CAPTIONS, QUESTIONS], ids=["captions", "questions"])
def test_it_is_the_loss_of_transformers_decoder_for_each_record(tiny, about):
    objective = objective_of("writing", tiny, parameters_of(tiny, "all", about), about)
    records = objective.records(batch())
    found = objective.features({}, records, merge=True)["each"]
    text = tiny.model.config.text_config
    for i in range(len(found)):
        length = int((records["texts"][i] != text.pad_token_id).sum())
        inputs = records["texts"][i : i + 1, :length].clone()
        inputs[:, 0] = text.bos_token_id
        seen = tiny.model.patches(records["images"][i : i + 1])
        if about.has_questions:
            asked = records["questions"][i : i + 1]
            asked = asked[:, : int((asked != text.pad_token_id).sum())]
            seen = tiny.model.look(seen, asked)
        loss = tiny.model.text_decoder(input_ids=inputs, encoder_hidden_states=seen, labels=inputs).loss
        assert torch.isclose(found[i], loss, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("about", [CAPTIONS, QUESTIONS], ids=["captions", "questions"])
@pytest.mark.parametrize("part", ["all", "no-token-table", "image-tower+decoder", "lora", "cross-attention"])
def test_records_through_one_vmapped_pass_are_those_of_a_plain_loop(tiny, part, about):
    parameters = parameters_of(tiny, part, about)
    objective = objective_of("writing", tiny, parameters, about)
    records, units = objective.records(batch()), np.arange(6)
    together, figures = clipped_sum(objective, parameters, records, units, C, 100)
    objective.one_by_one = True
    apart, _ = clipped_sum(objective, parameters, records, units, C, 100)
    assert all(norm > C for norm in figures.norms)  # clipped, and not zero
    assert torch.allclose(flat(together), flat(apart), atol=1e-5 * C / grid_of(C))


def test_a_large_unit_in_pieces_has_the_same_gradient(tiny):
    parameters = parameters_of(tiny, "image-tower+decoder")
    objective = objective_of("writing", tiny, parameters, CAPTIONS)
    whole, _ = gradient(objective, parameters, objective.records(batch()), 100)
    pieces, _ = gradient(objective, parameters, objective.records(batch()), 2)
    assert torch.allclose(flat(whole), flat(pieces), atol=1e-6)


REACHED = {
    "image-tower": {"vision_model"},
    "decoder": {"text_decoder"},
    "cross-attention": {"text_decoder"},
    "image-tower+decoder": {"vision_model", "text_decoder"},
    "image-tower+question-encoder+decoder": {"vision_model", "text_encoder", "text_decoder"},
    "all": {"vision_model", "text_encoder", "text_decoder"},
    "no-token-table": {"vision_model", "text_encoder", "text_decoder"},
    "lora": {"vision_model", "text_encoder", "text_decoder"},
    "image-lora+decoder-lora": {"vision_model", "text_decoder"},
}


@pytest.mark.parametrize("about", [CAPTIONS, QUESTIONS], ids=["captions", "questions"])
@pytest.mark.parametrize("part", REACHED)
def test_each_part_trains_what_it_names_and_nothing_that_the_loss_does_not_reach(tiny, part, about):
    parameters = parameters_of(tiny, part, about)
    asked = {"text_encoder"} if part == "cross-attention" else set()
    wanted = (REACHED[part] | asked) - (set() if about.has_questions else {"text_encoder"})
    assert {name.split(".")[0] for name in parameters} == wanted
    tables = [name for name in parameters if "word_embeddings" in name]
    assert bool(tables) == (part == "all")
    objective = objective_of("writing", tiny, parameters, about)
    gradients, _ = gradient(objective, parameters, objective.records(batch()), 100)
    still = {name for name, g in zip(parameters, gradients, strict=True) if not g.any() and ".lora_A" not in name}
    assert not still
    if "lora" in part:
        names = {name.replace("base_layer.", "") for name in tiny.model.state_dict() if ".lora_" not in name}
        merge_adapters(tiny.model)
        assert set(tiny.model.state_dict()) == names


@pytest.fixture
def captioned(tmp_path) -> PreparedSplit:
    write(tmp_path / "data", "scenes", Scenes(source="scenes", style="private", train=12, test=2, seed=3).load())
    return PreparedSplit(tmp_path / "data", "train")


@pytest.mark.parametrize("part", ["all", "decoder"])
def test_tied_weights_are_trained_as_one_tensor_or_left_alone(tiny, captioned, part):
    decoder = tiny.model.text_decoder
    tables = decoder.bert.embeddings.word_embeddings.weight, decoder.cls.predictions.decoder.weight
    assert tables[0] is tables[1]
    before, parameters = tables[0].detach().clone(), parameters_of(tiny, part)
    objective = objective_of("writing", tiny, parameters, CAPTIONS)
    learner = Learner(tiny.model, parameters, torch.optim.SGD(parameters.values(), lr=0.1), objective)
    plan = Plan(PoissonSampling(12, 6), ExampleClipping(C, 1.0), steps=2)
    reader = BatchReader(captioned, decoded(captioned, tiny))
    train(learner, reader, plan, Key.from_os(), Execution(100), private=True)
    assert decoder.bert.embeddings.word_embeddings.weight is decoder.cls.predictions.decoder.weight
    assert torch.equal(before, tables[1]) == (part == "decoder")


def asked(tmp_path, count: int = 8) -> PreparedSplit:
    """Images with three questions, the second of which nobody answered; about the last one nothing was asked."""
    rng = np.random.default_rng(0)

    def row(i: int) -> Row:
        questions = [Question(f"{i}-{q}", f"question {q}?", ("yes", "no", f"answer {q}"), None) for q in (0, 2)]
        questions.insert(1, Question(f"{i}-1", "question 1?", (), None))
        picture = png(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        return Row.asked(picture, tuple(questions) if i % count < count - 1 else (), f"u{i}")

    from stages.data.rows import Dataset

    rows = [row(i) for i in range(2 * count)]
    write(tmp_path / "asked", "d", Dataset("made here", "none", None, rows[:count], rows[count:], has_questions=True))
    return PreparedSplit(tmp_path / "asked", "train")


def test_one_question_and_one_answer_are_drawn_for_a_record_and_a_step(tiny, tmp_path):
    data = asked(tmp_path)
    reader = BatchReader(data, decoded(data, tiny), asks="one")
    drawn = [reader.batch(np.array([0, 7]), partial(Key.from_os().by_record, "text", t)) for t in range(200)]
    assert all(len(batch.asked[0]) == 1 and batch.asked[1] == [] for batch in drawn)
    said = {pair for batch in drawn for pair in batch.asked[0]}
    assert said == {(f"question {q}?", a) for q in (0, 2) for a in ("yes", "no", f"answer {q}")}
    # The draws of a record are its own, whoever else is drawn.
    key = Key.from_os()
    alone, together = (
        reader.batch(units, partial(key.by_record, "text", 3)) for units in (np.array([4]), np.arange(8))
    )
    assert alone.asked[0] == together.asked[4]


def test_a_record_without_an_answer_adds_nothing(tiny, tmp_path):
    data = asked(tmp_path)
    reader = BatchReader(data, decoded(data, tiny), asks="one")
    parameters = parameters_of(tiny, "all", QUESTIONS)
    objective = objective_of("writing", tiny, parameters, QUESTIONS)
    key, sums = Key.from_os(), []
    for units in (np.arange(8), np.arange(7)):
        records = objective.records(reader.batch(units, partial(key.by_record, "text", 0)))
        sums.append(flat(clipped_sum(objective, parameters, records, np.arange(len(units)), C, 100, {1: 8.0})[0]))
    assert torch.equal(*sums)


@pytest.mark.slow
@pytest.mark.parametrize("about", [CAPTIONS, QUESTIONS], ids=["captions", "questions"])
def test_a_record_moves_a_step_by_at_most_the_sensitivity(tiny, captioned, tmp_path, about):
    """The unit is the image with all of its texts, questions and answers: with or without it, before the noise.

    One of the images is no image at all: its gradient is not finite, and it must move nobody else.
    """
    data = asked(tmp_path) if about.has_questions else captioned
    reader = BatchReader(data, decoded(data, tiny), asks="one" if about.has_questions else None)
    parameters = parameters_of(tiny, "all", about)
    objective = objective_of("writing", tiny, parameters, about)
    key, everyone = Key.from_seed(1), np.arange(data.units)
    for mechanism, bound in ((ExampleClipping(C, 1.0), C), (GroupClipping(C, 1.0, groups=3), 2 * C)):
        for poison in (1.0, 1e6, np.nan):
            sums = []
            for drawn in (everyone, everyone[1:]):
                units = mechanism.assign(drawn, key, 0)
                records = objective.records(reader.batch(drawn, partial(key.by_record, "text", 0)))
                if drawn[0] == 0:
                    records["images"][0] *= poison
                expected = mechanism.expected_units(float(data.units))
                total, _ = clipped_sum(objective, parameters, records, units, C, 100, expected)
                sums.append(flat(total) * grid_of(C))
            moved = (sums[0] - sums[1]).norm().item()
            assert 0.9 * C * np.isfinite(poison) * (bound == C) <= moved <= bound


@pytest.mark.slow
def test_the_audit_of_one_step_finds_no_more_than_is_claimed(tiny):
    about = About(settings={"text_tokens": 8})
    parameters = parameters_of(tiny, "cross-attention", about)
    objective = objective_of("writing", tiny, parameters, about)
    plan = Plan(PoissonSampling(4, 2), ExampleClipping(C, 0.5), steps=1)
    claimed, found = audit(Step(plan, objective, parameters, (objective.records(batch(4)),)), runs=1000)
    print(f"claimed {claimed:.2f}, at least {found:.2f}")
    assert 0.3 * claimed < found <= claimed


def test_a_text_is_cut_at_a_public_length(tiny):
    objective = objective_of("writing", tiny, parameters_of(tiny, "decoder"), About(settings={"text_tokens": 5}))
    assert objective.records(batch())["texts"].shape == (6, 5)


def test_a_model_without_a_decoder_is_refused():
    with pytest.raises(UserError, match="needs a model with a decoder"):
        objective_of("writing", clip.create("stages/models/configs/tiny-clip"), {}, CAPTIONS)


def loaded(folder, values: dict) -> params.Params:
    YAML(typ="safe").dump(values, folder / "params.yaml")
    return params.load(folder / "params.yaml")


@pytest.mark.parametrize("tokens", [1, 36])
def test_a_length_that_leaves_no_word_or_is_more_than_blip_reads_is_refused(tmp_path, tokens):
    values = small_params()
    values["train"]["methods"]["batch"]["text_tokens"] = tokens
    with pytest.raises(UserError) as error:
        loaded(tmp_path, values)
    assert any("text_tokens" in problem for problem in error.value.problems)


def test_a_field_of_another_loss_is_refused(tmp_path):
    values = small_params()
    values["train"]["methods"]["batch"]["text_tokens"] = 8
    with pytest.raises(UserError) as error:
        loaded(tmp_path, values)
    assert "train.methods.batch.text_tokens: is for the loss writing, and the loss is contrastive; leave it out" in (
        error.value.problems
    )
