"""How much noise a target epsilon needs, by every accountant.

With --cell, writes the calibration of a cell of params.yaml. By hand, prints it:

    python -m stages.calibrate --n 60000 --batch-size 32 --epochs 30 --epsilon 1 --method batch
"""

import argparse
import math
import os

from stages import commands, params
from stages.atomic import write_json
from stages.calibrate.guarantee import guarantee_of, of_cell
from stages.errors import UserError, run
from stages.keys import METHODS, SAMPLERS, Cell, canonical_epsilon
from stages.privacy.facts import Guarantee, round_up


def main() -> None:
    parser = commands.parser("stages.calibrate", __doc__)
    parser.add_argument("--cell", help="task/dataset/model/method/eps-E/seed-S: write its privacy.json")
    parser.add_argument("--n", type=int, help="number of records (privacy units) in the training data")
    parser.add_argument("--batch-size", type=int, help="expected batch size")
    parser.add_argument("--epochs", type=float, help="how often each record is drawn on average")
    parser.add_argument("--steps", type=int, help="number of steps, in place of --epochs")
    parser.add_argument("--epsilon", help="target; a positive number")
    parser.add_argument("--delta", default="auto", help="auto: 1/(2n), at most 1e-5 | paper: 1/(2n) | a number")
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
        if facts.guarantee:
            print(opinions(facts.guarantee))
    else:
        print(by_hand(args).model_dump_json(indent=2))


def opinions(g: Guarantee) -> str:
    claimed = f"epsilon {round_up(g.epsilon, 5)} at delta {g.delta:.3g}, {g.adjacency}, by {g.accountant.upper()}"
    if g.second_opinion is None:
        return f"{claimed}; no accountant of another family has an analysis of {g.sampler} sampling"
    other = g.second_opinion
    loose = "" if g.epsilon <= other.upper else "; the claim is larger than it need be"
    return f"{claimed}; {other.accountant.upper()} puts it between {other.lower:.5g} and {other.upper:.5g}{loose}"


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
    delta = args.delta if args.delta in ("auto", "paper") else number(args.delta)
    if delta is None or (isinstance(delta, float) and not 0 < delta < 1):
        problems.append(f"--delta must be auto, paper or a number between 0 and 1; got {args.delta}")
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
        delta=delta,
        convention=args.convention,
    )


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


if __name__ == "__main__":
    run(main)
