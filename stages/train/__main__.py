"""Train one cell -> runs/CELL/model, with training.json and costs.json. Epsilon 0 keeps the initial weights, inf is
non-private.

    python -m stages.train --cell CELL
    torchrun --nproc-per-node 4 -m stages.train --cell CELL     one training on several GPUs, or machines

The first form does the second by itself where compute.processes in params.yaml says so. A training that was interrupted
goes on where it was: give the same command again.
"""

import os

from stages import commands, params
from stages.distributed import processes
from stages.distributed.ranks import Ranks
from stages.errors import run
from stages.keys import ON_FROZEN_TOWERS, Cell
from stages.models.encoder import device_of
from stages.privacy.facts import PrivacyFacts
from stages.train.cell import fine_tune, keep_initial


def main() -> None:
    parser = commands.parser("stages.train", __doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()
    facts = PrivacyFacts.read(cell.privacy_json)
    method = p.train.on(cell.dataset).methods[cell.method]
    if cell.epsilon == "0":
        keep_initial(cell, facts)
    elif "WORLD_SIZE" not in os.environ and p.compute.processes > 1 and method.trainable not in ON_FROZEN_TOWERS:
        processes.start(p.compute.processes, cell)
    else:
        with processes.explained():
            ranks = Ranks.of_environment(device_of(p.compute.device), p.compute.sharded)
            fine_tune(cell, p, facts, ranks)


if __name__ == "__main__":
    run(main)
