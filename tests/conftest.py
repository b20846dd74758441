"""A real copy of the project with a small sweep, run once by real DVC and looked at by many tests."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages import logs
from tests import warm
from tests.samples import write_samples

if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: workers that each want every core wait for each other
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # and a test that asks for two threads does not wait busily

logs.show()  # as a command does
ROOT = Path(__file__).parent.parent
SWEEP_STAGES = 18  # 2 prepare, 1 pretrain, 1 encode, 4 calibrate, 4 train, 4 evaluate, report, publish


# Long ones first, or one worker idles at the end. The first of all makes the finished project, which none of the next
# needs; tests that do come after these.
FIRST = (
    *("flows", "memory", "large", "registries", "package", "prefect-server"),
    *("crashes", "stopping", "mlflow-server", "ui"),  # with the finished project
)
# Who asks for these starts processes that run stages or servers: seconds to minutes each (`make test-fast` leaves out).
PIPELINE = {"finished", "project", "untouched", "peaks", "servers", "server", "registries", "wheel"}


def pytest_configure() -> None:
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        warm.serve()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        if group and group.args[0] in FIRST:
            return FIRST.index(group.args[0])
        return len(FIRST) + ("finished" not in item.fixturenames) + ("slow" not in item.keywords)

    for item in items:
        if PIPELINE & set(item.fixturenames):
            item.add_marker("slow")
    items.sort(key=order)


def small_params() -> dict:
    """The project's own params, made small. The noise seed is fixed so that two runs can be compared bit by bit."""
    params = YAML(typ="safe").load(ROOT / "params.yaml")
    params["sweep"] |= {"method": ["batch"], "epsilon": [0, 1, 10, "inf"], "seed": [0]}
    params["prepare"]["font-digits"] |= {"train": 300, "test": 20}
    params["pretrain"]["tiny-clip"] |= {"steps": 20, "batch_size": 32}
    params["privacy"]["unsafe_noise_seed"] = 11
    params["publish"]["not_private"] = [
        f"classification/mnist5k/tiny-clip/batch/eps-{epsilon}/seed-0" for epsilon in ("1", "10", "inf")
    ]
    params["train"]["methods"]["batch"] |= {"epochs": 0.1, "batch_size": 32}
    params["theory"] |= {"trials": 2, "n": 500, "epsilon": 0.2, "group_size": 5, "d": 8, "effective_rank": 2.0}
    params["theory"] |= {"epsilons": [0.1, 0.2, 0.4], "ns": [400, 500, 800], "batch_epsilons": [0.1, 0.2, 0.4]}
    params["theory"] |= {"ds": [8, 16, 32], "deltas": [1e-3, 1e-5, 1e-8], "statistical_ns": [400, 800, 1600]}
    params["theory"] |= {"clip_norms": [0.1, 0.8]}
    return params


@pytest.fixture(autouse=True)
def ledger_of_the_tests(monkeypatch, tmp_path_factory) -> None:
    """Data that tests prepare by themselves belong to a ledger that goes with them; projects have their own."""
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path_factory.getbasetemp() / "ledger"))


class Project:
    """A folder with the project in it, and the commands of the README to use there."""

    cold = False  # stages import their libraries themselves, as they do for a user (see tests/warm)

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def copy_to(cls, folder: Path, params: dict | None = None) -> "Project":
        names = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for name in names:
            if (ROOT / name).is_file() and name != "dvc.lock":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        identity = (
            ["config", "user.name", "test"],
            ["config", "user.email", "test@localhost"],
        )  # for DVC's commits too
        for command in (["init", "-q"], *identity, ["add", "-A"], ["commit", "-qm", "a copy"]):
            subprocess.run(["git", *command], cwd=folder, check=True)
        project = cls(folder)
        project.write_params(params or small_params())
        return project

    def write_params(self, params: dict) -> None:
        with (self.folder / "params.yaml").open("w") as file:
            YAML(typ="safe").dump(params, file)

    def params(self) -> dict:
        return YAML(typ="safe").load(self.folder / "params.yaml")

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # One thread: floating point sums are then the same in every run.
        outside = {name: value for name, value in os.environ.items() if name not in ("LEDGER_DIR", "PREFECT_HOME")}
        ours = {"PATH": path, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        if not self.cold:
            started = warm.environment()
            ours |= started | {"PYTHONPATH": f"{started['PYTHONPATH']}{os.pathsep}{self.folder}"}
        return {**outside, **ours, **more}

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=self.folder, env=self.environment(**more), capture_output=True, text=True)

    def stage(self, name: str, *arguments: str) -> subprocess.CompletedProcess:
        return self.run(sys.executable, "-m", f"stages.{name}", *arguments)

    def make_prefects_database(self) -> None:
        """As it is after a first flow: making its tables takes longer than most flows of these tests."""
        home = {"PREFECT_HOME": str(self.folder / ".prefect"), "DO_NOT_TRACK": "1"}
        done = self.run("prefect", "server", "database", "upgrade", "--yes", **home)
        assert done.returncode == 0, done.stdout + done.stderr

    def repro(self) -> str:
        done = self.run("dvc", "repro")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def forget_charges(ledger: Path) -> None:
    """As if nothing had been trained; the key stays, which the data name."""
    for path in ledger.glob("charges.*"):
        path.unlink()


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Project:
    """A project on which `dvc repro` has run, once for all test workers. Tests that change it work on a copy."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    said = base / "finished.txt"
    with (base / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits
        if not said.exists():
            shutil.rmtree(base / "finished", ignore_errors=True)  # of one that failed
            (base / "finished").mkdir()
            project = Project.copy_to(base / "finished")
            said.write_text(project.repro())
            project.make_prefects_database()
    project = Project(base / "finished")
    project.first_output = said.read_text()
    return project


@pytest.fixture
def copy_of_finished(finished, tmp_path) -> Project:
    folder = tmp_path / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    return Project(folder)


@pytest.fixture
def project(tmp_path) -> Project:
    """A project on which nothing has run."""
    return Project.copy_to(tmp_path / "project")


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory) -> Path:
    """Small real samples, which are not part of the project; where they are not, stand-ins of the same layout."""
    folder = ROOT.parent / "shared" / "data"
    if folder.is_dir():
        return folder
    made = tmp_path_factory.mktemp("samples")
    write_samples(made)
    return made
