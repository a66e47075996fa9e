"""F25: every success rate that a label prints is that of the statement's own curve, from above."""

import math
from dataclasses import replace

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from tacita import posterior
from tacita.accounting import BayesianAccountant, gaussian_release, token_budget
from tacita.facts import RunFacts
from tacita.federated import federation_plan
from tacita.federated.participation import hidden_participation
from tacita.guarantee import attack_success
from tacita.inference.final_samples import Box, box_guarantee
from tacita.label import Label, Readings, build
from tacita.ledger import Promise
from tacita.profile import Profile
from tacita.report import table
from tacita.training.plan import Plan, within_promise

RATE, NOISE, STEPS, DELTA = 0.1, 1.5, 30, 1e-5
MECHANISM = {"sample_rate": RATE, "batch_size": 1, "noise_multiplier": NOISE}
RECORDS = {"record_clip_norm": 1.0, "record_rate": RATE, "local_batch": 10}


def sampled(steps=STEPS):
    """The success of the best attack on sampled Gaussian steps, by dp-accounting."""
    one = pld.from_gaussian_mechanism(NOISE, sampling_prob=RATE, value_discretization_interval=1e-3)
    return 0.5 + 0.5 * one.self_compose(steps).get_delta_for_epsilon(0.0)


def plan(**more):
    return Plan.declare(**MECHANISM, steps=STEPS, delta=DELTA, **more)


def without_sampling(**more):
    declared = {"sample_rate": 1.0, "batch_size": 1, "noise_multiplier": 8.0, "steps": 40, "individual_every": 1}
    return Plan.declare(**declared, **more)


def federation(level, **more):
    return federation_plan(level=level, clients=10, rounds=STEPS, delta=DELTA, **more)


def typical():
    accountant = BayesianAccountant(sample_rate=RATE, noise_multiplier=NOISE)
    accountant.step([0.0] * 400, steps=STEPS)
    return replace(accountant.guarantee(delta=DELTA), publishable=False)


# What is said, and how often the best attack is right in truth (None where no closed form or oracle is at hand).
CLAIMS = {
    "training": lambda: (plan().headline(STEPS, DELTA), sampled()),
    "training, ended by its owner": lambda: (plan().headline(20, DELTA, ended="a power cut"), sampled(20)),
    "training, first declared end": lambda: (plan(stops=(2, 10)).headline(2, DELTA), sampled()),
    "training, last declared end": lambda: (plan(stops=(2, 10)).headline(STEPS, DELTA), sampled()),
    "record budget": lambda: (
        without_sampling(record_budget=token_budget({0.5: 16})).headline(40, DELTA),
        norm.cdf(0.125),
    ),
    "ledger's budget": lambda: (
        within_promise(plan().headline(STEPS, DELTA), Promise(0.05, DELTA, Profile.of_pair(0.05, DELTA))),
        attack_success(0.05, DELTA),
    ),
    "clients": lambda: (
        federation("client", client_rate=RATE, noise_multiplier=NOISE).client_worst(STEPS, DELTA),
        sampled(),
    ),
    "records, parallel": lambda: (
        federation("parallel", client_rate=1.0, record_noise_multiplier=NOISE, **RECORDS).record_worst(STEPS, DELTA),
        sampled(),
    ),
    "records, hidden participation": lambda: (
        hidden_participation(
            federation("parallel", client_rate=0.3, record_noise_multiplier=NOISE, **RECORDS), STEPS, DELTA
        ),
        None,
    ),
    "mean embedding": lambda: (gaussian_release(noise_multiplier=2.0, delta=DELTA), norm.cdf(0.25)),
    "posterior": lambda: (
        posterior.release(posterior.beta(1, 1), counts=(40, 60), epsilon=0.7, mechanism="geometric").guarantee,
        1.0 / (1.0 + math.exp(-0.7)),
    ),
    "box": lambda: (box_guarantee(Box(bound=0.1, low=0.99, high=1.01, dimension=1), samples=1, delta=DELTA), None),
}


def rate_of(text):
    return float(text.removeprefix("at most ").removesuffix("%")) / 100.0


@pytest.mark.parametrize("kind", CLAIMS)
def test_f25_a_printed_success_is_that_of_the_curve(kind):
    claim, exact = CLAIMS[kind]()
    label = build(RunFacts("test", "a test", seeded=True), claim, rests_on=())
    (row,) = table.rows(label)
    printed = rate_of(row.attack)
    assert 0.0 <= printed - claim.curve.attack_success() <= 1e-3 + 1e-12
    assert claim.profile is not None
    if exact is not None:
        assert 0.0 <= printed - exact <= 2e-3  # rounded up to a tenth of a percent, from a curve that is within 1e-3
        assert -1e-9 <= claim.attack_success - exact <= 1e-3
    assert f"{100 * printed:.1f}".rstrip("0").rstrip(".") + "%" in str(label)


def test_f25_a_typical_record_is_never_said_to_be_more_exposed_than_anyone():
    worst, average = plan().headline(STEPS, DELTA), typical()
    label = Label(title="t", purpose="p", worst=worst, readings=Readings(typical=(average,), panels="400"))
    anyone, found = (rate_of(row.attack) for row in table.rows(label))
    assert anyone == pytest.approx(sampled(), abs=2e-3)
    assert 0.5 <= average.curve.attack_success() <= found + 1e-12 <= anyone
