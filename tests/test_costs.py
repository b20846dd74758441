"""What a training cost, measured and read again."""

import re
import time
from pathlib import Path

import pytest

from stages.atomic import write_json
from stages.costs import Costs, Meter, peak_memory
from stages.errors import UserError


def test_a_meter_reads_the_time_since_it_was_made_and_the_steps_made_in_it(tmp_path):
    meter = Meter(done=30)  # before it was interrupted
    time.sleep(0.1)
    costs = meter.read(steps=50)
    assert 0.1 <= costs.seconds < 10 and costs.made == 20 and costs.steps == 50
    assert costs.steps_per_second == pytest.approx(20 / costs.seconds)
    write_json(tmp_path / "costs.json", costs.model_dump())
    assert Costs.read(tmp_path / "costs.json") == costs


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux tells it there")
def test_memory_is_in_bytes_of_this_process():
    kilobytes = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]
    assert peak_memory("cpu") == pytest.approx(1024 * int(kilobytes), rel=0.1)


def test_costs_that_are_not_there_are_told(tmp_path):
    with pytest.raises(UserError, match="dvc repro"):
        Costs.read(tmp_path / "costs.json")
