"""The public facts of a run: what was planned (privacy.json), and what was then done (training.json)."""

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stages.errors import UserError


def round_up(value: float, digits: int) -> str:
    """A bound may be rounded up only.

    >>> round_up(9.99731, 4), round_up(1.0, 4), round_up(0.0001251, 3), round_up(math.inf, 3)
    ('9.998', '1', '0.000126', 'inf')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.ceil(value * scale - 1e-9) / scale:.{digits}g}"


LARGEST_DELTA = 1e-5


def delta_of(setting: str | float, n: int) -> float:
    """delta from the setting in params.yaml and a public number of records; the only place where it is computed.

    Releasing a random record as it is meets delta = 1/n. `paper` is the paper's 1/(2n), which is not negligible where n
    is small; `auto` is that and never above 1e-5.

    >>> delta_of("auto", 4000), delta_of("auto", 100_000), delta_of("paper", 4000), delta_of(1e-6, 4000)
    (1e-05, 5e-06, 0.000125, 1e-06)
    """
    match setting:
        case "auto":
            return min(1 / (2 * n), LARGEST_DELTA)
        case "paper":
            return 1 / (2 * n)
        case float() | int():
            return setting
    raise ValueError(f"delta must be auto, paper or a number; got {setting!r}")


class Noise(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    z: float  # noise standard deviation / sensitivity
    sigma: float  # noise standard deviation / clip_norm: what Algorithm 1 uses


class TensorFlowPrivacy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    epsilon: float
    statement: str | None  # its sentence speaks of examples and users, which records need not be: of no model


class SecondOpinion(BaseModel):
    """Where the true epsilon lies, by an accountant of another family, with a bound on its error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    accountant: Literal["prv"]
    lower: float
    upper: float
    error: float  # half of the interval


class Guarantee(BaseModel):
    """(epsilon, delta) and all that it rests on. Only for 0 < target < inf; the other two have no mechanism."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    epsilon: float  # sound: the smaller of the two below
    epsilon_rdp: float
    epsilon_pld: float | None  # None: PLD has no analysis of the sampler
    pld_interval: float | None = None  # discretisation of `epsilon_pld`, to compute the same number again
    epsilon_paper: float  # what the paper's convention (sensitivity C, RDP) would claim for the same sigma
    delta: float
    convention: Literal["sound", "paper"]
    accountant: Literal["rdp", "pld"]  # the one that gives `epsilon`
    adjacency: Literal["zero-out", "add-or-remove", "replace-one"]  # the neighbours; sampling.py says what they are
    sampler: str
    n: int  # of records; under add-or-remove, where that is secret, the public number that stands for it
    batch_size: int
    q: float
    steps: int
    z: float
    sigma: float
    sensitivity: float  # in units of clip_norm
    noise_by_accountant: dict[str, Noise | None]
    tensorflow_privacy: TensorFlowPrivacy | None  # RDP as well; None: it has no analysis of the sampler
    second_opinion: SecondOpinion | None = None  # None: RDP alone has an analysis of the sampler


class PrivacyFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    task: str
    dataset: str
    method: str
    target: str  # canonical epsilon: "0", "inf" or a number
    public_n: int | None = None  # stands for n where n is secret
    guarantee: Guarantee | None

    def of_a_model(self) -> "PrivacyFacts":
        """What goes with weights that are published."""
        g = self.guarantee
        if g is None or g.tensorflow_privacy is None:
            return self
        quoted = g.tensorflow_privacy.model_copy(update={"statement": None})
        return self.model_copy(update={"guarantee": g.model_copy(update={"tensorflow_privacy": quoted})})

    @classmethod
    def read(cls, path: Path) -> "PrivacyFacts":
        if not path.is_file():
            raise UserError(f"no calibration at {path}; run: dvc repro (or python -m stages.calibrate --help)")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


class TrainingFacts(BaseModel):
    """Written beside the weights it is true of, so that a claim about them never comes from a newer calibration."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cell: str
    privacy: PrivacyFacts
    train: dict[str, Any] | None  # the section of params.yaml that was used; None where nothing was trained
    trained_parameters: int
    initial_model: str  # sha256 of the public weights that training started from
    key: Literal["none", "os", "fixed"]  # where the noise key came from; "fixed" can be recomputed by anyone
    run: str | None = None  # its charge in the ledger; None where nothing was trained
    unit: str | None = None  # what a record is, in words
    weights: str | None = None  # a keyed digest of the weights that all of this is true of
    diagnostics: dict[str, list[float]] | None = None  # one value a step; only with unsafe_diagnostics

    @classmethod
    def read(cls, path: Path) -> "TrainingFacts":
        if not path.is_file():
            raise UserError(f"no trained model: {path} is missing; run: dvc repro")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))
