"""What a model is asked to do. A task is one file in this folder, found by its name, and it declares:

    what it needs of data, model and training, and what to do where they do not fit
    how it is evaluated, with which settings and which tools
    its scores: their names, their units, and how they stand in the paper
    its page in the report, and how a published model is served

The file has a class derived from base/task.py and one object of it, TASK. What several tasks share is in base/, how
captions and answers are scored in measures/. Importing a task is cheap: what takes time is imported where it is used.

>>> named("classification").title_of("accuracy")
'accuracy in %'
"""

from functools import cache
from importlib import import_module

from stages.errors import UserError
from stages.keys import TASKS
from stages.tasks.base.task import Task


@cache
def named(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"there is no task {name!r}; known: {', '.join(TASKS)}")
    return import_module(f"stages.tasks.{name}").TASK
