"""One publisher at a time, on whatever machine, in whatever MLflow store they share.

MLflow has no unique tags, so two publishers that both look for a run and find none both make one. What is unique in
every store is the name of a registered model: making one of that name is taking the lock, deleting it is giving it
back. The holder changes a tag of it every few seconds. A waiter that has looked many times and seen no change takes
the holder for dead and the lock for its own: it counts looks, not seconds, so that neither clocks that differ nor a
server that was away make a living holder look dead.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import sleep

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from stages.errors import UserError

logger = logging.getLogger(__name__)
NAME = "dp-clip.publishing"
WHY = "Someone is publishing; this entry is removed when they are done. If they died, the next one takes it over."
BEAT, LOOKS = 5.0, 12  # seconds between beats, and between looks; looks without a beat until a holder counts as dead


@contextmanager
def only_publisher(client: MlflowClient, beat: float = BEAT, looks: int = LOOKS) -> Iterator[None]:
    """Wait until no one else is publishing; others wait until the block ends."""
    me = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(4)}"
    while not _take(client, me):
        _wait(client, beat, looks)
    done, lost = threading.Event(), threading.Event()
    heart = threading.Thread(target=_beat, args=(client, me, beat, done, lost), daemon=True)
    heart.start()
    try:
        yield
    finally:
        done.set()
        heart.join()
        _give_back(client, me, beat)
    if lost.is_set():
        raise UserError("another publisher took over, because this one was not heard of for too long; publish again")


def _take(client: MlflowClient, me: str) -> bool:
    try:
        client.create_registered_model(NAME, tags={"holder": me, "beat": "0"}, description=WHY)
    except MlflowException as error:
        # the second: who had it gave it back between the attempt and MLflow's look at what is in the way
        if error.error_code in ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"):
            return False
        raise
    return True


def _give_back(client: MlflowClient, me: str, beat: float) -> None:
    for pause in (beat / 5, beat, None):  # a server that was just asked too much answers a little later
        try:
            if _tags(client).get("holder") == me:
                for lock in client.search_registered_models(f"name LIKE '{NAME}%'"):  # and those of the dead
                    client.delete_registered_model(lock.name)
            return
        except MlflowException:
            if pause:
                sleep(pause)


def _wait(client: MlflowClient, beat: float, looks: int) -> None:
    """Until the lock is free, or was seen unchanged so often that its holder must be dead: then it is freed."""
    seen = _tags(client)
    if seen:
        logger.info("waiting for another publisher (%s)", seen.get("holder"))
    unchanged = 0
    while seen and unchanged < looks:
        sleep(beat)
        before, seen = seen, _tags(client)
        unchanged = unchanged + 1 if seen == before else 0
    if seen:
        logger.info("%s has died; taking over", seen.get("holder"))
        # Put aside under the dead holder's name, which also is unique: of several waiters only one can do that, and
        # none who comes too late can take the lock from the one who did.
        with suppress(MlflowException):
            client.rename_registered_model(NAME, f"{NAME}.{seen.get('holder', '')[-8:]}")


def _tags(client: MlflowClient) -> dict[str, str]:
    """Of the lock; nothing, if no one holds it."""
    found = client.search_registered_models(f"name = '{NAME}'")
    return dict(found[0].tags) if found else {}


def _beat(client: MlflowClient, me: str, beat: float, done: threading.Event, lost: threading.Event) -> None:
    count = 0
    while not done.wait(beat):
        count += 1
        with suppress(MlflowException):  # a server that is away; when it is back, so is the beat
            if _tags(client).get("holder") != me:
                lost.set()
                return
            client.set_registered_model_tag(NAME, "beat", str(count))
