"""The process that warm starts are forked from, until its standard input is closed.

python server.py NUMBER      of the open socket that it listens on
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback

LIBRARIES = (
    "dp_accounting",
    "dvc.cli.parser",
    "dvc.repo.reproduce",
    "matplotlib.pyplot",
    "mlflow.pyfunc",
    "open_clip",
    "pandas",
    "peft",
    "prefect.server.api.server",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pycocoevalcap.cider.cider",
    "randomgen",
    "ruamel.yaml",
    "safetensors.torch",
    "scipy.stats",
    "timm",
    "torch._dynamo",
    "torch.distributed.run",
    "transformers.models.blip.modeling_blip_text",
)


def serve(number: int) -> None:
    """Returns in the child that is to run a command, with everything as the command has it."""
    with socket.socket(fileno=number) as listener:
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
        else:
            os._exit(0)
    guard(connection)


def guard(connection: socket.socket) -> None:
    """Forks the command itself; what is left reports how it ended, and ends it when nobody waits any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    content = connection.makefile("rb").read(int.from_bytes(size, "big"))
    ended = socket.socketpair()  # closed by the child's end, whatever that is
    child = os.fork()
    if child == 0:
        connection.close()
        ended[0].close()
        os.set_inheritable(ended[1].detach(), False)
        become(json.loads(content), streams)
        return
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    ended[1].close()
    connection.sendall(f"{child}\n".encode())
    if connection in select.select([connection, ended[0]], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(asked: dict, streams: list[int]) -> None:
    import torch

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    # The libraries have read their environment, and that was the server's.
    torch.set_num_threads(int(asked["environment"].get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    module, arguments = asked["module"], asked["argv"]
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    ahead = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [asked["folder"], *ahead, *sys.path[1:]]  # [0] was this file's folder
    importlib.invalidate_caches()
    if module.startswith("flows."):
        importlib.import_module("flows")  # gives some settings of Prefect
    if module.startswith(("flows.", "prefect", "uvicorn")):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()  # else they are those that Prefect found when it was imported


def run(module: str) -> int:
    """The exit code that Python would end with."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """As Python ends, but for taking apart all modules: that would copy the server's memory."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests, not before them
    if int(sys.argv[1]) not in select.select([int(sys.argv[1]), sys.stdin], [], [])[0]:
        sys.exit()  # the tests ended, and nobody asked for anything
    for name in LIBRARIES:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a child would miss the other threads"
    gc.freeze()  # what is collected by a child is its own
    serve(int(sys.argv[1]))
    end(run(sys.argv[0]))
