"""What a training cost: seconds, steps per second, memory. It stays beside the model, in runs/CELL/costs.json.

How long a step takes depends on how many records were drawn, so these figures are functions of private data that no
noise covers: they are no part of training.json, enter no hash, and are published only where params.yaml asks for it
(publish.costs). How many steps are made is public, and so is the kind of device.

>>> Costs(started=0.0, seconds=8.0, steps=20, made=20, peak_memory_mb=500.0, device="cpu", processes=1).steps_per_second
2.5
"""

import resource
import sys
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stages.errors import UserError


class Costs(BaseModel):
    """Of the whole training; of one that was interrupted, of what was made since."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    started: float  # seconds since 1970
    seconds: float
    steps: int  # of the plan
    made: int  # of these, in so many seconds
    peak_memory_mb: float  # of the process, or on its GPU
    device: str  # its kind
    processes: int

    @property
    def steps_per_second(self) -> float:
        return self.made / self.seconds if self.seconds else 0.0

    @classmethod
    def read(cls, path: Path) -> "Costs":
        if not path.is_file():
            raise UserError(f"{path}, what the training cost, is missing; run: dvc repro")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


class Meter:
    """Runs from when it is made."""

    def __init__(self, device: str = "cpu", processes: int = 1, done: int = 0):
        self._device, self._processes, self._done = device, processes, done
        self._started, self._clock = time.time(), time.monotonic()

    def read(self, steps: int) -> Costs:
        return Costs(
            started=self._started,
            seconds=time.monotonic() - self._clock,
            steps=steps,
            made=steps - self._done,
            peak_memory_mb=peak_memory(self._device) / 1e6,
            device=self._device,
            processes=self._processes,
        )


def peak_memory(device: str) -> int:
    """In bytes, since the process began."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
