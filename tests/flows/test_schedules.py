"""Deployments: what a selection means, a schedule that starts a run by itself, and cancelling it from the API."""

import sys

import pytest
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.states import Cancelling
from pydantic import ValidationError
from ruamel.yaml import YAML

from flows.selection import Selection, targets
from stages import params
from stages.errors import UserError
from stages.params.presets.text import preset_yaml
from tests.conftest import ROOT
from tests.flows.conftest import PREFECT, commands_in, deploy, in_log, machine, wait_for
from tests.patience import patience

pytestmark = pytest.mark.xdist_group("flows")  # servers are started once

SWEEP = (sys.executable, "-m", "flows.sweep")


@pytest.fixture
def values(one_machine) -> params.Params:
    return params.load(one_machine.folder / "params.yaml")


def test_a_selection_is_the_cells_of_the_sweep_that_have_its_values(values):
    chosen = targets(Selection(epsilon=[10.0, "inf"], seed=[1], method=["batch"]), values)
    assert chosen == [
        "evaluate@classification-mnist5k-tiny-clip-batch-10-1",
        "evaluate@classification-mnist5k-tiny-clip-batch-inf-1",
    ]
    assert targets(Selection(), values) == ["publish"]


def test_a_selection_of_what_params_do_not_have_is_refused_with_all_of_it(values):
    with pytest.raises(UserError) as refused:
        targets(Selection(epsilon=[0.5], dataset=["cifar10"], seed=[0]), values)
    assert "epsilon 0.5 is not one of 0, 10, inf" in str(refused.value)
    assert "dataset cifar10 is not one of mnist5k" in str(refused.value)
    for wrong in ({"epsilon": [-1]}, {"epsilons": [1]}, {"method": ["none"]}, {"seed": ["x"]}):
        with pytest.raises(ValidationError):
            Selection(**wrong)


def test_what_deployments_choose_by_themselves_is_in_the_sweep_of_every_preset(tmp_path):
    deployments = YAML(typ="safe").load(ROOT / "infra/prefect.yaml")["deployments"]
    (chosen,) = (d["parameters"]["selection"] for d in deployments if "selection" in d.get("parameters", {}))
    for preset in (ROOT / "stages/params/presets").glob("*.yaml"):
        (tmp_path / "params.yaml").write_text(preset_yaml(preset.stem))
        assert targets(Selection(**chosen), params.load(tmp_path / "params.yaml"))


def test_a_selected_cell_is_brought_up_to_date_and_the_users_params_stay_as_they_are(one_machine):
    before = (one_machine.folder / "params.yaml").read_bytes()
    done = one_machine.run(*SWEEP, "--epsilon", "10", "--seed", "0", "1")
    assert done.returncode == 0 and "cached" in done.stdout, done.stdout + done.stderr
    wrong = one_machine.run(*SWEEP, "--epsilon", "7")
    assert wrong.returncode == 2 and "epsilon 7 is not one of 0, 10, inf" in wrong.stderr
    assert (one_machine.folder / "params.yaml").read_bytes() == before


def test_the_form_of_a_deployment_explains_every_choice(deployed, api):
    schema = api.read_deployment_by_name("dp-clip-sweep/cells-on-demand").parameter_openapi_schema
    assert all(field["description"] for field in schema["properties"].values())
    selection = schema["definitions"]["Selection"]["properties"]
    assert selection["method"]["items"]["enum"] == ["batch", "example", "group"]
    for axis in ("dataset", "epsilon", "method", "seed"):
        assert "Empty: all of them" in selection[axis]["description"]
    schedules = {d.name: [s.schedule.cron for s in d.schedules] for d in api.read_deployments()}
    assert schedules == {
        "nightly-sweep": ["0 1 * * *"],
        "weekly-report": ["0 6 * * 1"],
        "cells-on-demand": [],
        "worker": [],
    }


def test_a_schedule_starts_a_run_by_itself_and_cancelling_it_leaves_a_checkpoint_and_no_process(
    finished, deployed, settings, api, tmp_path
):
    values = finished.params()
    values["train"]["methods"]["batch"]["epochs"] = 500  # longer than the test
    values["sweep"]["epsilon"] = ["inf"]
    made = machine(tmp_path / "scheduled", settings, like=finished, params=values)
    made.cold = True  # its processes are counted
    file = YAML(typ="safe").load(ROOT / "infra/prefect.yaml")
    nightly = next(each for each in file["deployments"] if each["name"] == "nightly-sweep")
    nightly |= {"name": "every-minute", "schedules": [{"cron": "* * * * *", "timezone": "UTC"}]}
    file["deployments"] = [nightly]
    YAML(typ="safe").dump(file, made.folder / "infra/every-minute.yaml")
    worker = made.start_worker("dp-clip")
    try:
        deploy(made, made.folder / "infra/every-minute.yaml")
        begun = made.folder / "checkpoints/classification/mnist5k/tiny-clip/batch/eps-inf/seed-0"
        wait_for((begun / "key").exists, "training that the schedule started")
        deployment = DeploymentFilter(name=DeploymentFilterName(any_=["every-minute"]))
        run = next(r for r in api.read_flow_runs(deployment_filter=deployment) if r.state.is_running())
        assert run.auto_scheduled and run.created_by.type == "SCHEDULE"
        paused = made.run(PREFECT, "deployment", "schedule", "clear", "--accept-yes", "dp-clip-sweep/every-minute")
        assert paused.returncode == 0, paused.stdout + paused.stderr

        api.set_flow_run_state(run.id, Cancelling())
        wait_for(lambda: api.read_flow_run(run.id).state.is_cancelled(), "cancelled run", seconds=60)
        assert made.training() == []
        (step,) = (int(path.stem.removeprefix("step-")) for path in begun.glob("step-*.safetensors"))
        wait_for(lambda: in_log(api, run, f"goes on from step {step} of"), "word of the step", seconds=20)
        assert not in_log(api, run, "Traceback")
        wait_for(lambda: commands_in(made.folder).keys() == {worker.pid}, "end of all processes", seconds=20)
    finally:
        made.dies()
        worker.wait(patience(30))
