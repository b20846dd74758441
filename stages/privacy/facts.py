"""The public facts of a run: what was planned (privacy.json), and what was then done (training.json)."""

import math
from pathlib import Path
from typing import Literal

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


class Noise(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    z: float  # noise standard deviation / sensitivity
    sigma: float  # noise standard deviation / clip_norm: what Algorithm 1 uses


class TensorFlowPrivacy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    epsilon: float
    statement: str


class Guarantee(BaseModel):
    """(epsilon, delta) and all that it rests on. Only for 0 < target < inf; the other two have no mechanism."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    epsilon: float  # sound: the smaller of the two below
    epsilon_rdp: float
    epsilon_pld: float | None  # None: PLD has no analysis of the sampler
    epsilon_paper: float  # what the paper's convention (sensitivity C, RDP) would claim for the same sigma
    delta: float
    convention: Literal["sound", "paper"]
    accountant: Literal["rdp", "pld"]  # the one that gives `epsilon`
    adjacency: str
    sampler: str
    n: int
    batch_size: int
    q: float
    steps: int
    z: float
    sigma: float
    sensitivity: float  # in units of clip_norm
    noise_by_accountant: dict[str, Noise | None]
    tensorflow_privacy: TensorFlowPrivacy | None  # None: it has no analysis of the sampler


class PrivacyFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    task: str
    dataset: str
    method: str
    target: str  # canonical epsilon: "0", "inf" or a number
    guarantee: Guarantee | None

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
    train: dict | None  # the section of params.yaml that was used; None where nothing was trained
    trained_parameters: int
    initial_model: str  # sha256 of the public weights that training started from
    key: Literal["none", "os", "fixed"]  # where the noise key came from; "fixed" can be recomputed by anyone
    diagnostics: dict[str, list[float]] | None = None  # one value a step; only with unsafe_diagnostics

    @classmethod
    def read(cls, path: Path) -> "TrainingFacts":
        if not path.is_file():
            raise UserError(f"no trained model: {path} is missing; run: dvc repro")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))
