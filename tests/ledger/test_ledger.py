"""The ledger's own rules: what is fixed for ever, what continues what, what is refused, and how to go on."""

import json
import math
import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from tacita._check import PrivacyError
from tacita.guarantee import Guarantee
from tacita.ledger import BudgetExceeded, Ledger, replace_one_costs

COSTS = {7: 0.1, 11: 0.2}


def open_run(ledger, name="a", seed=None, **mechanism):
    frozen = {"steps": 100, "clip_norm": 1.0, "noise_multiplier": 1.1} | mechanism
    ledger.open_run(name, mechanism=frozen, seed_fingerprint=seed, seeded=seed is not None)


def contents(ledger):
    return ledger.rows(), ledger.spent(1e-5), ledger.runs()


def test_a_ledger_is_what_it_was_after_reopening(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger.create(path, unit="person", neighbours="replace_one", epsilon=2.0, delta=1e-5) as ledger:
        open_run(ledger, seed="s")
        head = ledger.charge("a", first=0, steps=5, costs=COSTS, neighbours="replace_one", unit="person")
        ledger.release("mean", costs=COSTS, delta=1e-9, description="d", neighbours="replace_one", unit="person")
        before = contents(ledger)
    with Ledger.open(path) as ledger:
        assert contents(ledger) == before
        assert ledger.contains(head)
        assert ledger.head == ledger.rows()[-1].hash
        assert (ledger.unit, ledger.neighbours, ledger.budget) == ("person", "replace_one", (2.0, 1e-5))
        assert ledger.runs()["a"]["charged"] == 5
        assert ledger.runs()["a"]["seeded"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_create_refuses_a_file_that_exists(tmp_path):
    path = tmp_path / "l.sqlite"
    Ledger.create(path).close()
    with pytest.raises(PrivacyError, match="exists already; open it"):
        Ledger.create(path)
    with pytest.raises(PrivacyError, match="cannot be created"):
        Ledger.create(tmp_path / "nowhere" / "l.sqlite")


@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"delta": 1e-5}, {"epsilon": math.nan, "delta": 0.1}])
def test_a_budget_has_both_numbers_and_no_file_is_left_otherwise(tmp_path, budget):
    with pytest.raises(ValueError, match="epsilon"):
        Ledger.create(tmp_path / "l.sqlite", **budget)
    assert not list(tmp_path.iterdir())


def foreign_database(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE ledger (x)")
    db.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "There is no ledger"),
        (lambda path: path.write_bytes(b""), "not a ledger"),
        (lambda path: path.write_bytes(b"{}" * 5000), "not a database"),
        (foreign_database, "not a ledger"),
    ],
)
def test_open_refuses_what_is_no_ledger_and_leaves_it_alone(tmp_path, make, message):
    path = tmp_path / "l.sqlite"
    make(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(PrivacyError, match=message):
        Ledger.open(path)
    assert (path.read_bytes() if path.exists() else None) == before


def test_charges_of_a_run_continue_each_other(ledger):
    open_run(ledger)
    ledger.charge("a", first=0, steps=10, costs=COSTS)
    for first in (0, 9, 11):
        with pytest.raises(PrivacyError, match="has 10 steps charged"):
            ledger.charge("a", first=first, steps=1, costs=COSTS)
    with pytest.raises(PrivacyError, match="opened for 100 steps, not 101"):
        ledger.charge("a", first=10, steps=91, costs=COSTS)
    with pytest.raises(PrivacyError, match="call open_run"):
        ledger.charge("b", first=0, steps=1, costs=COSTS)
    assert (ledger.charged("a"), ledger.charged("b")) == (10, 0)


def test_f5_the_same_noise_twice_is_refused(ledger):
    open_run(ledger, "a", seed="s")
    rows = ledger.rows()
    with pytest.raises(PrivacyError, match=r"Run 'a' used this seed.*choose one that was never used"):
        open_run(ledger, "b", seed="s")
    open_run(ledger, "a", seed="s")
    assert ledger.rows() == rows
    open_run(ledger, "a", seed="after a restart")
    with pytest.raises(PrivacyError, match="Run 'a' used this seed"):
        open_run(ledger, "b", seed="after a restart")
    with pytest.raises(PrivacyError, match="needs seed_fingerprint"):
        ledger.open_run("c", mechanism={"steps": 1}, seed_fingerprint=None, seeded=True)


def test_f16_the_mechanism_is_frozen_before_the_first_step(ledger):
    open_run(ledger)
    rows = ledger.rows()
    open_run(ledger)
    assert ledger.rows() == rows
    with pytest.raises(PrivacyError, match=r"another mechanism \(clip_norm, lr differ\)"):
        open_run(ledger, clip_norm=0.5, lr=1.0)
    with pytest.raises(PrivacyError, match="must name 'steps'"):
        ledger.open_run("b", mechanism={"clip_norm": 1.0}, seed_fingerprint=None, seeded=False)
    with pytest.raises(ValueError, match="must be finite"):
        open_run(ledger, "b", clip_norm=math.inf)
    with pytest.raises(ValueError, match="printable"):
        open_run(ledger, "b\n")


def test_f8_another_relation_or_unit_enters_only_by_a_proved_conversion():
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        open_run(ledger)
        with pytest.raises(PrivacyError, match=r"proved conversion\. Pass costs=replace_one_costs\(costs\)"):
            ledger.charge("a", first=0, steps=1, costs=COSTS)
        ledger.charge("a", first=0, steps=1, costs=replace_one_costs(COSTS), neighbours="replace_one")
        assert ledger.spent(1e-5).neighbours == "replace_one"
    with Ledger.create(":memory:") as ledger:
        with pytest.raises(PrivacyError, match="Make a ledger for replace_one"):
            ledger.release("x", costs=COSTS, description="", neighbours="replace_one")
        with pytest.raises(PrivacyError, match="one record, got costs for one person"):
            ledger.release("x", costs=COSTS, description="", unit="person")


def test_a_refused_charge_writes_nothing_and_a_smaller_one_still_fits(ledger):
    open_run(ledger)
    ledger.charge("a", first=0, steps=1, costs=COSTS)
    before = contents(ledger)
    with pytest.raises(BudgetExceeded, match=r"the budget is 2\. Nothing was charged"):
        ledger.charge("a", first=1, steps=1, costs={7: 10.0, 11: 20.0})
    assert contents(ledger) == before
    ledger.charge("a", first=1, steps=1, costs=COSTS)


def test_the_budget_is_raised_only_when_asked(ledger):
    ledger.set_budget(1.5, 1e-6)
    for epsilon, delta in ((1.6, 1e-6), (1.5, 1e-5), (1.0, 1e-5)):
        with pytest.raises(PrivacyError, match="pass allow_increase=True"):
            ledger.set_budget(epsilon, delta)
    ledger.set_budget(3.0, 1e-5, allow_increase=True)
    ledger.release("x", costs=COSTS, description="")
    ledger.set_budget(0.1, 1e-5)
    with pytest.raises(BudgetExceeded):
        ledger.release("y", costs=dict.fromkeys(range(1, 300), 0.0), description="even nothing")
    assert ledger.spent().epsilon > ledger.budget[0] == 0.1


def test_spent_says_what_it_is():
    with Ledger.create(":memory:") as ledger:
        with pytest.raises(ValueError, match="delta must be given"):
            ledger.spent()
        assert ledger.spent(1e-5) is None
        ledger.release("x", costs=COSTS, delta=1e-8, description="")
        spent = ledger.spent(1e-5)
        assert (spent.kind, spent.method, spent.publishable) == (
            "worst_case",
            "filter of Gaussian distances and of moments",
            True,
        )
        assert Guarantee.from_dict(json.loads(json.dumps(spent.to_dict()))) == spent
        assert sum(share for _, share in spent.delta_split) == pytest.approx(1e-5)
        assert math.isinf(ledger.spent(26e-8).epsilon)  # the release's own delta takes a share of 1/14 of a half
        assert math.isfinite(ledger.spent(30e-8).epsilon)
        ledger.release("y", costs={}, description="no bound at any order")
        assert math.isinf(ledger.spent(1e-5).epsilon)


def test_l5_a_clean_checkpoint_goes_on_once_where_it_was(ledger):
    open_run(ledger)
    head = ledger.charge("a", first=0, steps=10, costs=COSTS)
    assert ledger.resume("a", step=4, head=head, clean=True) == 4
    assert ledger.resume("a", step=4, head=head, clean=True) == 10  # the first resume may have used the rest
    assert [row.body["detail"]["from"] for row in ledger.events("a")] == [4, 10]


def test_l5_a_second_clean_checkpoint_has_its_own_head(ledger):
    open_run(ledger)
    head = ledger.charge("a", first=0, steps=10, costs=COSTS)
    assert ledger.resume("a", step=4, head=head, clean=True) == 4
    later = ledger.event("a", "close", {"step": 6})
    assert ledger.resume("a", step=6, head=later, clean=True) == 6
    assert [row.body["event"] for row in ledger.events("a")] == ["resume", "close", "resume"]


def test_l5_steps_that_may_have_been_released_are_lost(ledger):
    open_run(ledger)
    head = ledger.charge("a", first=0, steps=10, costs=COSTS)
    assert ledger.resume("a", step=4, head=head, clean=False) == 10
    other = ledger.head
    ledger.charge("a", first=10, steps=10, costs={7: 0.01, 11: 0.01})
    assert ledger.resume("a", step=10, head=other, clean=True) == 20  # older than a charge
    assert ledger.resume("a", step=20, head=head, clean=True) == 20


def test_l5_foreign_rolled_back_and_older_ledgers_are_refused(ledger):
    open_run(ledger)
    head = ledger.charge("a", first=0, steps=10, costs=COSTS)
    with pytest.raises(PrivacyError, match="rolled back or is a foreign one"):
        ledger.resume("a", step=4, head="0" * 64, clean=True)
    with pytest.raises(PrivacyError, match="newer than the ledger"):
        ledger.resume("a", step=11, head=head, clean=True)
    with pytest.raises(PrivacyError, match="not in the ledger"):
        ledger.resume("b", step=0, head=head, clean=True)
    assert ledger.events("a") == []


def test_two_connections_see_each_other(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite") as one, Ledger.open(tmp_path / "l.sqlite") as two:
        open_run(one)
        two.charge("a", first=0, steps=1, costs=COSTS)
        assert one.charged("a") == 1
        assert one.head == two.head
        one.charge("a", first=1, steps=1, costs=COSTS)
        assert contents(one) == contents(two)


def test_threads_may_share_a_ledger(ledger):
    open_run(ledger)
    granted = []

    def spend(name):
        for _ in range(20):
            granted.append(ledger.release(name, costs={11: 1e-6}, description=""))

    threads = [threading.Thread(target=spend, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(granted)) == 80 == sum(row.kind == "release" for row in ledger.rows())


def test_a_forked_process_must_open_its_own(tmp_path):
    code = (
        "import os, sys\nfrom tacita.ledger import Ledger\n"
        f"ledger = Ledger.create({str(tmp_path / 'l.sqlite')!r})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: ledger.release('x', costs={7: 1.0}, description='')\n"
        "    except ValueError as error: os._exit(7 if 'open it again' in str(error) else 1)\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


def test_a_closed_ledger_grants_nothing(tmp_path):
    ledger = Ledger.create(tmp_path / "l.sqlite")
    ledger.close()
    ledger.close()
    with pytest.raises(PrivacyError, match="closed database"):
        ledger.release("x", costs=COSTS, description="")


def test_a_ledger_of_other_orders_is_refused(tmp_path, monkeypatch):
    Ledger.create(tmp_path / "l.sqlite").close()
    monkeypatch.setattr("tacita.ledger.rows.DECLARED", (1, 2))
    with pytest.raises(PrivacyError, match="another version"):
        Ledger.open(tmp_path / "l.sqlite")


def test_the_ledger_does_not_load_torch():
    code = "import sys, tacita.ledger; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_old_arguments_are_refused_with_the_new_name():
    with Ledger.create(":memory:", epsilon=1.0, delta=1e-5) as ledger:
        with pytest.raises(TypeError, match="raise_it is called allow_increase now"):
            ledger.set_budget(2.0, 1e-5, raise_it=True)
        assert ledger.budget == (1.0, 1e-5)
