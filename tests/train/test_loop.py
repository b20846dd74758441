"""Algorithm 1 on a real small CLIP and real digits."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Labels, Row, png
from stages.losses import About, named
from stages.losses.contrastive import PairsOfABatch
from stages.models import clip as clips
from stages.models.batches import BatchReader, decoded
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.privacy import onepass, places
from stages.privacy.accounting import Plan
from stages.privacy.gradients import gradient
from stages.privacy.grid import grid_of
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.noise import noised
from stages.privacy.randomness import Key
from stages.privacy.sampling import FixedSizeSampling, PoissonSampling
from stages.train.loop import Execution, Learner, train

N = 40
LABELS = Labels(classes=("a", "b"), templates=("a {}",))


def write_noise(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [Row(png(rng.integers(0, 256, (28, 28), dtype=np.uint8)), (f"text {i}",), i % 2, f"u{i}") for i in range(N)]
    write(folder, "noise", Dataset("made here", "none", LABELS, rows[:-1], rows[-1:]))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PreparedSplit:
    folder = tmp_path_factory.mktemp("data") / "noise"
    write_noise(folder)
    return PreparedSplit(folder, "train")


def tiny() -> Encoder:
    torch.manual_seed(0)
    return clips.create("stages/models/configs/tiny-clip")


class Nothing(PoissonSampling):
    """Every batch is empty."""

    def _draw(self, key, t, size):
        return np.array([], dtype=np.int64)


class Run:
    """One training, with plain gradient descent of rate 1 unless told otherwise: weights move by minus the gradient."""

    def __init__(
        self,
        data,
        *,
        steps=3,
        batch_size=8,
        mechanism=None,
        key=None,
        part="all",
        optimizer=None,
        loss="contrastive",
        sampling=PoissonSampling,
        at_once=16,
        watch=None,
        clip=None,
        objective=None,
        workers=0,
    ):
        clip = clip or tiny()
        self.model = clip.model
        self.parameters = trainable_parameters(self.model, part)
        self.before = {name: t.clone() for name, t in self.model.state_dict().items()}
        learner = Learner(
            self.model,
            self.parameters,
            (optimizer or (lambda p: torch.optim.SGD(p, lr=1.0)))(self.parameters.values()),
            (objective or named(loss).objective)(clip, self.parameters, About(LABELS)),
        )
        plan = Plan(sampling(data.units, batch_size), mechanism or BatchClipping(1.0, 1.0), steps)
        how, private = Execution(at_once, workers=workers, watch=watch), mechanism is not None
        train(learner, BatchReader(data, decoded(data, clip)), plan, key or Key.from_seed(0), how, private=private)

    def moved(self) -> torch.Tensor:
        return torch.cat([(p - self.before[name]).flatten() for name, p in self.parameters.items()]).detach()


def test_without_noise_a_step_moves_at_most_C(data):
    for clip_norm in (0.05, 0.5):
        run = Run(data, steps=1, mechanism=BatchClipping(clip_norm, sigma=0.0))
        assert run.moved().double().norm().item() == pytest.approx(clip_norm, rel=2e-4)


METHODS = {
    "batch": {"mechanism": BatchClipping},
    "group": {"mechanism": lambda C, sigma: GroupClipping(C, sigma, groups=3)},
    "example": {"mechanism": ExampleClipping, "loss": "prompts", "part": "image-tower"},
}


def with_noise(method: str, C: float, sigma: float) -> dict:
    return METHODS[method] | {"mechanism": METHODS[method]["mechanism"](C, sigma)}


@pytest.mark.parametrize("method", METHODS)
def test_noise_has_standard_deviation_sigma_C_in_every_trained_tensor(data, method):
    key, C, sigma = Key.from_os(), 0.1, 4.0
    noisy = Run(data, steps=1, **with_noise(method, C, sigma), key=key)
    quiet = Run(data, steps=1, **with_noise(method, C, 0.0), key=key)
    noise = (noisy.moved() - quiet.moved()).double()
    assert noise.std().item() == pytest.approx(sigma * C, rel=5 / math.sqrt(2 * noise.numel()))
    start = 0
    for name, parameter in noisy.parameters.items():
        part = noise[start : start + parameter.numel()]
        start += parameter.numel()
        if name != "logit_scale":  # clamped afterwards
            assert part.std().item() == pytest.approx(sigma * C, rel=6 / math.sqrt(2 * part.numel())), name


@pytest.mark.parametrize("method", METHODS)
def test_every_step_has_noise_of_its_own(data, method):
    """Batches are empty: weights move by noise alone. Were it the same in all 9 steps, they would move by 9 of it."""
    run = Run(data, steps=9, **with_noise(method, 0.1, 4.0), sampling=Nothing, key=Key.from_os())
    start = 0
    for name, parameter in run.parameters.items():
        part = run.moved()[start : start + parameter.numel()].double()
        start += parameter.numel()
        if name != "logit_scale":  # clamped afterwards
            assert part.std().item() == pytest.approx(3 * 4.0 * 0.1, rel=6 / math.sqrt(2 * part.numel())), name


def test_the_sum_over_units_grows_while_the_noise_does_not(data):
    """With q = 1 all records are in every batch: groups and examples add up to more than one clip."""
    moved = {m: Run(data, steps=1, batch_size=N - 1, **with_noise(m, 1e-3, 0.0)).moved().norm() for m in METHODS}
    assert moved["batch"] <= 1e-3 < moved["group"] <= 3e-3
    assert 1e-3 < moved["example"] <= (N - 1) * 1e-3


def test_fixed_size_batches_train_too(data):
    sizes = []
    Run(
        data,
        mechanism=BatchClipping(0.1, 1.0),
        sampling=FixedSizeSampling,
        watch=lambda figures: sizes.append(figures.records),
    )
    assert sizes == [8, 8, 8]


def test_a_batch_that_exceeds_memory_takes_the_same_step(data):
    whole, pieces = (
        Run(data, steps=1, batch_size=30, mechanism=BatchClipping(0.5, 0.0), at_once=at_once) for at_once in (100, 7)
    )
    assert torch.allclose(whole.moved(), pieces.moved(), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_still_adds_noise_and_counts_as_a_step(data, method):
    optimizers = []

    def adamw(parameters):
        optimizers.append(torch.optim.AdamW(parameters, lr=1e-3))
        return optimizers[0]

    run = Run(data, steps=2, **with_noise(method, 1.0, 1.0), sampling=Nothing, optimizer=adamw)
    assert (run.moved() != 0).float().mean() > 0.99
    assert {int(state["step"]) for state in optimizers[0].state.values()} == {2}


def test_a_parameter_that_the_loss_does_not_use_is_noised_like_the_others(data):
    """If only parameters that the batch touches were noised, which ones moved would tell what was in the batch."""
    clip = tiny()
    clip.model.register_parameter("unused", torch.nn.Parameter(torch.zeros(1000)))
    Run(data, steps=1, mechanism=BatchClipping(0.5, 2.0), key=Key.from_os(), clip=clip)
    assert clip.model.unused.std().item() == pytest.approx(1.0, rel=0.15)


def test_figures_of_the_private_data_are_kept_only_for_who_asks(data):
    figures = []
    Run(data, steps=2, **with_noise("group", 0.1, 1.0), watch=figures.append)
    assert len(figures) == 2 and all(step.records > 0 and len(step.norms) == len(step.losses) for step in figures)
    assert all(step.not_finite == 0 for step in figures)


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
    batch = BatchReader(data, decoded(data, clip)).batch(
        sampling.sample(key, 0, data.units), partial(key.by_record, "text", 0)
    )
    parameters = trainable_parameters(clip.model, "all")
    objective = PairsOfABatch(clip, parameters, About())
    expected, _ = gradient(objective, parameters, objective.records(batch), 100)
    for name, g in zip(parameters, expected, strict=True):
        if name != "logit_scale":  # clamped afterwards
            moved = run.model.get_parameter(name) - run.before[name]
            assert torch.allclose(moved, -g, atol=1e-6), name


def test_dropout_is_off_and_batch_norm_keeps_its_public_averages(data):
    clip = tiny()
    clip.model.visual.front = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.BatchNorm2d(3))
    plain = clip.model.visual.forward
    seen = []

    def forward(images):
        seen.append(clip.model.visual.front(images))
        return plain(seen[-1])

    clip.model.visual.forward = forward
    Run(data, steps=1, batch_size=N - 1, mechanism=BatchClipping(0.5, 0.0), at_once=10, clip=clip)
    assert len(seen) == 8 and torch.equal(seen[0], seen[4])  # four pieces, twice: both passes see the same
    assert not clip.model.visual.front[1].running_mean.any()


def test_a_bfloat16_model_gets_the_noise_of_a_float32_one(data):
    key, clip = Key.from_seed(1), tiny()
    clip.model.bfloat16()
    run = Run(
        data, steps=1, mechanism=BatchClipping(1.0, 100.0), key=key, part="image-tower", sampling=Nothing, clip=clip
    )
    zeros = [torch.zeros(p.shape) for p in run.parameters.values()]
    expected = noised(zeros, grid_of(1.0), 100.0, key, 0)
    for (name, p), noise in zip(run.parameters.items(), expected, strict=True):
        assert p.dtype == torch.bfloat16
        assert torch.equal(p, run.before[name] - noise.to(torch.bfloat16)), name


def test_a_buffer_that_changes_outside_the_mechanism_stops_the_run(data):
    class Leaky(PairsOfABatch):
        def features(self, parameters, records, merge):
            self._model.seen += records["images"].sum()
            return super().features(parameters, records, merge)

    clip = tiny()
    clip.model.register_buffer("seen", torch.zeros(1))
    with pytest.raises(RuntimeError, match="outside the private mechanism: seen"):
        Run(data, steps=1, batch_size=20, mechanism=BatchClipping(1.0, 1.0), clip=clip, objective=Leaky)


def test_one_row_and_one_text_are_drawn_from_a_unit(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        Row(png(rng.integers(0, 256, (28, 28), dtype=np.uint8)), ("one", "two"), None, f"u{i // 3}") for i in range(6)
    ]
    write(tmp_path / "d", "d", Dataset("made here", "none", None, rows[:3], rows[3:]))
    data = PreparedSplit(tmp_path / "d", "train")
    reader = BatchReader(data, decoded(data, tiny()))
    drawn = [reader.batch(np.array([0]), partial(Key.from_os().by_record, "text", t)) for t in range(200)]
    assert {len(batch) for batch in drawn} == {1}
    assert {text for batch in drawn for text in batch.texts} == {"one", "two"}
    assert len({batch.images.sum().item() for batch in drawn}) == 3


@pytest.mark.parametrize("matter", [True, False])
def test_where_places_matter_a_training_goes_unit_by_unit_and_says_so(data, monkeypatch, caplog, matter):
    together, clipped_sum = [], onepass.clipped_sum
    monkeypatch.setattr(onepass, "clipped_sum", lambda *given: together.append(1) or clipped_sum(*given))
    monkeypatch.setattr(places, "matter", lambda *_: matter)
    run = Run(data, steps=1, mechanism=ExampleClipping(0.1, 0.0), part="image-tower", loss="prompts")
    assert bool(together) is (not matter)
    assert ("units go through the model one by one" in caplog.text) is matter
    assert not torch.equal(run.model.visual.proj, run.before["visual.proj"])


@pytest.mark.slow
def test_images_that_are_read_ahead_by_other_processes_change_no_bit(data):
    """Some batches are empty."""
    trained = []
    for workers in (0, 1, 3):
        how = {"steps": 12, "batch_size": 1, "part": "image-tower", "loss": "prompts", "key": Key.from_seed(5)}
        run = Run(data, mechanism=ExampleClipping(0.1, 1.0), workers=workers, **how)
        trained.append({name: p.detach().clone() for name, p in run.parameters.items()})
    assert 0 in [len(PoissonSampling(N - 1, 1).sample(Key.from_seed(5), t, N - 1)) for t in range(12)]
    for name, weights in trained[0].items():
        assert all(torch.equal(weights, other[name]) for other in trained[1:]), name
