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
from stages.keys import METHODS, SAMPLERS, Cell, canonical_epsilon, data_dir
from stages.prepare.format import Manifest
from stages.privacy.facts import Guarantee, PrivacyFacts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", help="task/dataset/model/method/eps-E/seed-S: write its privacy.json")
    parser.add_argument("--n", type=int, help="number of records (privacy units) in the training data")
    parser.add_argument("--batch-size", type=int, help="expected batch size")
    parser.add_argument("--epochs", type=float, help="how often each record is drawn on average")
    parser.add_argument("--steps", type=int, help="number of steps, in place of --epochs")
    parser.add_argument("--epsilon", help="target; a positive number")
    parser.add_argument("--delta", type=float, help="default: 1/(2n)")
    parser.add_argument("--method", choices=METHODS, help="clip unit")
    parser.add_argument("--sampling", choices=SAMPLERS, default="poisson")
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
        n, method = Manifest.read(data_dir(cell.dataset)).n, p.train.on(cell.dataset).methods[cell.method]
        guarantee = guarantee_of(
            cell.method,
            p.privacy.sampling,
            n=n,
            batch_size=method.batch_size,
            epochs=method.epochs,
            steps=method.steps,
            epsilon=float(cell.epsilon),
            delta=p.privacy.delta_or_none,
            convention=p.privacy.convention,
        )
    return PrivacyFacts(
        task=cell.task, dataset=cell.dataset, method=cell.method, target=cell.epsilon, guarantee=guarantee
    )


def by_hand(args: argparse.Namespace) -> Guarantee:
    needed = ("n", "batch_size", "epsilon", "method")
    problems = [f"--{name.replace('_', '-')} is missing" for name in needed if getattr(args, name) is None]
    if (args.epochs is None) == (args.steps is None):
        problems.append("give either --epochs or --steps")
    if args.n is not None and args.n < 1:
        problems.append(f"--n must be at least 1; got {args.n}")
    elif args.n and args.batch_size is not None and not 1 <= args.batch_size <= args.n:
        problems.append(f"--batch-size must be between 1 and n={args.n}; got {args.batch_size}")
    if args.epochs is not None and not 0 < args.epochs < math.inf:
        problems.append(f"--epochs must be positive and finite; got {args.epochs}")
    if args.steps is not None and args.steps < 1:
        problems.append(f"--steps must be at least 1; got {args.steps}")
    if args.delta is not None and not 0 < args.delta < 1:
        problems.append(f"--delta must be between 0 and 1; got {args.delta}")
    if args.epsilon is not None and canonical_epsilon(args.epsilon) in ("0", "inf"):
        problems.append(f"--epsilon must be positive and finite; got {args.epsilon} (0 and inf need no calibration)")
    if problems:
        raise UserError("give --cell, or --n --batch-size --epsilon --method and --epochs or --steps:", problems)
    return guarantee_of(
        args.method,
        args.sampling,
        n=args.n,
        batch_size=args.batch_size,
        epochs=args.epochs,
        steps=args.steps,
        epsilon=float(args.epsilon),
        delta=args.delta,
        convention=args.convention,
    )


def guarantee_of(method: str, sampler: str, *, n, batch_size, epochs, steps, epsilon, delta, convention) -> Guarantee:
    from stages.calibrate.calibration import calibrate
    from stages.privacy.accounting import Plan
    from stages.privacy.mechanism import METHODS
    from stages.privacy.sampling import SAMPLERS

    sampling = SAMPLERS[sampler](n, batch_size)
    plan = Plan(sampling, METHODS[method](clip_norm=1.0, sigma=1.0), steps or sampling.steps(epochs))
    return calibrate(plan, sampler, epsilon, 1 / (2 * n) if delta is None else delta, convention)


if __name__ == "__main__":
    run(main)
