"""The DVC pipeline as a Prefect flow: one task a stage, independent stages side by side.

    python -m flows.pipeline                     all that the sweep needs
    python -m flows.pipeline --workers 4 report  what the report needs, four stages at a time

The graph is DVC's, and so is the cache: a stage that is up to date is shown as Cached. A stage that fails fails only
what depends on it, and the exit code is 1.
"""

import argparse
import sys
import threading
from collections.abc import Callable

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State

from flows import graph
from flows.graph import Graph
from flows.steps import Here
from stages import params
from stages.errors import UserError, run
from stages.evaluate.java import require_java
from stages.report.paths import TABLE


@flow(name="dp-clip", log_prints=False)
def pipeline(targets: list[str] | None = None, workers: int = 2) -> State:
    """Bring `targets` (all stages by default) up to date, `workers` stages at a time."""
    here = Here(at_once=workers)
    try:
        return run_graph(graph.read(targets or ()), here.run)
    finally:
        here.stop()


def run_graph(nodes: Graph, run_node: Callable[[str], State]) -> State:
    """Every node as a Prefect task that waits for those it needs; `run_node` is given those that are not up to date."""
    progress = Progress(nodes)

    @task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE)
    def run_stage(stage: str) -> State:
        if stage in nodes.fresh:
            return Completed(name="Cached", message="up to date")
        try:
            return run_node(stage)
        finally:
            progress.one_more()

    futures = {}
    for stage, upstream in nodes.upstream.items():
        futures[stage] = run_stage.submit(stage, wait_for=[futures[u] for u in upstream])
    for future in futures.values():
        future.wait()

    states = {stage: future.state for stage, future in futures.items()}
    publish_artifacts(states)
    if bad := [stage for stage, state in states.items() if not state.is_completed()]:
        failed = [stage for stage in bad if states[stage].is_failed()]
        return Failed(message=f"failed: {', '.join(failed)}; not run because of it: {len(bad) - len(failed)}")
    return Completed(message=f"{len(states)} stages: {summary(states)}")


class Progress:
    """How many stages are done, as a Prefect artifact that the run's page shows while it runs."""

    def __init__(self, nodes: Graph):
        self._total, self._done, self._lock = len(nodes.upstream), len(nodes.fresh), threading.Lock()
        self._id = create_progress_artifact(
            progress=self._percent(), key="stages-done", description=f"of {self._total} stages"
        )

    def _percent(self) -> float:
        return 100 * self._done / max(1, self._total)

    def one_more(self) -> None:
        with self._lock:
            self._done += 1
            update_progress_artifact(self._id, progress=self._percent())


def summary(states: dict[str, State]) -> str:
    kinds = [state.name for state in states.values()]
    return ", ".join(f"{kinds.count(kind)} {kind.lower()}" for kind in dict.fromkeys(kinds))


def publish_artifacts(states: dict[str, State]) -> None:
    rows = [f"| {stage} | {state.name} | {(state.message or '')[:200]} |" for stage, state in states.items()]
    create_markdown_artifact("\n".join(["| stage | state | |", "|---|---|---|", *rows]), key="stages")
    if TABLE.is_file() and all(state.is_completed() for state in states.values()):
        create_markdown_artifact(TABLE.read_text(encoding="utf-8"), key="privacy-utility")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets",
        nargs="*",
        help="DVC stages to bring up to date (see: dvc stage list); default: publish, which needs all of the sweep",
    )
    parser.add_argument("--workers", type=int, default=2, help="how many stages at a time (default 2)")
    args = parser.parse_args()
    if args.workers < 1:
        raise UserError(f"--workers must be at least 1; got {args.workers}")
    require_tools()
    if args.targets and (unknown := sorted(set(args.targets) - set(graph.names()))):
        raise UserError(f"no such stage: {', '.join(unknown)}; see: dvc stage list")
    finish(pipeline(args.targets or ["publish"], args.workers, return_state=True))


def require_tools() -> params.Params:
    """The parameters, once everything that the sweep needs was seen to be there."""
    p = params.load(check_sources=True)
    if "captioning" in p.sweep.task:
        require_java()
    return p


def finish(state: State) -> None:
    if not state.is_completed():
        print(f"error: {state.message}", file=sys.stderr)
        sys.exit(1)
    print(state.message)


if __name__ == "__main__":
    run(main)
