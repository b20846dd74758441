"""BLIP: what its parts are, what private training may move, and that its folders are those of transformers."""

import json
from functools import partial
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipForImageTextRetrieval,
    BlipForQuestionAnswering,
)

from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.losses import About, objective_of
from stages.models import blip, saved, vocabulary, writing
from stages.models.batches import Batch, BatchReader, decoded
from stages.models.parts import merge_adapters, trainable_parameters
from stages.params import Compute
from stages.pretrain.blip import describing
from stages.pretrain.blip import loss as pretraining_loss
from stages.privacy.gradients import clipped_sum, gradient
from stages.privacy.grid import grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.sources import scenes
from stages.sources.scenes import Scenes
from stages.train.cell import speed_up

TINY = Path("stages/models/configs/tiny-blip-vqa")
TEXTS = [caption for style in scenes.STYLES.values() for caption in (*style.one, *style.two, *style.many)]
TEXTS += ["small large red green blue yellow purple orange", "circle square triangle star cross above below left of"]
C = 0.05


@pytest.fixture
def tiny() -> blip.BlipEncoder:
    torch.manual_seed(0)
    encoder = saved.create(str(TINY), TEXTS)
    encoder.model.eval()
    with torch.no_grad():
        encoder.model.vision_model.embeddings.class_embedding.mul_(5)  # random images then differ enough to tell apart
    return encoder


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def batch(count: int = 8) -> Batch:
    return Batch(
        images(count),
        [f"a small {c} circle" for c in (*scenes.PUBLIC.palette, "pink", "black")][:count],
        [None] * count,
    )


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def test_a_saved_folder_loads_here_and_in_transformers(tiny, tmp_path):
    saved.save(tiny, tmp_path)
    again, pixels, tokens = saved.load(tmp_path), images(3), tiny.tokenize(batch(3).texts)
    again.model.eval()
    assert torch.equal(tiny.tokenize(TEXTS), again.tokenize(TEXTS))
    for ours, theirs in zip(tiny.model(pixels, tokens), again.model(pixels, tokens), strict=True):
        assert torch.equal(ours, theirs)
    retrieval, captioner = (
        kind.from_pretrained(tmp_path).eval() for kind in (BlipForImageTextRetrieval, BlipForConditionalGeneration)
    )
    image, text = tiny.model(pixels, tokens)
    there = (tokens != 0).long()
    similarity = retrieval(tokens, pixels, use_itm_head=False, attention_mask=there).itm_score
    assert torch.allclose(similarity, image @ text.T, atol=1e-5)
    written = captioner.generate(pixels, num_beams=3, max_new_tokens=8, do_sample=False)
    assert tiny.decode(written) == writing.captions(tiny, pixels, beams=3, most_tokens=8)


QUESTIONS = ["is there a circle?", "how many small red stars are above the large square?", "what is left of it?"]


def test_answers_are_those_of_transformers(tiny, tmp_path):
    saved.save(tiny, tmp_path)
    theirs = BlipForQuestionAnswering.from_pretrained(tmp_path).eval()
    for i, question in enumerate(QUESTIONS):
        tokens = tiny.tokenize([question])
        tokens = tokens[:, : int((tokens != 0).sum())]
        tokens[:, 0] = tiny.model.config.text_config.bos_token_id + 1  # BLIP's own code puts [ENC] first
        pixels = images(3)[i : i + 1]
        written = theirs.generate(tokens, pixels, num_beams=3, max_new_tokens=6, do_sample=False)
        assert tiny.decode(written) == writing.answers(tiny, pixels, [question], beams=3, most_tokens=6)
        assert tiny.tokenize([question]).shape[1] > tokens.shape[1]  # so ours has padding, of which nothing is seen


def test_answers_do_not_depend_on_the_batch_and_follow_image_and_question(tiny):
    def answer(pixels, questions, **more):
        return writing.answers(tiny, pixels, questions, beams=3, most_tokens=6, **more)

    for more in ({}, {"answer_list": ["red circle", "blue", "yes", "4"]}):
        together = answer(images(3), QUESTIONS, **more)
        assert together == [answer(images(3)[i : i + 1], QUESTIONS[i : i + 1], **more)[0] for i in range(3)]
    looked = [tiny.model.look(tiny.model.patches(images(2)), tiny.tokenize(QUESTIONS[:1] * 2))[:, 0] for _ in range(2)]
    assert torch.equal(*looked) and not torch.allclose(looked[0][0], looked[0][1], atol=1e-4)


def test_of_a_list_the_answer_that_the_decoder_finds_likeliest_is_taken(tiny):
    """Against transformers' own loss of each, which is the mean over its tokens."""
    pixels, possible = images(3), ["red", "a small blue star", "yes", "above"]
    tokens = tiny.tokenize(QUESTIONS)
    looked = tiny.model.look(tiny.model.patches(pixels), tokens)
    expected = []
    for i in range(3):
        chances = []
        for answer in possible:
            labels = tiny.tokenize([answer])
            labels = labels[:, : int((labels != 0).sum())]
            labels[:, 0] = tiny.model.config.text_config.bos_token_id
            loss = tiny.model.text_decoder(
                input_ids=labels,
                encoder_hidden_states=looked[i : i + 1, : int((tokens[i] != 0).sum())],
                labels=labels,
                label_smoothing=0.0,
            ).loss
            chances.append(-loss.item() * (labels.shape[1] - 1))
        expected.append(possible[int(np.argmax(chances))])
    assert writing.answers(tiny, pixels, QUESTIONS, 3, 6, answer_list=possible) == expected


@pytest.mark.slow
def test_answering_is_learned_from_question_and_image(tmp_path):
    """One question, and images that differ: the answer can only come from the image."""
    encoder = saved.create(str(TINY), TEXTS)
    asked = [("what color is it?", colour) for colour in ("red", "green", "blue", "yellow")]
    batch = Batch(images(4), [" ".join(pair) for pair in asked], [None] * 4, [[pair] for pair in asked])
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=0.001)
    torch.manual_seed(0)
    for _ in range(40):
        loss = pretraining_loss(encoder, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.model.eval()
    said = writing.answers(encoder, images(4), [question for question, _ in asked], beams=1, most_tokens=4)
    assert said == [answer for _, answer in asked]


def test_captions_do_not_depend_on_the_batch(tiny):
    together = writing.captions(tiny, images(5), beams=3, most_tokens=10)
    assert together == [writing.captions(tiny, images(5)[i : i + 1], 3, 10)[0] for i in range(5)]
    assert len(set(together)) > 1 and all(isinstance(caption, str) for caption in together)


@pytest.mark.parametrize("part", ["all", "no-token-table", "image-tower", "lora", "image-lora"])
def test_private_training_moves_nothing_that_the_loss_does_not_reach(tiny, part):
    parameters = trainable_parameters(tiny.model, part)
    objective = objective_of("contrastive", tiny, parameters, About())
    gradients, _ = gradient(objective, parameters, objective.records(batch()), 100)
    by_name = dict(zip(parameters, gradients, strict=True))
    # At their start adapters B are zero, and so is the gradient of A.
    assert not [name for name, g in by_name.items() if not g.any() and ".lora_A" not in name]
    beyond = ("text_decoder", "itm_head", "crossattention")
    assert not [name for name in parameters if any(word in name for word in beyond)]
    assert any(name.startswith("vision_model.") for name in parameters)
    assert any(name.startswith("text_encoder.") for name in parameters) == (part in ("all", "no-token-table", "lora"))
    if "lora" in part:
        names = {name.replace("base_layer.", "") for name in tiny.model.state_dict() if ".lora_" not in name}
        merge_adapters(tiny.model)
        assert set(tiny.model.state_dict()) == names


def test_groups_through_one_vmapped_pass_are_those_of_a_plain_loop(tiny):
    parameters = trainable_parameters(tiny.model, "all")
    objective = objective_of("contrastive", tiny, parameters, About())
    records, units = objective.records(batch()), np.array([0, 1, 0, 2, 1, 0, 2, 1])
    together, figures = clipped_sum(objective, parameters, records, units, C, 100)
    objective.one_by_one = True
    apart, _ = clipped_sum(objective, parameters, records, units, C, 100)
    assert all(norm > C for norm in figures.norms)  # clipped, and not zero
    assert torch.allclose(flat(together), flat(apart), atol=1e-4 * C / grid_of(C))


def test_checkpointing_gives_the_same_gradient(tiny):
    parameters = trainable_parameters(tiny.model, "all")
    objective = objective_of("contrastive", tiny, parameters, About())
    plain, _ = gradient(objective, parameters, objective.records(batch()), 100)
    assert speed_up(tiny.model, Compute(device="cpu", records_at_once=8, gradient_checkpointing=True))
    tiny.model.eval()
    layer = tiny.model.vision_model.encoder.layers[0]
    assert layer.training and not layer.self_attn.training  # only what makes transformers checkpoint it
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    again, _ = gradient(objective, parameters, objective.records(batch()), 100)
    assert torch.allclose(flat(plain), flat(again), atol=1e-6)
    assert layer.gradient_checkpointing and len(calls) == 1


@pytest.mark.slow
def test_an_image_with_all_its_captions_moves_a_step_by_at_most_the_sensitivity(tiny, tmp_path):
    """The unit is the image: with or without its row of five captions, one step before the noise."""
    write(tmp_path / "data", "scenes", Scenes(source="scenes", style="private", train=24, test=2, seed=3).load())
    data = PreparedSplit(tmp_path / "data", "train")
    assert len(data.row(5).texts) == 5 and data.units == data.rows == 24
    reader = BatchReader(data, decoded(data, tiny))
    parameters = trainable_parameters(tiny.model, "all")
    objective = objective_of("contrastive", tiny, parameters, About())
    key, everyone, largest = Key.from_seed(1), np.arange(24), 0.0
    for mechanism in (BatchClipping(clip_norm=C, sigma=1.0), GroupClipping(clip_norm=C, sigma=1.0, groups=5)):
        for left_out in (0, 5, 23):
            sums = []
            for drawn in (everyone, np.delete(everyone, left_out)):
                units = mechanism.assign(drawn, key, 0)
                texts = reader.batch(drawn, partial(key.by_record, "text", 0))
                assert [t for t in texts.texts if t in data.row(int(drawn[0])).texts]
                records = objective.records(texts)
                total, _ = clipped_sum(objective, parameters, records, units, C, 100)
                sums.append(flat(total) * grid_of(C))
            largest = max(largest, (sums[0] - sums[1]).norm().item())
            assert (sums[0] - sums[1]).norm() <= 2 * C
    assert largest > 0.05 * C  # it does move


def test_texts_are_of_one_length_whatever_they_are(tiny):
    odd = ["", "word " * 500, "ein größerer Kreis, 赤い丸 🙂", "a circle"]
    tokens = tiny.tokenize(odd)
    assert tokens.shape == (4, blip.TEXT_TOKENS)
    text = tiny.model.encode_text(tokens, normalize=True)
    assert text.isfinite().all()
    assert torch.equal(tiny.tokenize(["a circle"])[0], tokens[3])  # its neighbours make no difference
    assert torch.allclose(tiny.model.encode_text(tokens[3:], normalize=True), text[3:], atol=1e-6)


def test_a_vocabulary_is_the_same_each_time_and_spells_what_it_does_not_know(tiny):
    assert vocabulary.learn(TEXTS, 256, 35) == vocabulary.learn(reversed(TEXTS), 256, 35)
    assert tiny.decode(tiny.tokenize(["a zebra quickly vexed 7 foxes!"])) == ["a zebra quickly vexed 7 foxes!"]
    assert tiny.tokenize(["a large red circle"])[0].count_nonzero() == 6  # a token a word, and the two ends
    assert tiny.tokenize(["赤"])[0, 1] == vocabulary.SPECIAL.index("[UNK]")


@pytest.mark.slow
def test_the_three_losses_are_learned(tiny):
    """On one batch, so that it is quick: each of the losses falls well below where it started."""
    model, pixels, tokens = tiny.model.train(), images(4), tiny.tokenize(batch(4).texts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(0)
    first = [loss.item() for loss in describing(model, pixels, tokens)]
    for _ in range(60):
        losses = describing(model, pixels, tokens)
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    last = [loss.item() for loss in describing(model, pixels, tokens)]
    assert all(after < 0.7 * before for before, after in zip(first, last, strict=True)), (first, last)


def test_a_text_of_the_image_itself_is_never_a_wrong_one(tiny, monkeypatch):
    """Two images with the same words: the matching loss must not call their pairs false."""
    seen = {}
    monkeypatch.setattr(
        torch, "multinomial", lambda chance, count: seen.setdefault("c", chance).argmax(1, keepdim=True)
    )
    tokens = tiny.tokenize(["a small red circle", "a small red circle", "two blue stars"])
    describing(tiny.model, images(3), tokens)
    assert seen["c"][0, 1] == seen["c"][1, 0] == seen["c"][0, 0] == 0 and seen["c"][0, 2] == 1


@pytest.fixture
def released(tiny, tmp_path) -> dict[type, str]:
    """Models that write and one of retrieval in the layout of the hub, from random weights of their own."""
    names = {}
    for seed, kind in enumerate((BlipForConditionalGeneration, BlipForImageTextRetrieval, BlipForQuestionAnswering)):
        torch.manual_seed(seed)
        names[kind] = str(tmp_path / kind.__name__)
        kind(BlipConfig.from_dict(tiny.config)).save_pretrained(names[kind])
        for file, content in tiny.files.items():
            Path(names[kind], file).write_bytes(content)
    return names


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (BlipForConditionalGeneration, {"vision_model", "text_decoder"}),
        (BlipForQuestionAnswering, {"vision_model", "text_decoder", "text_encoder"}),
    ],
    ids=["captioner", "answerer"],
)
def test_released_weights_are_the_writers_as_far_as_it_has_them_and_else_the_retrievals(
    released, tmp_path, kind, parts
):
    answers = kind is BlipForQuestionAnswering
    encoder = blip.pretrained(released[kind], answers, released[BlipForImageTextRetrieval])
    writer = kind.from_pretrained(released[kind])
    retrieval = BlipForImageTextRetrieval.from_pretrained(released[BlipForImageTextRetrieval])
    state = encoder.model.state_dict()
    for part in ("vision_model", "text_decoder", "text_encoder", "vision_proj", "text_proj", "itm_head"):
        source = writer if part in parts else retrieval
        assert all(torch.equal(state[f"{part}.{k}"], v) for k, v in getattr(source, part).state_dict().items())
    assert encoder.model.logit_scale.exp().item() == pytest.approx(1 / 0.07, rel=1e-3)  # BLIP's temperature
    saved.save(encoder, tmp_path / "m")
    assert saved.exists(tmp_path / "m") and saved.load(tmp_path / "m").config == encoder.config


def test_weights_that_are_not_there_are_one_clear_error(released, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"could not be loaded .*Two ways"):
        blip.pretrained("nobody/no-such-captioner", False, released[BlipForImageTextRetrieval])
    writer = released[BlipForConditionalGeneration]
    broken = Path(writer) / "config.json"
    broken.write_text(json.dumps(json.loads(broken.read_text()) | {"image_text_hidden_size": 32}))
    encoder = blip.pretrained(writer, False, released[BlipForImageTextRetrieval])
    assert encoder.model.vision_proj.out_features == 64  # of the heads, not of the captioner
