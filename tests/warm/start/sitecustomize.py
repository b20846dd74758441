"""Run by Python before anything else: hands `python -m stages...` over to the server of warm starts.

Standard streams go along as they are. Signals that ask for an end are passed on; if this process is killed, the server
sees the connection close and kills the child.
"""

import os
import sys


def _hand_over(address: str) -> None:
    import json
    import signal
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        mask = os.umask(0)  # there is no way to read it without setting it
        os.umask(mask)
        asked = {"argv": sys.orig_argv[1:], "folder": os.getcwd(), "environment": dict(os.environ), "umask": mask}
        content = json.dumps(asked).encode()
        socket.send_fds(connection, [len(content).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(content)
        answers = connection.makefile()
        child = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(child, number))
        code = int(answers.readline())
    if code < 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if "WARM_START" in os.environ and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("stages."):
    _hand_over(os.environ["WARM_START"])
