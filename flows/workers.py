"""A step of a run, on another machine: a node of the graph becomes a flow run that a Prefect worker picks up.

What only this machine can do (raw data, accounting, the report, MLflow) still runs here. A worker whose machine dies is
noticed by its silence: its run is marked Crashed and the cell is given to another one. Trainings that are started again
draw new keys and are charged to the ledger again: what the dead machine drew may have been seen.
"""

import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Completed, Crashed, Failed, State

from flows import agreement, exchange
from flows.cell import REFUSED, transfer
from flows.graph import ON_WORKERS, Graph, kind
from flows.processes import Stopped
from flows.pulse import count
from flows.steps import LocalRunner
from stages.errors import UserError

DEPLOYMENT = "dp-clip-cell/worker"
POLL_SECONDS = 2.0
STARTS = 3  # times that a cell is given to a worker before it counts as failed


@dataclass(frozen=True)
class Patience:
    """How long a worker may be silent, in seconds."""

    silent: float = 120  # while it runs
    starting: float = (
        900  # between taking a cell and its first sign of life: a container's image may have to be fetched
    )


@dataclass
class WorkerRunner:
    """Runs nodes of `nodes` on workers, `at_once` of them at a time, and the others by `local`."""

    nodes: Graph
    local: LocalRunner
    at_once: int = 16
    retries: int = 1
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self):
        exchange.require_remote()
        require_deployment()
        self._slots = threading.BoundedSemaphore(self.at_once)
        self._version, self._ledger = agreement.version(), agreement.ledger_identity()
        self._lock, self._running = threading.Lock(), set()
        self.unfinished = self.local.unfinished
        self.local.also_stop(self._stop)
        self._stopped = self.local.stopped
        self._not_pulled: list[str] = []
        todo = [node for node in self.nodes.upstream if self._goes_to_a_worker(node) and node not in self.nodes.fresh]
        self._wanted = {stage for node in todo for stage in self.nodes.inputs(node)}

    def share_inputs(self) -> None:
        """Push what is up to date here and needed there, in one go."""
        known = [s for node in self.nodes.upstream if node in self.nodes.fresh for s in self.nodes.stages[node]]
        self._transfer("push", [stage for stage in known if stage in self._wanted])

    def run(self, node: str) -> State:
        try:
            return self._run_there(node) if self._goes_to_a_worker(node) else self._run_here(node)
        except UserError as error:
            return Failed(message=str(error))

    def pull_results(self) -> None:
        with self._lock:
            stages, self._not_pulled = self._not_pulled, []
        self._transfer("pull", stages)

    def _stop(self) -> None:
        """Cancel what runs on workers, which let it come to a good end."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
            for run_id in running:
                client.set_flow_run_state(run_id, Cancelling(message="the sweep was stopped"))

    def _goes_to_a_worker(self, node: str) -> bool:
        return all(kind(stage) in ON_WORKERS for stage in self.nodes.stages[node])

    def _run_here(self, node: str) -> State:
        self.pull_results()
        state = self.local.run(node)
        if state.is_completed() and node in self._wanted:
            self._transfer("push", [node])
        return state

    def _run_there(self, node: str) -> State:
        with self._slots, get_client(sync_client=True) as client:
            for _ in range(STARTS):
                job = uuid.uuid4().hex
                exchange.offer(job, "inputs", self.nodes.inputs(node))
                state = self._wait(client, self._submit(node, job))
                if state.is_completed():
                    stages = exchange.take(job, "outputs")
                    with self._lock:
                        self._not_pulled += stages
                    exchange.forget(job)
                    return Completed(name=state.name, message=state.message)
                exchange.forget(job)
                if self._stopped:
                    self.unfinished.append(f"{node} is stopped by its worker and goes on there")
                    raise Stopped
                if not state.is_crashed():
                    break
                get_run_logger().warning("%s It is given to a worker again.", state.message)
        advice = "" if state.name == REFUSED else " (see its own flow run)"
        return Failed(message=f"{state.message or state.name}{advice}")

    def _submit(self, node: str, job: str) -> FlowRun:
        parameters = {
            "job": job,
            "stages": self.nodes.stages[node],
            "inputs": self.nodes.inputs(node),
            "version": self._version,
            "ledger": self._ledger,
            "retries": self.retries,
            "pulse_seconds": self.patience.silent / 6,
        }
        with self._lock:
            if self._stopped:
                raise Stopped
            # No coroutine: there is no event loop in this thread.
            run = cast(FlowRun, run_deployment(DEPLOYMENT, parameters=parameters, flow_run_name=node, timeout=0))
            self._running.add(run.id)
        return run

    def _wait(self, client: SyncPrefectClient, run: FlowRun) -> State:
        """The final state of `run`; if nothing is heard of it for too long, that of a crashed one."""
        heard, last = None, time.monotonic()
        try:
            while True:
                with suppress(httpx.HTTPError):  # the server may be away for a moment
                    run = client.read_flow_run(run.id)
                state = cast(State, run.state)  # the server gives every run one
                if state.is_final() or self._stopped:
                    return state
                if (sign := (state.type, count(run))) != heard or state.is_scheduled():
                    heard, last = sign, time.monotonic()
                allowed = self.patience.silent if count(run) else self.patience.starting
                if time.monotonic() - last > allowed:
                    return self._give_up(client, run, allowed)
                time.sleep(POLL_SECONDS)
        finally:
            with self._lock:
                self._running.discard(run.id)

    def _give_up(self, client: SyncPrefectClient, run: FlowRun, seconds: float) -> State:
        worker = (run.labels or {}).get("prefect.worker.name", "its worker")
        state: State = Crashed(message=f"Nothing was heard of {worker} for {seconds:g} seconds.")
        client.set_flow_run_state(run.id, state, force=True)
        return state

    def _transfer(self, direction: str, stages: list[str]) -> None:
        if problem := transfer(self.local, direction, stages):
            raise UserError(problem.message or "the transfer failed")


def require_deployment() -> None:
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            raise UserError(
                f"the Prefect server has no deployment {DEPLOYMENT}; "
                "make it with: prefect --no-prompt deploy --prefect-file infra/prefect.yaml --all"
            ) from None
