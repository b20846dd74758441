"""What infra/ promises without being started: loopback only, no default passwords, nobody is root, nothing left out."""

import json
import re
import shutil
import subprocess

import pytest
from prefect.utilities.templating import apply_values

from tests.infra.servers import COMPOSE, ROOT, Missing, compose

SET = {"POSTGRES_PASSWORD": "pw", "S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret", "PREFECT_AUTH": "me:pw"}
SERVERS = {"postgres", "s3", "mlflow", "prefect", "worker"}
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
JOB = json.loads((ROOT / "infra/kubernetes/job-template.json").read_text())


def test_every_port_is_on_the_loopback_interface():
    services = compose(SET)["services"]
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(ports) == {"s3", "mlflow", "prefect"}
    assert all(port.startswith("127.0.0.1:") for published in ports.values() for port in published)


@pytest.mark.parametrize("name", SET)
@pytest.mark.parametrize("value", ["unset", "empty"])
def test_nothing_starts_without_a_password_of_ones_own(name, value):
    variables = {k: v for k, v in SET.items() if k != name} | ({name: ""} if value == "empty" else {})
    with pytest.raises(Missing, match=f"set {name} in infra/.env"):
        compose(variables)


def test_the_example_names_every_variable_and_has_no_value():
    lines = [line for line in (ROOT / "infra/example.env").read_text().splitlines() if not line.startswith("#")]
    assert sorted(lines) == sorted(f"{name}=" for name in SET)
    asked = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    assert asked == set(SET)


def test_every_server_is_watched_restarted_and_kept():
    made = compose(SET)
    assert set(made["services"]) == SERVERS | {"buckets"}
    for name in SERVERS:
        service = made["services"][name]
        assert service["healthcheck"]["test"][0] == "CMD" and service["restart"] == "unless-stopped", name
        assert "no-new-privileges:true" in service["security_opt"], name
    kept = {v.split(":")[0] for s in made["services"].values() for v in s.get("volumes", []) if not v.startswith(".")}
    assert kept == set(made["volumes"]) == {"postgres", "objects", "ledger", "cache"}
    assert "ledger:/ledger" in made["services"]["worker"]["volumes"]


def test_nothing_calls_home_and_no_address_holds_a_password():
    for name in ("mlflow", "prefect", "worker"):
        environment = compose(SET)["services"][name]["environment"]
        assert environment["DO_NOT_TRACK"] == "1" and environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
        assert not any(re.search(r"://[^/]*:[^/]*@", str(value)) for value in environment.values())


def test_the_image_is_built_from_files_that_are_there_by_a_user_who_is_not_root():
    copied = [name for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M) for name in line.split()[:-1]]
    assert {"flows", "stages", "requirements.lock", "dvc.yaml"} <= set(copied)
    allowed = (ROOT / "infra/Dockerfile.dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists() and f"!{name}" in allowed, name
    assert allowed[1] == "*" and "infra/.env" in allowed
    user = re.findall(r"^USER (.*)$", DOCKERFILE, re.M)
    assert user == ["dpclip"] and DOCKERFILE.index("USER dpclip") > DOCKERFILE.rindex("RUN ")
    assert re.search(r"^FROM nvidia/cuda:13\.", DOCKERFILE, re.M) and "default-jre-headless" in DOCKERFILE
    assert re.findall(r"uv==[\d.]+", DOCKERFILE) == re.findall(r"uv==[\d.]+", (ROOT / "Makefile").read_text())
    assert "--requirement /project/requirements.lock" in DOCKERFILE


def manifest(**values: object) -> dict:
    """The Kubernetes job that a worker makes of the template."""
    variables = JOB["variables"]["properties"]
    defaults = {name: schema["default"] for name, schema in variables.items() if "default" in schema}
    given = {"name": "run", "command": ["prefect", "flow-run", "execute"], "labels": {}, "env": []}
    return apply_values(JOB["job_configuration"], defaults | given | values, remove_notset=True)["job_manifest"]


def test_a_kubernetes_job_has_a_gpu_the_ledger_and_secrets_by_reference():
    pod = manifest(gpu_limit=2, image="dp-clip")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2 and container["image"] == "dp-clip"
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["restartPolicy"] == "Never"
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    claims = {v["name"]: v.get("persistentVolumeClaim", {}).get("claimName") for v in pod["volumes"]}
    environment = {v["name"]: v for v in container["env"] if "name" in v}
    assert claims[mounts[environment["LEDGER_DIR"]["value"]]] == "dp-clip-ledger"
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PREFECT_API_AUTH_STRING"):
        assert set(environment[name]["valueFrom"]["secretKeyRef"]) == {"name", "key"}, name
    in_compose = compose(SET)["services"]["worker"]["environment"]
    assert set(in_compose) - set(environment) <= {"PREFECT_API_URL", "PREFECT_WORKER_WEBSERVER_HOST"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine to read the job with")
@pytest.mark.parametrize("kind", ["job", "ledger"])
def test_kubernetes_knows_every_field(kind, tmp_path):
    """kubectl reads it into Kubernetes' own types, which have no place for a field that does not exist."""
    path = tmp_path / "manifest.json"
    if kind == "job":
        path.write_text(json.dumps(manifest()))
    else:
        path = ROOT / "infra/kubernetes/ledger.yaml"
    command = ["kubectl", "annotate", "--local", "--output=json", f"--filename={path}", "read=yes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    understood = json.loads(done.stdout)
    assert understood["metadata"].pop("annotations") == {"read": "yes"}
    if kind == "job":
        assert missing(manifest(), understood) == []


def missing(wanted: object, there: object, path: str = "") -> list[str]:
    """What was asked for and is not there."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        return [m for k, v in wanted.items() for m in missing(v, there.get(k), f"{path}.{k}")]
    if isinstance(wanted, list) and isinstance(there, list):
        return [m for i, (a, b) in enumerate(zip(wanted, there, strict=True)) for m in missing(a, b, f"{path}[{i}]")]
    return [] if str(wanted) == str(there) else [path]
