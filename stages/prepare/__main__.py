"""Raw source -> data/NAME: train.arrow, test.arrow and manifest.json."""

import argparse
import dataclasses

from tqdm import tqdm

from stages import params
from stages.errors import UserError, run
from stages.keys import data_dir
from stages.prepare import sources
from stages.prepare.format import Dataset, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.prepare", description=__doc__)
    parser.add_argument(
        "--dataset", required=True, help="a name in `prepare`, `folders`, `coco` or `vqa` of params.yaml"
    )
    name = parser.parse_args().dataset
    known = params.load(check_sources=True).datasets
    if name not in known:
        raise UserError(
            f"dataset {name!r} is in none of prepare, folders, coco and vqa of params.yaml; known: {', '.join(known)}"
        )

    manifest = write(data_dir(name), name, with_progress(sources.load(known[name])))
    print(f"{name}: from {manifest.source}")
    print(f"{name}: {manifest.n} training units, {manifest.test.rows} test rows, sha256 {manifest.data_hash[:12]}")


def with_progress(dataset: Dataset) -> Dataset:
    bars = {s: tqdm(getattr(dataset, s), desc=f"{s} rows", unit=" rows", disable=None) for s in ("train", "test")}
    return dataclasses.replace(dataset, **bars)


if __name__ == "__main__":
    run(main)
