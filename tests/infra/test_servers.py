"""MLflow on Postgres and an S3 store, as infra/compose.yaml has them: published to, restarted, asked for models."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from stages.data.prepared import PreparedSplit
from stages.errors import UserError
from stages.publish import store
from tests.conftest import Project
from tests.infra.servers import NO_POSTGRES, POSTGRES, ROOT, Servers
from tests.patience import patience
from tests.report.test_publish import MODEL, SCRIPT

pytestmark = [
    pytest.mark.xdist_group("mlflow-server"),  # started and published to once
    pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES),
]


@pytest.fixture(scope="module")
def servers():
    running = Servers()
    try:
        running.start("postgres", "buckets")
        running.start("s3", "mlflow")
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def project(finished, tmp_path_factory) -> Project:
    folder = tmp_path_factory.mktemp("published") / "project"
    shutil.copytree(finished.folder, folder, symlinks=True)
    shutil.rmtree(folder / "mlartifacts")
    (folder / "mlflow.db").unlink()
    return Project(folder)


def address(servers: Servers) -> str:
    return f"http://127.0.0.1:{servers.ports['mlflow']}"


def publishers(project: Project, servers: Servers, count: int) -> list[subprocess.Popen]:
    environment = project.environment(MLFLOW_TRACKING_URI=address(servers))
    command = [sys.executable, "-m", "stages.publish"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, cwd=project.folder, env=environment, **pipes) for _ in range(count)]


def state(servers: Servers) -> tuple:
    """All that a publisher could make twice."""
    client = MlflowClient(address(servers))
    experiments = client.search_experiments()
    runs = client.search_runs([e.experiment_id for e in experiments])
    names = [m.name for m in client.search_registered_models()]
    versions = [(v.name, v.version, v.run_id) for v in client.search_model_versions()]
    models = [m.model_id for m in client.search_logged_models([e.experiment_id for e in experiments])]
    return tuple(map(sorted, ([e.name for e in experiments], [r.info.run_id for r in runs], names, versions, models)))


@pytest.fixture(scope="module")
def published(project, servers) -> tuple:
    """By two publishers that start at once."""
    for publisher in publishers(project, servers, 2):
        output, errors = publisher.communicate(timeout=patience(400))
        assert publisher.returncode == 0 and "4 runs are in" in output, errors
    return state(servers)


def test_two_publishers_at_once_make_nothing_twice(published, servers):
    experiments, runs, names, versions, models = published
    assert experiments == ["Default", "dp-clip classification"] and names == [MODEL, f"{MODEL}.not-private"]
    assert len(runs) == 5 and len(versions) == len(models) == 4
    client = MlflowClient(address(servers))
    runs = client.search_runs([client.get_experiment_by_name("dp-clip classification").experiment_id])
    assert set(Counter(r.data.tags.get("cell") for r in runs).values()) == {1}
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert set(client.get_registered_model(MODEL).aliases) == {"eps-0"}
    aliases = client.get_registered_model(f"{MODEL}.not-private").aliases
    assert set(aliases) == {"eps-1", "eps-10", "eps-inf"} and len(set(aliases.values())) == 3


def test_runs_are_in_postgres_and_artifacts_in_the_s3_store(published, servers, project):
    assert any((servers.folder / "data" / "mlflow").rglob("privacy-statement.md"))
    assert not (project.folder / "mlartifacts").exists() and not (project.folder / "mlflow.db").exists()
    query = ["psql", "--host=127.0.0.1", f"--port={servers.ports['postgres']}", "--username=dpclip", "--dbname=mlflow"]
    done = subprocess.run(
        [*query, "--tuples-only", "--command=SELECT count(*) FROM runs WHERE lifecycle_stage = 'active'"],
        env=servers.environment("mlflow"),
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) == 5, done.stderr


def test_after_a_restart_of_every_server_all_is_there_and_nothing_is_published_twice(
    published, servers, project, tmp_path
):
    for name in ("postgres", "s3", "mlflow"):
        servers.restart(name)
        assert state(servers) == published
    (publisher,) = publishers(project, servers, 1)
    assert publisher.wait(patience(300)) == 0, publisher.stderr.read()
    assert state(servers) == published
    image = PreparedSplit(project.folder / "data/mnist5k", "test").row(703).image
    (tmp_path / "digit.png").write_bytes(image)
    table = json.dumps({"image": [str(tmp_path / "digit.png")]})
    done = Project(tmp_path).run(
        sys.executable, "-c", SCRIPT, address(servers), f"models:/{MODEL}.not-private@eps-1", table
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0]["label"] in [str(d) for d in range(10)]


def test_a_store_that_loses_its_artifacts_server_is_one_message(published, servers, project, tmp_path):
    """The runs are there, so only the report of the sweep is written again; the S3 store is away."""
    servers.stop("s3")
    try:
        done = project.run(
            sys.executable,
            *("-m", "stages.publish"),
            MLFLOW_TRACKING_URI=address(servers).replace("//", "//somebody:s3cret-word@"),
            MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        )
    finally:
        servers.start("s3")
    assert done.returncode == 2 and done.stderr.startswith("error: MLflow at http://127.0.0.1"), done.stderr
    assert "Traceback" not in done.stderr and "s3cret-word" not in done.stdout + done.stderr
    assert state(servers) == published  # nor is the lock left behind


def test_a_wrong_password_is_one_message_that_does_not_repeat_it(servers, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "")  # whatever connecting makes of it is taken back
    place = f"127.0.0.1:{servers.ports['postgres']}/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://somebody:not-the-word@{place}")
    try:
        with pytest.raises(UserError, match="password authentication failed") as error:
            store.connect()
    finally:
        mlflow.set_tracking_uri(None)
    assert "not-the-word" not in str(error.value) and place in str(error.value)


def test_the_page_answers_to_its_own_names_only(servers):
    """A page in someone's browser could otherwise reach it under a name of its own (DNS rebinding)."""

    def status(host: str) -> int:
        request = urllib.request.Request(f"{address(servers)}/api/2.0/mlflow/experiments/get?experiment_id=0")  # noqa: S310
        request.add_header("Host", host)
        try:
            return urllib.request.urlopen(request, timeout=10).status  # noqa: S310
        except urllib.error.HTTPError as error:
            return error.code

    assert status("mlflow:5000") == status("127.0.0.1:5000") == 200
    assert status("elsewhere.example") == 403


def test_no_password_is_on_a_command_line_or_in_a_log(published, servers):
    secrets = [servers.variables[name] for name in ("POSTGRES_PASSWORD", "S3_SECRET_KEY", "PREFECT_AUTH")]
    texts = [log.read_text(errors="replace") for log in servers.folder.glob("*.log")]
    texts += [Path(f"/proc/{p.pid}/cmdline").read_bytes().decode() for p in servers.running.values()]
    assert len(texts) >= 6 and not any(secret in text for secret in secrets for text in texts)


def test_machines_share_results_through_the_s3_store(servers, project, tmp_path):
    """With the DVC remote that the image sets up: one pushes, another has nothing and pulls."""
    lines = re.findall(r"dvc (remote add --system .*|config --system core.*)", (ROOT / "infra/Dockerfile").read_text())
    assert len(lines) == 2
    s3 = {k: v for k, v in servers.environment("worker").items() if k.startswith("AWS_")}
    s3["DVC_SYSTEM_CONFIG_DIR"] = str(tmp_path / "system")
    for line in lines:
        done = project.run("dvc", *line.strip(" \\&").split(), **s3)
        assert done.returncode == 0, done.stderr
    other = Project(tmp_path / "other")
    made = (
        "data",
        "models",
        "features",
        "runs",
        "results",
        "calibration",
        "ledger",
        "cache",
        "report",
        ".git",
    )
    shutil.copytree(project.folder, other.folder, symlinks=True, ignore=shutil.ignore_patterns(*made))
    shutil.copytree(project.folder / "stages", other.folder / "stages", dirs_exist_ok=True)
    for where, verb in ((project, "push"), (other, "pull")):
        done = where.run("dvc", verb, "train", "models/tiny-clip", **s3)
        assert done.returncode == 0, done.stdout + done.stderr
    there = other.folder / "runs/classification/mnist5k/tiny-clip/batch/eps-1/seed-0/model"
    assert [p.read_bytes() for p in sorted(there.iterdir())] == [
        p.read_bytes() for p in sorted((project.folder / there.relative_to(other.folder)).iterdir())
    ]
