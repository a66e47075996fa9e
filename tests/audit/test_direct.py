"""Direct tests of noise, contributions and sampling: their level by repetition, and every planted fault (A7)."""

import json
import os
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from tacita.audit import CanaryAudit, canaries
from tacita.audit.canary_attack import canary_finding
from tacita.audit.direct import ERROR, FAULT_TEXTS, KINDS, SHARE, Direct
from tacita.audit.tally import CERTAIN

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SIGMA, RATE = 2.0, 0.1


class Step:
    """A correct Poisson-sampled Gaussian step in numpy; subclasses plant one fault each."""

    def __init__(self, seed, *, tell=True):
        self.rng, self.tell, self.taken = np.random.default_rng(seed), tell, 0

    def draw(self, present):
        return present & (self.rng.random(len(present)) < RATE)

    def give(self, drawn):
        return drawn.astype(float)

    def noise(self, size):
        return SIGMA * self.rng.standard_normal(size)

    def __call__(self, present):
        drawn = self.draw(present)
        seen = self.give(drawn) + self.noise(len(present))
        self.taken += 1
        return (seen, 1.0, drawn) if self.tell else seen


class QuietStep(Step):
    def noise(self, size):
        return 0.9 * super().noise(size)


class QuietOnce(Step):
    def noise(self, size):
        return super().noise(size) * (0.8 if self.taken == 4 else 1.0)


class QuietPart(Step):
    def noise(self, size):
        return super().noise(size) * np.where(np.arange(size) % 10 == 3, 0.8, 1.0)


class SilentCoordinates(Step):
    def noise(self, size):
        return super().noise(size) * (np.arange(size) % 1000 != 500)


class QuietCoordinates(Step):
    def noise(self, size):
        return super().noise(size) * np.where(np.arange(size) % 50 == 7, 0.6, 1.0)


class Truncated(Step):
    def noise(self, size):
        return np.clip(1.002 * super().noise(size), -3.0 * SIGMA, 3.0 * SIGMA)


class Reused(Step):
    def noise(self, size):
        return np.random.default_rng(self.taken % 3).standard_normal(size) * SIGMA


class ReusedLater(Step):
    def noise(self, size):
        return np.random.default_rng(self.taken % 8).standard_normal(size) * SIGMA


class Antithetic(Step):
    def noise(self, size):
        noise = np.random.default_rng(self.taken // 2).standard_normal(size) * SIGMA
        return noise if self.taken % 2 else -noise


class Drifting(Step):
    """A twentieth of the noise's variance is the same at all steps."""

    def noise(self, size):
        same = np.random.default_rng(5).standard_normal(size)
        return SIGMA * (0.05**0.5 * same + 0.95**0.5 * self.rng.standard_normal(size))


class Shared(Step):
    """Rows of 100 coordinates have one noise."""

    def noise(self, size):
        return np.tile(SIGMA * self.rng.standard_normal(100), size // 100)


class Opposite(Step):
    """The second half of the coordinates has the opposite noise of the first."""

    def noise(self, size):
        half = SIGMA * self.rng.standard_normal(size // 2)
        return np.concatenate([half, -half])


class Wide(Step):
    def give(self, drawn):
        return 1.1 * drawn


class VeryWide(Step):
    def give(self, drawn):
        return 2.0 * drawn


class SometimesUnclipped(Step):
    def give(self, drawn):
        return np.where(self.rng.random(len(drawn)) < 1e-3, 20.0, 1.0) * drawn


class TwiceTheRate(Step):
    def draw(self, present):
        return present & (self.rng.random(len(present)) < 2 * RATE)


class Sticky(Step):
    def draw(self, present):
        if self.taken % 2 == 0:
            self.kept = super().draw(present)
        return self.kept


class Stuck(Step):
    """One batch for all steps."""

    def draw(self, present):
        return present & (np.random.default_rng(5).random(len(present)) < RATE)


class Favourites(Step):
    """One record in fifty is drawn half of the time; the others a little less often, so that the rate is right."""

    def draw(self, present):
        chances = np.where(np.arange(len(present)) % 50 == 0, 0.5, (RATE - 0.01) / 0.98)
        return present & (self.rng.random(len(present)) < chances)


class FixedSize(Step):
    def draw(self, present):
        chosen = np.zeros(len(present), dtype=bool)
        there = np.flatnonzero(present)
        chosen[self.rng.choice(there, round(RATE * len(there)), replace=False)] = True
        return chosen


FAULTS = [
    (QuietStep, "noise"),
    (QuietOnce, "steps"),
    (QuietPart, "parts"),
    (SilentCoordinates, "coordinates"),
    (QuietCoordinates, "coordinates"),
    (Truncated, "shape"),
    (Reused, "correlated"),
    (Reused, "repeated"),
    (ReusedLater, "repeated"),
    (Antithetic, "correlated"),
    (Antithetic, "repeated"),
    (Drifting, "correlated"),
    (Shared, "shared"),
    (Opposite, "shared"),
    (Wide, "contribution"),
    (VeryWide, "contribution"),
    (SometimesUnclipped, "largest"),
    (TwiceTheRate, "rate"),
    (Sticky, "coins"),
    (Favourites, "coins"),
    (FixedSize, "coins"),
]
UNTOLD = [(QuietStep, "noise"), (VeryWide, "contribution"), (TwiceTheRate, "contribution"), (Stuck, "coins")]


def measured(step, *, steps=16, count=20_000, seed=1):
    coins = np.random.default_rng(seed)
    present = coins.random(count) < 0.5
    direct = Direct(present, sample_rate=RATE, noise_multiplier=SIGMA, parts=np.arange(count) % 10)
    for _ in range(steps):
        told = step(present)
        direct.add(*told) if isinstance(told, tuple) else direct.add(told)
    return {test.kind: test for test in direct.tests()}


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_a7_a_fault_fails_the_test_that_is_meant_for_it(fault, kind):
    assert measured(fault(2))[kind].failed


@pytest.mark.parametrize(("fault", "kind"), UNTOLD)
def test_a7_faults_of_steps_that_do_not_tell_who_was_drawn(fault, kind):
    assert measured(fault(3, tell=False))[kind].failed


@pytest.mark.parametrize("fault", [SilentCoordinates, QuietStep, QuietOnce])
def test_a7_one_step_shows_them_too(fault):
    step = fault(4)
    step.taken = 4
    assert any(test.failed for test in measured(step, steps=1).values())


class Louder(Step):
    def noise(self, size):
        return 1.3 * super().noise(size)


class Seldom(Step):
    def draw(self, present):
        return super().draw(present) & (self.rng.random(len(present)) < 0.5)


class Short(Step):
    def give(self, drawn):
        return 0.5 * drawn


@pytest.mark.parametrize("tell", [True, False])
@pytest.mark.parametrize("harmless", [Step, Louder, Seldom, Short])
def test_too_much_noise_and_too_little_data_are_no_fault(harmless, tell):
    found = measured(harmless(6, tell=tell))
    assert not [kind for kind, test in found.items() if test.failed]
    assert all(test.p > 1e-4 for test in found.values())


@pytest.mark.stat
@pytest.mark.parametrize(("count", "steps", "tell"), [(200, 6, True), (60, 12, False), (300, 1, True)])
def test_a7_no_kind_of_test_exceeds_its_level(count, steps, tell):
    """At a level of 5%, so that alarms can be counted: every kind raises it as rarely as it says; p < 1e-5 each."""
    seeds, level = 2000 if THOROUGH else 40, 0.05
    alarms = Counter()
    for seed in range(seeds):
        found = measured(Step([7, seed], tell=tell), steps=steps, count=count, seed=[8, seed])
        alarms.update(kind for kind, test in found.items() if test.p <= level)
    assert all(alarms[kind] <= binom.isf(1e-5, seeds, level) for kind in KINDS)


def test_all_tests_together_keep_half_of_the_level():
    assert pytest.approx(ERROR) == SHARE * len(KINDS)
    assert pytest.approx(1e-6) == ERROR + 1.0 - (CERTAIN + ERROR)
    assert set(FAULT_TEXTS) == set(KINDS)


def audit(step, **others):
    settings = {"sample_rate": RATE, "noise_multiplier": SIGMA, "steps": 16, "delta": 1e-5, "seed": 9, **others}
    return canaries(step, **settings)


def test_a7_noise_a_tenth_too_small_breaks_a_claim_of_about_one():
    found = audit(QuietStep(10, tell=False))
    assert 0.5 < found.epsilon < 1.5
    assert found.broken
    assert not found.guessed  # the guesses alone do not show it
    assert found.noise == pytest.approx(0.9, abs=0.01)
    told = canary_finding([found], steps=16)
    assert told.state == "warning"
    assert told.sentence.startswith("Claim broken.")
    assert FAULT_TEXTS["noise"] in told.sentence
    assert "more than chance explains" not in told.sentence
    again = CanaryAudit.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    assert again.broken
    assert found.to_dict()["broken"] is True


@pytest.mark.parametrize("fault", [Wide, TwiceTheRate, Sticky, Antithetic, SilentCoordinates])
def test_a7_faults_break_the_claim(fault):
    assert audit(fault(11)).verdict == "claim broken"


def test_where_nothing_was_shown_it_says_so_and_no_more():
    found = audit(Step(12))
    assert (found.state, found.verdict) == ("not-refuted", "not refuted")
    told = canary_finding([found], steps=16)
    assert told.state == "not-refuted"
    assert told.sentence.startswith("An attacker who sees every step guesses right")
    assert found.to_dict()["state"] == "not-refuted"
    doubtful = CanaryAudit.from_dict({**found.to_dict(), "doubtful": True})
    assert (doubtful.state, doubtful.verdict) == ("open", "no verdict")
    told = canary_finding([doubtful], steps=16)
    assert told.state == "open"
    assert told.sentence.startswith("No verdict.")
    for text in (str(found), str(doubtful), told.sentence, json.dumps(doubtful.to_dict())):
        assert "holds" not in text


def test_who_was_drawn_is_told_by_booleans():
    with pytest.raises(ValueError, match="one boolean for each canary"):
        audit(lambda present: (np.zeros(len(present)), 1.0, np.flatnonzero(present)), steps=1, count=100)
