"""Prefect's server as infra/README.md starts it: in the background, without a network, until it is stopped."""

import re
import socket
import subprocess

import pytest

from tests.conftest import ROOT, Project
from tests.patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect-server")]
DOCUMENTED = (
    "prefect server start --background",
    "prefect server status --wait --timeout 180",
    "prefect work-pool create dp-clip --type process",
)


def test_the_documented_commands_start_a_server_that_answers(tmp_path):
    text = (ROOT / "infra/README.md").read_text()
    assert all(f"\n{command}" in text for command in DOCUMENTED)
    exported = dict(re.findall(r"^export (PREFECT_SERVER\w+)=(\S+)$", text, flags=re.MULTILINE))
    assert exported == {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false"
    }  # without it the server ends where there is no network
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    here = Project(tmp_path).environment(
        PREFECT_HOME=str(tmp_path), PREFECT_SERVER_API_PORT=port, PREFECT_API_URL=f"http://127.0.0.1:{port}/api"
    )
    here = {name: value for name, value in here.items() if name != "DO_NOT_TRACK"} | exported

    def run(command: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            command.split(), cwd=tmp_path, env=here, capture_output=True, text=True, timeout=patience(240)
        )

    try:
        for command in DOCUMENTED:
            done = run(command)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        assert run("prefect server stop").returncode == 0
