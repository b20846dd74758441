"""The MLflow store that is published to: MLFLOW_TRACKING_URI, by default mlflow.db in the home of this working copy.

A store that cannot be used is reported in one message, before any work. A password that came in the address is taken
out of it at once, so that nothing can print or keep it.

>>> hidden("no answer from postgresql://mlflow:s3cret@db:5432/mlflow")
'no answer from postgresql://***@db:5432/mlflow'
"""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import unquote, urlsplit

import mlflow
import requests
import sqlalchemy
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from stages.errors import UserError
from stages.home import home
from stages.locks import file_lock
from stages.publish.lock import only_publisher

DATABASE = "mlflow.db"
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",  # outlives the restart of a server, a minute or so; MLflow's own is four
    "PGCONNECT_TIMEOUT": "10",
}
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY")


@contextmanager
def publishing() -> Iterator[MlflowClient]:
    """The store, to oneself. What goes wrong with it, or while it is used, is one message without a password."""
    quiet()
    connect()
    address = hidden(mlflow.get_tracking_uri())
    try:
        client = MlflowClient()
        with only_publisher(client):
            yield client
    except (MlflowException, requests.RequestException, sqlalchemy.exc.SQLAlchemyError) as error:
        raise UserError(f"MLflow at {address} says: {hidden(str(error))}") from None


def quiet() -> None:
    """One line a run would hide what matters; errors still show."""
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # a traceback for what is reported in a line
    warnings.filterwarnings("ignore", message=".*input example was not provided")  # the signature is written out


def connect() -> None:
    """Use the store, if it answers. On a new file only the first process makes the tables: MLflow does it unlocked."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    address = _without_password(os.environ.get("MLFLOW_TRACKING_URI", local_store()))
    mlflow.set_tracking_uri(address)
    try:
        if urlsplit(address).scheme in ("http", "https"):
            requests.get(f"{address.rstrip('/')}/health", timeout=10)  # at once, where MLflow would try for a minute
        elif "://" in address:
            sqlalchemy.create_engine(address).connect().close()
        with _alone_on(address):
            MlflowClient().search_experiments(max_results=1)
            MlflowClient().search_registered_models(max_results=1)
    except (OSError, MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:  # those of requests are OSErrors
        away = isinstance(error, requests.ConnectionError | requests.Timeout)
        reason = "nothing answers there" if away else str(getattr(error, "orig", None) or error).strip()
        raise UserError(
            f"MLflow at {hidden(address)} cannot be used: {hidden(reason)}\n"
            "start the server (infra/compose.yaml), correct MLFLOW_TRACKING_URI or its password, "
            f"or unset it to use {DATABASE}"
        ) from None


def local_store() -> str:
    """A temporary copy that DVC made would take its own with it when it goes."""
    return f"sqlite:///{home() / DATABASE}"


def shown() -> str:
    """The store in use, as a log may have it."""
    address = mlflow.get_tracking_uri()
    return DATABASE if address == local_store() else hidden(address)


def _without_password(address: str) -> str:
    """The address without what stands before its @; MLflow and Postgres' client take it from the environment."""
    scheme, _, rest = address.partition("://")
    user, at, place = rest.rpartition("@")
    name, colon, password = user.partition(":")
    if not at or not colon:
        return address
    if scheme in ("http", "https"):
        os.environ |= {"MLFLOW_TRACKING_USERNAME": unquote(name), "MLFLOW_TRACKING_PASSWORD": unquote(password)}
        return f"{scheme}://{place}"
    if scheme.startswith("postgresql"):
        os.environ["PGPASSWORD"] = unquote(password)
        return f"{scheme}://{name}@{place}"
    return address


def _alone_on(address: str) -> AbstractContextManager:
    path = sqlalchemy.make_url(address).database if address.startswith("sqlite:") else None
    return file_lock(Path(f"{path}.lock")) if path else nullcontext()


def hidden(text: str) -> str:
    """The text with no password in it: neither one of an address nor one of the environment."""
    text = re.sub(r"(?<=://)[^\s'\"]*@", "***@", text)
    for secret in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(secret, "***")
    return text
