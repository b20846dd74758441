"""Tables 5, 7 and 8 of the paper with our results in them: rows are scores, columns epsilons, a block for each model.

What the paper published is in published.yaml; a score that was not computed here says so, with the reason.
"""

import math
import statistics

from stages import tasks
from stages.keys import TASKS
from stages.privacy.facts import round_up
from stages.report.paper import ScoreTable, published
from stages.report.statement import paper_epsilon, sound_epsilon
from stages.report.table import Outcome, epsilon_name, not_sound, summarise
from stages.tasks.base.task import ScoresInPaper

Rows = dict[str, dict[str, str]]  # what stands in a row, by epsilon


def markdown(outcomes: list[Outcome]) -> str:
    """Of the tasks whose scores stand in the paper in this way; nothing if none of them is in the sweep."""
    sections = []
    for task in map(tasks.named, TASKS):
        ours = [o for o in outcomes if o.cell.task == task.name]
        if task.in_paper and ours:
            sections.append(_section(task.name, task.in_paper, ours))
    return "\n".join(sections)


def _section(name: str, task: ScoresInPaper, ours: list[Outcome]) -> str:
    blocks: dict[str, dict[str, list[Outcome]]] = {}
    for o in ours:
        title = f"ours: {o.cell.dataset}, {o.cell.model}, {o.cell.method} ({o.metrics.n} {task.items})"
        blocks.setdefault(title, {}).setdefault(o.cell.epsilon, []).append(o)
    tables = [table for table in published().scores if table.task == name]
    epsilons = sorted({*(e for t in tables for e in t.epsilons), *(o.cell.epsilon for o in ours)}, key=float)
    notes: list[str] = []
    parts = [f"# {task.heading}", *not_sound(summarise(ours)), _how_to_read(task) if tables else _without_paper(task)]
    if tables:
        who = f"published: DP-BLIP ({published().sources['DP-CLIP'].short}), {tables[0].data}"
        parts.append(f"## {'; '.join(table.title for table in tables)}")
        parts.append(_block(who, _published(task, tables), epsilons))
    parts += [_block(title, _measured(task, trials, notes), epsilons) for title, trials in blocks.items()]
    parts += [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n\n".join(parts) + "\n"


def _how_to_read(task: ScoresInPaper) -> str:
    return f"""\
- `ours` was measured here: mean ± standard deviation over trials, or the one trial's score. `published` is quoted from
  the paper, which gives neither deviations nor trials: nothing of it was measured or checked here. A dash: not
  measured, or not published. Scores are fractions.
- **The same epsilon is not the same privacy.** A column is the epsilon that the paper claims by its own convention
  (sensitivity C), which is not sound, and for ours the target. What to compare are sound epsilons. {task.about_epsilon}
- **Data and models.** {task.about_data}"""


def _without_paper(task: ScoresInPaper) -> str:
    return f"""\
- `ours` was measured here: mean ± standard deviation over trials, or the one trial's score. The paper has no figures.
- A column is a target; what to compare are sound epsilons. {task.about_epsilon}
- **Data and models.** {task.about_data}"""


def _published(task: ScoresInPaper, tables: list[ScoreTable]) -> Rows:
    every = {epsilon: epsilon for table in tables for epsilon in table.epsilons}
    rows = {
        task.titles[name]: dict(zip(table.epsilons, row, strict=True))
        for table in tables
        for name, row in table.scores.items()
    }
    sound = {epsilon: epsilon if epsilon in ("0", "inf") else "not known" for epsilon in every}
    return {"sound epsilon": sound, "paper's epsilon": every, **rows}


def _measured(task: ScoresInPaper, by_epsilon: dict[str, list[Outcome]], notes: list[str]) -> Rows:
    def row(cell) -> dict[str, str]:
        return {epsilon: cell(trials) for epsilon, trials in by_epsilon.items()}

    some = next(iter(by_epsilon.values()))[0].metrics
    there = [name for name in task.titles if name in some.scores or name in some.not_run]
    return {
        # the claim that holds for all trials
        "sound epsilon": row(lambda trials: round_up(max(sound_epsilon(o.training) for o in trials), 3)),
        "paper's epsilon": row(lambda trials: round_up(paper_epsilon(trials[0].training), 3)),
        **{task.titles[name]: row(lambda trials, name=name: _score(task, name, trials, notes)) for name in there},
        "trials": row(lambda trials: str(len(trials))),
    }


def _score(task: ScoresInPaper, name: str, trials: list[Outcome], notes: list[str]) -> str:
    for reason in (o.metrics.not_run.get(name) for o in trials):
        if reason is not None:
            note = f"{task.titles[name].split(' (ours')[0]} was not run: {reason}."
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
