"""Programs about people with several rows, against brute force: all rows a person may have, in small worlds.

As in test_composition, the other side counts with plain Python over explicit rows and knows nothing of the checker.
"""

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import ndtr

from tacita import PrivacyError
from tacita.cli.kinds import label_of
from tacita.data import ids
from tacita.data.ids import capped, numbered
from tacita.ledger import Ledger
from tacita.posterior.mechanisms import Mechanism
from tacita.posterior.noise import GeometricNoise
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
from tacita.programs.labels import label_of_run, write_run
from tacita.programs.tables import exact_numbers, read
from tacita.runs import Run
from tests.programs.test_composition import FIELDS, JOBS, KINDS, RECORDS, SEXES, asked, columns, counted, exact_deltas

SCHEMA = {"job": Category(*JOBS), "sex": Category(*SEXES), "age": Real()}
EPSILONS = ("0.1", "0.25", "0.3", "0.7", "1")


def program(rows, **more):
    return Program(schema=SCHEMA, epsilon=1e6, delta=0.5, person="id", rows_per_person=rows, **more)


def table(people):
    """The rows of people as columns; `people` maps ids to lists of records."""
    listed = [(one, row) for one, own in people.items() for row in own]
    return {"id": [one for one, _ in listed]} | columns([row for _, row in listed])


def random_part(rng):
    """Conditions on none, one or both columns, so that parts lie in parts."""
    return {
        name: {str(v) for v in rng.choice(values, size=rng.integers(1, len(values) + 1), replace=False)}
        for name, values in (("job", JOBS), ("sex", SEXES))
        if rng.random() < 0.5
    }


def random_query(rng):
    part = random_part(rng)
    kinds = KINDS if part else KINDS[1:]
    return (*kinds[rng.integers(len(kinds))], part)


def cells(rows, kind, column, allowed):
    """What is released of rows: all cells, because how many rows there are is private."""
    if kind == "women" or kind == "count":
        return counted(rows, kind, column, allowed)
    return counted(rows, kind, column, allowed or {"sex": set(SEXES)})


def own_loss(releases, rows):
    """The exact privacy loss of a person with these rows coming or going, all noise being geometric."""
    return sum(
        Fraction(epsilon) * sum(map(abs, cells(rows, *described))) / unit for described, epsilon, unit in releases
    )


def random_program(rng, rows, mechanism=geometric):
    p, releases = program(rows), []
    for _ in range(rng.integers(1, 5)):
        described, epsilon = random_query(rng), EPSILONS[rng.integers(len(EPSILONS))]
        query = asked(p, *described)
        p.release(query, mechanism(epsilon=float(epsilon)))
        releases.append((described, epsilon, query.sensitivity.larger))
    return p, releases


def coins_of(people, rng):
    return {one: rng.integers(2**63, size=len(own)).astype(np.uint64) for one, own in people.items()}


def numbers_of(p, releases, people, coins, monkeypatch):
    """Every release's exact numbers, for given coins of each person."""
    drawn = np.concatenate([coins[one] for one in people] or [np.zeros(0, np.uint64)])
    monkeypatch.setattr(ids, "_coins", lambda _: drawn)
    found = read(p, table(people))
    return [exact_numbers(release.query, found) for release in p.releases]


@pytest.mark.parametrize("rounds", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_person_of_a_random_table_moves_a_release_by_more_than_is_charged(rounds, rng, monkeypatch):
    """Through the shipped reader: people with 1 to k + 2 rows, all kinds of queries, parts in parts."""
    reached = 0
    for _ in range(rounds):
        rows = int(rng.integers(1, 4))
        p, releases = random_program(rng, rows)
        sizes = rng.integers(1, rows + 3, size=rng.integers(1, 6))
        people = {one: [RECORDS[i] for i in rng.integers(len(RECORDS), size=size)] for one, size in enumerate(sizes)}
        coins = coins_of(people, rng)
        whole = numbers_of(p, releases, people, coins, monkeypatch)
        for gone in people:
            left = {one: own for one, own in people.items() if one != gone}
            lost, moved = Fraction(0), numbers_of(p, releases, left, coins, monkeypatch)
            for one, other, (_, epsilon, unit) in zip(whole, moved, releases, strict=True):
                changed = sum(abs(a - b) for a, b in zip(one, other, strict=True))
                assert changed <= unit
                reached += changed == unit
                lost += Fraction(epsilon) * changed / unit
            assert lost <= p.check().epsilon
    assert reached > rounds


def test_what_random_programs_cost_is_the_worst_of_all_rows_a_person_may_have(rng):
    tight = 0
    for _ in range(25):
        rows = int(rng.integers(1, 3))
        p, releases = random_program(rng, rows)
        worst = max(own_loss(releases, own) for own in itertools.combinations_with_replacement(RECORDS, rows))
        assert worst <= p.check().epsilon
        tight += worst == p.check().epsilon
    assert tight >= 20


def test_the_numbers_are_those_that_the_brute_force_counts(rng):
    for _ in range(30):
        described = random_query(rng)
        own = [RECORDS[i] for i in rng.integers(len(RECORDS), size=5)]
        p = program(5)
        assert list(exact_numbers(asked(p, *described), read(p, table({"x": own})))) == cells(own, *described)


def touched(p, described, own):
    """What Gaussian releases cost a person with these rows: all, wherever one of them lies."""
    return sum(
        Fraction(repr(release.mechanism.epsilon))
        for release, (_, _, part) in zip(p.releases, described, strict=True)
        if any(all(row[FIELDS[name]] in values for name, values in part.items()) for row in own)
    )


def gaussian_program(rng, rows):
    p, described = program(rows), []
    for number in range(rng.integers(2, 7)):
        described.append(("count", None, random_part(rng) or {"job": set(JOBS)}))
        p.release(
            asked(p, *described[-1]), gaussian(epsilon=0.1 * int(rng.integers(1, 9)), delta=1e-9), name=str(number)
        )
    return p, described


@pytest.mark.parametrize("spreads", [1000, 0])
def test_releases_that_are_not_proportional_cost_all_where_one_row_lies(spreads, rng, monkeypatch):
    """Exact by going through all ways to lie, and bounded where there are too many."""
    monkeypatch.setattr(composition, "_SPREADS", spreads)
    places = list(itertools.product(JOBS, SEXES, (0,)))
    exact = 0
    for _ in range(40):
        rows = int(rng.integers(1, 4))
        p, described = gaussian_program(rng, rows)
        worst = max(touched(p, described, own) for own in itertools.combinations_with_replacement(places, rows))
        said = composition.total(p.releases).epsilon
        assert worst <= said
        exact += worst == said
    assert exact == 40 if spreads else exact >= 15


@pytest.mark.parametrize(("parts", "rows"), [(3, 2), (3, 5), (60, 3)])
def test_a_partition_costs_its_dearest_parts_not_the_dearest(parts, rows):
    p = Program(schema={"place": Category(parts)}, epsilon=100, delta=0.1, person="id", rows_per_person=rows)
    costs = [Fraction(10 + i, 100) for i in range(parts)]
    for part, cost in zip(p.partition("place").values(), costs, strict=True):
        p.release(part.count(), gaussian(epsilon=float(cost), delta=1e-6), name=str(cost))
    spent = composition.total(p.releases)
    assert spent.epsilon == sum(sorted(costs)[-rows:])
    assert spent.delta == min(rows, parts) * Fraction("1e-6")
    assert p.guarantee().epsilon <= float(spent.epsilon)


def test_geometric_parts_cost_the_dearest_because_each_row_moves_only_one():
    """The noise hides k rows in each part, and a person who spreads them moves each part by less."""
    p = program(3)
    for part, epsilon in zip(p.partition("job").values(), (0.2, 0.3, 0.6), strict=True):
        p.release(part.count(), geometric(epsilon=epsilon))
    assert p.check().epsilon == Fraction("0.6")
    assert p.releases[0].query.sensitivity.larger == 3


@pytest.mark.parametrize("steps", [2, 5, 9])
def test_noise_on_one_number_hides_least_of_all_ways_to_share_steps(steps):
    """The lemma in `GeometricNoise.curve`, by every value of the losses, for every way to share steps out."""
    scale = 0.9 * steps
    at = np.linspace(0.0, steps / scale, 25)
    one = GeometricNoise(scale).curve(steps)
    for parts in range(1, steps + 1):
        for shares in itertools.combinations_with_replacement(range(1, steps + 1), parts):
            if sum(shares) == steps:
                spread = exact_deltas(tuple((1 / scale, share) for share in shares), at)
                assert all(delta <= one.delta(eps) + 1e-12 for delta, eps in zip(spread, at, strict=True))


@pytest.mark.parametrize("spreads", [1000, 0])
@pytest.mark.parametrize("programs", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_no_person_is_seen_better_than_the_curve_says(programs, spreads, rng, monkeypatch):
    """The whole curve of a random program, over all rows a person may have; often it is reached."""
    monkeypatch.setattr(composition, "_SPREADS", spreads)
    tight = 0
    for _ in range(programs):
        rows = int(rng.integers(1, 3))
        p, releases = random_program(rng, rows)
        said = p.guarantee().profile
        at = np.linspace(0.0, 0.95 * said.epsilons[-1], 7)
        ways = set()
        for own in itertools.combinations_with_replacement(RECORDS, rows):
            found = [(float(Fraction(e) / u), abs(n)) for d, e, u in releases for n in cells(own, *d) if n]
            ways.add(tuple(sorted(found)))
        largest = np.max([exact_deltas(way, at) for way in ways], axis=0)
        assert np.all(largest <= said.delta(at) * (1 + 1e-9) + 1e-12)
        tight += largest[0] >= 0.99 * said.delta(0.0)
    assert tight >= programs // 3 or not spreads


@pytest.mark.parametrize("spreads", [1000, 0])
def test_the_curve_of_parts_is_that_of_as_many_as_a_person_has_rows(spreads, monkeypatch):
    """Closed form: two of five Gaussian counts, each of which hides both rows, are one at sqrt(2) the distance."""
    monkeypatch.setattr(composition, "_SPREADS", spreads)
    p = Program(schema={"place": Category(5)}, epsilon=100, delta=0.1, person="id", rows_per_person=2)
    for part in p.partition("place").values():
        p.release(part.count(), gaussian(epsilon=0.5, delta=1e-6))
    noise = plan_release(p.releases[0].mechanism, p.releases[0].query.statistic).source
    profile, distance = p.guarantee().profile, 2 * math.sqrt(2) / noise.scale
    exact = [
        ndtr(distance / 2 - eps / distance) - math.exp(eps) * ndtr(-distance / 2 - eps / distance) for eps in (0, 0.3)
    ]
    for eps, delta in zip((0.0, 0.3), exact, strict=True):
        assert 0.999 * delta <= profile.delta(eps) <= 1.02 * delta  # of the discrete one, which is a little less


def every_query(p):
    part, age = p.where(job="a"), p.column("age").clamp(-20, 100)
    yield from (p.count(), part.count(), p.column("job").histogram(), p.column("sex").histogram(), age.sum())
    yield from (part.column("sex").posterior(dirichlet(1, 1)), part.column("age").clamp(-9, 4, step=1).sum())
    yield from (p.column("job").posterior(dirichlet(1, 1, 1)), age.histogram(bins=4), age.histogram(bins=2))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_noise_is_scaled_to_all_rows_of_a_person(rows):
    """The link between the checker and the mechanism: what is drawn hides what is charged."""
    for make in (geometric, best, lambda epsilon: gaussian(epsilon=epsilon, delta=1e-3)):
        p = program(rows)
        for query in every_query(p):
            moved = query.sensitivity.larger
            assert (query.statistic.step, query.statistic.rows, query.statistic.n) == (moved, rows, None)
            assert moved == rows * query.moves[1]
            if make not in (geometric, best) and query.statistic.numbers > 1:
                continue
            plan = plan_release(p.release(query, make(epsilon=0.7)).mechanism, query.statistic)
            assert plan.certificate.delta(0.7 * (1 + 1e-12)) <= (0.0 if make in (geometric, best) else 1e-3)
            if isinstance(plan.source, GeometricNoise):
                assert moved <= Fraction(plan.source.scale) * Fraction(7, 10) <= moved * (1 + Fraction(1, 10**12))


def spread_out(rows_of_one=12):
    """People whose rows lie in all parts, and a program that counts each part."""
    p = program(2)
    for part in p.partition("job").values():
        p.release(part.count(), geometric(epsilon=1))
    p.release(p.count(), geometric(epsilon=1))
    return p, table({one: [RECORDS[(one + i) % len(RECORDS)] for i in range(rows_of_one)] for one in range(20)})


def kept_too_often(p, data, reads):
    """Whether people ever have more than 2 rows in all parts together, or another number than the count says."""
    for _ in range(reads):
        found = read(p, data)
        *parts, everyone = [exact_numbers(release.query, found)[0] for release in p.releases]
        if sum(parts) != 40 or everyone != 40:
            return True
    return False


def test_the_cap_holds_once_for_all_queries(monkeypatch):
    """A cap for each query would keep two rows of a person in each part."""
    p, data = spread_out()
    assert not kept_too_often(p, data, 5)

    def capped_by_query(query, _):
        found = read(
            query.program, data | {"id": [(one, job) for one, job in zip(data["id"], data["job"], strict=True)]}
        )
        return query.exact(found)

    monkeypatch.setitem(globals(), "exact_numbers", capped_by_query)
    assert kept_too_often(p, data, 1)


def test_rows_chosen_anew_for_each_query_would_be_seen(monkeypatch):
    p, data = spread_out()
    monkeypatch.setitem(globals(), "exact_numbers", lambda query, _: query.exact(read(query.program, data)))
    assert kept_too_often(p, data, 20)


def test_which_rows_of_a_person_count_is_even_and_their_own(rng):
    persons = numbered([*"aab", *["c"] * 5], missing="refuse", name="id")
    drawn = Counter(tuple(capped(persons, 2).tolist()) for _ in range(2000))
    assert all(kept[:3] == (0, 1, 2) for kept in drawn)
    pairs = Counter(kept[3:] for kept in drawn.elements())
    assert len(pairs) == 10
    assert max(abs(count - 200) for count in pairs.values()) < 6 * np.sqrt(200)  # six standard deviations
    coins = rng.integers(2**63, size=8).astype(np.uint64)
    assert set(capped(persons, 2, coins=coins)[3:]) == set(capped(persons[3:], 2, coins=coins[3:]) + 3)


@pytest.mark.parametrize(
    "listed",
    [
        ["x", "x", "y"],
        np.array(["x", "x", "y"]),
        np.array([7, 7, 8]),
        [("ward", 1), ("ward", 1), ("ward", 2)],
        [b"x", b"x", b"y"],
        [1, True, 2.5],
        np.array(["2020-01-01", "2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    ],
)
def test_ids_are_anything_that_can_be_hashed(listed):
    p = program(1)
    data = {"id": listed} | columns([RECORDS[0]] * 3)
    assert exact_numbers(p.count(), read(p, data)) == (2,)


@pytest.mark.parametrize("missing", [None, "", "  ", float("nan"), np.datetime64("NaT"), b"", ("", ""), "NA"])
def test_a_missing_id_is_refused_or_a_person_by_itself(missing):
    data = {"id": ["x", missing, missing, "x"]} | columns([RECORDS[0]] * 4)
    with pytest.raises(ValueError, match="A record has no id in 'id'"):
        read(program(1), data)
    p = program(1, missing_person="own")
    assert exact_numbers(p.count(), read(p, data)) == (3,)


def test_ids_that_cannot_tell_people_apart_are_refused():
    for odd, message in (([["x"], ["x"]], "hashable"), ([object(), object()], "comparable"), (["1", 1], "two people")):
        with pytest.raises(ValueError, match=message):
            read(program(1), {"id": odd} | columns([RECORDS[0]] * 2))
    with pytest.raises(ValueError, match="must hold equally many rows"):
        read(program(1), {"id": ["x"]} | columns([RECORDS[0]] * 2))
    with pytest.raises(ValueError, match="no column 'id', which tells people apart"):
        read(program(1), columns([RECORDS[0]]))


FILE = "sex,id,job,age\nF,1,a,3\n\nF,1,b,0\nM, 2 ,c,0\nF,1,c,-2\n\n"


def test_a_file_is_read_line_by_line_and_blank_lines_are_nobodys(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(FILE)
    p = program(2)
    found = read(p, path)
    assert exact_numbers(p.count(), found) == (3,)
    assert exact_numbers(p.where(sex="M").count(), found) == (1,)
    path.write_text(FILE + "F,3\n")
    with pytest.raises(ValueError, match="no id"):
        read(p, path)
    owned = program(2, missing_person="own")
    assert exact_numbers(owned.count(), read(owned, path)) == (4,)
    path.write_text(FILE.replace("id", "name"))
    with pytest.raises(ValueError, match="no column 'id'"):
        read(p, path)
    path.write_text("sex,id,job,age\n")
    assert exact_numbers(p.count(), read(p, path)) == (0,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 3}, "n must be left out"),
        ({"person": None}, "Name the column of ids too"),
        ({"rows_per_person": None}, "Declare rows_per_person"),
        ({"rows_per_person": 0}, "rows_per_person must be a whole number"),
        ({"person": "job"}, "the schema must not name it"),
        ({"missing_person": "drop"}, "missing_person must be"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Program(**{"schema": SCHEMA, "epsilon": 1, "person": "id", "rows_per_person": 2} | given)
    with pytest.raises(TypeError, match="name of a column"):
        Program(schema=SCHEMA, epsilon=1, person=["a", "b"], rows_per_person=2)
    with pytest.raises(ValueError, match="n, the public number of records"):
        Program(schema=SCHEMA, epsilon=1)


@dataclass(frozen=True)
class Careless(Mechanism):
    """Of an extension, made for one record."""

    name: ClassVar[str] = "careless"
    epsilon: float = 1.0
    delta: float = 0.0


@pytest.mark.parametrize(
    ("make", "mechanism", "code"),
    [
        (lambda p: p.column("age").clamp(0, 9).mean(), geometric(epsilon=1), "T009"),
        (lambda p: p.column("age").clamp(0, 9).posterior(normal(0, 1, record_sd=1)), geometric(epsilon=1), "T009"),
        (lambda p: p.column("sex").posterior(dirichlet(1, 1)), laplace(epsilon=1), "T011"),
        (lambda p: p.column("sex").posterior(dirichlet(1, 1)), exponential(epsilon=1, delta=0.01), "T011"),
        (lambda p: p.column("sex").histogram(), gaussian(epsilon=1, delta=0.01), "T011"),
        (lambda p: p.count(), Careless(), "T011"),
    ],
)
def test_what_cannot_hide_a_person_is_refused(make, mechanism, code):
    p = program(2)
    with pytest.raises(ProgramError, match=code):
        p.release(make(p), mechanism)
    if code == "T011":
        with pytest.raises(PrivacyError, match="cannot be used here"):
            plan_release(mechanism, make(p).statistic)


def test_the_number_of_records_is_counted_only_where_it_is_private():
    with pytest.raises(ValueError, match="the number of records is public: n=3"):
        Program(schema=SCHEMA, n=3, epsilon=1).count()


def survey(rows=2):
    schema = SCHEMA | {"ill": Bool()}
    p = Program(schema=schema, epsilon=4, delta=1e-6, person="id", rows_per_person=rows, missing_person="own")
    p.release(p.column("ill").posterior(beta(1, 1)), best(epsilon=1), name="ill")
    p.release(p.column("age").clamp(0, 100).sum(), best(epsilon=1, delta=1e-6), name="age")
    rows_there = p.release(p.count(), geometric(epsilon=1), name="rows")
    p.release(p.column("job").posterior(dirichlet(1, 1, 1)), geometric(epsilon=1), name="jobs")
    p.derive(lambda total, count: total.value / max(1, count.value), p.releases[1], rows_there, name="mean age")
    return p


def patients(people, rng):
    ids = np.repeat(np.arange(people), rng.integers(1, 6, size=people))
    jobs, ages = np.array(JOBS)[rng.integers(3, size=len(ids))], rng.normal(50, 10, len(ids))
    return {"id": ids, "sex": ["F"] * len(ids), "job": jobs, "age": ages, "ill": rng.random(len(ids)) < 0.3}


def test_results_are_near_the_truth_of_the_rows_that_count(rng):
    results = survey().run(patients(4000, rng))
    assert results["ill"].posterior.mean == pytest.approx(0.3, abs=0.03)
    assert results["jobs"].posterior.mean == pytest.approx([1 / 3] * 3, abs=0.03)
    assert results["mean age"] == pytest.approx(50, abs=1)
    own = results["ill"].guarantee
    assert (own.unit, own.neighbours, own.epsilon) == ("person", "add_remove", 1.0)
    assert results["ill"].n is None


def test_the_promise_the_label_and_the_ledger_speak_of_persons(tmp_path, rng):
    p = survey()
    place = tmp_path / "ledger.sqlite"
    pages = []
    for number, people in enumerate((30, 90)):
        results = p.run(patients(people, rng), ledger=place)
        made = Run.create(tmp_path / f"run-{number}")
        with Ledger.open(place) as ledger:
            assert (ledger.unit, ledger.neighbours) == ("person", "add_remove")
            write_run(made, p, title="patients", ledger=ledger)
        assert (results.guarantee.unit, results.guarantee.neighbours) == ("person", "add_remove")
        label = label_of(made.folder)
        assert label_of_run(made.folder).worst.unit == label.worst.unit == "person"
        codes = {assumption.code for assumption in label.checks}
        assert {"rows-capped", "ids-are-people", "rows-alone"} <= codes
        assert not {"record-is-person", "public-size"} & codes
        pages.append(json.dumps(label.public().to_dict()))
        assert label.public().html()
    assert pages[0] == pages[1]  # of other people, and of another number of rows
    assert "at most 2 rows of each count" in pages[0]
    with Ledger.open(place) as ledger:
        assert [row["description"] for row in ledger.releases()] == ["4 releases of at most 2 rows of a person"] * 2
    with Ledger.create(":memory:", neighbours="replace_one") as ledger, pytest.raises(PrivacyError):
        p.run(patients(5, rng), ledger=ledger)
    with Ledger.create(":memory:") as ledger, pytest.raises(PrivacyError, match="one record"):
        p.run(patients(5, rng), ledger=ledger)
