"""Run by Python before anything else: hands stages, flows, DVC and Prefect over to the server of warm starts.

Standard streams go along as they are. Signals that ask for an end are passed on; if this process is killed, the server
sees the connection close and kills the child.
"""

import os
import sys


def _module() -> str | None:
    """What is to be run, if it starts warm. DVC's daemons, `python -m dvc`, do not."""
    match sys.orig_argv[1:]:
        case ["-m", name, *_] if name.startswith(("stages.", "flows.")) or name == "prefect.engine":
            return name
        case ["-m", "uvicorn", *more] if any(word.startswith("prefect.server") for word in more):
            return "uvicorn"  # the temporary server of a flow
        case [script, *_] if script.endswith(("/bin/dvc", "/bin/prefect")):
            return script.rpartition("/")[2]
    return None


def _hand_over(address: str, module: str) -> None:
    import json
    import signal
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        mask = os.umask(0)  # there is no way to read it without setting it
        os.umask(mask)
        argv = sys.orig_argv[2 if module in ("dvc", "prefect") else 3 :]
        asked = {"module": module, "argv": argv, "folder": os.getcwd(), "environment": dict(os.environ), "umask": mask}
        content = json.dumps(asked).encode()
        socket.send_fds(connection, [len(content).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(content)
        answers = connection.makefile()
        child = int(answers.readline())
        # A flow that stops sends a signal to the group of its DVC, the command of a stage included.
        send = os.killpg if module in ("dvc", "flows.dvc", "flows.reproduce") else os.kill
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: send(child, number))
        code = int(answers.readline())
    if code < 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if "WARM_START" in os.environ and (_asked := _module()):
    _hand_over(os.environ["WARM_START"], _asked)
