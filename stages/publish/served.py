"""The published model, as MLflow loads it: a table in, for images their labels, captions or answers out.

    model = mlflow.pyfunc.load_model("models:/dp-clip.classification.mnist5k.tiny-clip.batch@eps-1")
    model.predict(pandas.DataFrame({"image": ["seven.png"]}))

An image is the file's bytes in base64, or its path where the model is loaded in your own Python; what a server may open
is in stages/tasks/base/reach.py. A model that answers takes a column `question` too.

What cannot be answered is an MlflowException that says why: of MLflow's server it is status 400 with that one sentence.
"""

import json
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel


class Served(PythonModel):
    def load_context(self, context) -> None:
        from stages import tasks
        from stages.models import saved

        facts = json.loads(Path(context.artifacts["facts"]).read_text(encoding="utf-8"))
        self.encoder = saved.load(Path(context.artifacts["model"]))
        self.encoder.model.eval()
        self.task = tasks.named(facts["task"])
        self.answer = self.task.serve(self.encoder, facts)

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        import torch

        from stages.data.pixels import Unusable
        from stages.errors import UserError
        from stages.tasks.base import reach

        try:
            reach.require_texts(model_input, self.task.inputs)
            with torch.no_grad():
                return self.answer(model_input)
        except (reach.Refused, Unusable, UserError) as error:
            refused = MlflowException.invalid_parameter_value(str(error))
            refused.json_kwargs = {"message": str(error)}  # the server would put the whole request before it
            raise refused from None


mlflow.models.set_model(Served())
