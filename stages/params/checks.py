"""Checks across sections. They read the raw file, so that a mistake of another kind hides none of these."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stages.errors import UserError
from stages.keys import IMAGE_PARTS, LOSSES, ON_FROZEN_TOWERS
from stages.models.kinds import is_blip
from stages.params.data import Source

DATA = ("prepare", "folders", "coco", "vqa")  # sections with datasets
IN_DATA = "none of prepare, folders, coco and vqa"
MODELS = ("pretrain", "align", "weights")


def across_sections(raw: dict) -> list[str]:
    models = {section: _mapping(raw, section) for section in MODELS}
    own = {name: entry for section in DATA[1:] for name, entry in _mapping(raw, section).items()}  # say if public
    datasets = {**_mapping(raw, "prepare"), **own}
    private = _names(raw, "dataset")
    known = f"known: {', '.join(map(str, datasets))}"
    problems = _one_name_twice(raw, DATA, "dataset") + _one_name_twice(raw, MODELS, "model")
    problems += [f"sweep.dataset: {d!r} is in {IN_DATA}; {known}" for d in private if d not in datasets]
    problems += [
        f"sweep.model: {m!r} is in none of pretrain, align and weights"
        for m in _names(raw, "model")
        if not any(m in section for section in models.values())
    ]
    overrides = _mapping(_mapping(raw, "train"), "overrides")
    problems += [f"train.overrides: {name!r} is no dataset; {known}" for name in overrides if name not in datasets]
    problems += _privacy_problems(raw) + _writing_problems(raw, datasets)
    for section, name, model in ((s, name, model) for s, its in models.items() for name, model in its.items()):
        data = model.get("data") if isinstance(model, dict) else None
        if not isinstance(data, str):
            continue  # a model of published weights; or reported with the rest of the schema
        where = f"{section}.{name}.data: {data!r}"
        if data not in datasets:
            problems.append(f"{where} is in {IN_DATA}; {known}")
        elif any(_overlap(_origin(datasets.get(p)), _origin(datasets[data])) for p in private):
            problems.append(f"{where} is the data of the sweep, so it is private; name public data")
        elif data in own and not (isinstance(own[data], dict) and own[data].get("public") is True):
            problems.append(f"{where} is not marked `public: true`; pretraining gives it no privacy")
    return problems


def _one_name_twice(raw: dict, sections: tuple[str, ...], kind: str) -> list[str]:
    names = [name for section in sections for name in _mapping(raw, section)]
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    listed = f"{', '.join(sections[:-1])} and {sections[-1]}"
    return [f"{name}: more than one of {listed} has a {kind} of this name" for name in twice]


def _privacy_problems(raw: dict) -> list[str]:
    """What no mechanism or accountant covers."""
    problems = []
    methods = _mapping(_mapping(raw, "train"), "methods")
    loss = _mapping(methods, "example").get("loss")
    if loss in LOSSES and not LOSSES[loss]:
        problems.append(
            f"train.methods.example.loss: {loss!r} is not a sum over records, so no record has a gradient of its own "
            "to clip; write prompts, or use method group"
        )
    problems += [
        f"train.methods.{name}.trainable: {m['trainable']!r} also trains the texts, and the loss prompts stands "
        f"against fixed ones; write one of {', '.join(IMAGE_PARTS)}"
        for name, m in methods.items()
        if isinstance(m, dict) and m.get("loss") == "prompts" and m.get("trainable") not in (*IMAGE_PARTS, None)
    ]
    epsilons = _mapping(raw, "sweep").get("epsilon")
    finite = [e for e in epsilons if str(e) not in ("0", "inf")] if isinstance(epsilons, list) else []
    if _mapping(raw, "privacy").get("sampling") == "shuffled" and finite:
        problems.append(
            f"privacy.sampling: shuffled batches have no privacy accounting, and sweep.epsilon asks for {finite[0]}; "
            "write poisson or fixed-size, or keep only 0 and inf in sweep.epsilon"
        )
    return problems


def _writing_problems(raw: dict, datasets: dict) -> list[str]:
    """What can never write a caption or an answer, or never changes one."""
    tasks = sorted({"captioning", "vqa"} & set(_names(raw, "task")))
    problems = [p for task in tasks for p in _data_to_write_of(raw, task, datasets)]
    problems += [p for task in tasks for p in _models_that_write(raw, task, datasets)]
    if not tasks:
        return []
    methods = _mapping(_mapping(raw, "train"), "methods")
    for name in _names(raw, "method"):
        method = _mapping(methods, name)
        where = f"train.methods.{name}"
        if method.get("loss") == "prompts":
            problems.append(
                f"{where}.loss: prompts needs classes, and captions and answers have none; write contrastive"
            )
        if method.get("trainable") in ON_FROZEN_TOWERS:
            problems.append(
                f"{where}.trainable: {method['trainable']!r} reaches no caption and no answer, which are written from "
                "what the vision tower sees; write image-tower, all or a LoRA"
            )
    return problems


def _data_to_write_of(raw: dict, task: str, datasets: dict) -> list[str]:
    problems = []
    for name in (name for name in _names(raw, "dataset") if name in datasets):
        if task == "vqa" and not _asks(raw, name, datasets):
            problems.append(f"sweep.dataset: vqa needs questions, and {name!r} has none; see the section `vqa`")
        if task == "captioning" and _asks(raw, name, datasets):
            problems.append(f"sweep.dataset: captioning needs captions, and {name!r} has questions")
    return problems


def _models_that_write(raw: dict, task: str, datasets: dict) -> list[str]:
    problems = []
    for name in _names(raw, "model"):
        model = next((m for s in MODELS if isinstance(m := _mapping(raw, s).get(name), dict)), {})
        architecture, data = model.get("architecture"), model.get("data")
        if isinstance(architecture, str) and architecture != "blip" and not is_blip(Path(architecture)):
            preset = {"captioning": "captions", "vqa": "answers"}[task]
            problems.append(f"sweep.model: {task} needs a BLIP, and {name!r} is none; see the preset `{preset}`")
        elif isinstance(data, str) and data in datasets and _asks(raw, data, datasets) != (task == "vqa"):
            has, needs = ("captions", "questions") if task == "vqa" else ("questions", "captions")
            problems.append(f"pretrain.{name}.data: {data!r} has {has}; a model for {task} learns from {needs}")
        elif architecture == "blip" and ("answerer" in model) != (task == "vqa"):
            needs = {"captioning": "captioner", "vqa": "answerer"}[task]
            problems.append(f"weights.{name}: {task} needs {needs}")
    return problems


def _asks(raw: dict, name: str, datasets: dict) -> bool:
    entry = datasets[name] if isinstance(datasets[name], dict) else {}
    return name in _mapping(raw, "vqa") or entry.get("source") == "easy-vqa" or entry.get("questions") is True


def source_problems(raw: dict) -> list[str]:
    """Raw data that are not there, have no labels, or are fewer than a batch; no image is read."""
    from stages.prepare.sources import quick_look

    problems = []
    methods = _mapping(_mapping(raw, "train"), "methods")
    sizes = {m: _mapping(methods, m).get("batch_size") for m in _names(raw, "method")}
    classify = "classification" in (_mapping(raw, "sweep").get("task") or [])
    entries = [(f"{section}.{name}", name, entry) for section in DATA for name, entry in _mapping(raw, section).items()]
    for where, name, entry in entries:
        try:
            n, labelled = quick_look(TypeAdapter(Source).validate_python(entry))
        except ValidationError:
            continue  # reported with the rest of the schema
        except UserError as error:
            problems += [f"{where}: {problem}" for problem in error.problems or [error]]
            continue
        if name in _names(raw, "dataset"):
            problems += [
                f"train.methods.{method}.batch_size: {size} is over n = {n} of dataset {name!r}; lower it"
                for method, size in sizes.items()
                if isinstance(size, int) and size > n
            ]
            if classify and not labelled:
                problems.append(f"{where}: classification needs labels: a `label` column in the metadata of a folder")
    return problems


def _mapping(raw: dict, key: str) -> dict:
    return raw[key] if isinstance(raw.get(key), dict) else {}


def _names(raw: dict, axis: str) -> list[str]:
    values = _mapping(raw, "sweep").get(axis)
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _overlap(one: object, other: object) -> bool:
    """Whether two origins have records in common: they are the same, or one folder is in the other."""
    if isinstance(one, Path) and isinstance(other, Path):
        return one.is_relative_to(other) or other.is_relative_to(one)
    return one == other


def _origin(entry: object) -> object:
    """Equal for two entries that take their records from the same place, whatever part of them each takes."""
    match entry:
        case {"path": str(path)}:
            return Path(path).resolve()
        case {"source": "mnist5k" | "mnist"}:
            return "mnist"  # mnist5k is a part of it
        case {"source": str(source), "seed": seed} if source != "optical-digits":
            return source, entry.get("style"), seed  # generated: of two sizes, one is a part of the other
        case {"source": str(source)}:
            return source
        case dict():
            return entry
    return object()  # equal to nothing else: no such entry, or a mistake that is reported with the rest of the schema
