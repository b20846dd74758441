"""Where publishing goes: stores that cannot be used, passwords that stay out of sight, and one publisher at a time."""

import subprocess
import sys
import threading
import time

import mlflow
import pytest
from mlflow import MlflowClient

from stages.errors import UserError
from stages.publish import store
from stages.publish.lock import NAME, only_publisher
from tests.conftest import ROOT, Project
from tests.infra.servers import free_port
from tests.patience import patience

pytestmark = pytest.mark.xdist_group("store")  # the tables are made once

PASSWORD = "s3cret-w0rd"  # noqa: S105


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A store whose tables are there."""
    return MlflowClient(f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}")


@pytest.fixture
def address(monkeypatch):
    """Sets the store of this test; what connecting to it puts into the environment is taken back."""
    for name in (*store.PATIENCE, *store.SECRETS, "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    yield lambda uri: monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(None)
    for name in (*store.PATIENCE, *store.SECRETS, "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_server_that_is_not_there_is_told_at_once_and_without_its_password(address, scheme):
    address(f"{scheme}://somebody:{PASSWORD}@127.0.0.1:{free_port()}/mlflow")
    before = time.monotonic()
    with pytest.raises(UserError, match="cannot be used") as error:
        store.connect()
    assert time.monotonic() - before < patience(20)
    assert PASSWORD not in str(error.value) and "MLFLOW_TRACKING_URI" in str(error.value)
    assert error.value.__cause__ is None  # which a traceback would print
    assert PASSWORD not in mlflow.get_tracking_uri()


def test_a_file_that_is_no_database_is_told(address, tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database, but long enough to be taken for the head of one" * 20)
    address(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(UserError, match="not a database"):
        store.connect()


@pytest.mark.slow
def test_publishing_without_a_server_ends_with_code_2_and_no_traceback(tmp_path):
    """As a person sees it; the theory, because it needs the fewest files."""
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory/points.json").write_text("[]")
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    project = Project(tmp_path)
    server = f"http://somebody:{PASSWORD}@127.0.0.1:{free_port()}"
    environment = {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": server}
    done = project.run(sys.executable, "-m", "stages.publish.theory", **environment)
    assert done.returncode == 2 and done.stderr.startswith("error: MLflow at http://127.0.0.1"), done.stderr
    assert "Traceback" not in done.stderr and PASSWORD not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://somebody:{PASSWORD}@db/mlflow",
        f"could not reach 'http://somebody:p/{PASSWORD}@@server:5000/x' again",
        f"https://{PASSWORD}@server",
        f"access denied for {PASSWORD}",
    ],
)
def test_passwords_are_hidden_wherever_they_stand(text, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert PASSWORD not in store.hidden(text) and "***" in store.hidden(text)


@pytest.mark.slow
def test_processes_that_meet_at_a_new_file_all_get_to_use_it(tmp_path):
    code = "from stages.publish import store; store.connect()"
    environment = Project(tmp_path).environment(PYTHONPATH=str(ROOT), MLFLOW_TRACKING_URI="sqlite:///mlflow.db")
    command = [sys.executable, "-c", code]
    several = [subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) for _ in range(4)]
    for process in several:
        _, errors = process.communicate(timeout=patience(300))
        assert process.returncode == 0, errors.decode()


def most_at_once(client: MlflowClient, count: int, seconds: float, looks: int) -> list[int]:
    """Publishers that start together, and how many were at work whenever one began."""
    inside, most = [], []

    def publish(me: int) -> None:
        with only_publisher(client, beat=0.2, looks=looks):
            inside.append(me)
            most.append(len(inside))
            time.sleep(seconds)
            inside.remove(me)

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(120))
    return most


@pytest.mark.slow
def test_publishers_wait_for_each_other(client):
    assert most_at_once(client, count=3, seconds=0.5, looks=50) == [1, 1, 1]
    assert not client.search_registered_models()


@pytest.mark.slow
def test_the_lock_of_a_dead_publisher_is_taken_over_by_one_waiter(client, capsys):
    client.create_registered_model(NAME, tags={"holder": "elsewhere, process 1, 0badcafe", "beat": "3"})
    # They work for longer than a dead one is waited for; but they beat.
    assert most_at_once(client, count=2, seconds=3, looks=8) == [1, 1]
    assert "0badcafe has died; taking over" in capsys.readouterr().err
    assert not client.search_registered_models()  # the dead one's neither


def test_a_publisher_that_was_taken_for_dead_says_so(client):
    def publish() -> None:
        with only_publisher(client, beat=0.1, looks=5):
            client.rename_registered_model(NAME, f"{NAME}.put-aside")
            time.sleep(1)

    with pytest.raises(UserError, match="publish again"):
        publish()
    client.delete_registered_model(f"{NAME}.put-aside")


def test_the_lock_is_given_back_when_publishing_fails(client):
    def publish() -> None:
        with only_publisher(client):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish()
    assert not client.search_registered_models()
