"""The layouts of models of transformers: whole models, with tokenizer and preprocessing, that it loads by itself."""

import pytest
import torch
from PIL import Image

from stages.models import families, saved, writing
from stages.models.vocabulary import SPECIAL
from stages.release.folder import write_model
from tests.release.plain import in_plain_python

TEXTS = ["a small red circle above a large blue square", "how many stars are there?"]
BEFORE = 'import torch\nfrom PIL import Image\nanswer, picture = [], Image.open("picture.png")\n'
CAPTION = """
pixels = preprocess(picture, return_tensors="pt").pixel_values
with torch.no_grad():
    written = model.generate(pixel_values=pixels, num_beams=2, max_new_tokens=6, do_sample=False)
answer.append([tokenizer.decode(written[0], skip_special_tokens=True).strip(), float(pixels.abs().sum())])
"""


@pytest.mark.slow
def test_what_training_changed_is_in_the_models_that_transformers_loads(tmp_path):
    torch.manual_seed(0)
    pixels = torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    code, expected = BEFORE, []
    for kind in ("blip", "git"):
        encoder = saved.create(f"stages/models/configs/tiny-{kind}", TEXTS)
        initial, changes, folder = (tmp_path / name / kind for name in ("initial", "changes", "released"))
        saved.save(encoder, initial)
        with torch.no_grad():
            for name, parameter in encoder.model.named_parameters():
                if "bias" in name:
                    parameter.add_(torch.randn_like(parameter))
                if name.endswith(("predictions.bias", "output.bias")) and len(parameter) == 256:
                    parameter -= 100
                    parameter[len(SPECIAL) : 40] += 100  # it writes letters
        changes.mkdir(parents=True)
        saved.save_changes(encoder.model, initial, changes)
        write_model(initial, changes, folder)
        code += f"{families.of_folder(folder).loading(f'released/{kind}', 'captions')}\n{CAPTION}"

        encoder.model.eval()
        image = encoder.read(tmp_path / "picture.png")[None]
        (ours,) = writing.captions(encoder, image, beams=2, most_tokens=6)
        assert ours and [ours] != writing.captions(saved.load(initial), image, beams=2, most_tokens=6)
        expected.append([ours, pytest.approx(float(image.abs().sum()), rel=1e-2)])  # they round differently
    assert in_plain_python(tmp_path, code) == expected
