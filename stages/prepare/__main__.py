"""Raw source -> data/NAME: train.arrow, test.arrow and manifest.json."""

import dataclasses

from stages import commands, params, progress
from stages.data.manifest import Manifest
from stages.data.prepared import write
from stages.data.rows import SPLITS, Dataset
from stages.errors import UserError, run
from stages.keys import data_dir
from stages.privacy import secret


def main() -> None:
    parser = commands.parser("stages.prepare", __doc__)
    parser.add_argument(
        "--dataset", required=True, help="a name in `prepare`, `folders`, `coco` or `vqa` of params.yaml"
    )
    name = parser.parse_args().dataset
    p = params.load(check_sources=name)  # what is wrong with another one's raw data is no reason to wait
    known = p.datasets
    if name not in known:
        raise UserError(
            f"dataset {name!r} is in none of prepare, folders, coco and vqa of params.yaml; known: {', '.join(known)}"
        )

    source = known[name]
    declared = {name: getattr(source, name) for name in ("public", "private_test", "has_questions")}
    dataset = dataclasses.replace(source.load(), **declared)
    manifest = write(data_dir(name), name, with_progress(dataset))
    # Printed, it is in Prefect's log: no plain hash of private data, not even its first digits.
    print(f"{name}: from {manifest.source}")
    print(f"{name}: {counted(manifest, p.privacy.public_n)}, {manifest.test.rows} test rows, {known_as(manifest)}")


def counted(manifest: Manifest, public_n: dict[str, int]) -> str:
    return "n is secret" if manifest.dataset in public_n else f"{manifest.n} training units"


def known_as(manifest: Manifest) -> str:
    if manifest.ledger is None:
        return "public"
    return f"fingerprint {secret.keyed('data', manifest.data_hash.encode())}"


def with_progress(dataset: Dataset) -> Dataset:
    train, test = (progress.bar(getattr(dataset, split), f"{split} rows", "rows") for split in SPLITS)
    return dataclasses.replace(dataset, train=train, test=test)


if __name__ == "__main__":
    run(main)
