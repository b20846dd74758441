from pathlib import Path

import open_clip
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
    with pytest.raises(UserError, match=r"no preset 'nope' with sections.*known: .*mnist"):
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


# Table 6 of the paper ("Tuned hyperparameters"), and section 4.2 for what it does not list.
COMMON = {"lr": 1e-5, "betas": (0.9, 0.98), "eps": 1e-6, "batch_size": 32}
PAPER = {
    "mnist": {"weight_decay": 0.01, "epochs": 30},
    "fashion-mnist": {"weight_decay": 1e-6, "epochs": 30},
    "cifar10": {"weight_decay": 1e-6, "epochs": 30},
    "svhn": {"weight_decay": 1e-6, "epochs": 15},
}
TABLES = {
    "paper-table1": (["mnist", "fashion-mnist", "cifar10", "svhn"], ["0", "0.25", "0.5", "1", "3", "10", "inf"]),
    "paper-table2": (["mnist", "fashion-mnist", "cifar10", "svhn"], ["0.5", "1", "3", "10"]),
    "paper-table3": (["cifar100", "gtsrb"], ["0", "0.25", "0.5", "1", "3", "10"]),
    "paper-table4": (["gtsrb-10", "gtsrb-50"], ["0.1", "0.7"]),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_presets_have_the_papers_values(file, name):
    use("mnist", file)  # whatever was in use before
    use(name, file)
    p, (datasets, epsilons) = params.load(file), TABLES[name]
    assert p.sweep.dataset == datasets and p.sweep.epsilon == epsilons
    assert p.sweep.seed == list(range(10)) and p.sweep.method == ["batch"]
    assert [p.datasets[d].source for d in datasets] == [d.split("-1")[0].split("-5")[0] for d in datasets]
    assert p.privacy.delta == "auto" and p.privacy.sampling == "poisson"  # delta is 1/(2n)
    for dataset in datasets:
        t, expected = p.train.on(dataset), COMMON | PAPER.get(dataset, {})
        batch = t.methods.batch
        used = {"lr": batch.lr, "betas": t.betas, "eps": t.eps, "batch_size": batch.batch_size}
        used |= {"weight_decay": t.weight_decay, "epochs": batch.epochs}
        assert {key: used[key] for key in expected} == expected
        assert 0.1 <= batch.clip_norm <= 1 and 15 <= batch.epochs <= 30 and batch.steps is None
        assert batch.loss == "contrastive" and batch.trainable == "all"


def test_low_data_is_a_tenth_and_a_half_of_gtsrb(file):
    use("paper-table4", file)
    assert [params.load(file).datasets[d].train_fraction for d in ("gtsrb-10", "gtsrb-50")] == [0.1, 0.5]


def test_the_papers_model_is_openais_with_its_preprocessing(file):
    use("paper-table1", file)
    model = params.load(file).models["vit-l-14-336"]
    assert (model.architecture, model.pretrained) == ("ViT-L-14-336", "openai")
    facts = open_clip.get_pretrained_cfg(model.architecture, model.pretrained)
    assert facts["mean"] == (0.48145466, 0.4578275, 0.40821073) and facts["std"] == (0.26862954, 0.26130258, 0.27577711)
    assert facts["quick_gelu"] is True
    config = open_clip.get_model_config(model.architecture)
    vision, text = config["vision_cfg"], config["text_cfg"]
    assert (vision["image_size"], vision["patch_size"], vision["layers"], vision["width"]) == (336, 14, 24, 1024)
    assert (text["layers"], text["width"], text["heads"]) == (12, 768, 12)


def test_captioning_has_the_papers_data_epsilons_and_loss(file):
    """Section 4.3 and Table 5; what it does not give (epochs, batch size, optimiser) is that of classification."""
    use("paper-table5", file)
    p = params.load(file)
    assert (p.sweep.task, p.sweep.method, p.sweep.epsilon) == (["captioning"], ["batch"], ["0", "0.5", "1", "5", "inf"])
    data = p.datasets["vizwiz"]
    assert (data.train.units, data.test.units, p.privacy.delta) == (5000, 1000, "auto")
    model, batch = p.models["blip-base"], p.train.on("vizwiz").methods.batch
    assert model.captioner == "Salesforce/blip-image-captioning-base"
    assert (batch.loss, batch.trainable, batch.batch_size, batch.lr) == ("contrastive", "all", 32, 1e-5)


def test_answers_have_the_papers_epsilons_and_loss(file):
    """Tables 7 and 8; what the paper does not give is that of classification."""
    use("paper-table7", file)
    p = params.load(file)
    assert (p.sweep.task, p.sweep.method) == (["vqa"], ["batch"])
    assert p.sweep.epsilon == ["0", "0.0001", "0.5", "1", "3", "5", "10", "50", "inf"]
    model, batch = p.models["blip-vqa"], p.train.on("abstract-scenes").methods.batch
    assert (model.answerer, model.captioner) == ("Salesforce/blip-vqa-base", None)
    assert (batch.loss, batch.trainable, batch.batch_size, batch.lr) == ("contrastive", "all", 32, 1e-5)


def test_an_override_for_one_dataset_leaves_the_others_and_mistakes_in_it_are_named(file):
    use("paper-table1", file)
    train = params.load(file).train
    assert (train.on("svhn").methods.batch.epochs, train.on("cifar10").methods.batch.epochs) == (15, 30)
    assert (train.on("mnist").weight_decay, train.on("svhn").weight_decay) == (0.01, 1e-6)
    text = file.read_text()
    for wrong, message in (
        ("epochs: -1", "greater than 0"),
        ("epoch: 15", "Extra inputs"),
        ("steps: 10", "either epochs"),
    ):
        file.write_text(
            text.replace("svhn: {methods: {batch: {epochs: 15}}}", f"svhn: {{methods: {{batch: {{{wrong}}}}}}}")
        )
        with pytest.raises(UserError) as error:
            params.load(file)
        assert any("overrides.svhn.methods.batch" in p and message in p for p in error.value.problems)
    file.write_text(text.replace("    svhn: {methods", "    svhm: {methods"))
    with pytest.raises(UserError) as error:
        params.load(file)
    assert any("train.overrides: 'svhm' is no dataset" in p for p in error.value.problems)
