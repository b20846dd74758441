# make demo    the main job: data, private training for every epsilon, evaluation, table, MLflow
# make test    all tests (make test-fast: those that start no pipeline)
# Each sets up what it needs (environment in .venv, system packages when root) and does nothing twice.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV := uv==0.13.7
PORT ?= 5000
# CPU=1: PyTorch's own build without CUDA, from its index, and none of the packages that are for a GPU alone.
CPU ?=
WITHOUT := $(if $(CPU),^(nvidia-|cuda-|triton==),^$$)
BUILD := $(if $(CPU),--torch-backend cpu)

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Compiled once: imports are several times slower without.
export PYTHONDONTWRITEBYTECODE :=
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export TF_CPP_MIN_LOG_LEVEL := 3
# Six processes beside MLflow's page, for evaluations by language models.
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION := false

.PHONY: help demo test test-fast bench setup ui publish lint format lock wheel
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: setup  ## the main job on the embedded default: runs the whole pipeline and prints the table
	@python -m stages.params > /dev/null
	@dvc status --quiet || python -m flows.pipeline
	@echo
	@python -m stages.report --show
	@echo "compare the models in a browser: make ui"

test: setup  ## all tests (installs Chromium for those that look at the MLflow page, Postgres for the servers)
	@infra/system-packages chromium || true
	@infra/system-packages postgres || true
	@python -m pytest

test-fast: setup  ## the tests that start no pipeline and no server, for an editor's loop
	@python -m pytest -m "not slow"

bench: setup  ## what privacy costs a step, in time and memory, beside a plain step and Opacus (well over 10 minutes)
	@python -W ignore -m tests.bench

setup: .venv/installed  ## the environment in .venv, Java, and the hook that keeps dvc.lock out of git
	@infra/system-packages java || true
	@[ ! -e .git ] || git config --local core.hooksPath > /dev/null || git config --local core.hooksPath infra/hooks

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else f"error: Python 3.11 is needed (by TensorFlow 2.15, for tensorflow-privacy), {sys.executable} is {sys.version.split()[0]}; give one with: make PYTHON=/path/to/python3.11 ...")'
	@[ -x .venv/bin/pip ] || $(PYTHON) -m venv --clear .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check $(UV)
	@echo "installing packages into .venv: $(if $(CPU),about 4 GB,8.4 GB; without a GPU: make CPU=1 ... (about 4 GB)). CUDA 3.2$(if $(CPU), left out), TensorFlow 1.3 (for tensorflow-privacy), PyTorch 1.2, Triton 0.9$(if $(CPU), left out), others 1.8"
	@grep -vE '$(WITHOUT)' requirements.lock > .venv/requirements.txt
	@.venv/bin/uv pip install --quiet $(BUILD) --python .venv/bin/python --requirement .venv/requirements.txt
	@.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

ui: setup  ## MLflow's page on http://127.0.0.1:5000 (PORT=... for another)
	@[ -f mlflow.db ] || python -m stages.publish
	@MLFLOW_TRACKING_URI=sqlite:///mlflow.db python -m stages.publish --links --port $(PORT)
	@mlflow ui --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1 --port $(PORT)

publish: setup  ## fill MLflow again from the files (after its store was deleted)
	@python -m stages.publish

lint: setup  ## ruff (lint, bandit's rules, format), types by mypy, packages that fit together, known holes in them
	@ruff check . && ruff format --check .
	@mypy
	@uv pip check --quiet
	@python infra/audit.py

format: setup  ## let ruff format and fix
	@ruff check --fix . && ruff format .

lock: setup  ## resolve pyproject.toml into requirements.lock (keeps what is there where it can)
	@uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

wheel: setup  ## the package, in dist/: after `pip install` of it the stages are the commands of dp-clip
	@rm -rf build
	@uv build --quiet --wheel --no-build-isolation --out-dir dist
	@rm -rf build && ls dist/*.whl
