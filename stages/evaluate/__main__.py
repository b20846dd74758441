"""Evaluate one cell's model on its test split -> results/CELL: metrics.json, details.json, curve.json and a picture."""

from collections.abc import Iterator

import torch

from stages import commands, params, tasks
from stages.atomic import new_file, write_json
from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.errors import run
from stages.keys import Cell, data_dir, features_dir, initial_model_dir
from stages.models import curve as curves
from stages.models import saved
from stages.models.batches import decoded
from stages.models.encoder import Encoder, device_of
from stages.models.features import Features
from stages.privacy import secret
from stages.tasks.base.task import HeldOut, Settings, Task


def main() -> None:
    parser = commands.parser("stages.evaluate", __doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()

    task = tasks.named(cell.task)
    data, device = PreparedSplit(data_dir(cell.dataset), "test"), device_of(p.compute.device)
    manifest, initial = Manifest.read(data_dir(cell.dataset)), initial_model_dir(cell.model)
    features = Features(features_dir(cell.dataset, cell.model))
    if task.reads_features and features.exist and (heads := saved.heads(initial, cell.model_dir)):
        features.require(manifest.data_hash, saved.sha256(initial))
        encoder, images = features.encoder(heads), features.images("test")  # its towers are as they were
    else:
        encoder = saved.load(initial, cell.model_dir)
        images = decoded(data, encoder)
    test = HeldOut(data, images, manifest.labels)
    result = task.evaluate(encoder, test, p.evaluate, device)

    metrics = result.metrics().model_copy(update={"weights": secret.digest_of(cell.model_dir)})
    write_json(cell.metrics_json, metrics.model_dump())
    write_json(cell.details_json, result.details())
    curve = {} if p.evaluate.curve == 0 else dict(learning_curve(cell, task, encoder, test, p.evaluate, device))
    write_json(cell.curve_json, {"primary": metrics.primary, "scores": curve})
    with new_file(cell.picture) as path:
        result.draw(f"{cell.dataset}, {cell.method}, epsilon {cell.epsilon}", path)
    if manifest.private_test:
        print(f"{cell}: wrote {cell.metrics_json}; the test split is private, so its scores are not printed")
    else:
        bounds = f"{metrics.low:.3f} to {metrics.high:.3f}"
        mark = ", NOT PRIVATE: covered by no epsilon" if cell.epsilon == "inf" else ""
        print(f"{cell}: {metrics.primary} {metrics.score:.3f} ({bounds}, n = {metrics.n}){mark}")


def learning_curve(
    cell: Cell, task: Task, encoder: Encoder, test: HeldOut, settings: Settings, device: torch.device
) -> Iterator[tuple[int, float]]:
    """The primary score after each step whose weights were kept."""
    for step, tensors in curves.read(cell.curve_dir):
        encoder.model.load_state_dict(tensors, strict=False)
        yield step, task.evaluate(encoder, test, settings, device).metrics().score


if __name__ == "__main__":
    run(main)
