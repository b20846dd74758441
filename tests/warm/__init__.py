"""Stages, flows, DVC and Prefect that start warm: forked from a process that has imported the libraries, and nothing of
the project.

`python -m stages.train` imports torch, open_clip and transformers for seconds before its first line runs, Prefect and
DVC as many modules of their own, and the tests start hundreds of such commands. In an environment with
`tests/warm/start` on PYTHONPATH and WARM_START set to the server's socket, Python's own start-up hook
(sitecustomize.py) hands such a command over to the server: folder, environment, arguments, standard streams. The server
forks, the child runs the module as `__main__` from the folder, and the command ends as the child does: same output,
same exit code, same signals (tests/test_warm.py). Where a test is about processes themselves (kills, terminals, time)
or the installed package, commands start cold.

One server serves all test workers; it imports the libraries when somebody first asks.
"""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ADDRESS = "TESTS_WARM_START"  # of the server, for the test workers


def environment() -> dict[str, str]:
    """What makes commands start warm."""
    return {"WARM_START": os.environ[ADDRESS], "PYTHONPATH": str(HERE / "start")}


def serve() -> None:
    """From now on, for this process and those that it starts; it ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="dp-clip-warm-")
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX) as listener:  # whoever connects is served once the libraries are there
        listener.bind(address)
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, HERE / "server.py", str(listener.fileno())],
            cwd=folder.name,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},  # what it forks asks for more
            stdin=subprocess.PIPE,  # closed when this process ends, however it does
            pass_fds=[listener.fileno()],
        )

    def stop() -> None:
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(stop)
    os.environ[ADDRESS] = address
