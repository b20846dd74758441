"""Prefect's server on Postgres and its worker, as infra/compose.yaml has them."""

import json
import subprocess
import urllib.error
import urllib.request

import pytest

from tests.infra.servers import NO_POSTGRES, POSTGRES, ROOT, Servers

pytestmark = [
    pytest.mark.xdist_group("prefect-server"),  # started once
    pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES),
]


@pytest.fixture(scope="module")
def servers():
    running = Servers()
    try:
        running.start("postgres")
        running.start("prefect")
        yield running
    finally:
        running.close()


def prefect(servers: Servers, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["prefect", *arguments], cwd=ROOT, env=servers.environment("worker"), capture_output=True, text=True
    )


def test_prefect_asks_for_its_password(servers):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{servers.ports['prefect']}/api/admin/version", timeout=20)
    assert refused.value.code == 401


def test_the_worker_makes_its_pool_and_reports_that_it_is_well(servers):
    servers.start("worker")  # until its health check passes
    done = prefect(servers, "work-pool", "inspect", "dp-clip", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["type"] == "process"


def test_prefect_takes_the_kubernetes_job_template(servers):
    template = ROOT / "infra/kubernetes/job-template.json"
    options = ("--type", "kubernetes", "--base-job-template", str(template))
    done = prefect(servers, "work-pool", "create", "dp-clip-kubernetes", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    done = prefect(servers, "work-pool", "inspect", "dp-clip-kubernetes", "--output", "json")
    assert json.loads(done.stdout)["base_job_template"] == json.loads(template.read_text())
