"""Checks across sections. They read the raw file, so that a mistake of another kind hides none of these."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stages import losses, tasks
from stages.errors import Problem, UserError
from stages.keys import LOSSES, TASKS
from stages.privacy.methods import METHODS
from stages.sources import Source, entry_type, read_leniently
from stages.tasks.base.task import Chosen, Task

DATA = ("prepare", "folders", "coco", "vqa")  # sections with datasets
IN_DATA = "none of prepare, folders, coco and vqa"
MODELS = ("pretrain", "align", "weights", "banks")  # sections with models


def across_sections(raw: dict, only: str | None = None) -> list[str]:
    """Of batch sizes only what concerns the dataset `only`, if it is given."""
    models = {section: _mapping(raw, section) for section in MODELS}
    datasets = {name: entry for section in DATA for name, entry in _mapping(raw, section).items()}
    origins = {name: getattr(source, "origin", None) for name, source in _sources(raw).items()}
    private = _names(raw, "dataset")
    known = f"known: {', '.join(map(str, datasets))}"
    problems = _one_name_twice(raw, DATA, "dataset") + _one_name_twice(raw, MODELS, "model")
    problems += [f"sweep.dataset: {d!r} is in {IN_DATA}; {known}" for d in private if d not in datasets]
    problems += [
        f"sweep.dataset: {d!r} is declared public, so there is nothing to protect and nothing would be charged; take "
        "`public: true` away to train on it as on private data"
        for d in private
        if _is_public(datasets.get(d))
    ]
    problems += [
        f"sweep.model: {m!r} is in none of pretrain, align, weights and banks"
        for m in _names(raw, "model")
        if not any(m in section for section in models.values())
    ]
    overrides = _mapping(_mapping(raw, "train"), "overrides")
    problems += [f"train.overrides: {name!r} is no dataset; {known}" for name in overrides if name not in datasets]
    problems += _privacy_problems(raw) + _secret_n_problems(raw, datasets, known, only) + _task_problems(raw, datasets)
    problems += _bank_problems(raw, models)
    for section, name, model in ((s, name, model) for s, its in models.items() for name, model in its.items()):
        data = model.get("data") if isinstance(model, dict) else None
        if not isinstance(data, str):
            continue  # a model of published weights; or reported with the rest of the schema
        where = f"{section}.{name}.data: {data!r}"
        if data not in datasets:
            problems.append(f"{where} is in {IN_DATA}; {known}")
        elif any(_overlap(origins.get(p), origins.get(data)) for p in private):
            problems.append(f"{where} is the data of the sweep, so it is private; name public data")
        elif not _is_public(datasets[data]):
            what = "a bank" if section == "banks" else "pretraining"
            problems.append(f"{where} is not marked `public: true`; {what} gives it no privacy")
    return problems


def _is_public(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("public") is True


def _one_name_twice(raw: dict, sections: tuple[str, ...], kind: str) -> list[str]:
    names = [name for section in sections for name in _mapping(raw, section)]
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    listed = f"{', '.join(sections[:-1])} and {sections[-1]}"
    return [f"{name}: more than one of {listed} has a {kind} of this name" for name in twice]


def _privacy_problems(raw: dict) -> list[str]:
    """What no mechanism or accountant covers."""
    problems = []
    methods = _mapping(_mapping(raw, "train"), "methods")
    for name in (name for name, mechanism in METHODS.items() if mechanism.only_sums):
        loss = _mapping(methods, name).get("loss")
        if loss in LOSSES and not losses.named(loss).is_sum_over_records:
            problems.append(
                f"train.methods.{name}.loss: {loss!r} is not a sum over records, so no record has a gradient of its "
                "own to clip; write prompts (for classes), writing (for captions and answers) or anchored (for any "
                "texts), or use method group"
            )
    for name, m in methods.items():
        others = {f: loss for loss in LOSSES for f in losses.named(loss).fields} if isinstance(m, dict) else {}
        problems += [
            f"train.methods.{name}.{f}: is for the loss {loss}, and the loss is {m.get('loss')}; leave it out"
            for f, loss in others.items()
            if m.get(f) is not None and m.get("loss") in LOSSES and f not in losses.named(m["loss"]).fields
        ]
        loss, part = (m.get("loss"), m.get("trainable")) if isinstance(m, dict) else (None, None)
        if loss in LOSSES and isinstance(part, str):
            whys = [why for piece in part.split("+") if (why := losses.named(loss).unfit_part(piece))]
            problems += [f"train.methods.{name}.trainable: {part!r} {why}" for why in dict.fromkeys(whys)]
    epsilons = _mapping(raw, "sweep").get("epsilon")
    finite = [e for e in epsilons if str(e) not in ("0", "inf")] if isinstance(epsilons, list) else []
    if _mapping(raw, "privacy").get("sampling") == "shuffled" and finite:
        problems.append(
            f"privacy.sampling: shuffled batches have no privacy accounting, and sweep.epsilon asks for {finite[0]}; "
            "write poisson or fixed-size, or keep only 0 and inf in sweep.epsilon"
        )
    return problems


def _bank_problems(raw: dict, models: dict[str, dict]) -> list[str]:
    """A bank of no model, and losses that need one where the model has none."""
    others = [name for section in MODELS if section != "banks" for name in models[section]]
    problems = [
        f"banks.{name}.model: {model!r} is in none of pretrain, align and weights; known: {', '.join(others)}"
        for name in models["banks"]
        if isinstance(model := _mapping(models["banks"], name).get("model"), str) and model not in others
    ]
    methods = _mapping(_mapping(raw, "train"), "methods")
    for name in _names(raw, "method"):
        loss = _mapping(methods, name).get("loss")
        if loss in LOSSES and losses.named(loss).needs_bank:
            problems += [
                f"train.methods.{name}.loss: {loss} needs a bank of public pairs, and sweep.model has {model!r}, which "
                f"has none; write `banks: {{{model}-and-bank: {{model: {model}, data: PUBLIC, pairs: 512}}}}` and "
                f"sweep.model: [{model}-and-bank]"
                for model in _names(raw, "model")
                if model in others
            ]
    return problems


def _secret_n_problems(raw: dict, datasets: dict, known: str, only: str | None) -> list[str]:
    privacy = _mapping(raw, "privacy")
    public_n, sampling = _mapping(privacy, "public_n"), privacy.get("sampling")
    problems = [f"privacy.public_n: {name!r} is no dataset; {known}" for name in public_n if name not in datasets]
    if public_n and sampling in ("fixed-size", "shuffled"):
        problems.append(
            f"privacy.public_n: n of {next(iter(public_n))!r} cannot be secret with {sampling} batches, which need as "
            "many records as they have; write privacy.sampling: poisson, or leave the dataset out here"
        )
    problems += [
        f"privacy.public_n: which images `units` of {name!r} takes depends on how many there are, which is secret; "
        "take `units` out, or leave the dataset out here"
        for name in public_n
        if any(_mapping(_mapping(datasets, name), split).get("units") for split in ("train", "test"))
    ]
    swept = [name for name in _names(raw, "dataset") if name in public_n and only in (None, name)]
    return problems + [p for name in swept for p in _too_large_batches(raw, name, public_n[name])]


def _too_large_batches(raw: dict, dataset: str, n: object) -> list[str]:
    """`n` is public: that of the records, or the number that stands for it."""
    train = _mapping(raw, "train")
    problems = []
    for method in _names(raw, "method"):
        where: tuple[str, ...] = ("train", "methods", method, "batch_size")
        size = _mapping(_mapping(train, "methods"), method).get("batch_size")
        own = _mapping(_mapping(_mapping(_mapping(train, "overrides"), dataset), "methods"), method)
        if "batch_size" in own:
            where, size = ("train", "overrides", dataset, *where[1:]), own["batch_size"]
        if isinstance(size, int) and isinstance(n, int) and size > n:
            problems.append(f"{'.'.join(where)}: {size} is over n = {n} of dataset {dataset!r}; lower it")
    return problems


def _task_problems(raw: dict, datasets: dict) -> list[str]:
    """What the tasks of the sweep cannot work with; what two of them say in the same words is said once."""
    named_models = {name: m for s in MODELS for name, m in _mapping(raw, s).items() if isinstance(m, dict)}
    without_bank = [_mapping(named_models, name).get("model", name) for name in _names(raw, "model")]
    methods, sources = _mapping(_mapping(raw, "train"), "methods"), _sources(raw)
    chosen = Chosen(
        datasets=_names(raw, "dataset"),
        models={name: named_models[name] for name in without_bank if name in named_models},
        methods={name: _mapping(methods, name) for name in _names(raw, "method")},
        has_questions={name: getattr(sources.get(name), "has_questions", False) for name in datasets},
    )
    return list(dict.fromkeys(problem for task in _tasks(raw) for problem in task.problems(chosen)))


def _tasks(raw: dict) -> list[Task]:
    return [tasks.named(name) for name in _names(raw, "task") if name in TASKS]


def source_problems(raw: dict, only: str | None = None) -> list[Problem]:
    """Raw data that are not there, have no labels, or are fewer than a batch; no image is read. Of `only` or all."""
    problems = []
    secret = _mapping(_mapping(raw, "privacy"), "public_n")  # compared above with the number that stands for n
    entries = [(section, name, entry) for section in DATA for name, entry in _mapping(raw, section).items()]
    for section, name, entry in (each for each in entries if only in (None, each[1])):
        where = f"{section}.{name}"
        try:
            n, labelled = TypeAdapter(entry_type(section)).validate_python(entry).quick_look()
        except ValidationError:
            continue  # reported with the rest of the schema
        except UserError as error:
            problems += error.within(where)
            continue
        problems += [
            f"banks.{bank}.pairs: {pairs} is over the {n} records of {name!r}; lower it"
            for bank, its in _mapping(raw, "banks").items()
            if isinstance(its, dict) and its.get("data") == name
            if isinstance(pairs := its.get("pairs"), int) and pairs > n
        ]
        if name in _names(raw, "dataset"):
            problems += [] if name in secret else _too_large_batches(raw, name, n)
            problems += [
                f"{where}: {task.name} needs labels: a `label` column in the metadata of a folder"
                for task in _tasks(raw)
                if task.needs_labels and not labelled
            ]
    return problems


def _mapping(raw: dict, key: str) -> dict:
    return raw[key] if isinstance(raw.get(key), dict) else {}


def _names(raw: dict, axis: str) -> list[str]:
    values = _mapping(raw, "sweep").get(axis)
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _sources(raw: dict) -> dict[str, Source | None]:
    """The datasets by name, as far as they are usable."""
    return {n: read_leniently(section, entry) for section in DATA for n, entry in _mapping(raw, section).items()}


def _overlap(one: object, other: object) -> bool:
    """Whether two origins have records in common: they are the same, or one folder is in the other. None: unknown."""
    if isinstance(one, Path) and isinstance(other, Path):
        return one.is_relative_to(other) or other.is_relative_to(one)
    return one is not None and one == other
