"""Evaluate one cell's model on its test split -> results/CELL: metrics.json, details.json and a picture."""

import argparse

from stages import params
from stages.atomic import new_file, write_json
from stages.errors import run
from stages.evaluate import classification
from stages.keys import Cell, data_dir, features_dir, initial_model_dir
from stages.models import clip as clips
from stages.models.batches import decoded
from stages.models.features import Features
from stages.models.heads import projections
from stages.prepare.format import Manifest, PreparedSplit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.evaluate", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()

    data = PreparedSplit(data_dir(cell.dataset), "test")
    manifest, initial = Manifest.read(data_dir(cell.dataset)), initial_model_dir(cell.model)
    clip = clips.load(initial, cell.model_dir)
    images, features = decoded(data, clip), Features(features_dir(cell.dataset, cell.model))
    if features.exist and set(clips.changed(cell.model_dir)) <= set(projections(clip.model)):
        features.require(manifest.data_hash, clips.sha256(initial))
        clip, images = features.headed(clip), features.images("test")  # its towers are those of the initial model
    device = clips.device_of(p.compute.device)
    confusion = classification.evaluate(clip, data, images, manifest.labels, p.evaluate.batch_size, device)

    metrics = confusion.metrics()
    write_json(cell.metrics_json, metrics.model_dump())
    write_json(cell.details_json, confusion.details())
    with new_file(cell.picture) as path:
        classification.draw(confusion, f"{cell.dataset}, {cell.method}, epsilon {cell.epsilon}", path)
    print(f"{cell}: accuracy {metrics.score:.1%} ({metrics.low:.1%} to {metrics.high:.1%}, n = {metrics.n})")


if __name__ == "__main__":
    run(main)
