"""A claim is that of the noise: whatever was edited, the accountants say otherwise."""

import functools
import math
import time

import pytest

from stages.calibrate import calibration
from stages.calibrate.guarantee import guarantee_of
from stages.errors import UserError
from stages.privacy import claim, prv
from stages.privacy.accounting import Plan
from stages.privacy.facts import PrivacyFacts, SecondOpinion, TrainingFacts
from stages.privacy.methods import METHODS
from stages.privacy.sampling import sampling_of

TRAIN = {"batch_size": 64, "steps": 20, "clip_norm": 0.1, "loss": "contrastive"}
GROUPS = {"group": {"groups": 8}}


@functools.cache
def facts(method="batch", sampler="poisson", target=1.0, public_n=None, convention="sound", n=4000) -> PrivacyFacts:
    guarantee = guarantee_of(
        method,
        sampler,
        n=n,
        public_n=public_n,
        batch_size=TRAIN["batch_size"],
        epochs=None,
        steps=TRAIN["steps"],
        epsilon=target,
        delta="auto",
        convention=convention,
    )
    return PrivacyFacts(
        task="classification",
        dataset="digits",
        method=method,
        target=f"{target:g}",
        public_n=public_n,
        guarantee=guarantee,
    )


def training(privacy: PrivacyFacts, **changed) -> TrainingFacts:
    used = TRAIN | GROUPS.get(privacy.method, {}) | changed
    return TrainingFacts(
        cell="a/cell", privacy=privacy, train=used, trained_parameters=1, initial_model="0" * 64, key="os"
    )


def edited(privacy: PrivacyFacts, **values) -> PrivacyFacts:
    return privacy.model_copy(update={"guarantee": privacy.guarantee.model_copy(update=values)})


@pytest.fixture(scope="module")
def poisson() -> PrivacyFacts:
    return facts()


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        {},
        {"method": "group"},
        {"method": "example"},
        {"sampler": "fixed-size"},
        {"public_n": 5000},
        {"convention": "paper"},
    ],
    ids=str,
)
def test_a_calibration_is_what_its_noise_gives(what):
    claim.verify_training(training(facts(**what)))


@pytest.mark.parametrize(
    "name", ["epsilon", "epsilon_rdp", "epsilon_pld", "epsilon_paper", "delta", "q", "z", "sigma", "sensitivity"]
)
@pytest.mark.parametrize("factor", [0.01, 1 - 1e-5, 1 + 1e-5])
def test_an_edited_number_is_refused(poisson, name, factor):
    value = getattr(poisson.guarantee, name) * factor
    with pytest.raises(UserError, match="is not that of its noise"):
        claim.verify_training(training(edited(poisson, **{name: value})))


def test_less_noise_under_the_old_epsilon_is_refused_before_long(poisson):
    """Every number that follows from sigma alone is edited along with it."""
    started = time.process_time()
    small = edited(poisson, sigma=0.01, z=0.005)
    with pytest.raises(UserError, match=r"epsilon_rdp is .* in the file and"):
        claim.verify_training(training(small))
    assert time.process_time() - started < 10


def test_more_privacy_than_was_asked_for_in_name_only_is_refused(poisson):
    """A calibration that is right in itself, under the name of a smaller epsilon."""
    with pytest.raises(UserError, match=r"over the target 0\.5"):
        claim.verify_training(training(poisson.model_copy(update={"target": "0.5"})))


@pytest.mark.parametrize(
    "edit",
    [
        {"pld_interval": None},
        {"pld_interval": 1e-3},
        {"second_opinion": None},
        {"second_opinion": SecondOpinion(accountant="prv", lower=0.5, upper=1.5, error=0.5)},
        {"adjacency": "add-or-remove"},
        {"n": 40_000},
        {"steps": 19},
        {"tensorflow_privacy": "other"},
    ],
    ids=str,
)
def test_other_facts_are_compared_too(poisson, edit):
    if edit.get("tensorflow_privacy"):
        edit = {"tensorflow_privacy": poisson.guarantee.tensorflow_privacy.model_copy(update={"epsilon": 0.5})}
    with pytest.raises(UserError, match="is not that of its noise"):
        claim.verify_training(training(edited(poisson, **edit)))


@pytest.mark.parametrize("changed", [{"batch_size": 65}, {"steps": 21}, {"steps": None, "epochs": 4}], ids=str)
def test_a_training_that_did_something_else_is_refused(poisson, changed):
    with pytest.raises(UserError, match="is not that of its noise"):
        claim.verify_training(training(poisson, **changed))


def test_a_training_by_another_method_or_that_says_nothing_is_refused(poisson):
    as_example = poisson.model_copy(update={"method": "example"})
    with pytest.raises(UserError, match=r"sensitivity is 2\.0 in the file and 1\.0 for the plan"):
        claim.verify_training(training(as_example))
    silent = training(poisson).model_copy(update={"train": {}})
    with pytest.raises(UserError, match="does not say what was trained"):
        claim.verify_training(silent)


def test_what_has_no_guarantee_has_nothing_to_verify(poisson):
    claim.verify_training(training(poisson.model_copy(update={"target": "inf", "guarantee": None})))


def test_a_plan_is_computed_once_for_all_its_cells(poisson):
    """Clip norm and groups enter no accountant, and methods of one z share a result."""
    group, example = facts("group"), facts("example")
    for cache in (claim._rdp, claim._pld, prv.interval):
        cache.cache_clear()
    for privacy in (poisson, group, example):
        for clip_norm in (0.1, 0.2, 0.3):
            claim.verify_training(training(privacy, clip_norm=clip_norm))
    assert claim._pld.cache_info().misses == prv.interval.cache_info().misses == 1
    assert claim._rdp.cache_info().misses == 2  # with the true sensitivity, and as the paper reads it


def test_a_claim_below_the_interval_of_the_other_family_is_refused(monkeypatch):
    right = calibration.epsilon_pld
    monkeypatch.setattr(calibration, "epsilon_pld", lambda *args: 0.98 * right(*args))  # an accountant gone wrong
    with pytest.raises(UserError, match=r"is claimed at delta .* Nothing was trained"):
        facts.__wrapped__()


@pytest.mark.slow
def test_the_claim_lies_inside_the_interval(poisson):
    g = poisson.guarantee
    assert g.second_opinion.accountant == "prv" and g.second_opinion.lower <= g.epsilon <= g.second_opinion.upper
    assert g.second_opinion.error < 0.01
    assert facts(sampler="fixed-size").guarantee.second_opinion is None  # RDP alone has an analysis


def test_the_plan_that_runs_is_what_is_compared(poisson):
    g = poisson.guarantee
    sampling = sampling_of("poisson", g.n, g.batch_size)
    claim.verify(poisson, Plan(sampling, METHODS["batch"](0.1, g.sigma), g.steps))
    for sigma in (0.0, 0.5 * g.sigma, math.nextafter(g.sigma, 0) * (1 - 1e-5)):
        with pytest.raises(UserError, match="sigma is"):
            claim.verify(poisson, Plan(sampling, METHODS["batch"](0.1, sigma), g.steps))
