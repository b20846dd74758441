"""Algorithm 1 on a real small CLIP and real digits."""

import math

import numpy as np
import pytest
import torch

from stages.models import clip as clips
from stages.models.batches import Batch, BatchReader
from stages.models.losses import clip_loss
from stages.prepare.format import Dataset, PreparedSplit, Row, png, write
from stages.privacy.mechanism import BatchClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import gradients_of, train, training_mode

N = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PreparedSplit:
    rng = np.random.default_rng(0)
    rows = [Row(png(rng.integers(0, 256, (28, 28), dtype=np.uint8)), (f"text {i}",), None, f"u{i}") for i in range(N)]
    folder = tmp_path_factory.mktemp("data") / "noise"
    write(folder, "noise", Dataset("made here", "none", None, rows[:-1], rows[-1:]))
    return PreparedSplit(folder, "train")


def tiny() -> clips.Clip:
    torch.manual_seed(0)
    return clips.create("stages/models/configs/tiny-clip")


class Run:
    """One training, with plain gradient descent of rate 1 unless told otherwise: weights move by minus the gradient."""

    def __init__(self, data, *, steps=3, batch_size=8, mechanism=None, key=None, part="all", optimizer=None):
        clip = tiny()
        self.model = clip.model
        self.parameters = clips.trainable_parameters(self.model, part)
        self.before = {name: t.clone() for name, t in self.model.state_dict().items()}
        train(
            self.model,
            self.parameters,
            (optimizer or (lambda p: torch.optim.SGD(p, lr=1.0)))(self.parameters.values()),
            lambda batch: clip_loss(self.model, batch.images, batch.texts, clip.tokenize),
            BatchReader(data, clip),
            PoissonSampling(data.units, batch_size),
            steps,
            mechanism,
            key or Key.from_seed(0),
        )

    def moved(self) -> torch.Tensor:
        return torch.cat([(p - self.before[name]).flatten() for name, p in self.parameters.items()]).detach()


def test_without_noise_a_step_moves_at_most_C(data):
    for clip_norm in (0.05, 0.5):
        run = Run(data, steps=1, mechanism=BatchClipping(clip_norm, sigma=0.0))
        assert run.moved().double().norm().item() == pytest.approx(clip_norm, rel=1e-4)


def test_noise_has_standard_deviation_sigma_C_in_every_trained_tensor(data):
    key, C, sigma = Key.from_os(), 0.1, 4.0
    noisy = Run(data, steps=1, mechanism=BatchClipping(C, sigma), key=key)
    quiet = Run(data, steps=1, mechanism=BatchClipping(C, 0.0), key=key)
    noise = (noisy.moved() - quiet.moved()).double()
    assert noise.std().item() == pytest.approx(sigma * C, rel=5 / math.sqrt(2 * noise.numel()))
    start = 0
    for name, parameter in noisy.parameters.items():
        part = noise[start : start + parameter.numel()]
        start += parameter.numel()
        if name != "logit_scale":  # clamped afterwards
            assert part.std().item() == pytest.approx(sigma * C, rel=6 / math.sqrt(2 * part.numel())), name


def test_an_empty_batch_still_adds_noise_and_counts_as_a_step(data):
    class Nothing(PoissonSampling):
        def sample(self, stream):
            return np.array([], dtype=np.int64)

    clip = tiny()
    parameters = clips.trainable_parameters(clip.model, "all")
    before = torch.cat([p.detach().flatten() for p in parameters.values()])
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3)
    train(
        clip.model,
        parameters,
        optimizer,
        lambda batch: pytest.fail("there is no loss of an empty batch"),
        BatchReader(data, clip),
        Nothing(data.units, 8),
        2,
        BatchClipping(1.0, 1.0),
        Key.from_os(),
    )
    after = torch.cat([p.detach().flatten() for p in parameters.values()])
    assert (after != before).float().mean() > 0.99
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}


def test_a_parameter_without_gradient_is_noised_like_the_others(data):
    """If only parameters that the batch touches were noised, which ones moved would tell what was in the batch."""
    clip = tiny()
    parameters = clips.trainable_parameters(clip.model, "all")
    batch = Batch(torch.randn(3, 3, 28, 28), ["a", "b", "c"])
    grads = gradients_of(lambda b: clip.model.encode_image(b.images).sum(), batch, parameters)
    assert len(grads) == len(parameters) and all(g is not None for g in grads)


def test_the_same_key_gives_the_same_weights_and_another_key_others(data):
    mechanism = BatchClipping(0.1, 1.0)
    first, again = (Run(data, mechanism=mechanism, key=Key.from_seed(5)).moved() for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, Run(data, mechanism=mechanism, key=Key.from_seed(6)).moved())
    assert not torch.equal(*(Run(data, mechanism=mechanism, key=Key.from_os()).moved() for _ in range(2)))


def test_only_the_chosen_part_changes(data):
    run = Run(data, mechanism=BatchClipping(0.1, 1.0), part="image-tower")
    changed = {name for name, t in run.model.state_dict().items() if not torch.equal(t, run.before[name])}
    assert changed and all(name.startswith("visual.") for name in changed)


def test_non_private_training_neither_clips_nor_adds_noise(data):
    run = Run(data, steps=1, mechanism=None)
    clip = tiny()
    key, sampling = Key.from_seed(0), PoissonSampling(data.units, 8)
    batch = BatchReader(data, clip).batch(sampling.sample(key.stream("sample", 0)), key.stream("text", 0))
    clip_loss(clip.model, batch.images, batch.texts, clip.tokenize).backward()
    for name, parameter in clip.model.named_parameters():
        if name != "logit_scale":  # clamped afterwards
            moved = run.model.get_parameter(name) - run.before[name]
            assert torch.allclose(moved, -parameter.grad, atol=1e-6), name


def test_batch_norm_keeps_its_public_averages():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    training_mode(model)
    before = model[1].running_mean.clone()
    model(torch.randn(8, 3) + 5)
    assert model.training and torch.equal(model[1].running_mean, before)


def test_a_buffer_that_changes_outside_the_mechanism_stops_the_run(data):
    class Leaky(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, images):
            self.seen += images.sum()
            return (self.weight * images.mean()).sum()

    model, clip = Leaky(), tiny()
    with pytest.raises(RuntimeError, match="outside the private mechanism: seen"):
        train(
            model,
            dict(model.named_parameters()),
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda batch: model(batch.images),
            BatchReader(data, clip),
            PoissonSampling(data.units, 20),
            1,
            BatchClipping(1.0, 1.0),
            Key.from_os(),
        )


def test_one_row_and_one_text_are_drawn_from_a_unit(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        Row(png(rng.integers(0, 256, (28, 28), dtype=np.uint8)), ("one", "two"), None, f"u{i // 3}") for i in range(6)
    ]
    write(tmp_path / "d", "d", Dataset("made here", "none", None, rows[:3], rows[3:]))
    reader = BatchReader(PreparedSplit(tmp_path / "d", "train"), tiny())
    drawn = [reader.batch(np.array([0]), Key.from_os().stream("text", t)) for t in range(200)]
    assert {len(batch) for batch in drawn} == {1}
    assert {text for batch in drawn for text in batch.texts} == {"one", "two"}
    assert len({batch.images.sum().item() for batch in drawn}) == 3
