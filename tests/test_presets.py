"""Presets: the same values whatever was chosen before, those of the paper its own, and no value of a user lost."""

import itertools
from pathlib import Path

import open_clip
import pytest
from ruamel.yaml import YAML

from stages import params
from stages.errors import UserError
from stages.params import __main__ as params_command
from stages.params.presets import about, compose, names
from stages.params.presets.text import preset_yaml
from stages.params.presets.using import use
from stages.plan import __main__ as plan_command

ROOT = Path(__file__).parent.parent


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(preset_yaml("demo"))
    return path


def edit(file: Path, **sections: dict) -> None:
    """By hand, as somebody does who likes neither comments nor first lines."""
    values = YAML(typ="safe").load(file)
    for section, changed in sections.items():
        values[section] |= changed
    with file.open("w") as out:
        YAML(typ="safe").dump(values, out)


PHOTOS = {"path": "photos", "classes": ["cat", "dog"], "test_fraction": 0.2}


def with_own_data(file: Path) -> str:
    """Own images, a budget and a device on top of the demo."""
    text = file.read_text().replace("folders: {}", f"folders:\n  my-photos: {PHOTOS}")
    for theirs, own in (("[mnist5k]", "[my-photos]"), ("budget: null", "budget: 8.0"), ("device: auto", "device: cpu")):
        text = text.replace(theirs, own, 1)
    file.write_text(text)
    return text


def test_the_projects_params_are_the_demos():
    assert (ROOT / "params.yaml").read_text() == preset_yaml("demo")


@pytest.mark.parametrize("name", names())
def test_every_preset_of_the_project_fits_and_has_the_comments(file, name):
    demo = params.load(file)
    use(name, file)
    values, text = params.load(file), file.read_text()
    assert (values.sweep == demo.sweep) is (name == "demo")
    delta = "paper" if name.startswith("paper-table") else "auto"  # those reproduce the paper
    assert values.privacy == demo.privacy.model_copy(update={"delta": delta})
    assert (values.theory, values.compute, values.evaluate) == (demo.theory, demo.compute, demo.evaluate)
    assert YAML(typ="safe").load(text) == compose(name)
    comments = {line.strip() for line in preset_yaml("demo").splitlines()[1:] if line.strip().startswith("#")}
    assert comments <= {line.strip() for line in text.splitlines()}
    assert "# total epsilon of all runs on one dataset" in text and "  # expected; Poisson batches vary" in text
    assert 0 < len(about(name)) <= 120 and "\n" not in about(name)


@pytest.mark.parametrize("name", names())
def test_a_preset_has_the_data_and_models_of_its_sweep_and_no_others(name):
    """What another preset left behind would be prepared and pretrained with it."""
    values = compose(name)
    models = {m: v for section in ("pretrain", "align", "weights") for m, v in values[section].items()}
    data = {d for section in ("prepare", "folders", "coco", "vqa") for d in values[section]}
    banks = values["banks"]
    assert set(models) == {banks[m]["model"] if m in banks else m for m in values["sweep"]["model"]}
    assert set(banks) <= set(values["sweep"]["model"])
    learned_from = {m["data"] for m in (*models.values(), *banks.values()) if "data" in m}
    assert data == set(values["sweep"]["dataset"]) | learned_from
    assert set(values["train"]["overrides"]) <= data


def test_every_ordered_pair_of_presets_gives_what_the_second_gives_alone(tmp_path):
    alone, file = {}, tmp_path / "params.yaml"
    for name in names():
        use(name, file)  # where there is no params.yaml at all
        alone[name] = file.read_text()
        file.unlink()
    assert len(set(alone.values())) == len(names()) >= 13
    for first, second in itertools.permutations(names(), 2):
        file.write_text(alone[first])
        used = use(second, file)
        assert file.read_text() == alone[second], (first, second)
        assert not (used.kept or used.dropped or used.before)
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_own_values_are_shown_and_nothing_is_changed(file):
    before = with_own_data(file)
    with pytest.raises(UserError, match=r"4 value.s. of your own.*Nothing was changed.*--keep.*--discard") as error:
        use("benchmarks", file)
    assert error.value.problems == [
        'sweep.dataset: ["my-photos"] -> ["mnist", "fashion-mnist", "cifar10"]',
        'folders.my-photos: {"path": "photos", "classes": ["cat", "dog"], "test_fraction": 0.2} -> none',
        "privacy.budget: 8.0 -> null",
        "compute.device: cpu -> auto",
    ]
    assert file.read_text() == before and [p.name for p in file.parent.iterdir()] == ["params.yaml"]


def test_own_values_are_kept_through_any_number_of_presets(file):
    before = with_own_data(file)
    for i, name in enumerate(("mnist", "paper-table1", "benchmarks", "demo"), 1):
        used = use(name, file, keep=True)
        expected = compose(name)
        expected["sweep"]["dataset"] = ["my-photos"]
        expected["folders"]["my-photos"] = PHOTOS
        expected["privacy"]["budget"], expected["compute"]["device"] = 8.0, "cpu"
        assert YAML(typ="safe").load(file) == expected
        assert (len(used.kept), used.dropped, used.before.name) == (4, [], f"params.yaml.before-{i}")
    assert (file.parent / "params.yaml.before-1").read_text() == before
    assert "# total epsilon of all runs on one dataset" in file.read_text()


def test_discarded_values_stay_in_a_file_that_nothing_overwrites(file):
    before = with_own_data(file)
    assert use("mnist", file, discard=True).before == file.with_name("params.yaml.before-1")
    assert file.read_text() == preset_yaml("mnist")
    assert use("captions", file).before is None  # mnist is written again at any time
    with_own_data(file)
    assert use("mnist", file, discard=True).before == file.with_name("params.yaml.before-2")
    assert file.with_name("params.yaml.before-1").read_text() == before


def test_own_comments_are_no_reason_to_refuse_but_are_kept_in_a_copy(file):
    file.write_text(file.read_text() + "# never more than two processes, says the landlord\n")
    before = use("mnist", file).before
    assert "the landlord" in before.read_text() and file.read_text() == preset_yaml("mnist")


def test_without_the_first_line_the_nearest_preset_is_the_one_it_started_from(file):
    use("answers", file)
    edit(file, privacy={"budget": 8.0})
    with pytest.raises(UserError) as error:
        use("mnist", file)
    assert error.value.problems == ["privacy.budget: 8.0 -> null"]


def test_the_first_line_counts_also_where_another_preset_is_nearer(file):
    use("mnist", file)
    text = with_own_data(file).replace("[mnist]", "[my-photos]").replace("  mnist:\n    source: mnist\n", "")
    file.write_text(
        text.replace("seed: [0, 1, 2]", "seed: [0]")
    )  # public-digits has this seed, and lacks mnist as well
    with pytest.raises(UserError) as error:
        use("benchmarks", file)
    assert "sweep.seed: [0] -> [0, 1, 2]" in error.value.problems


def test_a_value_that_the_preset_has_not_is_not_kept_and_that_is_reported(file):
    file.write_text(file.read_text().replace("train: 12000", "train: 500").replace("epochs: 4", "epochs: 8"))
    used = use("captions", file, keep=True)  # which has no such data, and steps
    assert [str(one) for one in used.dropped] == ["prepare.font-digits.train", "train.methods.batch.epochs"]
    assert file.read_text() == preset_yaml("captions") and "train: 500" in used.before.read_text()


@pytest.mark.parametrize("name", ["captions", "paper-table3"])  # of which one has steps and one has epochs
def test_steps_in_place_of_epochs_stay_in_place_of_epochs(file, name):
    file.write_text(file.read_text().replace("      epochs: 4", "      steps: 70"))
    assert use(name, file, keep=True).dropped == []
    batch = params.load(file).train.methods.batch
    assert (batch.epochs, batch.steps) == (None, 70)


def test_a_deleted_entry_is_there_again_where_a_preset_needs_it(file):
    with_own_data(file)
    values = YAML(typ="safe").load(file)
    values["prepare"] = {}
    del values["theory"]
    with file.open("w") as out:
        YAML(typ="safe").dump(values, out)
    use("mnist", file, keep=True)
    p = params.load(file)
    assert set(p.datasets) == {"my-photos", "mnist", "font-digits"} and p.theory.trials == 20


def test_own_values_that_do_not_fit_the_preset_change_nothing(file):
    text = file.read_text().replace("method: [batch, group, example]", "method: [batch, example]")
    file.write_text(text)
    with pytest.raises(UserError, match=r"'paper-table5' does not fit with your own values.*was not changed") as error:
        use("paper-table5", file, keep=True)
    assert any("train.methods.example.loss: prompts needs classes" in p for p in error.value.problems)
    assert file.read_text() == text and [p.name for p in file.parent.iterdir()] == ["params.yaml"]


def test_a_section_of_presets_as_it_once_was_is_refused_with_the_place_where_they_are(file):
    file.write_text(file.read_text() + "\npresets:\n  mine: {sweep: {seed: [1]}}\n")
    with pytest.raises(UserError) as error:
        params.load(file)
    assert error.value.problems == [
        "presets: each is a file now, and `python -m stages.params --list` names them; delete this section"
    ]
    used = use("mnist", file, keep=True)
    assert [str(one) for one in used.dropped] == ["presets"] and "mine: {sweep" in used.before.read_text()
    assert file.read_text() == preset_yaml("mnist")


def test_the_mnist_preset_has_the_values_that_were_chosen_on_public_digits():
    assert compose("mnist")["train"] == compose("public-digits")["train"]
    assert compose("benchmarks")["train"] == compose("public-benchmarks")["train"]


def test_an_unknown_preset_is_refused_with_the_known_ones(file):
    for name in ("nope", "parts/paper", "../defaults"):
        with pytest.raises(UserError, match=f"no preset '{name}'; known: .*mnist"):
            use(name, file)


def test_a_file_that_asks_for_code_to_be_run_is_refused(file):
    marker = file.parent / "was-run"
    text = file.read_text() + f"evil: !!python/object/apply:os.mkdir ['{marker}']\n"
    file.write_text(text)
    with pytest.raises(UserError, match="not valid YAML"):
        use("mnist", file)
    assert not marker.exists() and file.read_text() == text


@pytest.fixture
def said(project, monkeypatch, capsys):
    """What a command prints in a project that is the demo made small, by hand."""

    def said(command, *arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["command", *arguments])
        command.main()
        return capsys.readouterr().out

    monkeypatch.chdir(project.folder)
    return said


def test_the_command_refuses_lets_go_and_leads_back(project, said):
    refused = project.stage("params", "--use", "mnist")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "--discard" in refused.stderr and "  - privacy.unsafe_noise_seed: 11 -> null" in refused.stderr
    before = (project.folder / "params.yaml").read_text()
    back = said(params_command, "--use", "mnist", "--discard").split("back to it: ")[1]
    assert project.run(*back.split()).returncode == 0
    assert (project.folder / "params.yaml").read_text() == before
    kept = said(params_command, "--use", "mnist", "--keep")
    assert "kept: privacy.unsafe_noise_seed: 11" in kept and "now: 12 cells" in kept  # its own epsilons
    with pytest.raises(SystemExit):
        said(params_command, "--keep")


def test_presets_are_listed_with_a_line_about_each(said):
    listed = said(params_command, "--list").splitlines()
    assert [line.split()[0] for line in listed] == names() and all(about(line.split()[0]) in line for line in listed)


def test_one_preset_after_the_other_can_be_planned_and_missing_data_are_named(project, said):
    """In the order in which the READMEs have them."""
    file = project.folder / "params.yaml"
    file.write_text(preset_yaml("demo"))
    for name, cells in (("mnist", 18), ("benchmarks", 54), ("paper-table1", 80), ("captions", 6)):
        assert f"has the preset {name} now" in said(params_command, "--use", name)
        edit(file, sweep={"epsilon": [0, "inf"]})  # all but the noise, which takes minutes
        assert f"{cells} cells: " in said(plan_command, "--no-timing")
        file.write_text(preset_yaml(name))
    assert "raw/vizwiz' does not exist" in said(params_command, "--use", "paper-table5")


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
    use(name, file)
    p, (datasets, epsilons) = params.load(file), TABLES[name]
    assert p.sweep.dataset == datasets and p.sweep.epsilon == epsilons
    assert p.sweep.seed == list(range(10)) and p.sweep.method == ["batch"]
    assert [p.datasets[d].source for d in datasets] == [d.split("-1")[0].split("-5")[0] for d in datasets]
    assert p.privacy.delta == "paper" and p.privacy.sampling == "poisson"  # delta is 1/(2n)
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
    assert (data.train.units, data.test.units, p.privacy.delta) == (5000, 1000, "paper")
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
    text, right = file.read_text(), "          epochs: 15"
    assert text.count(right) == 1
    for wrong, message in (
        ("epochs: -1", "greater than 0"),
        ("epoch: 15", "Extra inputs"),
        ("steps: 10", "either epochs"),
    ):
        file.write_text(text.replace(right, f"          {wrong}"))
        with pytest.raises(UserError) as error:
            params.load(file)
        assert any("overrides.svhn.methods.batch" in p and message in p for p in error.value.problems)
    file.write_text(text.replace("    svhn:\n      methods", "    svhm:\n      methods"))
    with pytest.raises(UserError) as error:
        params.load(file)
    assert any("train.overrides: 'svhm' is no dataset" in p for p in error.value.problems)
