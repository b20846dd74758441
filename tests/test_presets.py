from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.params.presets import use

ROOT = Path(__file__).parent.parent


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text())
    return path


@pytest.mark.parametrize("name", YAML(typ="safe").load(ROOT / "params.yaml")["presets"])
def test_every_preset_of_the_project_fits_and_leaves_the_comments(file, name):
    before = params.load(file)
    use(name, file)
    after = params.load(file)
    assert after.sweep != before.sweep and after.presets == before.presets
    assert after.privacy == before.privacy and after.train.betas == before.train.betas
    assert "# The guarantee. delta `auto` is 1/(2n)." in file.read_text()
    use(name, file)
    assert params.load(file) == after


def test_the_mnist_preset_has_the_values_that_were_chosen_on_public_digits(file):
    use("public-digits", file)
    chosen = params.load(file).train
    use("mnist", file)
    assert params.load(file).train == chosen


def test_an_unknown_preset_is_refused_with_the_known_ones(file):
    with pytest.raises(UserError, match=r"no preset 'nope' with sections.*known: mnist"):
        use("nope", file)


def test_a_preset_with_mistakes_changes_nothing(file):
    before = file.read_text().replace("seed: [0, 1, 2]", "seed: [0, 0]")
    file.write_text(before)
    with pytest.raises(UserError, match="preset 'mnist' does not fit") as error:
        use("mnist", file)
    assert "sweep.seed" in error.value.problems[0]
    assert file.read_text() == before and [p.name for p in file.parent.iterdir()] == ["params.yaml"]


def test_a_file_that_asks_for_code_to_be_run_is_refused(file):
    marker = file.parent / "was-run"
    text = file.read_text() + f"evil: !!python/object/apply:os.mkdir ['{marker}']\n"
    file.write_text(text)
    with pytest.raises(UserError, match="not valid YAML"):
        use("mnist", file)
    assert not marker.exists() and file.read_text() == text
