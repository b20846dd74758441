"""The published model, as MLflow loads it: a table in, for images their labels, captions or answers out.

    model = mlflow.pyfunc.load_model("models:/dp-clip.classification.mnist5k.tiny-clip.batch@eps-1")
    model.predict(pandas.DataFrame({"image": ["seven.png"]}))

An image is the path of a file or the file's bytes in base64. A model that answers takes a column `question` too.
"""

import json
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel


class Served(PythonModel):
    def load_context(self, context) -> None:
        from stages import tasks
        from stages.models import saved

        facts = json.loads(Path(context.artifacts["facts"]).read_text(encoding="utf-8"))
        self.encoder = saved.load(Path(context.artifacts["model"]))
        self.encoder.model.eval()
        self.answer = tasks.named(facts["task"]).serve(self.encoder, facts)

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        import torch

        with torch.no_grad():
            return self.answer(model_input)


mlflow.models.set_model(Served())
