"""Kills, races, full and read-only disks, damaged files: nothing is released that is not charged (L1 to L5)."""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tacita._check import PrivacyError
from tacita.ledger import Ledger
from tacita.ledger.chain import START, _digest
from tests.ledger.nursery import EXCEEDED, FAILED, grants_allowed, job, kill_at_random, released_steps


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_l1_a_killed_run_never_released_an_uncharged_step(nursery, rng, tmp_path, kills):
    Ledger.create(tmp_path / "l.sqlite").close()
    kill_at_random(nursery, rng, tmp_path, kills)
    steps = released_steps(tmp_path)
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        charged = ledger.charged("a")
        assert charged == 3 * sum(row.kind == "charge" for row in ledger.rows())
    assert len(steps) >= kills // 2
    assert max(steps) < charged
    assert len(set(steps)) == len(steps)  # no step's noise was drawn twice


@pytest.mark.slow
def test_l1_sees_a_writer_that_releases_before_it_charges(nursery, rng, tmp_path):
    Ledger.create(tmp_path / "l.sqlite").close()
    caught = 0
    for _ in range(20):
        kill_at_random(nursery, rng, tmp_path, 2, careless=True, block=1)
        with Ledger.open(tmp_path / "l.sqlite") as ledger:
            steps = released_steps(tmp_path)
            caught += bool(steps) and max(steps) >= ledger.charged("a")
    assert caught > 0


@pytest.mark.parametrize("repeats", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_l2_eight_writers_share_one_budget_exactly(nursery, tmp_path, repeats):
    allowed = grants_allowed(0.07, 11, epsilon=2.0, delta=1e-5 / 2)  # half of delta is for distances
    assert 50 < allowed < 200
    for repeat in range(repeats):
        folder = tmp_path / str(repeat)
        folder.mkdir()
        Ledger.create(folder / "l.sqlite", epsilon=2.0, delta=1e-5).close()
        names = [f"run {i}" for i in range(8)]
        jobs = [job(folder, run=name, block=1, costs={"11": 0.07}) for name in names]
        assert nursery.run(jobs) == ([EXCEEDED] * 8, [])
        with Ledger.open(folder / "l.sqlite") as ledger:
            assert sum(ledger.charged(name) for name in names) == allowed
        assert sum(len(released_steps(folder, name)) for name in names) == allowed


@pytest.mark.parametrize("limit", [60_000, 100_000, 150_000])
def test_l3_a_full_disk_stops_the_release(nursery, tmp_path, limit):
    Ledger.create(tmp_path / "l.sqlite").close()
    codes, errors = nursery.run([job(tmp_path, size_limit=limit)])
    assert codes == [FAILED]
    assert "cannot be used" in errors[0]
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        assert 0 < len(released_steps(tmp_path)) <= ledger.charged("a")


def charge_while_possible(ledger):
    for step in range(1000):
        try:
            ledger.charge("a", first=step, steps=1, costs={7: 0.1})
        except PrivacyError as error:
            if "disk is full" in str(error):
                return step
            raise
    return None


def test_l3_a_full_database_leaves_the_ledger_usable(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite") as ledger:
        ledger.open_run("a", mechanism={"steps": 10**6}, seed_fingerprint=None, seeded=False)
        pages = ledger._chain.store.connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._chain.store.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        released = charge_while_possible(ledger)
        assert ledger.charged("a") == released > 0
        ledger._chain.store.connection.execute("PRAGMA max_page_count = 100000")
        ledger.charge("a", first=released, steps=1, costs={7: 0.1})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody without write access")
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o777, 0o444), (0o555, 0o444), (0o755, 0o600)])
def test_l3_a_read_only_ledger_stops_the_release(nursery, folder_mode, file_mode):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        Ledger.create(folder / "l.sqlite").close()
        (folder / "a.released").touch()
        (folder / "a.released").chmod(0o666)
        (folder / "l.sqlite").chmod(file_mode)
        folder.chmod(folder_mode)
        codes, errors = nursery.run([job(folder, user=65534)])
        assert codes == [FAILED]
        assert "cannot be used" in errors[0]
        assert released_steps(folder) == []


def test_l3_a_locked_ledger_stops_the_release(tmp_path, monkeypatch):
    monkeypatch.setattr("tacita.ledger.sqlite._TIMEOUT", 0.05)
    with Ledger.create(tmp_path / "l.sqlite") as ledger:
        other = sqlite3.connect(tmp_path / "l.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PrivacyError, match="database is locked"):
            ledger.release("x", costs={7: 0.1}, description="")
        other.close()
        ledger.release("x", costs={7: 0.1}, description="")


def filled(path):
    """Write a ledger of about 60 rows; return an older copy, and the head."""
    with Ledger.create(path, epsilon=50.0, delta=1e-5) as ledger:
        for run in ("a", "b"):
            ledger.open_run(
                run, mechanism={"steps": 1000, "clip_norm": 1.0}, seed_fingerprint=f"seed {run}", seeded=True
            )
        for i in range(25):
            ledger.charge("a", first=i, steps=1, costs=np.arange(13) * 0.01)
            ledger.charge("b", first=2 * i, steps=2, costs=np.arange(13) * 0.02)
            if i == 12:
                ledger._chain.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                older = path.read_bytes()
        ledger.event("a", "close", {"step": 25})
        return older, ledger.head


def flip_bits(rng, data):
    out = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        out[rng.integers(len(out))] ^= 1 << rng.integers(8)
    return bytes(out)


def damage(rng, kind, path, data, older):
    if kind == "flip":
        path.write_bytes(flip_bits(rng, data))
    elif kind == "truncate":
        path.write_bytes(data[: rng.integers(len(data))])
    elif kind == "zero":
        at = int(rng.integers(len(data)))
        path.write_bytes(data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :])
    elif kind == "roll back":
        path.write_bytes(older)
    else:
        path.write_bytes(data)
        edit(rng, kind, path)


def edit(rng, kind, path):
    """Change the rows through SQLite, and put the triggers back as they were."""
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    last = db.execute("SELECT max(seq) FROM ledger").fetchone()[0]
    seq = int(rng.integers(1, last + 1))
    if kind == "cut":
        db.execute("DELETE FROM ledger WHERE seq >= ?", (seq,))
    elif kind == "drop one":
        db.execute("DELETE FROM ledger WHERE seq = ?", (seq,))
    else:
        column = str(rng.choice(["time", "kind", "run", "body", "hash"])) if kind == "edit" else "body"
        db.execute(f"UPDATE ledger SET {column} = replace({column}, substr({column}, 3, 1), '7') WHERE seq = ?", (seq,))
    if kind == "forge":  # the chain made anew from the edited row on
        head = START
        for row in db.execute("SELECT seq, time, kind, run, body FROM ledger ORDER BY seq").fetchall():
            head = _digest(head, *row)
            db.execute("UPDATE ledger SET hash = ? WHERE seq = ?", (head, row[0]))
    for _, sql in triggers:
        db.execute(sql)
    db.close()


@pytest.mark.parametrize("faults", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_l4_no_damage_goes_unnoticed_when_the_head_is_known(tmp_path, rng, faults):
    path, copy = tmp_path / "l.sqlite", tmp_path / "copies" / "l.sqlite"
    older, head = filled(path)
    data = path.read_bytes()
    with Ledger.open(path) as ledger:
        truth = ledger.rows(), ledger.spent(), ledger.runs()
    kinds = ("flip", "flip", "flip", "truncate", "zero", "roll back", "cut", "drop one", "edit", "forge")
    noticed, messages = dict.fromkeys(kinds, 0), []
    for i in range(faults):
        copy.parent.mkdir()
        kind = kinds[i % len(kinds)]
        damage(rng, kind, copy, data, older)
        try:
            with Ledger.open(copy) as ledger:
                intact = ledger.contains(head)
                assert not intact or (ledger.rows(), ledger.spent(), ledger.runs()) == truth, kind
        except PrivacyError as error:
            intact = False
            messages.append(str(error))
        noticed[kind] += not intact
        shutil.rmtree(copy.parent)
    assert not any("\n" in message for message in messages)
    assert noticed["flip"] > faults / 10
    assert all(noticed[kind] == faults / 10 for kind in ("roll back", "cut", "drop one"))


def test_l4_rows_removed_while_the_ledger_is_in_use_are_missed(tmp_path, rng):
    path = tmp_path / "l.sqlite"
    filled(path)
    with Ledger.open(path) as ledger:
        edit(rng, "cut", path)
        with pytest.raises(PrivacyError, match="rolled back or replaced"):
            ledger.release("x", costs={7: 0.1}, description="")


def test_l4_rows_added_by_others_are_checked(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger.create(path) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("INSERT INTO ledger VALUES (1, '', 'event', '', '{}', 'no hash')")
        other.close()
        with pytest.raises(PrivacyError, match="damaged at row 1"):
            ledger.release("x", costs={7: 0.1}, description="")


@pytest.mark.parametrize(
    "sql", ["UPDATE ledger SET body = '{}'", "DELETE FROM ledger", "REPLACE INTO ledger SELECT * FROM ledger"]
)
def test_l4_sqlite_itself_refuses_to_change_a_row(tmp_path, sql):
    with Ledger.create(tmp_path / "l.sqlite") as ledger, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        ledger._chain.store.connection.execute(sql)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True])
def test_l14_a_file_that_was_removed_or_replaced_is_noticed(suffix, replaced, tmp_path):
    """SQLite goes on writing to files that are gone: what is charged there, nobody else ever sees."""
    ledger = Ledger.create(tmp_path / "l.sqlite")
    ledger.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
    file = tmp_path / f"l.sqlite{suffix}"
    contents = file.read_bytes()
    file.unlink()
    if replaced:
        file.write_bytes(contents)
    for call in (
        lambda: ledger.charge("a", first=0, steps=1, costs={1: 0.1}),
        lambda: ledger.release("b", pure=0.1, description=""),
        lambda: ledger.resume("a", step=0, head="", clean=True),
        lambda: ledger.standing("a", step=0, head="", clean=True),
        lambda: ledger.spent(1e-5),
        lambda: ledger.verify("a", owner=""),
    ):
        with pytest.raises(PrivacyError, match="removed or replaced while in use") as refused:
            call()
        assert "\n" not in str(refused.value)


def test_l14_contents_that_were_overwritten_are_noticed_by_verify(tmp_path):
    """The same file with older contents: SQLite's cache hides it from the process that has it open."""
    path = tmp_path / "l.sqlite"
    with Ledger.create(path) as ledger:
        ledger.open_run("a", mechanism={"steps": 5000}, seed_fingerprint=None, seeded=False)
    older = path.read_bytes()
    with Ledger.open(path) as ledger:
        for i in range(60):
            ledger.event("a", "note", "long " * 2000)
            ledger.charge("a", first=i, steps=1, costs={1: 0.1})
        ledger.verify("a", owner="")
        ledger._chain.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # as SQLite does now and then
        with path.open("r+b") as file:
            file.write(older)
            file.truncate()
        with pytest.raises(PrivacyError, match=r"rolled back|damaged"):
            ledger.verify("a", owner="")


def test_l14_another_working_directory_and_memory_are_no_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("l.sqlite", ":memory:"):
        ledger = Ledger.create(path)
        ledger.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.charge("a", first=0, steps=1, costs={1: 0.1})
        ledger.verify("a", owner="")
        assert ledger.charged("a") == 1
        monkeypatch.chdir(tmp_path)


def test_l13_a_charge_or_a_claim_under_an_older_token_is_refused(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite") as ledger, Ledger.open(tmp_path / "l.sqlite") as other:
        ledger.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        ledger.own("a", "first")
        head = ledger.charge("a", first=0, steps=1, costs={1: 0.1}, owner="first")
        assert ledger.head_of("a", owner="first") == head
        other.own("a", "second")
        for owner in ("first", ""):
            for call in (
                lambda owner: ledger.charge("a", first=1, steps=1, costs={1: 0.1}, owner=owner),
                lambda owner: ledger.resume("a", step=1, head=head, clean=True, owner=owner),
                lambda owner: ledger.head_of("a", owner=owner),
            ):
                with pytest.raises(PrivacyError, match="resumed elsewhere"):
                    call(owner)
        with pytest.raises(PrivacyError, match="resumed elsewhere"):
            ledger.own("a", "first")  # it is not had back
        with pytest.raises(PrivacyError, match="resumed elsewhere"):
            ledger.event("a", "drawn", owner="first")
        rows = len(ledger.rows())
        other.own("a", "second")  # nothing new
        assert len(ledger.rows()) == rows
        assert other.resume("a", step=1, head=head, clean=True, owner="second") == 1
        other.charge("a", first=1, steps=1, costs={1: 0.1}, owner="second")
        assert ledger.rows()[-1].body["owner"] == "second"
