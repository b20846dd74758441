"""What a worker does: the stages of one cell, in its own clone.

Inputs come from the DVC remote, outputs and DVC's run-cache go there: a cell that was finished once is not trained
again, whoever asks for it. A sweep (flows/sweep.py) sends these runs; they are not meant to be started by hand.
"""

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from flows import agreement, exchange
from flows.processes import Stopped
from flows.public import public
from flows.pulse import pulse
from flows.steps import LocalRunner, last_words
from flows.stopping import message, stoppable
from stages.errors import UserError

REFUSED = "Refused"  # the name of a state: to try again would not help


@flow(name="dp-clip-cell", log_prints=False)
def cell(
    job: str,
    stages: list[str],
    inputs: list[str],
    version: dict[str, str],
    ledger: str,
    retries: int = 1,
    pulse_seconds: float = 15,
) -> State:
    """The stages of one cell, in the clone of the worker; sent by a sweep.

    Args:
        job: Where the sweep and this run find each other's facts in the DVC remote.
        stages: DVC stages to bring up to date, in this order.
        inputs: DVC stages whose outputs they read.
        version: Hashes of the code and parameters that the sweep runs with; this clone's must be the same.
        ledger: The identity of the privacy ledger that the sweep charges; this worker's must be the same.
        retries: How many more times a stage that fails is tried here; a training goes on from its last checkpoint.
        pulse_seconds: How often this run shows that it is alive.
    """
    runner = LocalRunner(retries=retries, pull=True)
    try:
        with stoppable(runner), pulse(flow_run.id, pulse_seconds, unwanted=runner.stop):
            agreement.require_same_version(version)
            agreement.require_same_ledger(ledger)
            return run_cell(runner, job, stages, inputs)
    except UserError as error:
        get_run_logger().error(public(str(error)))
        return Failed(name=REFUSED, message=public(str(error)))
    except Stopped:
        get_run_logger().info(message(runner.unfinished))
        return Cancelled(message=message(runner.unfinished))


def run_cell(runner: LocalRunner, job: str, stages: list[str], inputs: list[str]) -> State:
    exchange.take(job, "inputs")
    if problem := transfer(runner, "pull", inputs):
        return problem
    states = []
    for stage in stages:
        states.append(runner.run(stage))
        if not states[-1].is_completed():
            return states[-1]
    if problem := transfer(runner, "push", stages):
        return problem
    exchange.offer(job, "outputs", stages)
    if all(state.name == "Cached" for state in states):
        return Completed(name="Cached", message="finished before")
    return Completed(message="ran")


def transfer(runner: LocalRunner, direction: str, stages: list[str]) -> State | None:
    """Pull or push what `stages` made, with the run-cache that says how; the failure, if it failed."""
    if not stages:
        return None  # to DVC that would mean all of them
    option = {"pull": "--force", "push": "--run-cache"}[direction]  # force: over what an older sweep left
    code, output = runner.dvc(direction, option, *stages)
    get_run_logger().info("dvc %s\n%s", direction, last_words(output))
    if code == 0:
        return None
    return Failed(message=f"dvc {direction} failed: {' '.join(last_words(output).splitlines()[-1:])}")
