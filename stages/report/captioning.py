"""Table 5 of the paper with our results in it: rows are scores, columns epsilons, a block for each model.

What the paper published is in published.yaml; a score that was not computed here says so, with the reason.
"""

import math
import statistics

from stages.privacy.facts import round_up
from stages.report.paper import published
from stages.report.statement import paper_epsilon, sound_epsilon
from stages.report.table import Outcome, epsilon_name, not_sound, summarise

SCORES = {  # in the paper's order, and METEOR, which it does not have
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
    "meteor": "METEOR (ours only)",
}
Rows = dict[str, dict[str, str]]  # what stands in a row, by epsilon


def markdown(outcomes: list[Outcome]) -> str:
    """Nothing, if the sweep has no captions."""
    blocks: dict[str, dict[str, list[Outcome]]] = {}
    ours = [outcome for outcome in outcomes if outcome.cell.task == "captioning"]
    for o in ours:
        name = f"ours: {o.cell.dataset}, {o.cell.model}, {o.cell.method} ({o.metrics.n} test images)"
        blocks.setdefault(name, {}).setdefault(o.cell.epsilon, []).append(o)
    if not blocks:
        return ""
    table = published().captioning
    epsilons = sorted({*table.epsilons, *(o.cell.epsilon for o in ours)}, key=float)
    notes: list[str] = []
    parts = ["# The paper's captioning, with ours", *not_sound(summarise(ours)), HOW_TO_READ, f"## {table.title}"]
    parts += [_block(f"published: DP-BLIP ({published().sources['DP-CLIP'].short}), VizWiz", _published(), epsilons)]
    parts += [_block(name, _measured(trials, notes), epsilons) for name, trials in blocks.items()]
    parts += [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n\n".join(parts) + "\n"


HOW_TO_READ = """\
- `ours` was measured here: mean ± standard deviation over trials, or the one trial's score. `published` is quoted from
  the paper, which gives neither deviations nor trials: nothing of it was measured or checked here. A dash: not
  measured, or not published. Scores are fractions, as in the paper; CIDEr can be up to 10.
- **The same epsilon is not the same privacy.** A column is the epsilon that the paper claims by its own convention
  (sensitivity C), which is not sound, and for ours the target. What to compare are sound epsilons. Those of the paper's
  captioning are not known: it gives neither batch size nor epochs for it, and the size n of its part of VizWiz in two
  ways (5,000 image-caption pairs, section 4.1; 15% of the training set of 23,000, section 4.3).
- **Data and models.** Published is a BLIP on photos of VizWiz, ours is what its block names. Scores depend on the test
  images and how people describe them, so those of two datasets do not compare."""


def _published() -> Rows:
    table = published().captioning
    rows = {SCORES[name]: dict(zip(table.epsilons, row, strict=True)) for name, row in table.scores.items()}
    sound = {epsilon: epsilon if epsilon in ("0", "inf") else "not known" for epsilon in table.epsilons}
    return {"sound epsilon": sound, "paper's epsilon": {epsilon: epsilon for epsilon in table.epsilons}, **rows}


def _measured(by_epsilon: dict[str, list[Outcome]], notes: list[str]) -> Rows:
    def row(cell) -> dict[str, str]:
        return {epsilon: cell(trials) for epsilon, trials in by_epsilon.items()}

    return {
        # the claim that holds for all trials
        "sound epsilon": row(lambda trials: round_up(max(sound_epsilon(o.training) for o in trials), 3)),
        "paper's epsilon": row(lambda trials: round_up(paper_epsilon(trials[0].training), 3)),
        **{SCORES[name]: row(lambda trials, name=name: _score(name, trials, notes)) for name in SCORES},
        "trials": row(lambda trials: str(len(trials))),
    }


def _score(name: str, trials: list[Outcome], notes: list[str]) -> str:
    for reason in (o.metrics.not_run.get(name) for o in trials):
        if reason is not None:
            note = f"{SCORES[name].split()[0]} was not run: {reason}."
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
