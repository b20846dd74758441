"""Tables 5, 7 and 8 of the paper with our results in them: rows are scores, columns epsilons, a block for each model.

What the paper published is in published.yaml; a score that was not computed here says so, with the reason.
"""

import math
import statistics
from dataclasses import dataclass

from stages.privacy.facts import round_up
from stages.report.paper import ScoreTable, published
from stages.report.statement import paper_epsilon, sound_epsilon
from stages.report.table import Outcome, epsilon_name, not_sound, summarise

Rows = dict[str, dict[str, str]]  # what stands in a row, by epsilon


@dataclass(frozen=True)
class Task:
    heading: str
    items: str  # what the test split counts
    scores: dict[str, str]  # in the paper's order, and those it does not have
    about_epsilon: str
    about_data: str


TASKS = {
    "captioning": Task(
        "The paper's captioning, with ours",
        "test images",
        {
            "bleu_1": "BLEU-1",
            "bleu_2": "BLEU-2",
            "bleu_3": "BLEU-3",
            "bleu_4": "BLEU-4",
            "rouge_l": "ROUGE-L",
            "cider": "CIDEr",
            "spice": "SPICE",
            "meteor": "METEOR (ours only)",
        },
        "Those of the paper's captioning are not known: it gives neither batch size nor epochs for it, and the size n "
        "of its part of VizWiz in two ways (5,000 image-caption pairs, section 4.1; 15% of the training set of 23,000, "
        "section 4.3).",
        "Published is a BLIP on photos of VizWiz, ours is what its block names. Scores depend on the test images and "
        "how people describe them, so those of two datasets do not compare. CIDEr can be up to 10.",
    ),
    "vqa": Task(
        "The paper's question answering, with ours",
        "test questions",
        {
            "exact_match": "exact match",
            "exact_match_yes_no": "exact match, yes/no (ours only)",
            "exact_match_number": "exact match, number (ours only)",
            "exact_match_other": "exact match, other (ours only)",
            "vqa_accuracy": "min(1, people/3)",
            "vqa_accuracy_official": "VQA accuracy, official (ours only)",
            "vqa_accuracy_official_yes_no": "official, yes/no (ours only)",
            "vqa_accuracy_official_number": "official, number (ours only)",
            "vqa_accuracy_official_other": "official, other (ours only)",
        },
        "Those of the paper's question answering are not known: it gives neither n nor batch size nor epochs for it.",
        "Published is a BLIP on the abstract scenes of VQA v2, ours is what its block names. Accuracy depends on the "
        "questions, so that of two datasets does not compare. The paper took its min(1, people/3) on the training set.",
    ),
}


def markdown(outcomes: list[Outcome]) -> str:
    """Nothing, if models write nothing in the sweep."""
    return "\n".join(_section(name, ours) for name in TASKS if (ours := [o for o in outcomes if o.cell.task == name]))


def _section(name: str, ours: list[Outcome]) -> str:
    task, blocks = TASKS[name], {}
    for o in ours:
        title = f"ours: {o.cell.dataset}, {o.cell.model}, {o.cell.method} ({o.metrics.n} {task.items})"
        blocks.setdefault(title, {}).setdefault(o.cell.epsilon, []).append(o)
    tables = [table for table in published().scores if table.task == name]
    epsilons = sorted({*(e for t in tables for e in t.epsilons), *(o.cell.epsilon for o in ours)}, key=float)
    notes: list[str] = []
    parts = [f"# {task.heading}", *not_sound(summarise(ours)), _how_to_read(task)]
    parts.append(f"## {'; '.join(table.title for table in tables)}")
    who = f"published: DP-BLIP ({published().sources['DP-CLIP'].short}), {tables[0].data}"
    parts.append(_block(who, _published(task, tables), epsilons))
    parts += [_block(title, _measured(task, trials, notes), epsilons) for title, trials in blocks.items()]
    parts += [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n\n".join(parts) + "\n"


def _how_to_read(task: Task) -> str:
    return f"""\
- `ours` was measured here: mean ± standard deviation over trials, or the one trial's score. `published` is quoted from
  the paper, which gives neither deviations nor trials: nothing of it was measured or checked here. A dash: not
  measured, or not published. Scores are fractions.
- **The same epsilon is not the same privacy.** A column is the epsilon that the paper claims by its own convention
  (sensitivity C), which is not sound, and for ours the target. What to compare are sound epsilons. {task.about_epsilon}
- **Data and models.** {task.about_data}"""


def _published(task: Task, tables: list[ScoreTable]) -> Rows:
    every = {epsilon: epsilon for table in tables for epsilon in table.epsilons}
    rows = {
        task.scores[name]: dict(zip(table.epsilons, row, strict=True))
        for table in tables
        for name, row in table.scores.items()
    }
    sound = {epsilon: epsilon if epsilon in ("0", "inf") else "not known" for epsilon in every}
    return {"sound epsilon": sound, "paper's epsilon": every, **rows}


def _measured(task: Task, by_epsilon: dict[str, list[Outcome]], notes: list[str]) -> Rows:
    def row(cell) -> dict[str, str]:
        return {epsilon: cell(trials) for epsilon, trials in by_epsilon.items()}

    some = next(iter(by_epsilon.values()))[0].metrics
    there = [name for name in task.scores if name in some.scores or name in some.not_run]
    return {
        # the claim that holds for all trials
        "sound epsilon": row(lambda trials: round_up(max(sound_epsilon(o.training) for o in trials), 3)),
        "paper's epsilon": row(lambda trials: round_up(paper_epsilon(trials[0].training), 3)),
        **{task.scores[name]: row(lambda trials, name=name: _score(task, name, trials, notes)) for name in there},
        "trials": row(lambda trials: str(len(trials))),
    }


def _score(task: Task, name: str, trials: list[Outcome], notes: list[str]) -> str:
    for reason in (o.metrics.not_run.get(name) for o in trials):
        if reason is not None:
            note = f"{task.scores[name].split(' (ours')[0]} was not run: {reason}."
            if note not in notes:
                notes.append(note)
            return f"not run [{notes.index(note) + 1}]"
    values = [o.metrics.scores[name] for o in trials]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{math.fsum(values) / len(values):.3f}{deviation}"


def _block(name: str, rows: Rows, epsilons: list[str]) -> str:
    lines = [f"**{name}**", "", f"| | {' | '.join(f'epsilon {epsilon_name(e)}' for e in epsilons)} |"]
    lines.append(f"|{'---|' * (len(epsilons) + 1)}")
    lines += [f"| {title} | {' | '.join(row.get(e, '-') for e in epsilons)} |" for title, row in rows.items()]
    return "\n".join(lines)
