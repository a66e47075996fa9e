"""What a program costs, against the exact loss by enumeration: all small datasets, all replacements of one record.

The enumeration knows nothing of the checker: it counts with plain Python over explicit records, and uses that geometric
noise at scale s, independent for each number, has a privacy loss of exactly (sum of changes) / s."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from tacita.ledger import Ledger
from tacita.posterior.mechanisms._best import Best
from tacita.posterior.plans import plan_release
from tacita.programs import (
    Bool,
    Category,
    Program,
    ProgramError,
    Real,
    best,
    beta,
    composition,
    dirichlet,
    exponential,
    gaussian,
    geometric,
    laplace,
    normal,
)
from tacita.programs.composition import total
from tacita.programs.queries import Query, Sensitivity
from tacita.programs.tables import exact_numbers, read


def four_columns(**changed):
    schema = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real(), "sex": Category("F", "M")}
    return Program(**{"schema": schema, "n": 100, "epsilon": 100, "delta": 0.1, **changed})


@pytest.mark.parametrize(
    ("make", "request_", "stay", "cross"),
    [
        (lambda p: p.where(job="a").count(), geometric(epsilon=1), (0, 0), (1, 0)),
        (lambda p: p.where(job="a").column("job").histogram(), geometric(epsilon=1), (1, 0), (0.5, 0)),
        (lambda p: p.where(job="a").column("age").clamp(20, 100).sum(), geometric(epsilon=1), (0.8, 0), (1, 0)),
        (lambda p: p.where(job="a").column("age").clamp(20, 100).sum(), best(epsilon=1), (0.8, 0), (1, 0)),
        (
            lambda p: p.where(job="a").column("age").clamp(20, 100).sum(),
            best(epsilon=1, delta=0.01),
            (1, 0.01),
            (1, 0.01),
        ),
        (lambda p: p.where(job="a").count(), gaussian(epsilon=1, delta=0.01), (0, 0), (1, 0.01)),
        (lambda p: p.where(job="a").count(), best(epsilon=1, delta=0.01), (0, 0), (1, 0)),
        (lambda p: p.column("age").clamp(0, 3, step=1).mean(), gaussian(epsilon=2, delta=0.02), (2, 0.02), (0, 0)),
        (lambda p: p.column("smoker").posterior(beta(1, 1)), laplace(epsilon=0.5), (0.5, 0), (0, 0)),
    ],
)
def test_the_larger_change_costs_the_whole_budget(make, request_, stay, cross):
    p = four_columns()
    charge = p.release(make(p), request_).charge
    costs = [(cost.epsilon, cost.delta) for cost in (charge.stay, charge.cross)]
    assert costs == [tuple(Fraction(str(x)) for x in pair) for pair in (stay, cross)]


def test_a_tenth_three_times_fits_into_three_tenths():
    p = four_columns(epsilon=0.3)
    for _ in range(3):
        p.release(p.column("smoker").count(), geometric(epsilon=0.1))
    assert p.check().epsilon == Fraction(3, 10)
    p.release(p.column("smoker").count(), geometric(epsilon=1e-4))
    with pytest.raises(ProgramError, match="T012"):
        p.check()


JOBS, SEXES, AGES = ("a", "b", "c"), ("F", "M"), (-2, 0, 3)


RECORDS = list(itertools.product(JOBS, SEXES, AGES))


FIELDS = {"job": 0, "sex": 1, "age": 2}


EPSILONS = ("0.1", "0.25", "0.3", "0.7", "1")


def program(n=2):
    schema = {"job": Category(*JOBS), "sex": Category(*SEXES), "age": Real()}
    return Program(schema=schema, n=n, epsilon=1e6, delta=0.5)


def columns(records):
    return {name: [record[place] for record in records] for name, place in FIELDS.items()}


# A query is described by plain data: (kind, column, {column: allowed values}); both sides are made from it.
KINDS = [
    ("count", None),
    ("histogram", "job"),
    ("histogram", "sex"),
    ("posterior", "sex"),
    ("sum", "age"),
    ("bins", "age"),
    ("women", "sex"),
]


def asked(p, kind, column, allowed):
    part = p.where(**{name: list(values) for name, values in allowed.items()}) if allowed else p
    if kind == "count":
        return part.count()
    if kind == "sum":
        return part.column(column).clamp(-2, 3, step=1).sum()
    if kind == "bins":
        return part.column(column).clamp(-2, 3, step=1).histogram(bins=3)
    if kind == "women":
        return part.column(column).map(lambda sex: sex == "F", to=Bool()).count()
    if kind == "posterior":
        return part.column(column).posterior(dirichlet(1, 1))
    return part.column(column).histogram()


def counted(records, kind, column, allowed):
    kept = [r for r in records if all(r[FIELDS[name]] in values for name, values in allowed.items())]
    if kind == "count":
        return [len(kept)]
    values = [record[FIELDS[column]] for record in kept]
    if kind == "sum":
        return [sum(values)]
    if kind == "bins":
        return [sum(v == -2 for v in values), sum(v == 0 for v in values), sum(v == 3 for v in values)]
    if kind == "women":
        return [values.count("F")]
    cells = [values.count(label) for label in (JOBS if column == "job" else SEXES)]
    return cells[:1] if len(cells) == 2 and not allowed else cells


def loss(releases, before, after):
    """The exact privacy loss between two datasets; each release is a description, an epsilon, and the unit it hides."""
    exact = Fraction(0)
    for description, epsilon, unit in releases:
        moved = zip(counted(before, *description), counted(after, *description), strict=True)
        exact += Fraction(epsilon) * sum(abs(a - b) for a, b in moved) / unit
    return exact


def worst_loss(releases):
    """The largest loss over datasets of two records and replacements of the first; the noise does not see the order."""
    pairs = itertools.product(RECORDS, RECORDS)
    return max(loss(releases, [old, other], [new, other]) for old, new in pairs for other in RECORDS[::7])


def random_description(rng):
    conditioned = {
        name: {str(v) for v in rng.choice(values, size=rng.integers(1, len(values)), replace=False)}
        for name, values in (("job", JOBS), ("sex", SEXES))
        if rng.random() < 0.5
    }
    kinds = KINDS if conditioned else KINDS[1:]
    return (*kinds[rng.integers(len(kinds))], conditioned)


def random_program(rng):
    p, releases = program(), []
    for _ in range(rng.integers(1, 5)):
        description, epsilon = random_description(rng), EPSILONS[rng.integers(len(EPSILONS))]
        release(p, releases, description, epsilon)
    return p, releases


def release(p, releases, description, epsilon):
    query = asked(p, *description)
    p.release(query, geometric(epsilon=float(epsilon)))
    releases.append((description, epsilon, query.sensitivity.larger))


def test_no_random_program_loses_more_than_the_checker_says(rng):
    tight = 0
    for _ in range(60):
        p, releases = random_program(rng)
        exact, said = worst_loss(releases), p.check().epsilon
        assert exact <= said
        tight += exact == said
    assert tight >= 20


@pytest.mark.slow
def test_no_random_program_loses_more_than_the_checker_says_in_many():
    import numpy as np

    rng = np.random.default_rng(1)
    for _ in range(1000):
        p, releases = random_program(rng)
        assert worst_loss(releases) <= p.check().epsilon


TIGHT = {
    "one count": ([("count", None, {"job": {"a"}})], "1"),
    "the counts of all jobs": ([("count", None, {"job": {job}}) for job in JOBS], "2"),
    "two jobs": ([("count", None, {"job": {job}}) for job in "ab"], "2"),
    "the sums of all jobs": ([("sum", "age", {"job": {job}}) for job in JOBS], "1.2"),
    "jobs by sex": ([("count", None, {"job": {j}, "sex": {s}}) for j in JOBS for s in SEXES], "2"),
    "sequential": ([("histogram", "job", {}), ("sum", "age", {}), ("women", "sex", {})], "3"),
    "a part and all": ([("histogram", "job", {"sex": {"F"}}), ("sum", "age", {})], "2"),
    "overlapping": ([("count", None, {"job": {"a", "b"}}), ("count", None, {"job": {"b", "c"}})], "2"),
    "histograms of parts": ([("posterior", "sex", {"job": {job}}) for job in JOBS], "1"),
}


@pytest.mark.parametrize(("descriptions", "cost"), TIGHT.values(), ids=TIGHT)
def test_the_checker_is_exact_here(descriptions, cost):
    p, releases = program(), []
    for description in descriptions:
        release(p, releases, description, "1")
    assert p.check().epsilon == Fraction(cost)
    assert worst_loss(releases) == Fraction(cost)


def test_a_record_that_moves_between_parts_costs_both():
    """Not the maximum, as for adding or removing a record."""
    p = program()
    for part in p.partition("job").values():
        p.release(part.count(), geometric(epsilon=0.4))
    assert p.check().epsilon == Fraction("0.8")


def test_deltas_are_maximised_by_themselves():
    p = program()
    p.release(p.where(sex="F").count(), gaussian(epsilon=0.1, delta=0.01))
    p.release(p.where(sex="M").count(), gaussian(epsilon=0.1, delta=0.02))
    p.release(p.where(job="a").column("age").clamp(0, 9, step=1).sum(), best(epsilon=1, delta=0.001))
    spent = p.check()
    assert (spent.epsilon, spent.delta) == (Fraction("1.2"), Fraction("0.031"))


def plans_of_best(epsilon, delta):
    """Yield what the checker charges for each change that is possible, and the mechanism that will be used."""
    for kind, column in KINDS:
        for allowed in ({}, {"sex": {"F"}} if column == "job" else {"job": {"a"}}):
            if kind == "count" and not allowed:
                continue
            p = program(n=20)
            release = p.release(asked(p, kind, column, allowed), best(epsilon=epsilon, delta=delta))
            moved, charged = release.query.sensitivity, release.charge
            owed = [charged.stay] * (moved.stay > 0) + [charged.cross] * (moved.cross > 0)
            yield owed, plan_release(release.mechanism, release.query.statistic).used


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 0), (1, 0.01), (0.01, 0.1)])
def test_best_is_charged_less_only_where_it_takes_geometric_noise(epsilon, delta):
    """The checker foresees what will be planned: a cost in proportion, or without the delta, needs geometric noise."""
    full = composition.Cost(Fraction(str(epsilon)), Fraction(str(delta)))
    for owed, used in plans_of_best(epsilon, delta):
        if any(cost != full for cost in owed):
            assert (used.name, used.epsilon, used.delta) == ("geometric", epsilon, 0)


def test_a_checker_that_always_foresees_geometric_noise_is_seen(monkeypatch):
    monkeypatch.setattr(Best, "is_proportional", lambda mechanism, statistic: True)
    assert {used.name for owed, used in plans_of_best(0.01, 0.1) if owed[0].delta == 0} > {"geometric"}


def test_the_statistics_are_what_the_enumeration_counts(rng):
    for _ in range(60):
        description = random_description(rng)
        records = [RECORDS[i] for i in rng.integers(len(RECORDS), size=5)]
        p = program(n=5)
        found = exact_numbers(asked(p, *description), read(p, columns(records)))
        assert list(found) == counted(records, *description)


def enumerated(descriptions):
    """Return what the checker says and the truth. The noise is scaled by what the checker believes to be hidden."""
    p, releases = program(), []
    for description in descriptions:
        release(p, releases, description, "1")
    return p.check().epsilon, worst_loss(releases)


def halved(stay, cross):
    """A checker that believes in a part of the true changes."""

    def sensitivity(query):
        true = ORIGINAL_SENSITIVITY(query)
        return Sensitivity(Fraction(true.stay) * stay, Fraction(true.cross) * cross)

    return property(sensitivity)


def half_of_stay(query, request):
    true = ORIGINAL_CHARGE(query, request)
    return composition.Charge(composition.Cost(true.stay.epsilon / 2, true.stay.delta), true.cross)


def half_of_cross(query, request):
    true = ORIGINAL_CHARGE(query, request)
    return composition.Charge(true.stay, composition.Cost(true.cross.epsilon / 2, true.cross.delta))


def maximum_over_parts(stay, cross, cells):
    """What holds for adding or removing a record, but not for replacing one."""
    return max(sum(max(stay[i], cross[i]) for i in cell) for cell in cells)


ORIGINAL_CHARGE = composition.charge


ORIGINAL_SENSITIVITY = Query.sensitivity.fget


MUTATIONS = {
    "half the change within": ("sensitivity", halved(Fraction(1, 2), 1)),
    "half the change in or out": ("sensitivity", halved(1, Fraction(1, 2))),
    "half the cost within": ("charge", half_of_stay),
    "half the cost in or out": ("charge", half_of_cross),
    "the maximum over parts": ("_worst", maximum_over_parts),
    "no cell but the first": ("_memberships", lambda parts: {frozenset()}),
}


@pytest.mark.parametrize(("name", "mutant"), MUTATIONS.values(), ids=MUTATIONS)
def test_the_enumeration_sees_a_checker_that_is_wrong(name, mutant, monkeypatch):
    cases = [descriptions for descriptions, _ in TIGHT.values()]
    assert all(said >= truth for said, truth in map(enumerated, cases))
    monkeypatch.setattr(Query if name == "sensitivity" else composition, name, mutant)
    if name == "charge":
        monkeypatch.setattr("tacita.programs.program.charge", mutant)
    assert any(said < truth for said, truth in map(enumerated, cases))


def test_every_kind_of_sensitivity_is_seen_when_halved(monkeypatch):
    """One query at a time, within its part and into or out of it."""
    for kind, column in KINDS:
        for allowed in ({}, {"sex": {"F"}} if column == "job" else {"job": {"a"}}):
            if kind == "count" and not allowed:
                continue
            said, truth = enumerated([(kind, column, allowed)])
            assert said == truth == 1
            with monkeypatch.context() as patch:
                patch.setattr(Query, "sensitivity", halved(Fraction(1, 2), Fraction(1, 2)))
                said, truth = enumerated([(kind, column, allowed)])
            assert said < truth


def test_many_parts_are_quick_and_too_many_are_added_up():
    p = Program(schema={"place": Category(1000), "job": Category(*JOBS)}, n=10, epsilon=1e6)
    for part in p.partition("place").values():
        p.release(part.count(), geometric(epsilon=0.1))
    assert p.check().epsilon == Fraction("0.2")
    p = Program(schema={"place": Category(1500)}, n=10, epsilon=1e6)
    for part in p.partition("place").values():
        p.release(part.count(), geometric(epsilon=0.1))
    assert p.check().epsilon == Fraction("150")


def test_conditions_on_mapped_columns_count_too():
    p = program()
    old = p.column("age").map(lambda age: age > 0, to=Bool())
    for part in p.partition(old).values():
        p.release(part.count(), geometric(epsilon=0.5))
    p.release(p.where(old, job="a").count(), geometric(epsilon=0.25))
    assert p.check().epsilon == Fraction("1.25")
    table = read(p, columns([("a", "F", 3), ("b", "M", -2)]))
    assert [exact_numbers(release.query, table) for release in p.releases] == [(1,), (1,), (1,)]


def test_nothing_is_lost_by_adding_up_many_small_costs():
    p = program()
    releases = [p.release(p.column("sex").histogram(), geometric(epsilon=0.1)) for _ in range(1000)]
    assert total(releases).epsilon == 100


def test_costs_are_shown_rounded_up():
    assert composition.text(Fraction(1, 3)) == "0.333334"
    assert composition.text(Fraction(0)) == "0"
    assert composition.text(Fraction(3, 10)) == "0.3"
    assert composition.text(Fraction("1e-7")) == "1e-07"
    assert str(composition.Cost(Fraction(1, 2), Fraction("1e-6"))) == "epsilon 0.5, delta 1e-06"


def test_a_dirichlet_and_a_normal_cost_what_they_say():
    p = program()
    p.release(p.column("job").posterior(dirichlet(1, 1, 1)), geometric(epsilon=0.5))
    p.release(
        p.column("age").clamp(-2, 3, step=1).posterior(normal(0, 1, record_sd=1)), gaussian(epsilon=0.5, delta=1e-6)
    )
    spent = p.check()
    assert (spent.epsilon, spent.delta) == (1, Fraction("1e-6"))


def test_fifty_gaussian_releases_are_one_gaussian():
    """Closed form: distances add up by their squares. Added up plainly they cost 10."""
    p = Program(schema={"smoker": Bool()}, n=100, epsilon=1.4, delta=5e-7)
    for i in range(50):
        p.release(p.column("smoker").count(), gaussian(epsilon=0.2, delta=1e-8), name=f"count {i}")
    plan = plan_release(p.releases[0].mechanism, p.releases[0].query.statistic)
    made, distance = p.guarantee(), math.sqrt(50) / plan.source.scale

    def excess(eps):
        return ndtr(distance / 2 - eps / distance) - math.exp(eps) * ndtr(-distance / 2 - eps / distance) - 5e-7

    true = brentq(excess, 0.1, 5)
    assert true <= made.epsilon <= 1.001 * true
    assert made.epsilon == pytest.approx(1.33, abs=0.005)
    assert made.delta == 5e-7
    assert made.attack_success == pytest.approx(ndtr(distance / 2), abs=1e-4)
    assert p.check().epsilon == Fraction(repr(made.epsilon))
    p.release(p.column("smoker").count(), geometric(epsilon=0.2))
    with pytest.raises(ProgramError, match="T012"):
        p.check()


@pytest.mark.parametrize("sizes", [(0.5, 0.5, 0.5), (0.3, 1.0, 0.2)])
def test_geometric_counts_are_coins(sizes):
    """Every outcome of three coins, by brute force; without a delta the epsilon is the sum."""
    p = program()
    for epsilon in sizes:
        p.release(p.column("sex").map(lambda sex: sex == "F", to=Bool()).count(), geometric(epsilon=epsilon))
    made, up = p.guarantee(), [1 / (1 + math.exp(-epsilon)) for epsilon in sizes]
    assert made.epsilon == sum(sizes)
    for at in (0.0, 0.2, 0.7, 1.2):
        true = 0.0
        for heads in itertools.product((True, False), repeat=3):
            coins = list(zip(up, heads, strict=True))
            one, other = (math.prod(u if h is way else 1 - u for u, h in coins) for way in (True, False))
            true += max(0.0, one - math.exp(at) * other)
        assert true <= made.profile.delta(at) <= 1.01 * true + 1e-3


def placed(*changed):
    """The delta at 0 of geometric counts of these epsilons, in a program without parts."""
    p = program()
    for epsilon in changed:
        p.release(p.column("sex").map(lambda sex: sex == "F", to=Bool()).count(), geometric(epsilon=epsilon))
    return p.guarantee().profile.delta(0.0)


def test_curves_follow_the_record_from_part_to_part():
    """It leaves one part and enters another: the worst two of three."""
    p = program()
    for job, epsilon in zip(JOBS, (0.1, 0.5, 0.4), strict=True):
        p.release(p.where(job=job).count(), geometric(epsilon=epsilon))
    assert p.guarantee().epsilon == 0.9
    assert p.guarantee().profile.delta(0.0) == pytest.approx(placed(0.5, 0.4), rel=1e-3)


def moves(releases, before, after):
    """How far each number of each release moves between two datasets, in epsilons, with the epsilon of one unit."""
    found = []
    for description, epsilon, unit in releases:
        numbers = zip(counted(before, *description), counted(after, *description), strict=True)
        found += [(float(Fraction(epsilon) / unit), abs(a - b)) for a, b in numbers if a != b]
    return tuple(sorted(found))


def exact_deltas(moved, at):
    """The curve of numbers with two-sided geometric noise, by every value of their losses: the outcomes in between."""
    losses, masses = np.zeros(1), np.ones(1)
    for size, steps in moved:
        decay, inner = math.exp(-size), np.arange(1, steps)
        own = np.array([size * steps, *(size * (steps - 2 * inner)), -size * steps])
        mass = np.array([1.0, *((1 - decay) * decay**inner), decay**steps]) / (1 + decay)
        losses, masses = np.add.outer(losses, own).ravel(), np.outer(masses, mass).ravel()
    return np.array([(masses * np.maximum(-np.expm1(eps - losses), 0.0)).sum() for eps in at])


@pytest.mark.parametrize("programs", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_no_replaced_record_is_seen_better_than_the_curve_of_a_random_program_says(rng, programs):
    """The whole curve, over all tables of two records and all replacements; a third of them reach it."""
    tight = 0
    for _ in range(programs):
        p, releases = random_program(rng)
        said = p.guarantee().profile
        at = np.linspace(0.0, 0.95 * said.epsilons[-1], 9)
        pairs = itertools.product(RECORDS, RECORDS)
        ways = {moves(releases, [old, other], [new, other]) for old, new in pairs for other in RECORDS[::7]}
        largest = np.max([exact_deltas(way, at) for way in ways], axis=0)
        assert np.all(largest <= said.delta(at) * (1 + 1e-9) + 1e-12)
        tight += largest[0] >= 0.99 * said.delta(0.0)
    assert tight >= programs // 3


@pytest.mark.parametrize("parts", [40, 1500])
def test_many_parts_are_bounded_by_the_fullest_twice_or_by_all(parts):
    p = Program(schema={"place": Category(parts)}, n=10, epsilon=1e6)
    for part in p.partition("place").values():
        p.release(part.count(), geometric(epsilon=0.1))
    known = placed(0.1, 0.1) if parts == 40 else 0.5
    assert p.guarantee().profile.delta(0.0) >= known * 0.999
    if parts == 40:
        assert p.guarantee().profile.delta(0.0) <= known * 1.001


def test_many_different_placements_are_bounded_by_one_that_holds_them_all():
    p = program()
    for number, (job, sex) in enumerate(itertools.product(JOBS, SEXES)):
        p.release(p.where(job=job, sex=sex).count(), geometric(epsilon=0.1 + number / 100))
    bound = p.guarantee().profile.delta(0.0)
    assert placed(0.15, 0.14) * 0.999 <= bound <= math.tanh(0.29 / 2) + 1e-9


def test_a_release_that_cannot_be_certified_is_taken_by_its_cost():
    p = four_columns(n=10)
    p.release(p.column("age").clamp(0, 1e6, step=1).sum(), gaussian(epsilon=0.1, delta=1e-6))
    assert (p.guarantee().epsilon, p.guarantee().delta) == (0.1, 1e-6)


def test_a_proof_below_the_cost_is_what_is_said():
    p = four_columns(n=20)
    p.release(
        p.column("smoker").posterior(beta(1, 1)), exponential(epsilon=1, sensitivity="global", calibration="nominal")
    )
    plan = plan_release(p.releases[0].mechanism, p.releases[0].query.statistic)
    assert p.guarantee().epsilon == pytest.approx(plan.certificate.epsilon(0.0), rel=1e-6)
    assert p.guarantee().epsilon >= plan.certificate.epsilon(0.0)


def test_a_ledger_is_charged_what_the_program_promises(tmp_path):
    p = Program(schema={"smoker": Bool()}, n=3, epsilon=10, delta=1e-4)
    for i in range(20):
        p.release(p.column("smoker").count(), gaussian(epsilon=0.2, delta=1e-8), name=f"count {i}")
    with Ledger.create(tmp_path / "book.sqlite", neighbours="replace_one", epsilon=0.86, delta=1e-4) as book:
        results = p.run({"smoker": [True, False, True]}, ledger=book)
        assert results.guarantee == p.guarantee()
        spent = book.spent(1e-4).epsilon  # the whole curve was charged, so a larger delta buys a smaller epsilon
        assert p.guarantee().profile.epsilon(1e-4) < spent < 0.8 * p.guarantee().epsilon
