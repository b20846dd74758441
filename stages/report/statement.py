"""What may be claimed of a released model, in words; the facts come from privacy.json and training.json."""

from stages.privacy.facts import Guarantee, PrivacyFacts


def guarantee_tag(facts: PrivacyFacts, key: str | None) -> str:
    """One line for tables and MLflow tags. `key` is the origin of the noise key, as training.json says."""
    if facts.target == "0":
        return "no private data used"
    if facts.guarantee is None:
        return "none (non-private)"
    if key != "os":
        return "none (fixed noise seed: for tests only)"
    if facts.guarantee.convention == "paper":
        return "paper-convention (not sound)"
    g = facts.guarantee
    return f"({g.epsilon:.4g}, {g.delta:.3g})-DP, {_words(g.adjacency)}"


def statement(facts: PrivacyFacts, training: dict) -> str:
    if facts.target == "0":
        return "These are the initial weights. No private record was used.\n"
    if facts.guarantee is None:
        return "NON-PRIVATE. Trained without clipping and noise: no differential privacy guarantee holds.\n"
    text = _private(facts, facts.guarantee, training["clip_norm"])
    if training["key"] != "os":
        return f"NO GUARANTEE: the noise came from a fixed seed (unsafe_noise_seed), which is for tests.\n\n{text}"
    if facts.guarantee.convention == "paper":
        return f"NOT CALIBRATED SOUNDLY: the noise was chosen by the paper's convention.\n\n{text}"
    return text


def _private(facts: PrivacyFacts, g: Guarantee, clip_norm: float) -> str:
    return f"""\
The released weights are ({g.epsilon:.6g}, {g.delta:.6g})-differentially private.

Protected unit:  one record: an image with all of its texts
Neighbours:      two datasets that differ in one record ({_words(g.adjacency)})
Mechanism:       Algorithm 1, clip unit `{facts.method}`: one norm over all trained parameters, clipped to
                 C = {clip_norm:g}, plus Gaussian noise of standard deviation sigma * C with sigma = {g.sigma:.6g}
Sensitivity:     {g.sensitivity:g} C, so the noise multiplier relative to it is z = {g.z:.6g}
Sampling:        {g.sampler}, rate q = {g.q:.6g} of n = {g.n} records, T = {g.steps} steps
Accounting:      epsilon {g.epsilon_rdp:.6g} by RDP and {g.epsilon_pld:.6g} by PLD; the smaller one is claimed
Paper's claim:   {g.epsilon_paper:.6g} for the same noise; it takes the sensitivity to be C, which is not sound
Public:          n, class names, prompts, initial weights, preprocessing, hyper-parameters, the test split
Not covered:     choosing hyper-parameters on the private data, and other models trained on the same data

TensorFlow Privacy (RDP; its "microbatching" is the sensitivity 2C) says:

{g.tensorflow_privacy.statement}"""


def _words(adjacency: str) -> str:
    return adjacency.replace("_", "-").lower()
