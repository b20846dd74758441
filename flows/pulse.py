"""A sign of life of a flow run, so that the death of its machine is noticed: Prefect alone shows it Running forever.

The run counts up a label of itself. Whoever waits for it sees the number change, or stop changing; no clocks are
compared. In the same breath the run sees whether it is still wanted: a cancelled one, or one that was given up because
it could not be heard for a while, ends its processes.

Prefect's own heartbeats are events, 30 seconds or more apart, of which an automation that someone must have made on
the server marks a silent run as crashed, by the server's clock; and the run that is still alive does not hear of it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

LABEL = "dp-clip.pulse"


@contextmanager
def pulse(run_id: UUID, seconds: float, unwanted: Callable[[], None]) -> Iterator[None]:
    """While the block runs; calls `unwanted` once if the run was ended from outside."""
    done = threading.Event()

    def beat() -> None:
        with get_client(sync_client=True) as client:
            count, told = 0, False
            while not done.wait(seconds if count else 0):
                count += 1
                try:
                    client.update_flow_run_labels(run_id, {LABEL: count})
                    state = client.read_flow_run(run_id).state
                except httpx.HTTPError:
                    continue  # the server may be away for a moment
                if state and (state.is_final() or state.is_cancelling()) and not told:
                    told = True  # it still beats while its processes end
                    threading.Thread(target=unwanted, daemon=True).start()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(seconds)


def count(run: FlowRun) -> int:
    return int((run.labels or {}).get(LABEL, 0))
