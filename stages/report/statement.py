"""What may be claimed of a released model, in words; the facts come from privacy.json and training.json."""

import math

from stages.privacy.facts import Guarantee, TrainingFacts, round_up
from stages.privacy.methods import METHODS


def guarantee_tag(training: TrainingFacts) -> str:
    """One line for tables and MLflow tags."""
    facts, g = training.privacy, training.privacy.guarantee
    if facts.target == "0":
        return "no private data used"
    if g is None:
        return "none (non-private)"
    if training.key != "os":
        return "none (fixed noise seed: for tests only)"
    if training.diagnostics is not None:
        return "none (unsafe_diagnostics: private figures are released)"
    if g.convention == "paper":
        return "paper-convention (not sound)"
    return f"({round_up(g.epsilon, 4)}, {round_up(g.delta, 4)})-DP, {_words(g.adjacency)}"


def sound_epsilon(training: TrainingFacts) -> float:
    """What an adversary who sees the weights is bounded by; inf where nothing is."""
    if training.privacy.target == "0":
        return 0.0
    g = training.privacy.guarantee
    return g.epsilon if g and training.key == "os" and training.diagnostics is None else math.inf


def has_guarantee(training: TrainingFacts) -> bool:
    """Whether its weights are published without being asked for by name. The paper's convention has one, if weak."""
    return sound_epsilon(training) < math.inf


def paper_epsilon(training: TrainingFacts) -> float:
    """What the paper's convention would claim."""
    g = training.privacy.guarantee
    return g.epsilon_paper if g else float(training.privacy.target)


def statement(training: TrainingFacts, joint: str | None = None) -> str:
    """Markdown, for whoever has to decide about the release of a model. `joint`: what all models together tell."""
    facts, g = training.privacy, training.privacy.guarantee
    title = f"# Privacy statement\n\nModel: `{training.cell}`\n\n"
    if facts.target == "0":
        return f"{title}**No private record was used.** These are the initial weights.\n"
    if g is None:
        return (
            f"{title}**NON-PRIVATE.** Trained on the private data without clipping and noise: no differential privacy "
            "guarantee holds. Whoever is given these weights is given what they say about the private records, so "
            "sharing them (or a store that holds them) also undoes the guarantee of every private model beside them.\n"
        )
    if training.key != "os":
        return (
            f"{title}**NO GUARANTEE: the noise came from a fixed seed (unsafe_noise_seed), which is for tests.** "
            "Whoever knows the seed can subtract the noise.\n"
        )
    warnings = []
    if g.convention == "paper":
        warnings.append("**NOT CALIBRATED SOUNDLY: the noise was chosen by the paper's convention.**")
    if training.diagnostics is not None:
        warnings.append(
            "**PRIVATE FIGURES ARE KEPT BESIDE THIS MODEL (unsafe_diagnostics): losses, norms and batch sizes of "
            "each step are in training.json. No bound holds for whoever sees them; what follows is for the weights.**"
        )
    return title + "".join(f"{warning}\n\n" for warning in warnings) + _private(training, g, joint)


def _private(training: TrainingFacts, g: Guarantee, joint: str | None) -> str:
    by_pld = "not available for this sampler" if g.epsilon_pld is None else round_up(g.epsilon_pld, 6)
    clipped, sampled = METHODS[training.privacy.method].clipped, SAMPLED[g.sampler]
    second = round_up(g.tensorflow_privacy.epsilon, 6) if g.tensorflow_privacy else "no analysis of this sampler"
    C = (training.train or {})["clip_norm"]
    return f"""\
**The released weights are ({round_up(g.epsilon, 6)}, {round_up(g.delta, 6)})-differentially private.**

In plain words: someone who sees the weights, and knows all about the data but {UNKNOWN[g.adjacency][0]}, can hardly
tell. Any conclusion about that record is at most e^{round_up(g.epsilon, 3)} times as likely {UNKNOWN[g.adjacency][1]},
except with probability {round_up(g.delta, 3)}.

| | |
|---|---|
| protected unit | one record: {training.unit} |
| neighbours | two datasets that differ in one record, {_words(g.adjacency)} |
| epsilon | {round_up(g.epsilon_rdp, 6)} by RDP, {by_pld} by PLD; the smaller is claimed |
| second opinion | {_second_opinion(g)} |
| delta | {round_up(g.delta, 6)} |
| sampling | {sampled}: rate q = {g.q:.6g} of {_size(g)} |
| clipping | {clipped}, to norm C = {C:g} over all trained parameters together |
| noise | Gaussian, standard deviation sigma * C with sigma = {g.sigma:.6g} |
| sensitivity | {g.sensitivity:g} C, so the noise multiplier relative to it is z = {g.z:.6g} |
| steps | T = {g.steps} |
| all models | {joint or "see the report: others may have been trained on the same records"} |
| the paper's claim | {round_up(g.epsilon_paper, 6)} for the same noise: it takes the sensitivity to be C |

**Taken to be public**: {"" if g.adjacency == "add-or-remove" else "n, "}class names, prompts, initial weights,
preprocessing, hyper-parameters, the test split.

**Not covered**: choosing hyper-parameters on the private data; other models trained on the same data (the ledger adds
them up: `python -m stages.ledger`); how long stages took and in how much memory, which depends on the data (Prefect
shows the time, and MLflow both where `publish.costs` is set); evaluation on private data. The generator of the noise
(AES-128 with a secret key) is taken to be unpredictable.

TensorFlow Privacy's RDP epsilon for this noise: {second}. It calls the same accountant.
"""


def _second_opinion(g: Guarantee) -> str:
    """Of an accountant of another family (privacy/prv.py)."""
    if g.second_opinion is None:
        return "none: no accountant of another family has an analysis of this sampler"
    o = g.second_opinion
    return f"between {o.lower:.4g} and {round_up(o.upper, 4)} by the privacy loss itself ({o.accountant})"


def _size(g: Guarantee) -> str:
    return f"n records; n is secret, {g.n} stands for it" if g.adjacency == "add-or-remove" else f"n = {g.n} records"


UNKNOWN = {
    "zero-out": ("whether one record is in it or an empty one in its place", "with it as without it"),
    "add-or-remove": ("whether one record is in it", "with it as without it"),
    "replace-one": ("which of two records is in it", "with the one as with the other"),
}
SAMPLED = {
    "poisson": "Poisson, each record independently in each step",
    "fixed-size": "batches of a fixed size without replacement",
}


def _words(adjacency: str) -> str:
    return adjacency.replace("_", "-").lower()
