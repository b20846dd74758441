"""The published model, as MLflow loads it: a table of images in, a label, a caption or an answer for each out.

    model = mlflow.pyfunc.load_model("models:/dp-clip.classification.mnist5k.tiny-clip.batch@eps-1")
    model.predict(pandas.DataFrame({"image": ["seven.png"]}))

An image is the path of a file or the file's bytes in base64. A model that answers takes a column `question` too.
"""

import base64
import binascii
import io
import json
from pathlib import Path

import mlflow.pyfunc
import pandas as pd


class Served(mlflow.pyfunc.PythonModel):
    def load_context(self, context) -> None:
        from stages.models import saved

        facts = json.loads(Path(context.artifacts["facts"]).read_text(encoding="utf-8"))
        self.encoder = saved.load(Path(context.artifacts["model"]))
        self.encoder.model.eval()
        tasks = {"classification": classifier, "captioning": captioner, "vqa": answerer}
        self.answer = tasks[facts["task"]](self.encoder, facts)

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        import torch

        with torch.no_grad():
            images = torch.stack([self.encoder.preprocess(_image(value)) for value in model_input["image"]])
            return self.answer(images, model_input)


def classifier(encoder, facts: dict):
    import torch

    from stages.models.prompts import class_features
    from stages.prepare.format import Labels

    labels = Labels.model_validate(facts["labels"])
    classes = class_features(encoder, labels, torch.device("cpu"))

    def answer(images, table: pd.DataFrame) -> pd.DataFrame:
        score, label = (encoder.model.encode_image(images, normalize=True) @ classes.T).max(dim=1)
        return pd.DataFrame({"label": [labels.classes[i] for i in label], "similarity": score.tolist()})

    return answer


def captioner(encoder, facts: dict):
    from stages.models import writing

    def answer(images, table: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"caption": writing.captions(encoder, images, **facts["settings"])})

    return answer


def answerer(encoder, facts: dict):
    from stages.models import writing

    def answer(images, table: pd.DataFrame) -> pd.DataFrame:
        questions = table["question"].tolist()
        return pd.DataFrame({"answer": writing.answers(encoder, images, questions, **facts["settings"])})

    return answer


def _image(value: str):
    from PIL import Image

    for source in (_decoded, str):
        try:
            return Image.open(source(value)).convert("RGB")
        except (binascii.Error, OSError, ValueError):
            continue
    raise ValueError(f"not an image file, and not an image in base64: {value[:80]!r}")


def _decoded(value: str) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(value, validate=True))


mlflow.models.set_model(Served())
