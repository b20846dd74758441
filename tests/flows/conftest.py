"""A real Prefect server, and machines: clones of the project that share a DVC remote and a ledger, with workers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, LogFilter
from prefect.client.schemas.objects import FlowRun
from ruamel.yaml import YAML

from tests.conftest import Project, forget_charges
from tests.patience import patience, wait_for

SIX_CELLS = {"epsilon": [0, 10, "inf"], "seed": [0, 1]}
CELL = "classification/mnist5k/tiny-clip/batch/eps-10/seed-0"
STEPS = 100  # of a training that is stopped
ON_WORKERS = (sys.executable, "-m", "flows.sweep", "--on-workers", "--at-once", "3", "--silent-seconds", "15")
PREFECT = str(Path(sys.executable).with_name("prefect"))


def commands_in(folder: Path) -> dict[int, list[str]]:
    """The command line of every process that works in `folder`, by its id."""
    found = {}
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.cmdline()
        except (psutil.Error, OSError):
            continue  # it ended while we looked
    return found


class Machine(Project):
    """A clone with an environment of its own, as a machine of a sweep has."""

    settings: dict[str, str]  # what its user exports

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{**self.settings, **more})

    def start(self, *command: str, log: str, **more: str) -> subprocess.Popen:
        with (self.folder.parent / f"{self.folder.name}-{log}.log").open("w") as file:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(**more),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_worker(self, pool: str) -> subprocess.Popen:
        command = [PREFECT, "worker", "start", "--pool", pool, "--name", self.folder.name, "--limit", "1"]
        return self.start(*command, log="worker", PREFECT_WORKER_QUERY_SECONDS="2")

    def dies(self) -> None:
        """As when the power goes: everything that runs here ends at once, and nothing is told to anybody."""
        for pid in commands_in(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def training(self) -> list[str]:
        """The cells that are trained here at this moment."""
        return [command[-1] for command in commands_in(self.folder).values() if "stages.train" in command]


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of a Prefect server's API."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect-server")
    process = subprocess.Popen(
        [PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        cwd=home,
        env={
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}/api"

    def healthy() -> bool:
        try:
            return urllib.request.urlopen(f"{address}/health", timeout=2).status == 200  # noqa: S310
        except OSError:
            return False

    try:
        wait_for(healthy, "Prefect server")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(patience(30))


@pytest.fixture(scope="session")
def api(server) -> Iterator[SyncPrefectClient]:
    with SyncPrefectClient(server) as client:
        yield client


@pytest.fixture(scope="session")
def settings(server, finished, tmp_path_factory) -> dict[str, str]:
    """What all machines of these tests have in their environment. Their ledger is the one that the data name."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "remote").mkdir()
    shutil.copytree(finished.folder / "ledger", folder / "ledger")
    return {
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(folder / "prefect"),
        "LEDGER_DIR": str(folder / "ledger"),
        "DO_NOT_TRACK": "1",
        "REMOTE": str(folder / "remote"),
    }


def machine(folder: Path, settings: dict[str, str], *, like: Project | None = None, params: dict) -> Machine:
    """A new clone in `folder`, or a copy of all of `like`."""
    if like:
        shutil.copytree(like.folder, folder, symlinks=True)
        made = Machine(folder)
        made.write_params(params)
    else:
        made = Machine.copy_to(folder, params)
    made.settings = settings
    subprocess.run(
        ["dvc", "remote", "add", "--local", "--default", "shared", settings["REMOTE"]],
        cwd=folder,
        env=made.environment(),
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(scope="session")
def one_machine(finished, settings, tmp_path_factory) -> Machine:
    """Six cells, all made on one machine."""
    params = finished.params()
    params["sweep"] |= SIX_CELLS
    alone = {name: value for name, value in settings.items() if name != "LEDGER_DIR"}
    made = machine(tmp_path_factory.mktemp("one") / "machine", alone, like=finished, params=params)
    done = made.run(sys.executable, "-m", "flows.pipeline")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="session")
def deployed(server, finished, settings) -> None:
    """The deployments of infra/prefect.yaml, made by the commands that it names."""
    made = Machine(finished.folder)
    made.settings = settings
    for pool in ("dp-clip", "dp-clip-cells"):
        done = made.run(PREFECT, "work-pool", "create", pool, "--type", "process")
        assert done.returncode == 0, done.stdout + done.stderr
    deploy(made, made.folder / "infra/prefect.yaml")


def deploy(made: Machine, file: Path) -> None:
    done = made.run(PREFECT, "--no-prompt", "deploy", "--prefect-file", str(file), "--all")
    assert done.returncode == 0, done.stdout + done.stderr


def without_cells(made: Project) -> Project:
    """As it was before any cell was trained: data, the initial model and the accounting are there."""
    for name in ("runs", "results", "report"):
        shutil.rmtree(made.folder / name)
    shutil.rmtree(made.folder / ".dvc/cache/runs")
    safe, lock = YAML(typ="safe"), made.folder / "dvc.lock"
    content = safe.load(lock)
    content["stages"] = {
        name: entry for name, entry in content["stages"].items() if not name.startswith(("train", "evaluate", "report"))
    }
    safe.dump(content, lock)
    return made


@pytest.fixture(scope="session")
def long(finished, tmp_path_factory) -> Project:
    """A project in which one private training is left to do. It writes no checkpoint unless it is stopped."""
    folder = tmp_path_factory.mktemp("stopped") / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    project = without_cells(Project(folder))
    forget_charges(folder / "ledger")
    params = project.params()
    params["sweep"]["epsilon"] = [10]
    params["privacy"]["unsafe_noise_seed"] = None
    del params["train"]["methods"]["batch"]["epochs"]
    params["train"]["methods"]["batch"]["steps"] = STEPS
    project.write_params(params)
    done = project.run("dvc", "repro", "calibrate@classification-mnist5k-batch-10")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def copied(long, tmp_path) -> Project:
    shutil.copytree(long.folder, tmp_path / "project", symlinks=True)
    project = Project(tmp_path / "project")
    project.cold = True  # its processes are looked at and sent signals
    return project


def runs_of(api: SyncPrefectClient, flow: str) -> list[FlowRun]:
    return api.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))


def worker_of(run: FlowRun) -> str:
    return run.labels["prefect.worker.name"]


def online(api: SyncPrefectClient, pool: str) -> set[str]:
    """The names of a pool's workers that report themselves."""
    found = api._client.post(f"/work_pools/{pool}/workers/filter", json={}).json()
    return {worker["name"] for worker in found if worker["status"] == "ONLINE"}


def in_log(api: SyncPrefectClient, run: FlowRun, words: str) -> bool:
    return any(words in entry.message for entry in api.read_logs(LogFilter(flow_run_id={"any_": [run.id]})))


@dataclass
class Swept:
    """What was seen of a sweep in which the first of two workers died."""

    parent: Machine
    second: Machine
    code: int
    output: str
    done_before: list[FlowRun]  # when it died
    lost: str  # the cell that it was training
    sweep: FlowRun
    runs: list[FlowRun]  # of cells


@pytest.fixture(scope="session")
def swept(finished, one_machine, deployed, settings, api, tmp_path_factory) -> Swept:
    folder, params = tmp_path_factory.mktemp("machines"), one_machine.params()
    parent = without_cells(machine(folder / "parent", settings, like=finished, params=params))
    first, second = (machine(folder / name, settings, params=params) for name in ("first", "second"))
    workers = [each.start_worker("dp-clip-cells") for each in (first, second)]
    wait_for(lambda: online(api, "dp-clip-cells") == {"first", "second"}, "both workers")
    sweep = parent.start(*ON_WORKERS, log="sweep")
    log = folder / "parent-sweep.log"

    def finished_runs() -> list[FlowRun]:
        assert sweep.poll() is None, log.read_text()
        return [run for run in runs_of(api, "dp-clip-cell") if run.state.is_completed()]

    def first_has_finished_one() -> bool:
        done = finished_runs()
        return len(done) >= 3 and any(worker_of(run) == "first" for run in done)

    try:
        wait_for(first_has_finished_one, "three finished cells", seconds=600)
        done_before, lost = wait_for(
            lambda: (cells := first.training()) and (finished_runs(), cells[0]),
            "training on the first worker",
            every=0.05,  # a training takes a second
        )
        first.dies()
        sweep.wait(patience(600))
        return Swept(
            parent=parent,
            second=second,
            code=sweep.returncode,
            output=log.read_text(),
            done_before=done_before,
            lost=lost,
            sweep=runs_of(api, "dp-clip-sweep")[0],
            runs=runs_of(api, "dp-clip-cell"),
        )
    finally:  # none of its workers takes a cell of another test
        for made in (parent, first, second):
            made.dies()
        for process in (*workers, sweep):
            process.wait(patience(30))
