"""The public initialisation of the demo, with the project's own values."""

import time

import torch
from ruamel.yaml import YAML

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.models import saved
from stages.models.batches import decoded
from stages.tasks import classification
from stages.tasks.base.task import HeldOut, Settings
from tests.conftest import ROOT
from tests.patience import patience


def test_a_model_that_has_seen_only_fonts_reads_handwriting(project):
    project.write_params(YAML(typ="safe").load(ROOT / "params.yaml"))
    for dataset in ("mnist5k", "font-digits"):
        assert project.stage("prepare", "--dataset", dataset).returncode == 0
    started = time.monotonic()
    done = project.run("python", "-m", "stages.pretrain", "--model", "tiny-clip")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < patience(240)  # 120 s alone on two cores; here it has one thread

    data = project.folder / "data/mnist5k"
    clip = saved.load(project.folder / "models/tiny-clip")
    test = PreparedSplit(data, "test")
    labels, cpu = Manifest.read(data).labels, torch.device("cpu")
    result = classification.TASK.evaluate(
        clip, HeldOut(test, decoded(test, clip), labels), Settings(batch_size=256), cpu
    )
    assert result.metrics().score >= 0.55
