"""The statistics of membership attacks, against oracles and by repetition."""

import json
import math

import numpy as np
import pytest
from scipy.stats import beta, binom, norm
from sklearn.metrics import roc_auc_score, roc_curve

from tacita.audit import compare_scores
from tacita.guarantee import attack_success
from tacita.profile import Profile

FALSE_ALARM = 1e-6


def auc(members, others):
    return roc_auc_score(np.repeat([1, 0], len(members)), np.concatenate([members, others]))


def with_ties(rng, size):
    return rng.normal(0.4, 1.0, size).round(1), rng.normal(0.0, 1.0, size).round(1)


def test_auc_is_that_of_scikit_learn_with_ties(rng):
    members, others = with_ties(rng, 250)
    assert compare_scores(members, others).auc == pytest.approx(auc(members, others), abs=1e-12)


@pytest.mark.parametrize("size", [10, 300])
def test_equal_scores_tell_nothing(size):
    found = compare_scores(np.ones(size), np.ones(size), rng=np.random.default_rng(0))
    assert found.auc == found.success == 0.5
    assert not found.distinguishable
    assert [caught.share for caught in found.caught] == [0.0, 0.0]
    assert found.roc == ((0.0, 0.0), (1.0, 1.0))
    assert found.finding().chart is None


def test_perfect_scores_keep_an_interval():
    found = compare_scores(np.arange(10, 20), np.arange(10))
    assert found.auc == 1.0
    assert 0.5 < found.auc_interval[0] < 0.95  # ten records cannot show perfection
    assert found.auc_interval[1] == 1.0
    mirrored = compare_scores(np.arange(10), np.arange(10, 20))
    assert mirrored.auc_interval == pytest.approx((0.0, 1.0 - found.auc_interval[0]), abs=1e-9)
    assert "something else" in mirrored.sentence


@pytest.mark.stat
@pytest.mark.parametrize(
    ("size", "shift", "scale"), [(12, 0.0, 1.0), (40, 0.5, 1.0), (40, 3.0, 1.0), (40, 0.5, 0.1), (40, 0.5, 5.0)]
)
def test_auc_interval_covers(rng, size, shift, scale):
    """The truth is missed in at most 8% of draws (5% nominal, approximate), and a third of the width misses more."""
    repeats = 150
    truth = 0.5 * math.erfc(-shift / math.sqrt(1.0 + scale**2) / math.sqrt(2.0))
    missed = narrow = 0
    for _ in range(repeats):
        found = compare_scores(rng.normal(shift, scale, size), rng.normal(0.0, 1.0, size), rng=rng)
        low, high = found.auc_interval
        missed += not low <= truth <= high
        narrow += not abs(truth - found.auc) <= (high - low) / 6
    most = binom.ppf(1.0 - FALSE_ALARM, repeats, 0.08)
    assert missed <= most < narrow


@pytest.mark.parametrize("size", [20, 99, 100, 999, 1000, 2500])
def test_members_found_at_rare_false_alarms_by_brute_force(rng, size):
    members, others = with_ties(rng, size)
    for caught, rate in zip(
        compare_scores(members, others, rng=np.random.default_rng(0)).caught, (0.001, 0.01), strict=True
    ):
        best = max(
            np.mean(members > threshold)
            for threshold in np.concatenate([members, others, [-np.inf]])
            if np.mean(others > threshold) <= rate + 1e-12
        )
        assert caught.share == best
        assert caught.resolved == (size * rate >= 1 - 1e-9)
        assert caught.false_alarms <= rate * size
        hits = round(best * size)
        low = beta.ppf(0.025, hits, size - hits + 1) if hits else 0.0
        assert caught.interval == pytest.approx((low, beta.ppf(0.975, hits + 1, size - hits)), rel=1e-9)
        if not caught.resolved:
            assert caught.limit == pytest.approx(1.0 - 0.05 ** (1.0 / size), rel=1e-9)  # the rule of three
            assert caught.limit < 3.0 / size


@pytest.mark.parametrize("size", [15, 5000])
def test_roc_points_lie_on_the_curve(rng, size):
    members, others = with_ties(rng, size) if size == 15 else (rng.normal(1, 1, size), rng.normal(0, 1, size))
    points = compare_scores(members, others, rng=np.random.default_rng(0)).roc
    x, y, _ = roc_curve(np.repeat([1, 0], size), np.concatenate([members, others]), drop_intermediate=False)
    corners = set(zip((x * size).round().tolist(), (y * size).round().tolist(), strict=True))
    assert {(round(a * size), round(b * size)) for a, b in points} <= corners
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)
    assert points == tuple(sorted(points))
    assert 5 < len(points) <= 200


@pytest.mark.stat
def test_success_is_not_inflated_by_choosing_a_threshold(rng):
    """Five standard errors of the mean: a false alarm in a million. Choosing on the same records fails it."""
    size, repeats = 50, 200
    honest, greedy, above = [], [], 0
    for _ in range(repeats):
        members, others = rng.normal(size=size), rng.normal(size=size)
        found = compare_scores(members, others, rng=rng)
        honest.append(found.success)
        above += found.success_interval[0] > 0.5
        greedy.append(max(np.mean(members >= t) + np.mean(others < t) for t in members) / 2.0)
    error = 5.0 * 0.5 / math.sqrt(2 * size * repeats)
    assert abs(np.mean(honest) - 0.5) < error < np.mean(greedy) - 0.5
    assert above <= binom.ppf(1.0 - FALSE_ALARM, repeats, 0.025)


@pytest.mark.stat
def test_success_comes_near_the_best_possible(rng):
    """Normal scores two apart are guessed right with probability 0.841; five standard errors and 1% for learning."""
    found = compare_scores(rng.normal(2.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000), rng=np.random.default_rng(0))
    best = 0.5 * math.erfc(-1.0 / math.sqrt(2.0))
    assert best - 0.01 - 5 * 0.0058 < found.success < best + 5 * 0.0058
    assert found.success_interval[0] < found.success < found.success_interval[1]
    hits, tries = round(found.success * 4000), 4000
    exact = beta.ppf(0.025, hits, tries - hits + 1), beta.ppf(0.975, hits + 1, tries - hits)
    assert found.success_interval == pytest.approx(exact, rel=1e-9)


def test_lower_bound_is_the_epsilon_that_allows_the_success():
    members, others = np.arange(300.0) + 200.0, np.arange(300.0)
    found = compare_scores(members, others, delta=1e-3, rng=np.random.default_rng(0))
    bound = found.lower_bound
    assert bound.epsilon > 0.5
    assert attack_success(bound.epsilon, 1e-3) == pytest.approx(found.success_interval[0], rel=1e-12)
    assert bound.kind == "empirical_lower"
    assert bound.scope == "reading"
    assert not bound.publishable
    assert "does not prove" in " ".join(a.text for a in bound.assumptions)
    assert compare_scores(others, members, delta=0.9, rng=np.random.default_rng(0)).lower_bound.epsilon == 0.0


def test_verdicts_and_words():
    apart, same = (np.arange(50.0) + 60.0, np.arange(50.0)), (np.arange(50.0), np.arange(50.0))
    broken = compare_scores(*apart, epsilon=1.0, delta=1e-5, rng=np.random.default_rng(0))
    assert broken.exceeds_claim
    assert broken.state == "warning"
    assert "more than the claim allows" in broken.sentence
    assert "the claim allows at most 73.2%" in broken.sentence
    within = compare_scores(*apart, epsilon=9.0, rng=np.random.default_rng(0))
    assert (within.state, within.exceeds_claim, within.distinguishable) == ("not-refuted", False, True)
    assert "better than by chance" in within.sentence
    unclaimed = compare_scores(*apart, rng=np.random.default_rng(0))
    assert unclaimed.state == "warning"
    assert not unclaimed.finding().tests_claim  # a leak, but no claim was made that it could break
    assert broken.finding().tests_claim
    assert compare_scores(*apart, epsilon=math.inf, rng=np.random.default_rng(0)).epsilon is None
    quiet = compare_scores(*same, rng=np.random.default_rng(0))
    assert (quiet.state, quiet.allowed) == ("open", None)
    assert "could not tell" in quiet.sentence
    assert compare_scores(*same, epsilon=1.0, rng=np.random.default_rng(0)).state == "not-refuted"


def test_the_claims_curve_says_what_is_allowed_and_its_pair_what_is_refuted():
    """At the distance 1 of a Gaussian release guesses are right Φ(1/2) of the time; its pair at 1e-5 allows 98.5%."""
    curve = Profile.gaussian(1.0)
    claim = {"epsilon": curve.epsilon(1e-5), "delta": 1e-5, "profile": curve}
    rng = np.random.default_rng(1)
    usual = compare_scores(rng.normal(1.0, 1.0, 500), rng.normal(0.0, 1.0, 500), **claim, rng=rng)
    assert norm.cdf(0.5) <= usual.allowed <= norm.cdf(0.5) + 1e-3
    assert (usual.state, usual.exceeds_average) == ("not-refuted", False)
    assert "the claim allows at most 69.2%" in usual.sentence
    often = compare_scores(rng.normal(2.0, 1.0, 500), rng.normal(0.0, 1.0, 500), **claim, rng=rng)
    assert (often.state, often.exceeds_average, often.exceeds_claim) == ("open", True, False)
    assert "on average over trainings" in often.sentence
    assert compare_scores(np.arange(2000) + 2000, np.arange(2000), **claim, rng=rng).exceeds_claim


def test_finding_and_plain_data(rng):
    few = compare_scores(*with_ties(rng, 60), epsilon=2.0, rng=np.random.default_rng(0))
    finding = few.finding()
    assert finding.key == "membership"
    assert [row[0] for row in finding.rows].count("Members found, no false alarm seen") == 1
    assert "as rare as 0.1% and 1%" in finding.notes[-1]
    assert "below 4.88%" in finding.notes[-1]
    assert finding.chart.log
    assert all(x > 0.0 and y > 0.0 for series in finding.chart.series for x, y in series.points)
    many = compare_scores(*with_ties(rng, 1000), rng=np.random.default_rng(0)).finding()
    assert "Members found, 0.1% false alarms" in {row[0] for row in many.rows}
    assert not any("as rare as" in note for note in many.notes)
    plain = few.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False))["auc"] == few.auc
    assert plain["allowed"] == pytest.approx(attack_success(2.0))


@pytest.mark.parametrize(
    ("members", "others", "options", "message"),
    [
        (np.ones(9), np.ones(9), {}, "at least 10 scores"),
        (np.ones((10, 2)), np.ones(10), {}, r"got shape \(10, 2\)"),
        (np.ones(10), np.ones(11), {}, "equally many, got 10 and 11"),
        (np.full(10, np.nan), np.ones(10), {}, "must be finite"),
        (np.ones(10), np.ones(10), {"epsilon": -1.0}, "epsilon must be in"),
        (np.ones(10), np.ones(10), {"delta": 1.5}, "delta must be in"),
    ],
)
def test_wrong_scores_are_refused(members, others, options, message):
    with pytest.raises(ValueError, match=message):
        compare_scores(members, others, **options)


def test_the_whole_curve_may_allow_less_than_the_pair():
    high, low = np.arange(40.0) + 10.0, np.arange(40.0)
    by_pair = compare_scores(high, low, epsilon=2.0, delta=1e-5, rng=np.random.default_rng(0))
    curve = Profile.gaussian(0.47)  # Φ(0.235) = 0.5929
    by_curve = compare_scores(high, low, epsilon=2.0, delta=1e-5, profile=curve, rng=np.random.default_rng(0))
    assert by_pair.allowed == pytest.approx((math.exp(2.0) + 1e-5) / (1.0 + math.exp(2.0)))
    assert by_curve.allowed == pytest.approx(0.5929, abs=1e-4)
    assert "the claim allows at most 59.3%" in by_curve.sentence
    assert compare_scores(high, low, profile=curve, rng=np.random.default_rng(0)).allowed is None  # nothing is claimed
    measured = by_curve.finding().measured
    assert measured == tuple(point for point in by_curve.roc if point[0] >= 0.25)  # ten of forty false alarms
