"""The public initialisation of the demo, in a third of its steps on a quarter of its data."""

import torch
from ruamel.yaml import YAML

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.models import saved
from stages.models.batches import decoded
from stages.tasks import classification
from stages.tasks.base.task import HeldOut, Settings
from tests.conftest import ROOT


def test_a_model_that_has_seen_only_fonts_reads_handwriting(project):
    params = YAML(typ="safe").load(ROOT / "params.yaml")
    params["prepare"]["font-digits"]["train"] = 3000
    params["pretrain"]["tiny-clip"]["steps"] = 300
    project.write_params(params)
    for dataset in ("mnist5k", "font-digits"):
        assert project.stage("prepare", "--dataset", dataset).returncode == 0
    done = project.run("python", "-m", "stages.pretrain", "--model", "tiny-clip")
    assert done.returncode == 0, done.stderr

    data = project.folder / "data/mnist5k"
    clip = saved.load(project.folder / "models/tiny-clip")
    test = PreparedSplit(data, "test")
    labels, cpu = Manifest.read(data).labels, torch.device("cpu")
    result = classification.TASK.evaluate(
        clip, HeldOut(test, decoded(test, clip), labels), Settings(batch_size=256), cpu
    )
    assert result.metrics().score >= 0.45  # 0.54 when it was written; one in ten by chance
