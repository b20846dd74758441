"""The paper's Section 5, run: how the error of Algorithm 1 on the linear loss follows n, epsilon, delta, r d and T.

Writes points.json (every trial), exponents.json, table.md and plots.

    dvc --cd stages/theory repro
"""

import dataclasses
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from stages import commands, params, progress
from stages.atomic import new_folder, write_json
from stages.errors import run
from stages.theory import report
from stages.theory.report import FOLDER
from stages.theory.study import Point, Setting, measure, settings


def main() -> None:
    parser = commands.parser("stages.theory", __doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="points at a time (default: all cores)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where to write (default: {FOLDER})")
    args = parser.parse_args()
    config = params.load().theory
    points = measured(config, max(1, args.workers))
    with new_folder(args.folder) as folder:
        write_json(folder / "points.json", [dataclasses.asdict(point) for point in points])
        print(report.write(folder, points, config))
    print(f"wrote {args.folder}/table.md and {args.folder}/plots")


def measured(config: params.Theory, workers: int) -> list[Point]:
    todo = settings(config)
    found: dict[Setting, Point] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        longest_first = sorted(todo, key=lambda s: -s.epsilon * s.n * s.d)
        futures = [pool.submit(measure, setting, config) for setting in longest_first]
        for future in progress.bar(as_completed(futures), "theory", "points", total=len(todo)):
            point = future.result()
            found[point.setting] = point
    return [found[setting] for setting in todo]


if __name__ == "__main__":
    run(main)
