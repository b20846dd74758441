"""Where the paper's Section 5 and appendix say something that numbers contradict, each with the numbers."""

import math

from stages import markdown
from stages.privacy.accounting import Plan, calibrate_rdp, epsilon_rdp
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.sampling import PoissonSampling


def paper_sigma(n: int, steps: int, epsilon: float, delta: float) -> float:
    """Proposition "dp" with its constant 1."""
    return math.sqrt(steps * math.log(1 / delta)) / (n * epsilon)


def noise_needed(n: int, batch_size: int, steps: int, epsilon: float, delta: float) -> tuple[float, float, float]:
    """(the proposition's sigma, the epsilon that it really has, the sigma that meets epsilon)."""
    sampling, claimed = PoissonSampling(n, batch_size), paper_sigma(n, steps, epsilon, delta)
    really = epsilon_rdp(Plan(sampling, BatchClipping(1.0, claimed), steps), delta)
    needed = calibrate_rdp(Plan(sampling, BatchClipping(1.0, 1.0), steps), epsilon, delta).sigma
    return claimed, really, needed


def sigma_table(rate: float, epsilon: float, delta: float) -> str:
    header = ["n", "b", "the proposition's sigma", "its epsilon in truth", "sigma that is needed", "ratio"]
    rows = []
    steps = math.ceil(epsilon / rate**2)
    for n in (1_000, 10_000, 100_000):
        batch_size = round(rate * n)
        claimed, really, needed = noise_needed(n, batch_size, steps, epsilon, delta)
        facts = (f"{claimed:.2g}", f"{really:.2g}", f"{needed:.3g}", f"{needed / claimed:,.0f}")
        rows.append((f"{n:,}", f"{batch_size:,}", *facts))
    return markdown.table(header, rows)


OTHERS = (
    "The condition on T of the theorem's restatement has squares that its own corollary does not give: with "
    "sigma = C sqrt(T log(1/delta)) / (n epsilon) put in, T >> 1 / (sigma^2 D), where D = rd + log(T(n+d)), is "
    "T >> n epsilon / (C sqrt(D log(1/delta))) without a square, and T >> sigma^2 D holds for every T or for none: it "
    "is a condition on n epsilon.",
    "The lemma on the global minimum writes -tr(G1^T S G2), which has no meaning for an r x d1 matrix G1; its proof "
    "uses -tr(G1 S G2^T).",
    "The proof of the gradient's concentration bounds an operator norm by the largest entry. It is the other way "
    "round: for the d1 x d2 matrix of ones the norm is sqrt(d1 d2). The lemma's bound lacks such a factor.",
    "The map A_P to the population's minimiser lacks the rotation H_P, and has a power 1 where 1/2 belongs.",
)
