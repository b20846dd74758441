"""How much noise a target epsilon needs, by every accountant.

With --cell, writes the calibration of a cell of params.yaml. By hand, prints it:

    python -m stages.calibrate --n 60000 --batch-size 32 --epochs 30 --epsilon 1 --method batch
"""

import argparse
import math
import os

from stages import params
from stages.atomic import write_json
from stages.errors import UserError, run
from stages.keys import METHODS, Cell, canonical_epsilon, data_dir
from stages.prepare.format import Manifest
from stages.privacy.facts import PrivacyFacts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", help="task/dataset/model/method/eps-E/seed-S: write its privacy.json")
    parser.add_argument("--n", type=int, help="number of records (privacy units) in the training data")
    parser.add_argument("--batch-size", type=int, help="expected batch size of Poisson sampling")
    parser.add_argument("--epochs", type=float, help="how often each record is drawn on average")
    parser.add_argument("--epsilon", help="target; a positive number")
    parser.add_argument("--delta", type=float, help="default: 1/(2n)")
    parser.add_argument("--method", choices=METHODS, help="clip unit")
    parser.add_argument("--convention", choices=("sound", "paper"), default="sound")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow talks about GPUs it is not asked to use

    if args.cell:
        cell = Cell.parse(args.cell)
        facts = of_cell(cell, params.load())
        write_json(cell.privacy_json, facts.model_dump())
        print(f"{cell.dataset}, {cell.method}, target {cell.epsilon}: wrote {cell.privacy_json}")
    else:
        print(by_hand(args).model_dump_json(indent=2))


def of_cell(cell: Cell, p: params.Params) -> PrivacyFacts:
    guarantee = None
    if cell.is_private:
        from stages.calibrate.calibration import calibrate

        n = Manifest.read(data_dir(cell.dataset)).n
        if p.train.batch_size > n:
            raise UserError(f"train.batch_size {p.train.batch_size} is over n = {n} of {cell.dataset}; lower it")
        guarantee = calibrate(
            n=n,
            batch_size=p.train.batch_size,
            epochs=p.train.epochs,
            epsilon=float(cell.epsilon),
            method=cell.method,
            delta=p.privacy.delta_or_none,
            convention=p.privacy.convention,
        )
    return PrivacyFacts(
        task=cell.task, dataset=cell.dataset, method=cell.method, target=cell.epsilon, guarantee=guarantee
    )


def by_hand(args: argparse.Namespace):
    needed = ("n", "batch_size", "epochs", "epsilon", "method")
    problems = [f"--{name.replace('_', '-')} is missing" for name in needed if getattr(args, name) is None]
    if args.n is not None and args.n < 1:
        problems.append(f"--n must be at least 1; got {args.n}")
    elif args.n and args.batch_size is not None and not 1 <= args.batch_size <= args.n:
        problems.append(f"--batch-size must be between 1 and n={args.n}; got {args.batch_size}")
    if args.epochs is not None and not 0 < args.epochs < math.inf:
        problems.append(f"--epochs must be positive and finite; got {args.epochs}")
    if args.delta is not None and not 0 < args.delta < 1:
        problems.append(f"--delta must be between 0 and 1; got {args.delta}")
    if args.epsilon is not None and canonical_epsilon(args.epsilon) in ("0", "inf"):
        problems.append(f"--epsilon must be positive and finite; got {args.epsilon} (0 and inf need no calibration)")
    if problems:
        raise UserError("give --cell, or all of --n --batch-size --epochs --epsilon --method:", problems)
    from stages.calibrate.calibration import calibrate

    return calibrate(
        n=args.n,
        batch_size=args.batch_size,
        epochs=args.epochs,
        epsilon=float(args.epsilon),
        method=args.method,
        delta=args.delta,
        convention=args.convention,
    )


if __name__ == "__main__":
    run(main)
