"""The DVC pipeline as a Prefect flow: one task per stage, independent stages side by side.

    python -m flows.pipeline                     all that the sweep needs
    python -m flows.pipeline --workers 4 report  what the report needs, four stages at a time

The graph is DVC's, and so is the cache: a stage that is up to date is shown as Cached. A stage that fails fails only
what depends on it, and the exit code is 1. Ctrl-C stops it: trainings write a checkpoint first, and the same command
goes on from there; Ctrl-C again stops at once.
"""

import sys
import threading
from typing import Any, Protocol, cast
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Completed, Failed, State

from flows import graph
from flows.graph import Graph
from flows.processes import Stopped, stop_seconds
from flows.public import public
from flows.steps import LocalRunner
from flows.stopping import STOPPED, listen, message, start_server, stoppable, tell
from stages import commands, markdown, params, tasks
from stages.errors import UserError, run
from stages.report.paths import PAGE, TABLE


@flow(name="dp-clip", log_prints=False)
def pipeline(targets: list[str] | None = None, workers: int = 2) -> State:
    """Bring `targets` (all stages by default) up to date, `workers` stages at a time."""
    runner = LocalRunner(at_once=workers)
    with stoppable(runner):
        return run_graph(graph.read(targets or ()), runner)


class Runner(Protocol):
    unfinished: list[str]  # what was stopped, and where it goes on

    def run(self, node: str) -> State: ...


def run_graph(nodes: Graph, runner: Runner) -> State:
    """Every node as a Prefect task that waits for those it needs; `runner` is given those that are not up to date."""
    progress = Progress(nodes)

    @task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE)
    def run_stage(stage: str) -> State:
        if stage in nodes.fresh:
            return Completed(name="Cached", message="up to date")
        try:
            state = runner.run(stage)
        except Stopped as stopped:
            return Cancelled(message=str(stopped))
        progress.one_more()
        return state

    futures: dict[str, Any] = {}
    for stage, upstream in nodes.upstream.items():
        needed = [futures[u] for u in upstream]
        futures[stage] = run_stage.submit(stage, return_state=False, wait_for=needed)
    for future in futures.values():
        future.wait()

    states = {stage: future.state for stage, future in futures.items()}
    publish_artifacts(states)
    if any(state.is_cancelled() for state in states.values()):
        return Cancelled(message=message(runner.unfinished))
    if bad := [stage for stage, state in states.items() if not state.is_completed()]:
        failed = [stage for stage in bad if states[stage].is_failed()]
        return Failed(message=f"failed: {', '.join(failed)}; not run because of it: {len(bad) - len(failed)}")
    return Completed(message=f"{len(states)} stages: {summary(states)}")


class Progress:
    """How many stages are done, as a Prefect artifact that the run's page shows while it runs."""

    def __init__(self, nodes: Graph):
        self._total, self._done, self._lock = len(nodes.upstream), len(nodes.fresh), threading.Lock()
        about = f"of {self._total} stages"
        made = create_progress_artifact(progress=self._percent(), key="stages-done", description=about)
        self._id = cast(UUID, made)  # no coroutine: there is no event loop in this thread

    def _percent(self) -> float:
        return 100 * self._done / max(1, self._total)

    def one_more(self) -> None:
        with self._lock:
            self._done += 1
            update_progress_artifact(self._id, progress=self._percent())


def summary(states: dict[str, State]) -> str:
    kinds = [state.name or "" for state in states.values()]
    return ", ".join(f"{kinds.count(kind)} {kind.lower()}" for kind in dict.fromkeys(kinds))


def publish_artifacts(states: dict[str, State]) -> None:
    rows = [(stage, state.name, (state.message or "")[:200]) for stage, state in states.items()]
    create_markdown_artifact(markdown.table(["stage", "state", ""], rows), key="stages")
    if TABLE.is_file() and all(state.is_completed() for state in states.values()) and scores_may_leave():
        page = f"The whole sweep on one page: `{PAGE}` in the project, `{PAGE.name}` of its parent run in MLflow."
        create_markdown_artifact(public(f"{page}\n\n{TABLE.read_text(encoding='utf-8')}"), key="privacy-utility")


def scores_may_leave() -> bool:
    """Prefect's server is no place for scores on a private test split."""
    p = params.load()
    return not any(p.datasets[name].private_test for name in p.sweep.dataset)


def main() -> None:
    parser = commands.parser("flows.pipeline", __doc__)
    parser.add_argument(
        "targets",
        nargs="*",
        help="DVC stages to bring up to date (see: dvc stage list); default: publish, which needs all of the sweep",
    )
    parser.add_argument("--workers", type=int, default=2, help="how many stages at a time (default 2)")
    args = parser.parse_args()
    if args.workers < 1:
        raise UserError(f"--workers must be at least 1; got {args.workers}")
    stop_seconds()  # refuses a wrong one
    require_tools()
    if args.targets and (unknown := sorted(set(args.targets) - set(graph.names()))):
        raise UserError(f"no such stage: {', '.join(unknown)}; see: dvc stage list")
    listen()
    start_server()
    finish(pipeline(args.targets or ["publish"], args.workers, return_state=True))


def require_tools() -> params.Params:
    """The parameters, once everything that the sweep needs was seen to be there."""
    graph.require_clone()
    p = params.load(check_sources=True)
    for name in p.sweep.task:
        tasks.named(name).require_tools()
    return p


def finish(state: State) -> None:
    if state.is_cancelled():
        tell(state.message or "stopped")
        sys.exit(STOPPED)
    if not state.is_completed():
        print(f"error: {state.message}", file=sys.stderr)
        sys.exit(1)
    print(state.message)


if __name__ == "__main__":
    run(main)
