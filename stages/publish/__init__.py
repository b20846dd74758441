"""MLflow: filled from the files of the sweep. Its telemetry is off before it is imported anywhere below."""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
