"""What can never write a caption or an answer, or never changes one."""

import dataclasses

import pytest
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.tasks import captioning, vqa
from stages.tasks.base.task import Chosen
from tests.conftest import small_params

BLIP = {"architecture": "blip", "contrastive": "heads"}
CHOSEN = Chosen(
    datasets=["photos"],
    models={"w": BLIP | {"captioner": "a"}},
    methods={"batch": {"loss": "contrastive", "trainable": "all"}},
    has_questions={"photos": False, "asked": True},
)


def problems(task=captioning.TASK, **other) -> list[str]:
    return task.problems(dataclasses.replace(CHOSEN, **other))


def test_what_fits_is_not_refused():
    assert problems() == []
    assert problems(vqa.TASK, datasets=["asked"], models={"w": BLIP | {"answerer": "a"}}) == []


@pytest.mark.parametrize("writer", [{"answerer": "a"}, {"captioner": None, "answerer": "a"}])
def test_weights_of_a_blip_that_answers_do_not_caption(writer):
    assert problems(models={"w": BLIP | writer}) == ["weights.w: captioning needs captioner"]


def test_a_model_that_learned_from_questions_does_not_caption():
    model = {"architecture": "stages/models/configs/tiny-blip", "data": "asked"}
    expected = "pretrain.b.data: 'asked' has questions; a model for captioning learns from captions"
    assert problems(models={"b": model}) == [expected]


def test_a_dataset_that_is_not_there_is_left_to_the_check_that_says_so():
    assert problems(datasets=["nowhere"]) == problems(vqa.TASK, datasets=["nowhere"], models={}) == []


@pytest.mark.parametrize("odd", [{"loss": ["prompts"]}, {"trainable": {"all": 1}}, {}])
def test_values_of_another_kind_are_left_to_the_schema(odd):
    assert problems(methods={"batch": odd}) == []


def test_what_is_true_of_both_tasks_is_said_once(tmp_path):
    values = small_params()
    values["sweep"] |= {"task": ["captioning", "vqa"], "method": ["example"]}
    YAML(typ="safe").dump(values, tmp_path / "params.yaml")
    with pytest.raises(UserError) as error:
        params.load(tmp_path / "params.yaml")
    assert sum("prompts needs classes" in problem for problem in error.value.problems) == 1
