"""Filters: nobody passes a budget, and the claim covers adaptive choices (HARDENING F19)."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given

from tacita import PrivacyError, moments_budget, token_budget, worst_case
from tacita.accounting import NORM_LEVELS, MomentsBudget, TokenBudget, affordable
from tacita.accounting.levels import TOP, cost_table

MECHANISM = {"sample_rate": 0.01, "noise_multiplier": 1.0}
QUARTER = 128  # NORM_LEVELS[128] == 0.25


def dense(level, steps, side):
    """dp-accounting's composed loss of `steps` steps at a level: values and probabilities."""
    composed = pld.from_gaussian_mechanism(
        1.0, sensitivity=level, value_discretization_interval=1e-4, sampling_prob=0.01
    ).self_compose(steps)
    pmf = getattr(composed, side).to_dense_pmf()
    losses = pmf._discretization * (pmf._lower_loss + np.arange(len(pmf._probs)))
    return losses, pmf._probs


def hockey_stick(losses, probabilities, epsilons):
    """δ at many epsilons by cumulative sums, on the probability's own grid."""
    above = np.cumsum(probabilities[::-1])[::-1]
    discounted = np.cumsum((probabilities * np.exp(-losses))[::-1])[::-1]
    index = np.searchsorted(losses, epsilons, side="right")
    padded_above, padded = np.append(above, 0.0), np.append(discounted, 0.0)
    return padded_above[index] - np.exp(epsilons) * padded[index]


def adaptive_delta(epsilon, side):
    """100 steps at the bound; then, by the outcome, 100 more at it or 4715 at a quarter of it."""
    losses, probabilities = dense(1.0, 100, side)
    left = epsilon - losses
    branches = [hockey_stick(*dense(1.0, 100, side), left), hockey_stick(*dense(0.25, 4715, side), left)]
    each = [float(probabilities @ branch) for branch in branches]
    return float(probabilities @ np.maximum(*branches)), each


def test_f19_an_adaptive_switch_exceeds_both_branches_and_our_claims_cover_it():
    adaptive, each = adaptive_delta(1.0, "_pmf_remove")
    assert max(each) == pytest.approx(4.14e-6, rel=0.01)  # what composing the chosen levels would claim
    assert adaptive == pytest.approx(5.38e-6, rel=0.01)  # 30% more
    claim = token_budget({1.0: 200, 0.25: 4715}).curve(**MECHANISM).delta(np.array([1.0]))[0, 0]
    assert claim >= adaptive
    # A moments filter that lets either branch through covers it too.
    either = [moments_budget(steps=200, **MECHANISM), moments_budget(steps=4715, level=0.25, **MECHANISM)]
    first = moments_budget(steps=100, **MECHANISM)
    costs = np.maximum(either[0].costs, np.add(first.costs, either[1].costs))
    budget = MomentsBudget(first.orders, tuple(costs))
    assert budget.epsilon(adaptive, notion="weak", **MECHANISM) >= 1.0


def play(budget, choose, rounds, rng):
    """A record that picks its next level adversarially and takes part whenever it can pay for it."""
    counts = np.zeros((1, len(NORM_LEVELS)), dtype=np.int64)
    for _ in range(rounds):
        level = np.array([choose(counts, rng)])
        if affordable(budget, counts, level, steps=1, **MECHANISM) == level:
            counts[0, level] += 1
    return counts


def greedy(counts, rng):
    return TOP


def random_level(counts, rng):
    return rng.integers(0, TOP + 1)


def alternating(counts, rng):
    return (TOP, QUARTER, 0, 30)[counts.sum() % 4]


@pytest.mark.parametrize("choose", [greedy, random_level, alternating])
def test_f19_no_sequence_of_choices_passes_a_token_budget(choose, rng):
    budget = token_budget({1.0: 5, 0.25: 20, 0.01: 40})
    counts = play(budget, choose, 150, rng)
    assert budget.within(counts, **MECHANISM).all()
    tokens = np.array(budget.tokens)
    for level in range(1, len(NORM_LEVELS)):
        assert counts[0, level:].sum() <= tokens[level:].sum()
    spent = TokenBudget(tuple(int(c) for c in counts[0]))
    epsilons = np.array([0.05, 0.2, 0.5])
    assert (spent.curve(**MECHANISM).delta(epsilons) <= budget.curve(**MECHANISM).delta(epsilons) * 1.01 + 1e-12).all()


@pytest.mark.parametrize("choose", [greedy, random_level, alternating])
def test_f19_no_sequence_of_choices_passes_a_moments_budget(choose, rng):
    budget = moments_budget(steps=10, **MECHANISM)
    counts = play(budget, choose, 150, rng)
    spent = counts @ cost_table(0.01, 1.0, budget.orders).T
    assert (spent <= np.array(budget.costs) * (1 + 1e-9)).all()
    if choose is greedy:
        assert counts[0, TOP] == 10


@pytest.mark.slow
def test_f19_ten_thousand_adversarial_sequences(rng):
    tokens, moments = token_budget({1.0: 3, 0.25: 10}), moments_budget(steps=4, **MECHANISM)
    for _ in range(5000):
        for budget in (tokens, moments):
            favourite = int(rng.integers(1, TOP + 1))

            def choose(counts, rng, favourite=favourite):
                return favourite if rng.random() < 0.7 else int(rng.integers(0, TOP + 1))

            assert budget.within(play(budget, choose, 25, rng), **MECHANISM).all()


def test_any_exceeded_order_retires_a_record():
    table = cost_table(0.01, 1.0, (1, 32))
    generous_at_one = MomentsBudget((1, 32), (1e3, float(table[1, TOP])))
    counts = np.zeros((1, len(NORM_LEVELS)), dtype=np.int64)
    counts[0, TOP] = 2
    assert not generous_at_one.within(counts, **MECHANISM)[0]


def test_all_tokens_at_the_top_are_plain_dp():
    budget = token_budget({1.0: 2000})
    worst = worst_case(steps=2000, delta=1e-5, **MECHANISM)
    assert budget.epsilon(1e-5, **MECHANISM) == pytest.approx(worst.epsilon, rel=2e-3)
    assert budget.epsilon(1e-5, **MECHANISM) >= worst.epsilon * (1 - 1e-6)


def test_a_profile_below_the_bound_is_a_smaller_worst_case():
    profile = token_budget({1.0: 800, 0.25: 1200})
    assert profile.epsilon(1e-5, **MECHANISM) < 0.75 * worst_case(steps=2000, delta=1e-5, **MECHANISM).epsilon


def test_a_moments_budget_gives_the_papers_conversion():
    budget = MomentsBudget((8,), (2.0,))
    strong = budget.epsilon(1e-5, notion="strong", **MECHANISM)
    assert strong == pytest.approx((2.0 + math.log(1e5)) / 8)
    weak = budget.epsilon(1e-5, notion="weak", **MECHANISM)
    assert weak == pytest.approx(strong + (math.log(1 / 9) + 8 * math.log(8 / 9)) / 8)


def test_tokens_have_no_strong_notion():
    with pytest.raises(PrivacyError, match="moments budget"):
        token_budget({1.0: 1}).epsilon(1e-5, notion="strong", **MECHANISM)


def test_budgets_may_be_given_as_lists():
    assert MomentsBudget([1, 2], [1.0, 2.0]) == MomentsBudget((1, 2), (1.0, 2.0))
    assert TokenBudget([0] * len(NORM_LEVELS)) == token_budget({})
    assert MomentsBudget([1], [1.0]).within(np.zeros((1, len(NORM_LEVELS)), dtype=np.int64), **MECHANISM)[0]


@given(st.dictionaries(st.floats(0.0, 1.0), st.integers(0, 50), max_size=4))
def test_token_levels_are_rounded_up(tokens):
    budget = token_budget(tokens)
    assert sum(budget.tokens) == sum(tokens.values())
    for fraction, steps in tokens.items():
        counts = np.zeros((1, len(NORM_LEVELS)), dtype=np.int64)
        counts[0, np.searchsorted(NORM_LEVELS, fraction, side="left")] = steps
        assert budget.within(counts, **MECHANISM)[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MomentsBudget((), ()), "at least 1"),
        (lambda: MomentsBudget((2,), (1.0, 2.0)), "one length"),
        (lambda: MomentsBudget((0,), (1.0,)), "order"),
        (lambda: MomentsBudget((2,), (math.nan,)), "cost"),
        (lambda: TokenBudget((1, 2)), "tokens must have one entry"),
        (lambda: token_budget({1.5: 3}), "a token's level"),
        (lambda: token_budget({0.5: -3}), "a token's steps"),
        (lambda: token_budget([1.0]), "tokens must map"),
    ],
)
def test_bad_budgets_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
