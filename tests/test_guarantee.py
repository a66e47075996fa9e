import html
import json
import math
from dataclasses import replace

import pytest
from scipy.stats import norm

import tacita
from tacita import Guarantee, PrivacyError, attack_success, group, outlier_probability, share_above
from tacita.accounting import gaussian_release
from tacita.mechanisms.gaussian import gaussian_epsilon
from tacita.profile import Profile


def make(**changes):
    fields = {"kind": "worst_case", "epsilon": 1.0, "delta": 1e-5, "method": "pld", "publishable": True}
    return Guarantee(**{**fields, **changes})


@pytest.mark.parametrize(("epsilon", "percent"), [(2, 88.08), (5, 99.33), (10, 99.995)])
def test_attack_success_matches_the_published_percentages(epsilon, percent):
    assert 100 * attack_success(epsilon) == pytest.approx(percent, abs=0.005)


def test_attack_success_counts_delta_and_survives_infinity():
    assert attack_success(0.0, 0.5) == pytest.approx(0.75)
    assert attack_success(math.inf) == 1.0
    assert attack_success(1000.0, 1e-5) == 1.0


def test_attack_success_is_the_best_test_of_an_epsilon_delta_pair():
    # The worst (ε, δ) pair of laws, explicitly: δ revealed either way, else randomised response.
    epsilon, delta = 1.3, 0.01
    keep = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    first = [delta, keep, 1 - delta - keep, 0.0]
    second = [0.0, 1 - delta - keep, keep, delta]
    best = 0.5 * sum(max(p, q) for p, q in zip(first, second, strict=True))
    assert attack_success(epsilon, delta) == pytest.approx(best, rel=1e-12)


def test_markov_and_outlier_figures_match_the_published_example():
    share = share_above(1e-8, threshold=1e-5)
    assert share == pytest.approx(0.001)
    assert outlier_probability(share, size=1000) == pytest.approx(0.632, abs=5e-4)
    assert outlier_probability(share, size=100) == pytest.approx(0.095, abs=5e-4)
    assert outlier_probability(1.0, size=3) == 1.0
    assert share_above(0.5, threshold=0.0) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "bayesian"), ("unit", "client"), ("neighbours", "replace_one"), ("notion", "weak"), ("delta", 1e-6)],
)
def test_comparing_unlike_guarantees_raises(field, value):
    with pytest.raises(PrivacyError, match="Cannot compare"):
        _ = make() < make(**{field: value})


def test_adding_unlike_kinds_raises_and_like_kinds_compose():
    with pytest.raises(PrivacyError, match="worst_case guarantee and a bayesian one"):
        make() + make(kind="bayesian")
    both = make(epsilon=1.0) + make(epsilon=0.5, delta=1e-6, publishable=False)
    assert (both.epsilon, both.delta, both.publishable) == (1.5, pytest.approx(1.1e-5), False)
    with pytest.raises(PrivacyError, match="promises nothing"):
        make(delta=0.6) + make(delta=0.6)
    with pytest.raises(PrivacyError, match="attacks"):
        make(kind="empirical_lower") + make(kind="empirical_lower")
    with pytest.raises(TypeError):
        make() + 1.0


def test_statements_about_two_populations_do_not_add():
    parts = [make(kind="bayesian", notion="weak", population=name) for name in ("patients of A", "patients of B", None)]
    assert (parts[0] + parts[0]).population == "patients of A"
    for other in parts[1:]:
        with pytest.raises(PrivacyError, match="different populations"):
            parts[0] + other
    assert [Guarantee.from_dict(part.to_dict()) for part in parts] == parts
    assert "population" not in parts[2].to_dict()


def test_a_sum_with_a_reading_or_a_model_says_so():
    part = make(kind="bayesian", notion="weak", model="distribution-free")
    both = part + make(kind="bayesian", notion="weak", scope="reading", model="model-based")
    assert (both.scope, both.model) == ("reading", "model-based")


def test_same_kind_orders_by_epsilon():
    assert make(epsilon=1.0) < make(epsilon=2.0)
    assert make(epsilon=1.0) <= make(epsilon=1.0)
    assert make(epsilon=3.0) > make(epsilon=2.0)


def test_the_figure_of_one_declared_end_neither_adds_nor_covers_groups():
    whole = Profile.of_pair(1.0, 1e-5)
    end = Guarantee(kind="worst_case", epsilon=0.2, delta=1e-5, method="pld", profile=whole, one_end=True)
    assert end.attack_success == whole.attack_success()
    for refused in (lambda: end + end, lambda: group(end, 2), lambda: replace(end, profile=None)):
        with pytest.raises(PrivacyError, match="end"):
            refused()


def test_a_lower_bound_has_no_upper_curve():
    lower = make(kind="empirical_lower", publishable=False)
    with pytest.raises(PrivacyError, match="lower bound"):
        lower.curve.attack_success()
    with pytest.raises(PrivacyError, match="lower bound"):
        replace(lower, profile=Profile.of_pair(1.0, 1e-5))


def test_group_privacy_grows_epsilon_and_delta():
    pair = group(make(epsilon=0.5, delta=1e-8), 3)
    assert pair.epsilon == pytest.approx(1.5)
    assert pair.delta == pytest.approx(3 * math.exp(1.5) * 1e-8)
    assert pair.unit == "group of 3 records"
    assert group(make(), 1) == make()
    assert group(make(delta=0.0), 2).delta == 0.0
    with pytest.raises(PrivacyError, match="delta >= 1"):
        group(make(epsilon=10.0), 3)
    with pytest.raises(PrivacyError, match="every dataset"):
        group(make(kind="bayesian", scope="reading"), 2)


@pytest.mark.parametrize("epsilon", [math.nan, 0.0, -1.0])
def test_epsilon_is_never_nan_zero_or_negative(epsilon):
    with pytest.raises(PrivacyError, match="epsilon"):
        make(epsilon=epsilon)


def test_infinite_is_said_as_infinite():
    g = make(epsilon=math.inf)
    assert "infinite" in str(g)
    assert g.to_dict()["epsilon"] == "infinity"
    json.dumps(g.to_dict(), allow_nan=False)


def test_sentences_say_whom_they_cover():
    assert "any record whatsoever" in str(make())
    bayesian = str(make(kind="bayesian", scope="reading", model="model-based", publishable=False))
    for words in ("drawn from the population", "unlike that population", "reading of one run", "model-based", "owner"):
        assert words in bayesian
    assert "e^30" in str(make(epsilon=30.0))
    assert "at least 1.234" in str(make(kind="empirical_lower", epsilon=1.2349))


def test_figures_that_are_no_bounds_claim_nothing():
    g = make(kind="bayesian", composition="independent", scope="reading", is_bound=False, publishable=False)
    assert str(g).startswith("NOT AN UPPER BOUND")
    assert "at most" not in g.claim
    assert g.to_dict()["attack_success"] is None
    assert Guarantee.from_dict(g.to_dict()) == g
    assert not (g + make(kind="bayesian")).is_bound
    with pytest.raises(PrivacyError, match="Group privacy"):
        group(make(kind="bayesian", is_bound=False, publishable=False), 2)


def test_what_is_no_bound_can_neither_be_published_nor_pass_for_a_bound():
    with pytest.raises(PrivacyError, match="publishable"):
        make(kind="bayesian", is_bound=False, publishable=True)
    with pytest.raises(PrivacyError, match="is_bound must be False"):
        make(kind="bayesian", composition="independent")
    with pytest.raises(TypeError, match="is_bound"):
        make(is_bound="yes")
    data = make(kind="bayesian", composition="independent", is_bound=False, publishable=False).to_dict()
    for wrong in (
        {**data, "is_bound": True},
        {**data, "is_bound": 1},
        {k: v for k, v in data.items() if k != "is_bound"},
    ):
        with pytest.raises(ValueError, match="is_bound"):
            Guarantee.from_dict(wrong)


def test_the_noise_of_the_mechanism_can_be_read():
    assert make(mechanism=(("noise_multiplier", 1.5),)).noise_multiplier == 1.5
    with pytest.raises(AttributeError, match="single mechanism"):
        _ = (make() + make()).noise_multiplier


def test_printed_deltas_are_rounded_up():
    assert "at delta 0.00001235" in str(make(delta=1.2345644e-5))
    assert "at delta 0.00001" in str(make(delta=1e-5))


def test_dictionary_is_stable_json():
    data = json.loads(json.dumps(make(delta_split=(("band", 1e-6),)).to_dict()))
    assert data["schema"] == 3
    assert set(data) >= {"kind", "epsilon", "delta", "method", "scope", "assumptions", "publishable", "neighbours"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attack_success(math.nan), "epsilon"),
        (lambda: attack_success("1"), "epsilon must be a number"),
        (lambda: share_above(0.0, threshold=0.1), "delta must be in"),
        (lambda: outlier_probability(0.1, size=0), "size"),
        (lambda: outlier_probability(0.1, size=1.5), "size must be a whole number"),
        (lambda: group(make(), 0), "size"),
        (lambda: make(kind="other"), "kind must be one of"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_guarantee_comes_back_from_its_dict_and_a_damaged_one_does_not():
    given = tacita.worst_case(sample_rate=0.1, noise_multiplier=1.0, steps=3, delta=1e-5)
    assert tacita.Guarantee.from_dict(given.to_dict()) == given
    for damage in (
        {"assumptions": "none"},
        {"publishable": "yes"},
        {"schema": 9},
        {"epsilon": None},
        {"kind": "magic"},
    ):
        with pytest.raises((ValueError, TypeError)):
            tacita.Guarantee.from_dict({**given.to_dict(), **damage})
    with pytest.raises(ValueError, match="damaged"):
        tacita.Guarantee.from_dict({k: v for k, v in given.to_dict().items() if k != "delta"})


def test_worst_cases_with_curves_compose_by_them():
    """Two Gaussian releases at distance 0.3 are one at 0.3 √2, in closed form."""
    one = gaussian_release(noise_multiplier=1 / 0.3, delta=1e-6)
    both = one + one
    assert both.delta == 2e-6
    exact = gaussian_epsilon(2e-6, distance=0.3 * math.sqrt(2.0))
    assert exact <= both.epsilon < 1.01 * exact < 1.6 * one.epsilon
    assert both.profile.attack_success() == pytest.approx(norm.cdf(0.15 * math.sqrt(2.0)), abs=1e-4)
    assert "releases-planned" in [a.code for a in both.assumptions]
    assert Guarantee.from_dict(json.loads(json.dumps(both.to_dict()))) == both
    pair = replace(one, profile=None)
    assert (one + pair).epsilon == 2 * one.epsilon
    assert (one + pair).profile is None


def test_a_guarantee_and_its_profile_are_one_line_in_a_notebook_and_unfold_what_they_rest_on():
    found = tacita.worst_case(sample_rate=0.01, noise_multiplier=1.0, steps=100, delta=1e-5)
    assert repr(found) == "<Guarantee: worst_case: epsilon 0.7181 at delta 0.00001, for one record>"
    assert len(repr(found.profile)) < 100
    shown = found._repr_html_()
    assert html.escape(found.claim) in shown
    assert all(html.escape(a.text) in shown for a in found.assumptions)
    odd = replace(found, unit="<script>", profile=None)
    assert "<script>" not in odd._repr_html_()
    attack = Guarantee(kind="empirical_lower", epsilon=0.123456, delta=1e-5, method="canaries")
    assert "epsilon 0.1234 " in repr(attack)  # a lower bound is rounded down
