"""What privacy costs a step, side by side in one run: time and memory of a plain step, each clip unit, and Opacus.

    make bench                                     ViT-B/32 with random weights, batch 32 (well over 10 minutes)
    python -m tests.bench --model tiny --repeats 9

Repeats alternate between the variants, so that a busy machine slows all of them alike; the ratio is of medians.
Memory is the peak of the process above what it held before the step. Opacus runs the loss that is a sum over records:
it has no clipping for contrastive losses.
"""

import argparse
import contextlib
import ctypes
import gc
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from tqdm import tqdm

from stages.data.rows import Labels
from stages.losses import About, objective_of
from stages.models import clip as clips
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import trainable_parameters
from stages.privacy.gradients import gradient
from stages.privacy.mechanism import Mechanism
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.train.loop import Work, private_gradient

MODELS = {"ViT-B-32": "ViT-B-32", "tiny": "stages/models/configs/tiny-clip"}
AT_ONCE = 256  # records_at_once of params.yaml
LABELS = Labels(classes=tuple(f"thing {i}" for i in range(10)), templates=("a photo of a {}.",))
# Opacus takes no parameter that stands in a module beside others; they stay fixed in all steps with its loss.
NOT_FOR_OPACUS = ("visual.class_embedding", "visual.positional_embedding", "visual.proj")


@dataclass
class Variant:
    name: str
    loss: str
    step: Callable[[int], None]
    seconds: list[float]
    memory: int = 0  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="ViT-B-32")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8, help="records of a group on average")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of variants; default: all")
    args = parser.parse_args()

    variants = [v for v in made(args) if not args.only or v.name in args.only]
    for variant in variants:
        measured(variant, 0)  # the first step of a variant allocates what later ones use again
    for t in tqdm(range(1, args.repeats + 1), desc="repeats", disable=None):
        for variant in variants:
            seconds, memory = measured(variant, t)
            variant.seconds.append(seconds)
            variant.memory = max(variant.memory, memory)
    print(table(variants, args))


def made(args: argparse.Namespace) -> list[Variant]:
    torch.manual_seed(0)
    clip = clips.create(MODELS[args.model])
    size = clip.model.visual.image_size
    height, width = size if isinstance(size, tuple) else (size, size)
    labels = [i % 10 for i in range(args.batch_size)]
    texts = [f"a photo of a {LABELS.classes[label]}, number {i}" for i, label in enumerate(labels)]
    batch = Batch(torch.randn(args.batch_size, 3, height, width), texts, labels)
    groups = max(1, args.batch_size // args.group_size)

    contrastive = Step(clip, "contrastive", "no-token-table", batch)
    prompts = Step(clip, "prompts", "image-tower", batch, leave_out=NOT_FOR_OPACUS)
    return [
        Variant("plain", "contrastive", contrastive.plain, []),
        Variant("batch", "contrastive", contrastive.private(BatchClipping(1.0, 1.0)), []),
        Variant("batch, rounding as it comes", "contrastive", contrastive.private_without_grid, []),
        Variant("group", "contrastive", contrastive.private(GroupClipping(1.0, 1.0, groups=groups)), []),
        Variant("plain, prompts", "prompts", prompts.plain, []),
        Variant("example", "prompts", prompts.private(ExampleClipping(1.0, 1.0)), []),
        Variant("Opacus, per example", "prompts", OpacusStep(clip, batch, ghost=False).step, []),
        Variant("Opacus, ghost clipping", "prompts", OpacusStep(clip, batch, ghost=True).step, []),
    ]


class Step:
    """Gradient and AdamW on one fixed batch, as stages/train/loop.py does them."""

    def __init__(self, clip: Encoder, loss: str, part: str, batch: Batch, leave_out: tuple[str, ...] = ()):
        trained = trainable_parameters(clip.model, part)
        self.parameters = {name: p for name, p in trained.items() if name not in leave_out}
        self.objective = objective_of(loss, clip, self.parameters, About(LABELS))
        self.records = self.objective.records(batch)
        self.size = len(batch)
        self.key = Key.from_os()
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=1e-6)

    def plain(self, t: int) -> None:
        self._update(gradient(self.objective, self._wanted(), self.records, self.size)[0])

    def private(self, mechanism: Mechanism) -> Callable[[int], None]:
        def step(t: int) -> None:
            drawn = np.arange(self.size)
            units = mechanism.assign(drawn, self.key, t)
            wanted, work = self._wanted(), Work(units)
            noisy, _ = private_gradient(self.objective, wanted, self.records, work, mechanism, self.key, t, AT_ONCE)
            self._update(noisy)

        return step

    def private_without_grid(self, t: int) -> None:
        """What `batch` would cost without its defence of floating-point attacks: float32 noise, no grid."""
        gradients, _ = gradient(self.objective, self._wanted(), self.records, self.size)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        for i, g in enumerate(gradients):
            noise = self.key.stream(f"plain/{i}", t).standard_normal(g.numel(), dtype=np.float32)
            g.mul_(torch.clamp(1.0 / norm, max=1.0)).add_(torch.from_numpy(noise).view(g.shape))
        self._update(gradients)

    def _wanted(self) -> dict[str, torch.nn.Parameter]:
        """The variants share a model and train different parts of it."""
        for parameter in self.objective._model.parameters():
            parameter.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        return self.parameters

    def _update(self, gradients: list[torch.Tensor]) -> None:
        for parameter, g in zip(self.parameters.values(), gradients, strict=True):
            parameter.grad = g
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class OpacusStep:
    """The same loss and parameters by Opacus, on a copy of the image tower with its own attention modules."""

    def __init__(self, clip: Encoder, batch: Batch, ghost: bool):
        import copy

        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer
        from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.validators import ModuleValidator

        tower = ModuleValidator.fix(copy.deepcopy(clip.model.visual)).train()
        for name, parameter in tower.named_parameters():
            parameter.requires_grad_(f"visual.{name}" not in NOT_FOR_OPACUS)
        trained = [p for p in tower.parameters() if p.requires_grad]
        reference = Step(clip, "prompts", "image-tower", batch, leave_out=NOT_FOR_OPACUS)
        self.classes, self.labels = reference.objective._classes, reference.records["labels"]
        self.images = batch.images
        settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(batch)}
        inner = torch.optim.AdamW(trained, lr=1e-6)
        criterion = torch.nn.CrossEntropyLoss(reduction="mean")
        if ghost:
            self.tower = GradSampleModuleFastGradientClipping(tower, max_grad_norm=1.0, use_ghost_clipping=True)
            self.optimizer = DPOptimizerFastGradientClipping(inner, **settings)
            self.criterion = DPLossFastGradientClipping(self.tower, self.optimizer, criterion, "mean")
        else:
            self.tower, self.criterion = GradSampleModule(tower), criterion
            self.optimizer = DPOptimizer(inner, **settings)

    def step(self, t: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        features = torch.nn.functional.normalize(self.tower(self.images), dim=-1)
        self.criterion(features @ self.classes.T, self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def measured(variant: Variant, t: int) -> tuple[float, int]:
    """Seconds, and the peak of resident memory above what was held before."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier steps freed goes back to the system
    process, done, peak = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        variant.step(t)
    finally:
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    return seconds, max(0, peak[0] - before)


def table(variants: list[Variant], args: argparse.Namespace) -> str:
    base = {v.loss: statistics.median(v.seconds) for v in reversed(variants) if v.name.startswith("plain")}
    lines = [
        f"{args.model}, batch {args.batch_size}, groups of {args.group_size}, {torch.get_num_threads()} threads, "
        f"medians of {args.repeats} alternating repeats",
        "",
        "| step | loss | seconds | times the plain step | peak memory, GB |",
        "|---|---|---|---|---|",
    ]
    for v in variants:
        median = statistics.median(v.seconds)
        ratio = f"{median / base[v.loss]:.2f}" if v.loss in base else ""
        lines.append(f"| {v.name} | {v.loss} | {median:.2f} | {ratio} | {v.memory / 1e9:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
