"""Shares of a budget and windows of new data: who is charged what, on which days, and what the database itself says."""

import datetime
import json

import pytest

from tacita._check import PrivacyError
from tacita.ledger import BudgetExceeded, Ledger
from tests.cli.command import tacita
from tests.ledger.nursery import grants_allowed, job
from tests.ledger.test_postgres import make_roles, name_of

STEP = {11: 0.15}
SHARE = grants_allowed(0.15, 11, epsilon=1.5, delta=1e-5 / 2)
WHOLE = grants_allowed(0.15, 11, epsilon=2.0, delta=1e-5 / 2)


def day(offset=0):
    return (datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=offset)).isoformat()


def spend(ledger):
    """Release as often as is granted."""
    done = 0
    while True:
        try:
            ledger.release("x", costs=STEP, description="")
        except BudgetExceeded as error:
            return done, str(error)
        done += 1


@pytest.fixture(params=["file", "server"])
def people(request, tmp_path):
    """Return a function that opens one ledger as somebody: "owner", or the analyst "ann" or "bob"."""
    if request.param == "file":
        path = tmp_path / "l.sqlite"
        Ledger.create(path, epsilon=2.0, delta=1e-5, analyst="owner").close()
        return lambda name: Ledger.open(path, analyst=name)
    server = request.getfixturevalue("server")
    url = server.database()
    Ledger.create(url, epsilon=2.0, delta=1e-5).close()
    make_roles(server, url)
    base = name_of(url)
    roles = {"ann": "charge", "bob": "charge", "owner": "raise"}
    members = [f"CREATE ROLE {base}_{who} LOGIN PASSWORD 'p' IN ROLE {base}_{roles[who]}" for who in roles]
    server.run(base, *members)
    return lambda name: Ledger.open(server.url(base, f"{base}_{name}", "p"))


def test_an_analyst_spends_at_most_a_share_of_the_budget(people):
    with people("owner") as owner, people("ann") as ann, people("bob") as bob:
        owner.set_share(ann.analyst, 1.5)
        assert ann.would_fit(costs=STEP).times == SHARE
        done, why = spend(ann)
        assert (done, f"the share of {ann.analyst} is 1.5" in why) == (SHARE, True)
        assert not ann.would_fit(costs=STEP).fits
        assert spend(bob)[0] == WHOLE - SHARE  # who has no share has what is left
        found = owner.analysts()
        assert found[ann.analyst].share == 1.5
        assert 1.48 < found[ann.analyst].epsilon <= 1.5
        assert (found[bob.analyst].share, len(found)) == (None, 2)
        owner.set_share(ann.analyst, None)
        assert "the budget is 2" in spend(ann)[1]
        owner.set_share(bob.analyst, 0.0)
        assert not bob.would_fit(pure=1e-9).fits


def test_a_share_is_held_by_reservations_and_by_runs(people):
    with people("owner") as owner, people("ann") as ann, people("bob") as bob:
        owner.set_share(ann.analyst, 1.5)
        for name, who in (("a", ann), ("b", bob)):
            who.open_run(name, mechanism={"steps": SHARE + 1}, seed_fingerprint=None, seeded=False)
        with pytest.raises(BudgetExceeded, match="the share of"):
            ann.reserve("a", costs={11: 0.15 * (SHARE + 1)})
        ann.reserve("a", costs={11: 0.15 * SHARE})
        with pytest.raises(BudgetExceeded, match="the share of"):
            ann.release("x", costs=STEP, description="")
        ann.charge("a", first=0, steps=1, costs=STEP)
        for other, run, first in ((bob, "a", 1), (ann, "b", 0), (owner, "a", 1)):
            with pytest.raises(PrivacyError, match="whose share it would spend"):
                other.charge(run, first=first, steps=1, costs=STEP)


def test_shares_need_a_budget_and_a_name(tmp_path, monkeypatch):
    with Ledger.create(":memory:") as ledger, pytest.raises(PrivacyError, match="set a budget first"):
        ledger.set_share("ann", 1.5)
    path = tmp_path / "l.sqlite"
    with Ledger.create(path, epsilon=2.0, delta=1e-5) as ledger:
        ledger.release("x", costs=STEP, description="")  # nobody said who
        ledger.set_share("ann", 1.5)
        with pytest.raises(PrivacyError, match="every charge needs a name"):
            ledger.release("x", costs=STEP, description="")
        assert not ledger.would_fit(costs=STEP).fits
    monkeypatch.setenv("TACITA_ANALYST", "ann")
    with Ledger.open(path) as ledger:
        ledger.release("x", costs=STEP, description="")
        assert [row.body.get("by") for row in ledger.rows()] == [None, None, None, None, "ann"]
        assert set(ledger.analysts()) == {"", "ann"}
    with pytest.raises(ValueError, match="analyst must be 1 to 200 printable"):
        Ledger.open(path, analyst="a\nb")


@pytest.mark.parametrize("where", ["file", "server"])
def test_writers_of_one_analyst_spend_their_share_exactly(request, nursery, tmp_path, where):
    url, name = str(tmp_path / "l.sqlite"), "ann"
    if where == "server":
        url, name = request.getfixturevalue("server").fresh(), "tacita"
    with Ledger.create(url, epsilon=2.0, delta=1e-5) as ledger:
        ledger.set_share(name, 1.5)
    runs = [f"run {i}" for i in range(4)]
    jobs = [job(tmp_path, run=run, block=1, costs={"11": 0.15}, ledger=url, analyst=name) for run in runs]
    assert nursery.run(jobs) == ([2] * 4, [])
    with Ledger.open(url) as ledger:
        assert sum(ledger.charged(run) for run in runs) == SHARE


def test_on_a_server_nobody_writes_under_another_name(server):
    import psycopg

    url = server.database()
    Ledger.create(url, epsilon=2.0, delta=1e-5).close()
    make_roles(server, url)
    base = name_of(url)
    with pytest.raises(PrivacyError, match=r"the analyst is the role that logs in, which is 'tacita'"):
        Ledger.open(url, analyst="ann")
    own = server.url(base, f"{base}_charge_member", "p")
    with Ledger.open(own) as ledger:
        assert ledger.analyst == f"{base}_charge_member"
        ledger._chain.store.analyst = "somebody"
        with pytest.raises(PrivacyError, match="must name the role that has logged in"):
            ledger.release("x", costs=STEP, description="")
        ledger._chain.store.analyst = f"{base}_charge_member"
        ledger._chain.store.connection.execute(f"SET ROLE {base}_charge")  # taken on, and still the same login
        ledger.release("x", costs=STEP, description="")
        assert ledger.rows()[-1].body["by"] == f"{base}_charge_member"
        for call in (
            lambda: ledger.set_share(ledger.analyst, 2.0),
            lambda: ledger.open_window(day(), day(), epsilon=9.0, delta=1e-5, data_are_new=True),
        ):
            with pytest.raises(PrivacyError, match="row-level security"):
                call()
    with psycopg.connect(own, autocommit=True) as connection, pytest.raises(psycopg.Error, match="must name the role"):
        connection.execute("INSERT INTO tacita.ledger VALUES (3, '', 'event', '', '{\"by\": \"tacita\"}', '')")


def test_a_window_begins_a_budget_anew_and_ends_it(people):
    with people("owner") as owner, people("ann") as ann:
        assert spend(ann)[0] == WHOLE
        ann.open_run("old", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        with pytest.raises(PrivacyError, match="pass data_are_new=True"):
            owner.open_window(day(), day(30), epsilon=1.5, delta=1e-5, data_are_new=False)
        owner.open_window(day(), day(30), epsilon=1.5, delta=1e-5, data_are_new=True)
        assert (owner.spent(), owner.budget, str(owner.window)) == (None, (1.5, 1e-5), f"{day()} to {day(30)}")
        with pytest.raises(BudgetExceeded, match="the run was opened before the window"):
            ann.charge("old", first=0, steps=1, costs=STEP)
        assert spend(ann)[0] == SHARE
        (stated,) = (one for one in owner.spent().assumptions if one.code == "fresh-data")
        assert f"from {day()} to {day(30)} are new: no record in them is among" in stated.text
        (((days, epsilon, delta)),) = owner.past()
        assert (days, delta, 1.9 < epsilon <= 2.0) == (None, 1e-5, True)
        for first, last in ((day(31), day(60)), (day(10), day(40))):
            with pytest.raises(PrivacyError, match="has not ended, or overlaps"):
                owner.open_window(first, last, epsilon=1.5, delta=1e-5, data_are_new=True)


@pytest.mark.parametrize(("first", "last"), [(-30, -1), (1, 30)])
def test_nothing_is_charged_outside_of_a_window(people, first, last):
    with people("owner") as owner, people("ann") as ann:
        ann.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        ann.reserve("a", costs={11: 1.0})
        owner.open_window(day(first), day(last), epsilon=1.5, delta=1e-5, data_are_new=True)
        assert owner.reservations() == {}
        ann.open_run("b", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        for call in (
            lambda: ann.release("x", costs=STEP, description=""),
            lambda: ann.charge("b", first=0, steps=1, costs=STEP),
            lambda: ann.reserve("b", costs=STEP),
        ):
            with pytest.raises(BudgetExceeded, match=f"it is {day()}, and the budget is for {day(first)}"):
                call()
        assert "another window" in ann.would_fit(costs=STEP).reason
        owner.set_budget(3.0, 1e-5, allow_increase=True)  # does not open it
        with pytest.raises(BudgetExceeded, match="the budget is for"):
            ann.release("x", costs=STEP, description="")


def test_windows_follow_each_other_by_the_clock(tmp_path, monkeypatch):
    today = ["2026-11-30T23:59:59+00:00"]
    monkeypatch.setattr("tacita.ledger.sqlite.SqliteStore.now", lambda self: today[0])
    with Ledger.create(tmp_path / "l.sqlite", epsilon=2.0, delta=1e-5) as ledger:
        for bad in (("2026-11-31", "2026-12-01"), ("2026-11-1", "2026-12-01"), ("2026-12-02", "2026-12-01")):
            with pytest.raises(ValueError, match=r"must be a day such as|is before its first"):
                ledger.open_window(*bad, epsilon=1.5, delta=1e-5, data_are_new=True)
        ledger.open_window("2026-11-01", "2026-11-30", epsilon=1.5, delta=1e-5, data_are_new=True)
        ledger.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        ledger.charge("a", first=0, steps=1, costs={11: 5.0})
        today[0] = "2026-12-01T00:00:00+00:00"
        with pytest.raises(BudgetExceeded, match="it is 2026-12-01"):
            ledger.charge("a", first=1, steps=1, costs=STEP)
        ledger.open_window("2026-12-01", "2026-12-31", epsilon=1.4, delta=1e-5, data_are_new=True)
        ledger.open_run("b", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        ledger.charge("b", first=0, steps=1, costs={11: 3.9})
        assert (ledger.promise("a").epsilon, ledger.promise("b").epsilon) == (1.5, 1.4)
        before = ledger.spent(), ledger.past(), ledger.analysts()
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        assert (ledger.spent(), ledger.past(), ledger.analysts()) == before
        assert [str(days) for days, _, _ in before[1]] == ["2026-11-01 to 2026-11-30"]
    found = tacita("ledger", "check", tmp_path / "l.sqlite")
    assert found.returncode == 0, found.stdout


def test_the_label_of_a_run_says_what_its_window_assumes(tmp_path):
    torch = pytest.importorskip("torch")
    from tacita.training import PrivateTraining, label_of_run

    with Ledger.create(tmp_path / "l.sqlite", epsilon=9.0, delta=1e-5) as ledger:
        ledger.open_window(day(), day(1), epsilon=9.0, delta=1e-5, data_are_new=True)
    model = torch.nn.Linear(3, 2)
    private = PrivateTraining(
        model,
        torch.nn.functional.cross_entropy,
        (torch.randn(40, 3), torch.randint(2, (40,))),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ledger=tmp_path / "l.sqlite",
        run_dir=tmp_path / "run",
        **{"nominal_size": 40, "batch_size": 10, "steps": 2, "noise_multiplier": 2.0, "panel": 0},
    )
    private.advance()
    private.pause()
    for label in (private.label(), label_of_run(tmp_path / "run")):
        (found,) = (one for one in label.public().checks if one.code == "fresh-data")
        assert (found.state, found.answers) == ("open", "owner")
        assert f"from {day()} to {day(1)} are new: no record" in found.text


def test_the_commands_set_shares_and_windows(tmp_path, monkeypatch):
    file = tmp_path / "l.sqlite"
    tacita("ledger", "create", file, "--epsilon", "2", "--delta", "1e-5")
    shared = tacita("ledger", "share", file, "ann", "--epsilon", "1")
    assert "ann: epsilon 0 of a share of 1" in shared.stdout
    monkeypatch.setenv("TACITA_ANALYST", "ann")
    done = tacita("ledger", "fits", file, "--epsilon", "1.5")
    assert (done.returncode, "the share of ann is 1" in done.stdout) == (1, True)
    removed = json.loads(tacita("ledger", "share", file, "ann", "--remove", "--json").stdout)
    assert removed["analysts"] == {}
    for options in ((), ("--epsilon", "1", "--remove")):
        assert tacita("ledger", "share", file, "ann", *options).returncode == 2
    window = ("window", file, "--first", day(), "--last", day(9), "--epsilon", "3", "--delta", "1e-5")
    assert "pass data_are_new=True (--data-are-new)" in tacita("ledger", *window).stderr
    opened = tacita("ledger", *window, "--data-are-new")
    assert f"budget: epsilon 3 at delta 0.00001, from {day()} to {day(9)}" in opened.stdout
    assert "no record in them is among the data charged" in opened.stdout
