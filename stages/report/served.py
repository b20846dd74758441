"""The published model, as MLflow loads it: a table of images in, a label and its similarity out.

    model = mlflow.pyfunc.load_model("models:/dp-clip.classification.mnist5k.tiny-clip.batch@eps-1")
    model.predict(pandas.DataFrame({"image": ["seven.png"]}))

An image is the path of a file or the file's bytes in base64.
"""

import base64
import binascii
import io
from pathlib import Path

import mlflow.pyfunc
import pandas as pd


class Classifier(mlflow.pyfunc.PythonModel):
    def load_context(self, context) -> None:
        import torch

        from stages.models import clip
        from stages.models.prompts import class_features
        from stages.prepare.format import read_labels

        self.clip = clip.load(Path(context.artifacts["model"]))
        self.clip.model.eval()
        self.labels = read_labels(Path(context.artifacts["labels"]))
        self.classes = class_features(self.clip, self.labels, torch.device("cpu"))

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        import torch

        images = torch.stack([self.clip.preprocess(_image(value)) for value in model_input["image"]])
        with torch.no_grad():
            similarity = self.clip.model.encode_image(images, normalize=True) @ self.classes.T
        score, label = similarity.max(dim=1)
        return pd.DataFrame({"label": [self.labels.classes[i] for i in label], "similarity": score.tolist()})


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


mlflow.models.set_model(Classifier())
