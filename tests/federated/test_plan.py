"""What a federation declares: its constants, its worst cases, and the bounds behind them against other arithmetic."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

import tacita
import tacita.federated.participation as shares_module
from tacita._check import PrivacyError
from tacita.accounting import Target
from tacita.federated import FederationPlan, federation_plan
from tacita.federated.levels import LEVELS
from tacita.federated.participation import hidden_participation, mixed_costs, noise_shares
from tacita.federated.recipes import Recipe, ready
from tacita.federated.server import Server

RECORDS = {"record_clip_norm": 0.5, "record_rate": 0.05, "local_batch": 10}


def make(level, **settings):
    given = {"clients": 20, "client_rate": 1.0 if level == "sequential" else 0.5, "rounds": 6}
    given |= {} if level == "client" else RECORDS
    noise = "noise_multiplier" if level in ("client", "joint") else "record_noise_multiplier"
    return federation_plan(level=level, **{**given, noise: 2.0, **settings})


# What is refused.


@pytest.mark.parametrize(
    ("level", "settings", "message"),
    [
        ("joint", {"local_steps": 2}, "FedSGD"),
        ("sequential", {"local_steps": 2}, "FedSGD"),
        ("sequential", {"client_rate": 0.9}, "client_rate=1"),
        ("sequential", {"client_rates": {"a": 0.5}}, "client_rate=1"),
        ("client", {"record_clip_norm": 1.0}, "belong to the other levels"),
        ("client", {"record_noise_multiplier": 1.0}, "takes no record_noise_multiplier"),
        ("parallel", {"noise_multiplier": 1.0}, "takes no noise_multiplier"),
        ("joint", {"record_noise_multiplier": 1.0}, "takes no record_noise_multiplier"),
        ("parallel", {"local_batch": None}, "needs local_batch"),
        ("client", {"noise_multiplier": None}, "needs noise_multiplier"),
        ("client", {"client_rates": {"a": 0.6}}, "largest rate of all"),
        ("client", {"clip_norm": 0.0}, "positive"),
        ("client", {"noise_multiplier": 0.0}, "noise_multiplier"),
        ("client", {"client_rate": 1.1}, "client_rate"),
        ("nobody", {}, "level must be one of"),
        ("joint", {"noise_multiplier": 0.011, "record_clip_norm": 10.0, "local_batch": 1}, "clients' shares"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_the_first_round(level, settings, message):
    with pytest.raises(ValueError, match=message):
        make(level, **settings)


TARGETS = [(1.5, 1e-5), Target(attack_success=0.6), Target(tpr=(0.03, 0.01)), Target(mu=(0.5, 1e-6))]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("level", "settings"),
    [
        ("client", {}),
        ("parallel", {"local_steps": 3, "copies": 2}),
        ("sequential", {}),
        ("joint", {"clients": 400, "client_rate": 0.1, "record_clip_norm": 0.05}),
    ],
)
def test_the_worst_case_of_a_federation_is_never_above_its_target(level, settings, target):
    noise = LEVELS[level].declared_noise
    plan = make(level, **{noise: None}, target=target, **settings)

    def worst(plan):
        if plan.of_clients is not None:
            return plan.client_worst(plan.rounds, 1e-5)
        return plan.record_worst(plan.rounds * plan.steps_a_round, 1e-5)

    def kept(plan):
        return worst(plan).epsilon <= target[0] if isinstance(target, tuple) else target.met(worst(plan).curve)

    assert kept(plan)
    assert not kept(make(level, **{noise: 0.99 * getattr(plan, noise)}, **settings))  # and it is nearly reached


def test_a_federations_target_and_its_noise_contradict_each_other():
    with pytest.raises(ValueError, match="either noise_multiplier or target"):
        make("client", target=(1.0, 1e-5))
    with pytest.raises(ValueError, match="either epsilon or target"):
        Recipe(epsilon=1.0, target="attack_success=0.6")


def test_a_federations_recipe_takes_a_target():
    plan = ready(Recipe(clients=10, rounds=3, level="client", target="attack_success=0.6")).plan
    assert 0.599 < plan.client_worst(3, 1e-5).attack_success <= 0.6


def test_people_with_several_records_inside_of_clients_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="people with several records inside of clients are not told apart"):
        Recipe(data={"file": "visits.csv", "person": "patient"})


def test_b16_figures_of_clients_and_of_records_do_not_mix():
    plan = make("joint")
    client, record = plan.client_worst(1, 1e-3, method="rdp"), plan.record_worst(1, 1e-3, "rdp")
    assert (client.unit, record.unit) == ("client", "record")
    for mixed in (lambda: client + record, lambda: record + client, lambda: client < record, lambda: record <= client):
        with pytest.raises(PrivacyError, match="different units"):
            mixed()
    for level, method in (("client", "record_worst"), ("parallel", "client_worst"), ("sequential", "client_worst")):
        with pytest.raises(PrivacyError, match="does not protect"):
            getattr(make(level), method)(1, 1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_a_plan_survives_being_written_down(level):
    plan = make(level, client_rates={} if level == "sequential" else {"slow": 0.25})
    assert FederationPlan.from_dict(plan.to_dict()) == plan
    with pytest.raises(PrivacyError, match="damaged"):
        FederationPlan.from_dict({**plan.to_dict(), "noise": 1.0})


# The constants.


def test_the_divisor_is_the_expected_number_of_clients():
    assert make("client").divisor == 10.0
    assert make("client", client_rates={"slow": 0.25}).divisor == 9.75
    assert make("client", clients=1).divisor == 1.0
    assert make("client", divisor=7.0).divisor == 7.0


def test_shares_make_up_the_total():
    for level in ("joint", "sequential"):
        plan = make(level)
        assert plan.shares * plan.share_noise**2 == pytest.approx(plan.total_noise**2, rel=1e-12)
    joint, sequential = make("joint", clip_norm=3.0), make("sequential")
    assert joint.total_noise == 2.0 * 3.0
    assert joint.record_noise_multiplier == pytest.approx(6.0 / math.sqrt(20) / (0.5 / 10), rel=1e-12)
    assert sequential.total_noise == pytest.approx(2.0 * 0.5 / 10, rel=1e-12)
    assert make("client").share_noise == make("parallel").share_noise == 0.0


def test_more_noise_than_the_accountant_counts_is_not_counted():
    plan = make("joint", clip_norm=100.0, local_batch=3000)
    assert plan.share_noise * 3000 / 0.5 > 1e4
    assert plan.record_noise_multiplier == 1e4
    assert plan.record_worst(1, 1e-5).epsilon > 0.0


@pytest.mark.parametrize(
    ("clients", "rate", "rounds"),
    [(10_000, 0.01, 300), (1000, 0.1, 50), (100, 0.02, 1000), (60, 0.001, 1), (5, 0.3, 9)],
)
def test_noise_shares_are_the_least_that_are_passed_with_chance_1e_30(clients, rate, rounds):
    def passed(shares):
        with mpmath.workdps(60):
            q = mpmath.mpf(rate)
            total = term = mpmath.binomial(clients, shares + 1) * q ** (shares + 1) * (1 - q) ** (clients - shares - 1)
            for k in range(shares + 1, clients):  # each term from the one before, until they no longer matter
                term *= (clients - k) * q / ((k + 1) * (1 - q))
                total += term
                if term < total * mpmath.mpf(10) ** -30:
                    break
            return rounds * total

    found = noise_shares(clients, rate, rounds)
    assert passed(found) <= 1e-30
    assert found == 1 or passed(found - 1) > 1e-30


def test_everybody_has_a_share_where_everybody_takes_part():
    assert noise_shares(7, 1.0, 10) == 7
    assert make("joint", client_rate=1.0).failure == 0.0


# The worst cases.


def test_worst_cases_are_those_of_the_sampled_gaussian():
    for plan in (make("client"), make("joint")):
        assert plan.failure == 0.0
        expected = tacita.worst_case(sample_rate=0.5, noise_multiplier=2.0, steps=4, delta=1e-5)
        assert plan.client_worst(4, 1e-5).epsilon == expected.epsilon
    sequential, parallel = make("sequential"), make("parallel", local_steps=3)
    expected = tacita.worst_case(sample_rate=0.05, noise_multiplier=2.0, steps=6, delta=1e-5)
    assert sequential.record_worst(6, 1e-5).epsilon == parallel.record_worst(6, 1e-5).epsilon == expected.epsilon
    assert parallel.of_records.steps == 18


def test_clients_that_take_part_less_often_lose_less():
    plan = make("client", client_rates={"slow": 0.1})
    slow = plan.client_worst(6, 1e-5, rate=plan.rate_of("slow"), method="rdp").epsilon
    settings = {"noise_multiplier": 2.0, "steps": 6, "delta": 1e-5, "method": "rdp"}
    assert slow == tacita.worst_case(sample_rate=0.1, **settings).epsilon
    assert slow < plan.client_worst(6, 1e-5, method="rdp").epsilon
    assert plan.rate_of("any other") == 0.5


def test_rounds_with_too_many_clients_are_part_of_delta():
    plan = make("joint", clients=1000, client_rate=0.01)
    assert 0 < plan.shares < 1000
    assert plan.failure == pytest.approx(1e-30 * (1 + math.exp(40)))
    found = plan.client_worst(6, 1e-5)
    assert sum(part for _, part in found.delta_split) == pytest.approx(found.delta) == pytest.approx(1e-5)
    with pytest.raises(PrivacyError, match="delta must be above"):
        plan.client_worst(6, plan.failure)
    with pytest.raises(PrivacyError, match="beyond epsilon 40"):
        make("joint", clients=1000, client_rate=0.01, noise_multiplier=0.02, local_batch=1000).client_worst(6, 1e-5)


def test_joint_covers_the_rounds_in_which_nobody_is_asked(monkeypatch):
    """A tiny federation that often draws too many, against an attacker who is told who else was drawn."""
    monkeypatch.setattr(shares_module, "TOO_MANY", 0.03)
    monkeypatch.setattr(shares_module, "LARGEST_EPSILON", 3.0)
    plan, sigma = make("joint", clients=8, client_rate=0.4, rounds=1, noise_multiplier=0.7, delta=0.9), 0.7
    delta = 0.05 + plan.failure
    guarantee, x = plan.client_worst(1, delta), np.linspace(-15.0, 25.0, 40_001)
    epsilon = guarantee.epsilon

    def at(place):
        return norm.pdf(x, place, sigma)

    def exceeds(one, other):
        return np.trapezoid(np.maximum(0.0, one - math.exp(epsilon) * other), x)

    exact = np.zeros(2)
    for others in range(plan.shares + 1):  # with more of them nobody is asked in either world
        without, drawn = at(others), others + 1 if others < plan.shares else 0
        with_client = 0.6 * at(others) + 0.4 * at(drawn)
        exact += binom.pmf(others, 7, 0.4) * np.array([exceeds(with_client, without), exceeds(without, with_client)])
    assert plan.shares < plan.clients
    assert delta - plan.failure < max(exact) <= delta  # and it would not hold without that part of delta
    assert guarantee.profile is not None
    assert guarantee.profile.delta(epsilon) == pytest.approx(delta, rel=1e-3)


# Records whose client takes part by chance.


def test_mixed_costs_against_many_digits():
    costs = np.array([0.0, 1e-14, 1e-9, 1e-3, 0.5, 0.999999, 1.0, 3.0, 40.0, 800.0, 1e6])
    for chance in (1e-6, 0.01, 0.5, 0.999, 1.0):
        found = mixed_costs(costs, chance)
        with mpmath.workdps(60):
            exact = [mpmath.log1p(mpmath.mpf(chance) * mpmath.expm1(mpmath.mpf(float(a)))) for a in costs if a < 1e4]
            exact.append(mpmath.mpf(1e6) + mpmath.log(chance))
        for value, true, plain in zip(found, exact, costs, strict=True):
            slack = 1e-15 * plain  # the plain cost itself is a float
            assert true - slack <= value <= min(plain, float(true) * (1 + 1e-12) + 2e-15) + slack


@pytest.mark.parametrize("elsewhere", [0.0, 1.0, -4.0, 60.0])
def test_a_hidden_client_costs_at_most_the_mixed_moment(elsewhere):
    """One round by quadrature: the update lies elsewhere if the client is not drawn; far away nothing is lost."""
    chance, rate, sigma = 0.3, 0.2, 1.5

    x = np.linspace(min(0.0, elsewhere) - 20.0, max(0.0, elsewhere) + 20.0, 40_001)  # in logs: far away both are 0

    def mixture(*parts):
        return np.logaddexp.reduce([math.log(weight) + norm.logpdf(x, place, sigma) for weight, place in parts])

    without = mixture((1 - chance, elsewhere), (chance, 0.0))
    with_record = mixture((1 - chance, elsewhere), (chance * (1 - rate), 0.0), (chance * rate, 1.0))

    def moment(p, q, order):
        return np.trapezoid(np.exp((order + 1) * p - order * q), x)

    for order in (1, 3, 7):
        single = tacita.mechanisms.sampled_gaussian_cost(order, sample_rate=rate, ratio=np.array([1 / sigma]))
        bound = math.exp(mixed_costs(single, chance)[0])
        worse = max(moment(with_record, without, order), moment(without, with_record, order))
        assert worse <= bound * (1 + 1e-9)
        if elsewhere == 60.0:
            assert worse == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize(("level", "local_steps"), [("parallel", 2), ("joint", 1)])
def test_the_figure_over_who_takes_part_holds_with_all_coins_on_the_table(level, local_steps):
    """Delta is the average over all patterns of participation, each with its own curve by dp-accounting."""
    settings = {"noise_multiplier": 0.6} if level == "joint" else {"record_noise_multiplier": 1.0}
    plan = make(level, clients=3, client_rate=0.3, local_steps=local_steps, record_rate=0.2, **settings)
    claimed = hidden_participation(plan, 6, 1e-4)
    deltas = [0.0]
    for times in range(1, 7):
        accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
        event = dp_accounting.GaussianDpEvent(plan.record_noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(plan.record_rate, event), times * local_steps)
        deltas.append(accountant.get_delta(claimed.epsilon))
    average = float(binom.pmf(np.arange(7), 6, 0.3) @ np.array(deltas))
    assert average <= 1e-4
    orders = np.arange(2, 65)
    accountant = dp_accounting.rdp.RdpAccountant(orders=orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(plan.record_rate, event), local_steps)
    mixed = 6 * np.logaddexp(np.log(0.7), np.log(0.3) + (orders - 1) * np.array(accountant.rdp)) / (orders - 1)
    by_hand = dp_accounting.rdp.rdp_privacy_accountant.compute_epsilon(orders, mixed, 1e-4)[0]
    assert claimed.epsilon == pytest.approx(by_hand, rel=1e-6)
    assert claimed.epsilon <= plan.record_worst(6 * local_steps, 1e-4).epsilon
    assert claimed.publishable


def test_the_figure_over_who_takes_part_is_never_above_that_of_a_client_that_always_does():
    plan = make("parallel", client_rate=0.999)
    assert hidden_participation(plan, 6, 1e-5) == plan.record_worst(6, 1e-5)


def test_records_that_several_clients_hold_add_up_over_them():
    declared = {"clients": 30, "client_rate": 0.5, "rounds": 10, "record_clip_norm": 1.0, "record_rate": 0.1}
    parallel = {**declared, "local_batch": 5, "level": "parallel", "record_noise_multiplier": 2.0}
    plan = federation_plan(**parallel, copies=3)
    alone = federation_plan(**parallel)
    assert plan.of_records.steps == 3 * alone.of_records.steps
    assert plan.record_worst(plan.of_records.steps, 1e-5) == alone.record_worst(3 * alone.of_records.steps, 1e-5)
    assert hidden_participation(plan, 10, 1e-5).epsilon > hidden_participation(alone, 10, 1e-5).epsilon
    server = Server(plan, {"w": torch.zeros(2)})
    server.taken, server.lost, server.participations = 10, 1, {"a": 7, "b": 5, "c": 2, "d": 1}
    assert server.most_steps == 8 + 6 + 3
    server.participations = {"a": 10}
    assert server.most_steps == 10 + 1 + 1
    for level, extra in (("client", {"noise_multiplier": 1.0}), ("sequential", {"record_noise_multiplier": 1.0})):
        wrong = {**declared, **extra, "level": level, "client_rate": 1.0, "copies": 2}
        if level == "client":
            wrong = {k: v for k, v in wrong.items() if not k.startswith("record_")}
        with pytest.raises(PrivacyError, match="takes no copies"):
            federation_plan(**wrong)
