"""How long to wait on a machine that may be busy: slow is not wrong, and what hangs is found all the same."""

import os
import time
from collections.abc import Callable


def patience(seconds: float) -> float:
    """What takes so long on an idle machine, by how many processes want each of its cores at the moment."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_for(condition: Callable, what: str, seconds: float = 240, every: float = 0.5):
    """What `condition` returns, once it is true. A machine that gets busier meanwhile gets more time."""
    start = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - start
        assert waited < patience(seconds), f"in {waited:.0f} seconds there was no {what}"
        time.sleep(every)
    return found
