"""What may be claimed of a released model, in words; the facts come from privacy.json and training.json."""

import math

from stages.privacy.facts import Guarantee, TrainingFacts


def guarantee_tag(training: TrainingFacts) -> str:
    """One line for tables and MLflow tags."""
    facts, g = training.privacy, training.privacy.guarantee
    if facts.target == "0":
        return "no private data used"
    if g is None:
        return "none (non-private)"
    if training.key != "os":
        return "none (fixed noise seed: for tests only)"
    if g.convention == "paper":
        return "paper-convention (not sound)"
    return f"({round_up(g.epsilon, 4)}, {round_up(g.delta, 4)})-DP, {_words(g.adjacency)}"


def sound_epsilon(training: TrainingFacts) -> float:
    """What an adversary who sees the weights is bounded by; inf where nothing is."""
    if training.privacy.target == "0":
        return 0.0
    g = training.privacy.guarantee
    return g.epsilon if g and training.key == "os" else math.inf


def paper_epsilon(training: TrainingFacts) -> float:
    """What the paper's convention would claim."""
    g = training.privacy.guarantee
    return g.epsilon_paper if g else float(training.privacy.target)


def round_up(value: float, digits: int) -> str:
    """A bound may be rounded up only.

    >>> round_up(9.99731, 4), round_up(1.0, 4), round_up(0.0001251, 3), round_up(math.inf, 3)
    ('9.998', '1', '0.000126', 'inf')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.ceil(value * scale - 1e-9) / scale:.{digits}g}"


def statement(training: TrainingFacts) -> str:
    facts, g = training.privacy, training.privacy.guarantee
    if facts.target == "0":
        return "These are the initial weights. No private record was used.\n"
    if g is None:
        return (
            "NON-PRIVATE. Trained on the private data without clipping and noise: no differential privacy guarantee\n"
            "holds. Whoever is given these weights is given what they say about the private records, so sharing them\n"
            "(or a store that holds them) also undoes the guarantee of every private model beside them.\n"
        )
    text = _private(training, g)
    if training.key != "os":
        return f"NO GUARANTEE: the noise came from a fixed seed (unsafe_noise_seed), which is for tests.\n\n{text}"
    if g.convention == "paper":
        return f"NOT CALIBRATED SOUNDLY: the noise was chosen by the paper's convention.\n\n{text}"
    return text


def _private(training: TrainingFacts, g: Guarantee) -> str:
    method, C = training.privacy.method, training.train["clip_norm"]
    by_rdp, by_pld = round_up(g.epsilon_rdp, 6), round_up(g.epsilon_pld, 6)
    return f"""\
The released weights are ({round_up(g.epsilon, 6)}, {round_up(g.delta, 6)})-differentially private.

Protected unit:  one record: an image with all of its texts, or all images of one `unit` of the data
Neighbours:      two datasets that differ in one record ({_words(g.adjacency)})
Mechanism:       Algorithm 1, clip unit `{method}`: one norm over all trained parameters, clipped to
                 C = {C:g}, plus Gaussian noise of standard deviation sigma * C with sigma = {g.sigma:.6g}
Sensitivity:     {g.sensitivity:g} C, so the noise multiplier relative to it is z = {g.z:.6g}
Sampling:        {g.sampler}, rate q = {g.q:.6g} of n = {g.n} records, T = {g.steps} steps
Accounting:      epsilon {by_rdp} by RDP and {by_pld} by PLD; the smaller one is claimed
Paper's claim:   {g.epsilon_paper:.6g} for the same noise; it takes the sensitivity to be C, which is not sound
Public:          n, class names, prompts, initial weights, preprocessing, hyper-parameters, the test split
Not covered:     choosing hyper-parameters on the private data, and other models trained on the same data

TensorFlow Privacy (RDP; its "microbatching" is the sensitivity 2C) says:

{g.tensorflow_privacy.statement}"""


def _words(adjacency: str) -> str:
    return adjacency.replace("_", "-").lower()
