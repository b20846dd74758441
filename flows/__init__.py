"""Prefect flows over the DVC graph. Settings that Prefect reads at import are given defaults here."""

import os
from pathlib import Path

DEFAULTS = {
    "PREFECT_HOME": str(Path.cwd() / ".prefect"),  # nothing outside the project
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
}
for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
