"""Stand-ins for the real samples beside the project: the same files, names and numbers, and pictures of coloured noise.

Where the samples are (`../shared/data`) tests read those. Where they are not, the loaders read these: layouts and
counts are the same, so the same tests hold.
"""

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

CAPTIONS = (
    "A {} dog runs over the grass .",
    "The dog is {} and runs .",
    "A {} animal outside .",
    "One dog plays in the {} field",
    "a dog , {} , in the sun",
)
WORDS = ("red", "brown", "small", "wet", "happy", "quick", "black", "old", "young", "white")


def write_samples(root: Path) -> None:
    rng = np.random.default_rng(0)
    _flickr8k(root / "flickr8k", rng)
    _gtsrb(root / "gtsrb", rng)
    _svhn(root / "svhn", rng)
    _vqa_abstract(root / "vqa-abstract", rng)
    _daquar(root / "daquar", rng)
    _clip_features(root / "clip-features", rng)


def _picture(path: Path, rng: np.random.Generator, size: tuple[int, int], mode: str = "RGB") -> None:
    """Unlike any other: an image that comes twice is refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = rng.integers(256, size=(9, 12, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).convert(mode).save(path)


def _flickr8k(root: Path, rng: np.random.Generator) -> None:
    """COCO-caption JSON: five captions for each of 500 and 100 photos."""
    for split, numbers in (("train", range(500)), ("test", range(500, 600))):
        images = [{"id": i, "file_name": f"{1000 + i}_photo.jpg"} for i in numbers]
        for image in images:
            _picture(root / "images" / image["file_name"], rng, (299, 224))
        captions = [(i, text.format(WORDS[(i + k) % 10])) for i in numbers for k, text in enumerate(CAPTIONS)]
        annotations = [{"id": k, "image_id": i, "caption": caption} for k, (i, caption) in enumerate(captions)]
        content = {"info": {"description": f"stand-in, {split}"}, "images": images, "annotations": annotations}
        (root / f"captions_{split}.json").write_text(json.dumps(content))


def _gtsrb(root: Path, rng: np.random.Generator) -> None:
    """As torchvision.datasets.GTSRB lays it out: 12 training signs of each of 43 classes, 6 test signs."""
    for label in range(43):
        for k in range(12):
            _picture(root / f"GTSRB/Training/{label:05}/{label:05}_{k:05}.ppm", rng, (30, 31))
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for k in range(258):
        _picture(root / f"GTSRB/Final_Test/Images/{k:05}.ppm", rng, (32, 33))
        lines.append(f"{k:05}.ppm;32;33;5;5;27;28;{k % 43}")
    (root / "GT-final_test.csv").write_text("\n".join(lines) + "\n")


def _svhn(root: Path, rng: np.random.Generator) -> None:
    """`X` is 32x32x3xN, and label 10 stands for zero."""
    root.mkdir(parents=True)
    for split, count in (("train", 2000), ("test", 500)):
        x = rng.integers(256, size=(32, 32, 3, count), dtype=np.uint8)
        y = rng.integers(1, 11, size=(count, 1), dtype=np.uint8)
        savemat(root / f"{split}_32x32.mat", {"X": x, "y": y})


def _vqa_abstract(root: Path, rng: np.random.Generator) -> None:
    """The official questions JSON of VQA, without answers: three for each of 40 scenes."""
    questions = []
    for i in range(20_600, 20_640):
        _picture(root / f"images/abstract_v002_val2015_{i:012}.png", rng, (700, 400), "RGBA")
        asked = (f"Is there a {WORDS[i % 10]} dog?", "How many trees are there?", "What is the man doing?")
        questions += [{"question": text, "image_id": i, "question_id": 10 * i + k} for k, text in enumerate(asked)]
    content = {"data_type": "abstract_v002", "data_subtype": "val2015", "questions": questions}
    (root / "OpenEnded_abstract_v002_val2015_questions.json").write_text(json.dumps(content))


def _daquar(root: Path, rng: np.random.Generator) -> None:
    """A row per question: 150 training and 60 test photos, two of them in both."""
    for i in range(1, 209):
        _picture(root / f"images/image{i}.jpg", rng, (295, 224))
    for split, numbers, each in (("train", range(1, 151), 7), ("eval", range(149, 209), 3)):
        with (root / f"data_{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["question", "answer", "image_id"])
            for i in numbers:
                for k in range(each):
                    answer = "pillow, rug" if k == 2 else WORDS[(i + k) % 10]
                    rows.writerow([f"what is on the {WORDS[k]} table", answer, f"image{i}"])


def _clip_features(root: Path, rng: np.random.Generator) -> None:
    """Unit vectors with a large common part, as CLIP's are, near those of their class, or of their text."""
    root.mkdir(parents=True)
    common = rng.normal(size=512)

    def near(means: np.ndarray, spread: float) -> np.ndarray:
        rows = common + means + spread * rng.normal(size=means.shape)
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)

    for name, classes, sizes in (("pets23", 23, (2000, 1112)), ("caltech100", 100, (4500, 1214))):
        means, arrays = rng.normal(size=(classes, 512)), {}
        for split, count in zip(("train", "test"), sizes, strict=True):
            label = rng.integers(classes, size=count)
            arrays |= {f"{split}_image": near(means[label], 6.0), f"{split}_label": label}
        texts = {"class_text": near(means, 1.0)} if name == "pets23" else {}
        np.savez(root / f"{name}.npz", **arrays, **texts)
    means = rng.normal(size=(500, 512))
    np.savez(root / "pairs500.npz", image=near(means, 2.0), text=near(means, 2.0))
