"""Weights on the way: kept after public steps, whatever interrupts the training, and scored afterwards."""

import torch
from safetensors.torch import load_file

from stages.models import curve


def test_kept_steps_are_even_without_the_last_and_cheap_unless_they_are_asked_for():
    assert curve.kept_steps("auto", 60, 512, 1000) == [12, 24, 36, 48]
    assert curve.kept_steps("auto", 10**6, 512, 1000) == [round(10**6 * i / 9) for i in range(1, 9)]
    assert curve.kept_steps("auto", 60, 512, 2000) == []  # it would cost more than 5% of the training
    assert curve.kept_steps("auto", 60, 512, 1000, size=2**30) == []  # a large model eight times on disk
    assert curve.kept_steps(2, 60, 1, 10**6, size=2**30) == [20, 40]
    assert curve.kept_steps(0, 60, 512, 1) == [] == curve.kept_steps(5, 1, 512, 1)


def test_what_is_kept_is_what_the_weights_were(tmp_path):
    weights = {"w": torch.nn.Parameter(torch.zeros(2, 3))}
    keep = curve.Curve(tmp_path / "run/curve", [2, 4], weights)
    for done in range(1, 6):
        weights["w"].data.fill_(done)
        keep(done)
    keep(2)  # a step that is made again after a crash
    curve.write(tmp_path / "out", tmp_path / "run/curve")
    assert [(step, tensors["w"].unique().item()) for step, tensors in curve.read(tmp_path / "out")] == [(2, 5), (4, 4)]
    assert load_file(tmp_path / "out/step-4.safetensors")["w"].shape == (2, 3)
    curve.write(tmp_path / "out", None)
    assert list(curve.read(tmp_path / "out")) == []
    curve.Curve(None, [1], weights)(1)  # on a process that is not the first


def test_a_point_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    (tmp_path / "run").write_text("no folder can be made here")
    curve.Curve(tmp_path / "run/curve", [1], {"w": torch.nn.Parameter(torch.zeros(2))})(1)
    assert "no point of the learning curve at step 1" in caplog.text
