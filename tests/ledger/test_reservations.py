"""Budget that is held for a run: counted until it is cancelled, and cancelled only if nothing used it."""

import statistics
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita._check import PrivacyError
from tacita.accounting import most_spent
from tacita.accounting.profiles import worst_profile
from tacita.ledger import DECLARED, BudgetExceeded, Ledger
from tests.ledger.nursery import grants_allowed, job, kill_at_random, released_steps

STEP = {11: 0.15}
ALLOWED = grants_allowed(0.15, 11, epsilon=2.0, delta=1e-5 / 2)  # steps that a budget of (2, 1e-5) pays for
UNIT = 2.0**-40


def opened(ledger, name="a", steps=10, **more):
    ledger.open_run(name, mechanism={"steps": steps}, seed_fingerprint=None, seeded=False, **more)


def reserved(ledger, name="a", steps=10):
    opened(ledger, name, steps)
    ledger.reserve(name, costs={11: 0.15 * steps})


def test_a_reservation_is_spent_for_others_and_free_for_its_run(ledger):
    reserved(ledger, "a", ALLOWED - 1)
    before = ledger.spent()
    assert before.epsilon > 1.9
    ledger.release("small", costs=STEP, description="the last one")
    with pytest.raises(BudgetExceeded):
        ledger.release("b", costs=STEP, description="")
    for step in range(ALLOWED - 1):
        ledger.charge("a", first=step, steps=1, costs=STEP)
    assert ledger.reservations() == {}
    assert before.epsilon < ledger.spent().epsilon <= 2.0
    with pytest.raises(BudgetExceeded):
        ledger.release("b", costs=STEP, description="")


def test_a_reservation_that_nothing_used_is_given_back(ledger):
    reserved(ledger, "a", ALLOWED)
    assert ledger.reservations()["a"].steps == ALLOWED
    with pytest.raises(BudgetExceeded, match="Reserving run 'b'"):
        reserved(ledger, "b", 1)
    ledger.cancel("a")
    assert (ledger.spent(), ledger.reservations()) == (None, {})
    ledger.reserve("b", costs=STEP)
    for call in (ledger.cancel, ledger.commit):
        with pytest.raises(PrivacyError, match="Nothing is reserved for run 'a'"):
            call("a")
    ledger.charge("a", first=0, steps=1, costs=STEP)  # at its own cost
    assert len(ledger.rows()) == 8


def test_a_reservation_of_which_a_step_was_charged_stays(ledger):
    reserved(ledger)
    ledger.charge("a", first=0, steps=1, costs=STEP)
    spent = ledger.spent()
    with pytest.raises(PrivacyError, match=r"was used: 1 steps are charged and may have been released"):
        ledger.cancel("a")
    ledger.end("a", "the power failed")
    assert ledger.reservations() == {}
    assert ledger.spent() == spent


def test_commit_charges_what_is_left_of_a_reservation(ledger):
    reserved(ledger)
    ledger.charge("a", first=0, steps=3, costs={11: 0.45})
    spent = ledger.spent()
    ledger.commit("a")
    assert (ledger.charged("a"), ledger.spent()) == (10, spent)
    row = ledger.rows()[-1].body
    assert row["costs"][DECLARED.index(11)] * UNIT == pytest.approx(1.05)
    with pytest.raises(PrivacyError, match="all its steps are charged"):
        ledger.commit("a")


def test_an_end_without_a_step_gives_a_reservation_back(ledger):
    reserved(ledger)
    ledger.end("a", "not needed")
    assert ledger.spent() is None
    with pytest.raises(PrivacyError, match="was ended by its owner"):
        ledger.charge("a", first=0, steps=1, costs=STEP)


def test_charges_beyond_what_was_reserved_count(ledger):
    """A reservation that was declared too small takes nothing from the account."""
    opened(ledger)
    ledger.reserve("a", costs={11: 0.1})
    ledger.charge("a", first=0, steps=10, costs={11: 1.5})
    other = Ledger.create(":memory:", epsilon=2.0, delta=1e-5)
    other.release("x", costs={11: 1.5}, description="")
    assert ledger.spent().epsilon == other.spent().epsilon


def test_reservations_are_refused_where_they_mean_nothing(ledger):
    reserved(ledger)
    with pytest.raises(PrivacyError, match="because there is a reservation"):
        ledger.reserve("a", costs=STEP)
    opened(ledger, "b")
    ledger.charge("b", first=0, steps=1, costs=STEP)
    with pytest.raises(PrivacyError, match="because 1 steps are charged"):
        ledger.reserve("b", costs=STEP)
    opened(ledger, "c")
    ledger.own("c", "token")
    for call in (lambda: ledger.reserve("c", costs=STEP), lambda: ledger.cancel("c", owner="other")):
        with pytest.raises(PrivacyError, match="resumed elsewhere"):
            call()
    with pytest.raises(PrivacyError, match="call open_run"):
        ledger.reserve("nobody", costs=STEP)


def test_a_lowered_budget_grants_nothing_more_under_a_reservation(ledger):
    reserved(ledger)
    ledger.set_budget(0.5, 1e-5)
    for call in (lambda: ledger.charge("a", first=0, steps=1, costs=STEP), lambda: ledger.commit("a")):
        with pytest.raises(BudgetExceeded):
            call()
    ledger.cancel("a")


@pytest.mark.parametrize("with_curve", [True, False])
def test_a_whole_plan_is_held_in_both_accounts_and_its_blocks_change_nothing(with_curve):
    """With the costs that trainings are charged, block by block, whose round-off differs from the whole's."""
    plan = {"sample_rate": 0.01, "noise_multiplier": 1.0}
    with Ledger.create(":memory:", epsilon=5.0, delta=1e-5) as ledger:
        opened(ledger, steps=2000, curve=worst_profile(**plan, steps=2000) if with_curve else None)
        ledger.reserve("a", costs=most_spent(None, steps=2000, orders=DECLARED, **plan))
        spent = ledger.spent().epsilon
        assert 2.5 < spent < (3.0 if with_curve else 3.5)
        for first in range(0, 2000, 7):
            steps = min(7, 2000 - first)
            before, after = (most_spent(None, steps=n, orders=DECLARED, **plan) for n in (first, first + steps))
            ledger.charge("a", first=first, steps=steps, costs=after - before)
            assert ledger.spent().epsilon == spent
        assert ledger.reservations() == {}


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["open", "reserve", "charge", "charge", "commit", "cancel", "end", "release"]),
        st.integers(0, 3),
        st.integers(1, 40),
    ),
    max_size=40,
)


@settings(max_examples=30)
@given(OPERATIONS)
def test_what_was_released_stays_within_the_budget_whatever_is_reserved_and_cancelled(operations):
    """Against a plain sum of what was granted: refusals are exact, and what is spent is what is held or released."""
    released, runs = 0, {}
    with Ledger.create(":memory:", epsilon=2.0, delta=1e-5) as ledger:
        for kind, number, size in operations:
            name, counted = f"run {number}", released + sum(max(held, done) for _, held, done in runs.values())
            try:
                more = act(ledger, kind, name, size, runs)
            except BudgetExceeded:
                steps, held, done = runs.get(name, (0, 0, 0))
                more = {"reserve": steps, "charge": int(done >= held), "release": 1, "commit": 0}[kind]
                assert counted + more > ALLOWED
                continue
            except (PrivacyError, KeyError):
                continue
            released += more
            counted = released + sum(max(held, done) for _, held, done in runs.values())
            assert counted <= ALLOWED
            if spent := ledger.spent():
                assert spent.epsilon <= 2.0
                assert 0.15 * counted <= ledger._state.totals.orders[DECLARED.index(11)] * UNIT < 0.15 * counted + 1e-6


def act(ledger, kind, name, size, runs):
    """Do it, and note (steps, held, charged) of the run; return how many releases beside runs it made."""
    if kind == "open" and name not in runs:
        opened(ledger, name, size)
        runs[name] = (size, 0, 0)
    elif kind == "release":
        ledger.release(name, costs=STEP, description="")
        return 1
    steps, held, done = runs[name]
    if kind == "reserve":
        ledger.reserve(name, costs={11: 0.15 * steps})
        held = steps
    elif kind == "charge":
        ledger.charge(name, first=done, steps=1, costs=STEP)
        done += 1
    elif kind == "commit":
        ledger.commit(name)
        done = steps
    elif kind == "cancel":
        ledger.cancel(name)
        held = 0
    elif kind == "end":
        ledger.end(name, "over")
        held = steps if held and done else 0
    runs[name] = (steps, held, done)
    return 0


def test_a_fit_is_what_a_charge_then_finds(ledger):
    with pytest.raises(TypeError, match="needs its costs"):
        ledger.would_fit()
    ledger.release("x", costs={11: 1.0}, description="")
    rows = len(ledger.rows())
    found = ledger.would_fit(costs=STEP)
    assert (found.fits, found.reason, found.budget, found.delta) == (True, "", 2.0, 1e-5)
    assert found.before == ledger.spent().epsilon
    assert found.left == pytest.approx(2.0 - found.after)
    assert len(ledger.rows()) == rows
    for _ in range(found.times):
        last = ledger.would_fit(costs=STEP)
        ledger.release("x", costs=STEP, description="")
        assert ledger.spent().epsilon == last.after
    refused = ledger.would_fit(costs=STEP)
    assert (refused.fits, refused.times, refused.left) == (False, 0, 0.0)
    assert "the budget is 2" in refused.reason
    with pytest.raises(BudgetExceeded):
        ledger.release("x", costs=STEP, description="")
    with pytest.raises(PrivacyError, match="This ledger protects one record"):
        ledger.would_fit(pure=0.1, unit="person")


def test_a_ledger_without_a_budget_fits_everything():
    with Ledger.create(":memory:") as ledger:
        found = ledger.would_fit(costs={}, curve=worst_profile(sample_rate=1.0, noise_multiplier=5.0, steps=1))
        assert (found.fits, found.left, found.times, found.before < 1e-5) == (True, None, 10**6, True)
        assert 0.6 < found.after < 1.0
        assert ledger.would_fit(costs={}).to_dict()["after"] == "inf"


@pytest.mark.parametrize("where", ["file", "server"])
@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_run_keeps_what_it_reserved(request, nursery, rng, tmp_path, kills, where):
    """Whoever was killed between a charge and its release cannot have its reservation cancelled."""
    url = request.getfixturevalue("server").fresh() if where == "server" else str(tmp_path / "l.sqlite")
    with Ledger.create(url, epsilon=2.0, delta=1e-5) as ledger:
        opened(ledger, steps=10**6)
        ledger.reserve("a", costs={7: 1.0})
        spent = ledger.spent()
    kill_at_random(nursery, rng, tmp_path, kills, ledger=url, block=1)
    with Ledger.open(url) as ledger:
        steps = released_steps(tmp_path)
        assert max(steps) < ledger.charged("a")
        assert ledger.spent().epsilon == spent.epsilon
        with pytest.raises(PrivacyError, match="was used"):
            ledger.cancel("a")


@pytest.mark.parametrize("where", ["file", "server"])
def test_eight_reservations_race_for_one_budget(request, nursery, tmp_path, where):
    """As many are granted as fit, and no writer spends what another one holds."""
    url = request.getfixturevalue("server").fresh() if where == "server" else str(tmp_path / "l.sqlite")
    Ledger.create(url, epsilon=2.0, delta=1e-5).close()
    each = ALLOWED // 3
    jobs = [job(tmp_path, run=f"run {i}", block=1, costs={"11": 0.15}, ledger=url, reserve=each) for i in range(8)]
    codes, _ = nursery.run(jobs)
    with Ledger.open(url) as ledger:
        charged = [ledger.charged(f"run {i}") for i in range(8)]
    assert sorted(charged) == [0] * 5 + [each] * 3
    assert sorted(codes) == [2] * 5 + [3] * 3  # refused, or at the end of its plan


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "server"])
def test_l9_charging_takes_at_most_a_twentieth_of_the_steps(request, tmp_path, where):
    """Of steps of 40 ms, charged in blocks of 50 by a run that holds a reservation, among 20 others that do."""
    url = request.getfixturevalue("server").fresh() if where == "server" else tmp_path / "l.sqlite"
    plan, taken = {"sample_rate": 0.01, "noise_multiplier": 4.0}, []
    block = most_spent(None, steps=50, orders=DECLARED, **plan)
    with Ledger.create(url, epsilon=50.0, delta=1e-5) as ledger:
        for number in range(20):
            opened(ledger, f"run {number}", 5000)
            ledger.reserve(f"run {number}", costs=100 * block)
        for first in range(0, 5000, 50):
            start = time.perf_counter()
            ledger.charge("run 0", first=first, steps=50, costs=block)
            taken.append(time.perf_counter() - start)
    assert statistics.median(taken) <= 0.05 * 50 * 0.04
