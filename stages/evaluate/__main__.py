"""Evaluate one cell's model on its test split -> results/CELL: metrics.json, details.json and a picture."""

import argparse

from stages import params
from stages.atomic import new_file, write_json
from stages.errors import run
from stages.evaluate import classification
from stages.keys import Cell, data_dir, features_dir, initial_model_dir
from stages.models import saved
from stages.models.batches import decoded
from stages.models.encoder import device_of
from stages.models.features import Features
from stages.prepare.format import Manifest, PreparedSplit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.evaluate", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()

    data, device = PreparedSplit(data_dir(cell.dataset), "test"), device_of(p.compute.device)
    manifest, initial = Manifest.read(data_dir(cell.dataset)), initial_model_dir(cell.model)
    features = Features(features_dir(cell.dataset, cell.model))
    if cell.task == "classification" and features.exist and (heads := saved.heads(initial, cell.model_dir)):
        features.require(manifest.data_hash, saved.sha256(initial))
        encoder, images = features.encoder(heads), features.images("test")  # its towers are as they were
    else:
        encoder = saved.load(initial, cell.model_dir)
        images = decoded(data, encoder)
    match cell.task:
        case "classification":
            labels = manifest.labels
            result = classification.evaluate(encoder, data, images, labels, p.evaluate.batch_size, device)
        case "captioning":
            from stages.evaluate import captioning  # with the caption metrics and transformers

            result = captioning.evaluate(encoder, data, images, p.evaluate, device)
        case "vqa":
            from stages.evaluate import vqa

            result = vqa.evaluate(encoder, data, images, p.evaluate, device)

    metrics = result.metrics()
    write_json(cell.metrics_json, metrics.model_dump())
    write_json(cell.details_json, result.details())
    with new_file(cell.picture) as path:
        result.draw(f"{cell.dataset}, {cell.method}, epsilon {cell.epsilon}", path)
    print(f"{cell}: {metrics.primary} {metrics.score:.3f} ({metrics.low:.3f} to {metrics.high:.3f}, n = {metrics.n})")


if __name__ == "__main__":
    run(main)
