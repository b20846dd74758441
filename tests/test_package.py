"""The wheel in an environment that has the dependencies and not the clone, used in an empty folder."""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages import cli
from tests.conftest import ROOT
from tests.prepare.test_pixels import png_by_hand

pytestmark = pytest.mark.xdist_group("package")
CELL = "classification/mnist5k/tiny-clip/example/eps-1/seed-0"
SEVERAL = """
import sys
from pathlib import Path
import stages.cli
from stages.data.prepared import PreparedSplit

print("from", stages.__file__)
for command in sys.argv[1:]:  # in one process: most of a small stage is its imports
    sys.argv = ["dp-clip", *command.split()]
    stages.cli.main()
Path("digit.png").write_bytes(PreparedSplit(Path("data/mnist5k"), "test").row(0).image)
"""
BOMB = png_by_hand(20_000, 8, 0, b"", height=20_000)
MODEL = "models:/dp-clip.classification.mnist5k.tiny-clip.example@eps-1"


class Installed:
    """`dp-clip` as it was installed, and a folder to call it in."""

    def __init__(self, program: Path, folder: Path):
        self.program, self.folder = program, folder
        hidden = ("LEDGER_DIR", "PYTHONPATH", "MLFLOW_TRACKING_URI")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def run(self, *arguments: str, program: str = "dp-clip") -> subprocess.CompletedProcess:
        command = [self.program.with_name(program), *arguments]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def output(self, *arguments: str, program: str = "dp-clip") -> str:
        done = self.run(*arguments, program=program)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, code: str, *arguments: str) -> str:
        return self.output("-c", code, *arguments, program="python")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: what an earlier build left behind in a clone would get into it."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("stages", "flows"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    uv("build", "--wheel", "--no-build-isolation", "--out-dir", str(made), "--python", sys.executable, str(source))
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """Files in a .pth are not followed from another one: the clone that this environment has installed is not seen."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    uv("pip", "install", "--offline", "--no-deps", "--python", str(folder / "bin" / "python"), str(wheel))
    uvicorn = folder / "bin" / "uvicorn"  # MLflow calls it by its name; here with this environment's Python
    uvicorn.write_text(f"#!{folder / 'bin' / 'python'}\nfrom uvicorn import main\nmain()\n")
    uvicorn.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def installed(environment, tmp_path) -> Installed:
    return Installed(environment / "dp-clip", tmp_path)


def uv(*arguments: str) -> None:
    program = Path(sys.executable).with_name("uv")
    subprocess.run([program, *arguments], check=True, capture_output=True, text=True)


def test_every_file_that_is_no_code_is_in_the_wheel(wheel):
    listed = subprocess.run(["git", "ls-files", "stages"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    data = {n for n in listed.splitlines() if not n.endswith((".py", "README.md")) and "/.dvc/" not in n}
    assert {"stages/models/configs/tiny-clip/tokenizer.json", "stages/params/defaults.yaml"} < data
    assert data <= set(zipfile.ZipFile(wheel).namelist())


def test_metadata_names_licence_python_and_version(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))).decode()
    assert "\nLicense: Apache-2.0\n" in metadata and "\nRequires-Python: <3.12,>=3.11\n" in metadata
    assert f"\nVersion: {YAML(typ='safe').load(ROOT / 'CITATION.cff')['version']}\n" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def test_in_an_empty_folder_a_model_is_made_and_served(installed):
    here = installed.folder
    assert "Fill MLflow" in installed.output()
    assert re.fullmatch(r"dp-clip \d+\.\d+\.\d+\n", installed.output("--version"))
    none = installed.run("plan")
    assert none.returncode == 2 and "params.yaml" in none.stderr

    installed.output("init")
    assert "/ledger/" in (here / ".gitignore").read_text()
    make_small(here / "params.yaml")
    flow = installed.run("pipeline")
    assert flow.returncode == 2 and "in a clone of the project" in flow.stderr and "Traceback" not in flow.stderr
    assert "4000 training units" in installed.output("prepare", "--dataset", "mnist5k")
    by_hand = ["--n", "4000", "--batch-size", "64", "--steps", "2", "--epsilon", "1", "--method", "example"]
    assert 0.9 < json.loads(installed.output("calibrate", *by_hand))["epsilon"] <= 1

    said = installed.python(
        SEVERAL,
        "prepare --dataset font-digits",
        "pretrain --model tiny-clip",
        "encode --dataset mnist5k --model tiny-clip",
        *(f"{stage} --cell {CELL}" for stage in ("calibrate", "train", "evaluate")),
        "report",
        "publish",
    )
    assert f"from {installed.program.parents[1]}" in said  # the wheel's code, not the clone's
    assert "1 runs are in mlflow.db" in said

    wrong = installed.run("serve", MODEL.replace("eps-1", "eps-7"))
    assert wrong.returncode == 2 and MODEL in wrong.stderr and "Traceback" not in wrong.stderr
    wrong = installed.run("serve", MODEL, "--images", "digit.png")
    assert wrong.returncode == 2 and "digit.png is no folder" in wrong.stderr
    bare_server_answers_images_and_opens_no_file(installed)
    server_with_a_folder_opens_what_is_in_it(installed)


def bare_server_answers_images_and_opens_no_file(installed: Installed) -> None:
    """As MLflow starts it, without a word of ours."""
    file = (installed.folder / "digit.png").read_bytes()
    command = ["python", "-m", "mlflow", "models", "serve", "--env-manager", "local", "--model-uri", MODEL]
    with served(installed, *command, MLFLOW_TRACKING_URI="sqlite:///mlflow.db") as ask:
        encoded = base64.b64encode(file).decode()
        for image in (encoded, f"data:image/png;base64,{encoded}"):
            status, said = ask(image)
            (prediction,) = said["predictions"]
            assert status == 200 and -1 <= prediction["similarity"] <= 1
            assert set(prediction["probabilities"]) == set("0123456789")
            assert sum(prediction["probabilities"].values()) == pytest.approx(1)
            assert prediction["label"] == max(prediction["probabilities"], key=prediction["probabilities"].get)
        for image, why in {
            "digit.png": "opens none of its files",
            str(installed.folder / "digit.png"): "opens none of its files",
            base64.b64encode(b"a letter to a friend" * 20).decode(): "not a readable image",
            base64.b64encode(BOMB).decode(): "pixels",
            base64.b64encode(bytes(25 * 2**20)).decode(): "25.0 MB is too large",
            None: "'image' is a text",
        }.items():
            status, said = ask(image)
            assert status == 400 and why in said["message"] and "stack_trace" not in said
            assert len(said["message"]) < 250 and str(installed.folder / "mlflow.db") not in str(said)


def server_with_a_folder_opens_what_is_in_it(installed: Installed) -> None:
    photos = installed.folder / "photos"
    photos.mkdir()
    shutil.copy(installed.folder / "digit.png", photos / "own.png")
    (photos / "link.png").symlink_to(installed.folder / "digit.png")
    with served(installed, "dp-clip", "serve", MODEL, "--images", "photos") as ask:
        status, said = ask("own.png")
        assert status == 200 and said["predictions"][0]["label"] in list("0123456789")
        for image in ("../digit.png", "link.png", str(photos / "own.png")):
            status, said = ask(image)
            assert status == 400 and "is not in the folder of images" in said["message"]


def make_small(path: Path) -> None:
    values = YAML(typ="safe").load(path)
    values["sweep"] |= {"method": ["example"], "epsilon": [1], "seed": [0]}
    values["prepare"]["font-digits"] |= {"train": 100, "test": 10}
    values["pretrain"]["tiny-clip"] |= {"steps": 2, "batch_size": 32}
    values["train"]["methods"]["example"] |= {"steps": 2, "batch_size": 64}
    with path.open("w") as file:
        YAML(typ="safe").dump(values, file)


@contextlib.contextmanager
def served(installed: Installed, program: str, *arguments: str, **environment: str) -> Iterator[Callable]:
    """A function that asks about an image and gives status and answer, while that command serves the model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = {"PATH": f"{installed.program.parent}{os.pathsep}{os.environ['PATH']}"}
    log = installed.folder / "server.txt"
    with log.open("w") as said:
        server = subprocess.Popen(
            [installed.program.with_name(program), *arguments, "--port", str(port)],
            cwd=installed.folder,
            env=installed.environment | where | environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )

    def ask(image: str | None) -> tuple[int, dict]:
        body = json.dumps({"dataframe_records": [{"image": image}]}).encode()
        address, headers = f"http://127.0.0.1:{port}/invocations", {"Content-Type": "application/json"}
        while server.poll() is None:
            try:
                with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except OSError:
                time.sleep(0.5)
        pytest.fail(log.read_text())

    try:
        yield ask
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def test_every_stage_is_a_command_and_says_so_in_its_usage(installed):
    stages = {path.parent.name for path in (ROOT / "stages").glob("*/__main__.py")}
    assert stages == set(cli.NAMES) - set(cli.FLOWS)
    for name in cli.NAMES:
        assert f"{name:<10} {cli.summary(name)}" in cli.overview() and len(cli.summary(name)) > 20
        module = cli.module_of(name)
        path = ROOT.joinpath(*module.split("."))
        source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert f'commands.parser("{module}", __doc__)' in source.read_text()
    assert installed.output("init", "--help").startswith("usage: dp-clip init ")


def test_an_unknown_command_gets_one_line_with_the_nearest(installed):
    done = installed.run("calibrat", "--n", "5")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: dp-clip has no command 'calibrat'; did you mean calibrate? (dp-clip --help)\n"


def test_what_init_keeps_out_of_git_is_kept_out_of_it_in_a_clone_too():
    ignored = (ROOT / "stages" / "init" / "gitignore.txt").read_text().split()
    assert set(ignored) <= set((ROOT / ".gitignore").read_text().split()) and "/ledger/" in ignored


def test_init_changes_no_file_that_is_there(installed):
    (installed.folder / "params.yaml").write_text("mine")
    done = installed.run("init")
    assert done.returncode == 2 and "params.yaml is here already" in done.stderr
    assert (installed.folder / "params.yaml").read_text() == "mine" and not (installed.folder / ".gitignore").exists()
