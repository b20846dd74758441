"""Run by torchrun in test_processes.py: every process trains with the others and by itself, and compares.

torchrun --nproc-per-node 2 -m tests.train.on_ranks DATA      prints the largest difference of each setting
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from stages.data.prepared import PreparedSplit
from stages.distributed.ranks import ALONE, Ranks
from stages.distributed.shards import shard, whole
from stages.losses import About, objective_of
from stages.models import clip as clips
from stages.models.batches import BatchReader, decoded
from stages.models.parts import trainable_parameters
from stages.privacy.accounting import Plan
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import Execution, Learner, train
from stages.train.state import restore, snapshot
from tests.train.test_loop import LABELS

CPU = torch.device("cpu")
SETTINGS = {  # name: (mechanism, part, loss, batch size, records at once)
    "batch": (BatchClipping(0.1, 2.0), "all", "contrastive", 12, 16),
    "batch in pieces": (BatchClipping(0.1, 2.0), "all", "contrastive", 30, 7),
    "batch of one or none": (BatchClipping(0.1, 0.5), "all", "contrastive", 1, 16),
    "group": (GroupClipping(0.1, 2.0, groups=5), "image-tower", "contrastive", 20, 16),
    "many groups": (GroupClipping(0.1, 2.0, groups=20), "image-tower", "contrastive", 20, 16),  # passes of several
    "example": (ExampleClipping(0.1, 2.0), "image-tower", "prompts", 12, 16),
    "not private": (None, "all", "contrastive", 12, 16),
}


def trained(data: PreparedSplit, ranks: Ranks, setting: str, again_from: int | None = None) -> dict[str, torch.Tensor]:
    """Weights after three steps; with `again_from`, after being stopped there and going on in a new model."""
    mechanism, part, loss, batch_size, at_once = SETTINGS[setting]
    kept, key = None, Key.from_seed(3)
    for done, until in ((0, again_from), (again_from, 3)) if again_from else ((0, 3),):
        torch.manual_seed(0)
        encoder = clips.create("stages/models/configs/tiny-clip")
        parameters = trainable_parameters(encoder.model, part)
        if ranks.sharded:
            shard(encoder.model, parameters, CPU, ranks.world)
            parameters = {name: p for name, p in encoder.model.named_parameters() if name in parameters}
        groups = [[p for p in parameters.values() if hasattr(p, "placements") is split] for split in (True, False)]
        optimizer = torch.optim.AdamW(
            [{"params": g} for g in groups if g], lr=1e-3, eps=1e-3
        )  # where a gradient is 0, eps hides its rounding
        if kept is not None:
            restore(kept if ranks.is_first else None, parameters, optimizer, ranks)
        learner = Learner(encoder.model, parameters, optimizer, objective_of(loss, encoder, parameters, About(LABELS)))
        plan = Plan(PoissonSampling(data.units, batch_size), mechanism or BatchClipping(1.0, 1.0), until)
        reader, how = BatchReader(data, decoded(data, encoder)), Execution(at_once, ranks, done)
        train(learner, reader, plan, key, how, private=mechanism is not None)
        kept = snapshot(parameters, optimizer)
    return {name: whole(p.detach()) for name, p in parameters.items()}


def main() -> None:
    data = PreparedSplit(Path(sys.argv[1]), "train")
    ranks = Ranks.of_environment(CPU, sharded=False)
    split = Ranks(ranks.rank, ranks.world, sharded=True)
    worst = {}
    for setting in SETTINGS:
        alone = trained(data, ALONE, setting)
        for name, how, again_from in (("whole", ranks, None), ("split", split, None), ("split, resumed", split, 2)):
            if how.sharded and setting == "example":
                continue  # the same code as group
            mine = trained(data, how, setting, again_from)
            worst[f"{setting}, {name}"] = max((mine[n] - alone[n]).abs().max().item() for n in alone)
    if ranks.is_first:
        print(json.dumps(worst))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
