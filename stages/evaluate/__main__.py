"""Evaluate one cell's model on its test split -> results/CELL: metrics.json, details.json and a picture."""

import argparse

from stages import params
from stages.atomic import new_file, write_json
from stages.errors import run
from stages.evaluate import captioning, classification
from stages.keys import Cell, data_dir, features_dir, initial_model_dir
from stages.models import saved
from stages.models.batches import decoded
from stages.models.encoder import device_of
from stages.models.features import Features
from stages.models.heads import projections
from stages.prepare.format import Manifest, PreparedSplit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.evaluate", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()

    data, device = PreparedSplit(data_dir(cell.dataset), "test"), device_of(p.compute.device)
    manifest, initial = Manifest.read(data_dir(cell.dataset)), initial_model_dir(cell.model)
    encoder = saved.load(initial, cell.model_dir)
    images, features = decoded(data, encoder), Features(features_dir(cell.dataset, cell.model))
    match cell.task:
        case "classification":
            if features.exist and set(saved.changed(cell.model_dir)) <= set(projections(encoder.model)):
                features.require(manifest.data_hash, saved.sha256(initial))
                encoder, images = features.headed(encoder), features.images("test")  # its towers are as they were
            labels = manifest.labels
            result = classification.evaluate(encoder, data, images, labels, p.evaluate.batch_size, device)
        case "captioning":
            result = captioning.evaluate(encoder, data, images, p.evaluate, device)

    metrics = result.metrics()
    write_json(cell.metrics_json, metrics.model_dump())
    write_json(cell.details_json, result.details())
    with new_file(cell.picture) as path:
        result.draw(f"{cell.dataset}, {cell.method}, epsilon {cell.epsilon}", path)
    print(f"{cell}: {metrics.primary} {metrics.score:.3f} ({metrics.low:.3f} to {metrics.high:.3f}, n = {metrics.n})")


if __name__ == "__main__":
    run(main)
