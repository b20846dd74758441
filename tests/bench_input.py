"""How long a step waits for its images at 336 pixels, by how many processes read ahead (stages/models/ahead.py).

    python -m tests.bench_input      batches of 32 photos of 640 x 480, steps of 1.5 seconds

A step is a pause here, as it is for the host while a GPU computes. Rounds alternate between the numbers of processes,
so that a busy machine slows all of them alike.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from tqdm import tqdm

from stages.data.pixels import rgb
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Row
from stages.models.ahead import ahead
from stages.models.batches import Images

PHOTOS = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench_input", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--step-seconds", type=float, default=1.5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    waits: dict[int, list[float]] = {workers: [] for workers in args.workers}
    with tempfile.TemporaryDirectory() as folder:
        images = photos(Path(folder) / "photos")
        for _ in tqdm(range(args.rounds), desc="rounds", disable=None):
            for workers in args.workers:
                waits[workers] += waited(images, workers, args)
    print(f"{args.batch_size} photos at 336 pixels, steps of {args.step_seconds} s, medians\n")
    print("| processes that read ahead | seconds that a step waits |\n|---|---|")
    for workers, found in waits.items():
        print(f"| {workers} | {statistics.median(found):.2f} |")


def photos(folder: Path) -> Images:
    """JPEGs with as much in them as photos have, each decoded anew: a training sees more of them than it could keep."""
    rng = np.random.default_rng(0)

    def row(i: int) -> Row:
        coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize((640, 480))
        path = folder.parent / f"{i}.jpg"
        coarse.save(path, quality=90)
        return Row(path.read_bytes(), (f"photo {i}",), None, f"u{i}")

    made = Dataset("made here", "none", None, [row(i) for i in range(PHOTOS)], [row(PHOTOS)], public=True)
    write(folder, "photos", made)
    data, transform = PreparedSplit(folder, "train"), image_transform_v2(PreprocessCfg(size=336), is_train=False)
    return lambda rows: torch.stack([transform(rgb(data.row(i).image)) for i in rows])


def waited(images: Images, workers: int, args: argparse.Namespace) -> list[float]:
    """Of each step but the first, for which nobody could read ahead."""
    rows = [[(step * args.batch_size + i) % PHOTOS for i in range(args.batch_size)] for step in range(args.steps)]
    found, started = [], time.perf_counter()
    for _ in ahead(enumerate(rows), images, workers):
        found.append(time.perf_counter() - started)
        time.sleep(args.step_seconds)
        started = time.perf_counter()
    return found[1:]


if __name__ == "__main__":
    main()
