"""One training on many processes: what is split, and what stays ONE (torchrun; gloo on CPUs, nccl on GPUs).

Every process draws the same sample and the same units from the same key, and computes its part of the gradients:

    units     where there are several clip units and each process has the whole model: every process takes whole units
              and clips them; clipped gradients are whole numbers of grid steps, so their sum is exact in any order
    records   where there is one unit, or the model itself is split: every process takes some records of each unit,
              features are gathered, each process has the loss of the WHOLE unit and the derivative for its own records;
              the sum of what they contribute is the gradient of the whole unit, and only that is clipped

So there is one global norm for a unit, whatever the number of processes, and one noise vector: each process draws the
same one, or its part of it where the model is split. Noise of each process by itself would add up to more than was
planned, and a clip by itself would bound nothing.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stages.errors import UserError


@dataclass(frozen=True)
class Part:
    """Records of one clip unit that a process computes, as places in the batch."""

    records: np.ndarray
    own: int  # the first so many are its own; where another process has one more, a record that does not count follows


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1
    sharded: bool = False  # whether a process holds only a part of each tensor

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def whole_units(self, units: np.ndarray, one_unit: bool = False) -> np.ndarray | None:
        """Places of the records of this process's units; None where records are split instead.

        That is decided by what is public, the mechanism (`one_unit`: all records are in one), and not by how many units
        a batch has: a unit's gradient would then depend on whether there is another.

        >>> Ranks(1, 2).whole_units(np.array([7, 3, 7, 5]))
        array([3])
        """
        if self.sharded or (self.world > 1 and one_unit):
            return None
        kinds = np.unique(units)
        return np.flatnonzero(np.isin(units, kinds[self.rank :: self.world]))

    def parts(self, units: np.ndarray) -> list[Part]:
        """This process's records of each unit; all processes have the same units in the same order, and as many
        records of each, so that all go through a model that is split among them equally often.

        >>> [(part.records.tolist(), part.own) for part in Ranks(1, 2, sharded=True).parts(np.array([7, 3, 7, 7]))]
        [([1], 0), ([2, 0], 1)]
        """
        found = []
        for unit in np.unique(units):
            members = np.flatnonzero(units == unit)
            mine = members[self.rank :: self.world]
            lacks = len(members[:: self.world]) - len(mine)  # the first process has the most; none has two fewer
            found.append(Part(np.concatenate([mine, members[:lacks]]), len(mine)))
        return found

    def gather(self, features: Mapping[str, torch.Tensor], own: int) -> tuple[dict[str, torch.Tensor], int]:
        """The rows of all processes, without derivatives, and where those of this one begin."""
        device = next(iter(features.values())).device
        each = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world)]
        dist.all_gather(each, torch.tensor([own], device=device))
        counts = [int(count) for count in each]
        gathered = {}
        for name, rows in features.items():
            padded = torch.zeros(max(counts), *rows.shape[1:], dtype=rows.dtype, device=device)
            padded[:own] = rows[:own].detach()
            all_rows = [torch.empty_like(padded) for _ in range(self.world)]
            dist.all_gather(all_rows, padded)
            gathered[name] = torch.cat([part[:count] for part, count in zip(all_rows, counts, strict=True)])
        return gathered, sum(counts[: self.rank])

    def sum(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of all processes, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
        return tensors

    def told_by_first(self, value: dict[str, Any] | None) -> dict[str, Any]:
        """The first process's `value` on every process; as JSON, for pickled objects could run code."""
        if self.world == 1:
            return value or {}
        message = list(json.dumps(value).encode()) if self.is_first else []
        size = self.from_first(torch.tensor([len(message)], device=self.device))
        message += [0] * (int(size) - len(message))
        received = self.from_first(torch.tensor(message, dtype=torch.uint8, device=self.device))
        return json.loads(bytes(received.tolist()))

    def from_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What every process gives, in their order."""
        tensor = tensor.to(self.device)
        received = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(received, tensor)
        return received

    @property
    def device(self) -> str:
        """Where tensors must be that processes send to each other."""
        return "cuda" if dist.get_backend() == "nccl" else "cpu"

    def agreed(self, *answers: bool) -> list[bool]:
        """As the first process answers."""
        if self.world == 1:
            return list(answers)
        return self.told_by_first({"answers": answers})["answers"]

    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The first process's tensor in place of every other one's."""
        if self.world > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    @classmethod
    def of_environment(cls, device: torch.device, sharded: bool) -> "Ranks":
        """As torchrun says; one process without it."""
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return cls()
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the processes of this training cannot reach each other: {error}") from None
        return cls(dist.get_rank(), dist.get_world_size(), sharded)


ALONE = Ranks()
