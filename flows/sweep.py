"""The sweep, or a part of it, here or on many machines: what the deployments of infra/prefect.yaml run.

    python -m flows.sweep                              the whole sweep, on this machine
    python -m flows.sweep --epsilon 1 10 --seed 0      some of its cells
    python -m flows.sweep --on-workers --at-once 8     cells on the workers of Prefect's work pool, eight at a time

The cells are those of params.yaml; a selection takes some of them and changes nothing in it. The tables and MLflow are
brought up to date by the whole sweep.
"""

from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed, State
from pydantic import Field, ValidationError

from flows import agreement, exchange, graph
from flows.pipeline import finish, require_tools, run_graph
from flows.processes import Stopped, stop_seconds
from flows.public import public
from flows.selection import Selection, by_cell, targets
from flows.steps import LocalRunner
from flows.stopping import listen, message, start_server, stoppable
from flows.workers import Patience, WorkerRunner
from stages import commands, params
from stages.errors import UserError, run

Number = Annotated[int, Field(ge=1)]
EVERYTHING = Selection()


def run_name() -> str:
    """What the run is called on Prefect's page."""
    parameters = flow_run.parameters
    selection = Selection.model_validate(parameters["selection"])
    chosen = [f"{axis} {' '.join(map(str, values))}" for axis, values in selection if values]
    return f"{', '.join(chosen) or 'whole sweep'}, on {'workers' if parameters['on_workers'] else 'one machine'}"


@flow(name="dp-clip-sweep", flow_run_name=run_name, log_prints=False)
def sweep(
    selection: Selection = EVERYTHING,
    on_workers: bool = False,
    at_once: Number = 2,
    retries: Annotated[int, Field(ge=0)] = 1,
    silent_seconds: Number = 120,
) -> State:
    """Bring the selected cells of params.yaml up to date; with none selected, all of them, the tables and MLflow.

    Args:
        selection: Which cells of the sweep in params.yaml to run. Empty lists do not narrow it down.
        on_workers: Train and evaluate on the workers of the work pool dp-clip-cells; otherwise on this machine.
        at_once: How many cells (on workers) or stages (on this machine) at a time.
        retries: How many more times a stage that fails is tried. A training goes on from its last checkpoint.
        silent_seconds: After so many seconds without a sign of life, a worker's cell is given to another one.
    """
    try:
        p = require_tools()
        wanted = targets(selection, p)
        if not on_workers:
            return run_on_this_machine(wanted, at_once, retries)
        return run_on_workers(wanted, p, at_once, retries, Patience(silent=silent_seconds))
    except UserError as error:
        return Failed(message=public(str(error)))


def run_on_this_machine(wanted: list[str], at_once: int, retries: int) -> State:
    runner = LocalRunner(at_once, retries)
    with stoppable(runner):
        return run_graph(graph.read(wanted), runner)


def run_on_workers(wanted: list[str], p: params.Params, at_once: int, retries: int, patience: Patience) -> State:
    local = LocalRunner(at_once=2, retries=retries)
    try:
        with stoppable(local):
            nodes = by_cell(graph.read(wanted), p)
            workers = WorkerRunner(nodes, local, at_once, retries, patience)
            workers.share_inputs()
            state = run_graph(nodes, workers)
            workers.pull_results()
            return state
    except Stopped:
        return Cancelled(message=message(local.unfinished))


@flow(name="dp-clip-report", log_prints=False)
def report() -> State:
    """Make the tables again and fill MLflow, from the cells that are finished. Trains nothing."""
    runner = LocalRunner()
    with stoppable(runner):
        return run_graph(graph.read(["publish"]).only(["report", "publish"]), runner)


def main() -> None:
    parser = commands.parser("flows.sweep", __doc__)
    for axis, field in Selection.model_fields.items():
        parser.add_argument(
            f"--{axis}", nargs="+", default=[], help=(field.description or "").replace("Empty", "Not given")
        )
    parser.add_argument("--on-workers", action="store_true", help="cells on the workers of the pool dp-clip-cells")
    parser.add_argument("--at-once", type=int, default=2, help="how many cells or stages at a time (default 2)")
    parser.add_argument(
        "--retries", type=int, default=1, help="how often a stage that fails is tried again (default 1)"
    )
    parser.add_argument(
        "--silent-seconds", type=int, default=120, help="a worker silent for so long is given up (default 120)"
    )
    args = vars(parser.parse_args())
    try:
        selection = Selection(**{axis: args.pop(axis) for axis in Selection.model_fields})
    except ValidationError as error:
        raise UserError("wrong selection:", [f"{e['loc'][0]}: {e['msg']}" for e in error.errors()]) from None
    graph.require_clone()
    targets(selection, params.load())  # what is wrong is reported before Prefect starts
    stop_seconds()
    if args["on_workers"]:
        agreement.ledger_identity()
        exchange.require_remote()
    if args["at_once"] < 1 or args["retries"] < 0 or args["silent_seconds"] < 1:
        raise UserError("--at-once and --silent-seconds must be at least 1, and --retries at least 0")
    listen()
    start_server()
    finish(sweep(selection, **args, return_state=True))


if __name__ == "__main__":
    run(main)
