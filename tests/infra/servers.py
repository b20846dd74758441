"""The servers of infra/compose.yaml, without containers: its commands, variables and health checks, run here.

Names and ports of the compose network become loopback ports, volumes become folders. Postgres is the system's, which
does not run as root; what its image does when a volume is empty is done here.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from tests.patience import patience, wait_for

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "infra" / "compose.yaml"
POSTGRES = next((p.parent for p in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
NO_POSTGRES = "no Postgres on this machine: infra/system-packages postgres installs it"
PORTS = {"postgres": 5432, "s3": 9000, "mlflow": 5000, "prefect": 4200, "worker": 8080}  # inside the network
VARIABLE = re.compile(r"\$\{(\w+)(?:(:\?|:-)([^}]*))?\}")


class Missing(Exception):
    """A variable without which compose does not start."""


def interpolated(value: object, variables: dict[str, str]) -> object:
    """As compose does it: ${NAME}, ${NAME:-default}, ${NAME:?what to say if it is not set, or empty}."""

    def one(match: re.Match) -> str:
        name, kind, text = match.groups()
        if variables.get(name) or kind is None:
            return variables.get(name, "")
        if kind == ":?":
            raise Missing(text)
        return text

    if isinstance(value, dict):
        return {key: interpolated(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner, variables) for inner in value]
    return VARIABLE.sub(one, value) if isinstance(value, str) else value


def compose(variables: dict[str, str]) -> dict:
    return interpolated(YAML(typ="safe").load(COMPOSE), variables)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Servers:
    """Those that were started, by their name in compose.yaml. `stop` and `start` again keep what is on disk."""

    def __init__(self):
        # Not pytest's folder: another user than its owner, Postgres', must be able to enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="dp-clip-servers-"))
        self.folder.chmod(0o711)
        self.variables = {
            "POSTGRES_PASSWORD": f"p@ss/w:rd%{secrets.token_hex(6)}",  # no address has to carry it
            "S3_ACCESS_KEY": "somebody",
            "S3_SECRET_KEY": secrets.token_hex(12),
            "PREFECT_AUTH": f"somebody:{secrets.token_hex(12)}",
        }
        self.services = compose(self.variables)["services"]
        self.ports = {name: free_port() for name in PORTS}
        self.running: dict[str, subprocess.Popen] = {}

    def here(self, text: str) -> str:
        """What compose.yaml says, for this machine."""
        for name, port in PORTS.items():
            there = rf"((?://|@)(?:{name}|127\.0\.0\.1):|^--port=){port}\b"
            text = re.sub(there, lambda m, name=name: f"{m[1].replace(name, '127.0.0.1')}{self.ports[name]}", text)
        text = text.replace("--addr=0.0.0.0:9000", f"--addr=127.0.0.1:{self.ports['s3']}")
        text = text.replace("--host=0.0.0.0", "--host=127.0.0.1")
        return re.sub(r"^/(data|ledger)", rf"{self.folder}/\1", text)

    def environment(self, name: str) -> dict[str, str]:
        ours = {key: self.here(str(value)) for key, value in self.services[name].get("environment", {}).items()}
        path = os.pathsep.join([str(Path(sys.executable).parent), str(POSTGRES), os.environ["PATH"]])
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PREFECT_", "AWS_", "PG"))}
        return outside | ours | {"PATH": path, "HOME": str(self.folder), "PREFECT_HOME": str(self.folder / "prefect")}

    def start(self, *names: str) -> None:
        """All at once, then wait until the health check of each says that it is there."""
        for name in names:
            self._launch(name)
        for name in names:
            self._wait(name)

    def _launch(self, name: str) -> None:
        if name == "postgres":
            command, user = self._postgres(), postgres_user()
        else:
            service = self.services[name]
            command, user = [self.here(word) for word in service["command"]], None
            if "rclone" in service["image"]:
                command = [*service.get("entrypoint", ["rclone"]), *command]
        log = (self.folder / f"{name}.log").open("ab")
        environment = self.environment(name)
        if name == "worker":
            environment["PREFECT_WORKER_WEBSERVER_PORT"] = str(self.ports["worker"])
        self.running[name] = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True, user=user
        )

    def _wait(self, name: str) -> None:
        if name == "buckets":
            assert self.running.pop(name).wait(patience(20)) == 0
            return
        check = [self.here(word) for word in self.services[name]["healthcheck"]["test"][1:]]

        def healthy() -> bool:
            log = self.folder / f"{name}.log"
            assert self.running[name].poll() is None, f"{name} did not start:\n{log.read_text()[-3000:]}"
            return subprocess.run(check, env=self.environment(name), capture_output=True).returncode == 0

        wait_for(healthy, f"word of health from {name}", seconds=180)

    def _postgres(self) -> list[str]:
        data, port = self.folder / "postgres", self.ports["postgres"]
        command = ["postgres", "-D", str(data), "-p", str(port), "-k", str(data), "-c", "listen_addresses=127.0.0.1"]
        if not data.exists():
            self._new_database(data, command)
        return [str(POSTGRES / command[0]), *command[1:]]

    def _new_database(self, data: Path, command: list[str]) -> None:
        """What the image does on an empty volume: a cluster with user, password and database, then the SQL files."""
        wanted = self.services["postgres"]["environment"]
        data.mkdir(mode=0o700)
        password = self.folder / "password"
        password.write_text(wanted["POSTGRES_PASSWORD"])
        if user := postgres_user():
            shutil.chown(data, user)
            shutil.chown(password, user)
        as_owner = {"user": user, "cwd": self.folder, "check": True, "capture_output": True}
        init = ["initdb", "-D", str(data), f"--username={wanted['POSTGRES_USER']}", f"--pwfile={password}"]
        subprocess.run([POSTGRES / init[0], *init[1:], "--auth=scram-sha-256", "--no-sync"], **as_owner)
        password.unlink()
        single = [POSTGRES / command[0], "--single", "-D", str(data), "postgres"]
        statements = f"CREATE DATABASE {wanted['POSTGRES_DB']};\n" + (ROOT / "infra/postgres.sql").read_text()
        statements = "".join(f"{line}\n" for line in statements.splitlines() if not line.startswith("--"))
        subprocess.run(single, input=statements.encode(), **as_owner)

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        # Containers are stopped the same way: Postgres' image asks for SIGINT, at which it waits for no client.
        process.send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)
        try:
            process.wait(patience(30))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(patience(30))

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def close(self) -> None:
        """Nobody comes back to them, so none is asked to end: on a busy machine Prefect takes a minute for it."""
        for name, process in self.running.items():
            os.killpg(process.pid, signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
        for process in self.running.values():
            process.wait(patience(30))
        shutil.rmtree(self.folder, ignore_errors=True)


def postgres_user() -> str | None:
    """Root cannot run Postgres; its package makes a user for it."""
    return "postgres" if os.getuid() == 0 else None
