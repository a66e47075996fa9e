"""A team's budget on a real PostgreSQL server: races, kills, lost connections, roles, passwords (L1 to L9)."""

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest

from tacita._check import PrivacyError
from tacita.ledger import BudgetExceeded, Ledger
from tacita.ledger.chain import START, _digest
from tests.cli.command import tacita
from tests.ledger.conftest import PASSWORD
from tests.ledger.nursery import EXCEEDED, grants_allowed, job, kill_at_random, released_steps
from tests.programs.surveys import write_survey

COSTS = {7: 0.1, 11: 0.2}


@pytest.fixture
def url(server):
    return server.fresh()


def name_of(url):
    return url.split("@/")[1].split("?")[0]


def open_run(ledger, name="a"):
    ledger.open_run(name, mechanism={"steps": 1000}, seed_fingerprint=None, seeded=False)


@pytest.mark.parametrize("repeats", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_l2_eight_writers_share_one_budget_exactly(nursery, server, tmp_path, repeats):
    allowed = grants_allowed(0.15, 11, epsilon=2.0, delta=1e-5 / 2)
    for repeat in range(repeats):
        (folder := tmp_path / str(repeat)).mkdir()
        Ledger.create(url := server.fresh(), epsilon=2.0, delta=1e-5).close()
        names = [f"run {i}" for i in range(8)]
        jobs = [job(folder, run=name, block=1, costs={"11": 0.15}, ledger=url) for name in names]
        assert nursery.run(jobs) == ([EXCEEDED] * 8, [])
        with Ledger.open(url) as ledger:
            assert sum(ledger.charged(name) for name in names) == allowed
        assert sum(len(released_steps(folder, name)) for name in names) == allowed


def test_l2_serialisable_transactions_alone_keep_the_budget(url, monkeypatch):
    """Writers that do not wait for their turn collide; whoever loses begins anew and reads what the others added."""
    allowed = grants_allowed(0.15, 11, epsilon=2.0, delta=1e-5 / 2)
    Ledger.create(url, epsilon=2.0, delta=1e-5).close()
    granted, pauses = [], []
    monkeypatch.setattr("tacita.ledger.postgres._TURN", "SELECT 1")
    monkeypatch.setattr("tacita.ledger.store._ATTEMPTS", 1000)
    monkeypatch.setattr("tacita.ledger.store.time.sleep", lambda seconds: pauses.append(seconds))

    def spend():
        with Ledger.open(url) as ledger:
            while True:
                try:
                    granted.append(ledger.release("x", costs={11: 0.15}, description=""))
                except BudgetExceeded:
                    return

    threads = [threading.Thread(target=spend) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(granted)) == len(granted) == allowed
    assert pauses  # there were collisions
    with Ledger.open(url) as ledger:
        assert len(ledger.releases()) == allowed


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_l1_a_killed_run_never_released_an_uncharged_step(nursery, rng, url, tmp_path, kills):
    Ledger.create(url).close()
    kill_at_random(nursery, rng, tmp_path, kills, ledger=url)
    steps = released_steps(tmp_path)
    with Ledger.open(url) as ledger:
        charged = ledger.charged("a")
        assert charged == 3 * sum(row.kind == "charge" for row in ledger.rows())
    assert len(steps) >= kills // 2
    assert max(steps) < charged
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("crashes", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_l1_a_server_that_is_killed_has_every_charge_that_it_granted(nursery, rng, server, url, tmp_path, crashes):
    Ledger.create(url).close()
    names = ("a", "b")
    for name in names:
        (tmp_path / f"{name}.released").touch()
    for _ in range(crashes):
        before = [len(released_steps(tmp_path, name)) for name in names]
        pids = nursery.start([job(tmp_path, run=name, block=1, ledger=url) for name in names])
        wait_for_more(tmp_path, names, before)
        time.sleep(rng.uniform(0.0, 0.05))
        server.stop(signal.SIGQUIT)
        server.start()
        with Ledger.open(url) as ledger:
            for name in names:
                assert max(released_steps(tmp_path, name)) < ledger.charged(name)
        before = [len(released_steps(tmp_path, name)) for name in names]
        wait_for_more(tmp_path, names, before, alive=1)  # a writer outlives its server, unless it was in a COMMIT
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a writer ends if its COMMIT was cut off
                os.kill(pid, signal.SIGKILL)
        nursery.wait()
    with Ledger.open(url) as ledger:
        for name in names:
            steps = released_steps(tmp_path, name)
            assert len(set(steps)) == len(steps)
            assert max(steps) < ledger.charged(name)


def wait_for_more(folder, names, before, alive=None):
    for _ in range(2000):
        more = [len(released_steps(folder, name)) > old for name, old in zip(names, before, strict=True)]
        if sum(more) >= (len(names) if alive is None else alive):
            return
        time.sleep(0.005)
    raise AssertionError("nothing more was released")


def test_l9_a_connection_lost_between_charge_and_step_is_charged(server, url):
    with Ledger.create(url) as ledger:
        open_run(ledger)
        head = ledger.charge("a", first=0, steps=5, costs=COSTS)
        drop_connections(server, url)
        assert ledger.charged("a") == 5
        drop_connections(server, url)
        ledger.charge("a", first=5, steps=5, costs=COSTS)
        assert ledger.contains(head)
        ledger.verify("a", owner="")
    with Ledger.open(url) as ledger:
        assert ledger.charged("a") == 10


def drop_connections(server, url):
    server.run(
        name_of(url),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()",
    )


class Wire:
    """A socket between a client and the server that is cut once, when the client sends COMMIT."""

    def __init__(self, server, folder):
        self.target, self.cut = str(server.folder / ".s.PGSQL.5432"), None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / ".s.PGSQL.5432"))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self.target)
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    cut = self.cut if source is client and b"COMMIT" in data else None
                    if cut == "before":
                        self.cut = None
                        return
                    if not data:
                        return
                    (server if source is client else client).sendall(data)
                    if cut == "after":
                        self.cut = None
                        server.recv(65536)  # the server has kept it, and the client never hears of it
                        return


@pytest.fixture
def wire(server, tmp_path):
    made = Wire(server, tmp_path)
    yield made
    made.listener.close()


@pytest.mark.parametrize(("cut", "kept"), [("before", 0), ("after", 5)])
def test_l9_a_commit_of_unknown_outcome_is_never_a_grant(server, url, wire, tmp_path, cut, kept):
    Ledger.create(url).close()
    with Ledger.open(server.url(name_of(url), folder=tmp_path)) as ledger, Ledger.open(url) as other:
        open_run(ledger)
        wire.cut = cut
        with pytest.raises(PrivacyError, match=r"nobody knows .* count it as charged, and release nothing"):
            ledger.charge("a", first=0, steps=5, costs=COSTS)
        assert wire.cut is None
        assert other.charged("a") == ledger.charged("a") == kept  # known again once the server is reached
        ledger.charge("a", first=kept, steps=1, costs=COSTS)
        assert other.charged("a") == kept + 1


def test_a_connection_lost_before_the_commit_is_made_anew(server, url):
    with Ledger.create(url) as ledger:
        open_run(ledger)
        read, lost = ledger._chain.read, []

        def losing(**after):
            found = read(**after)
            if not lost:
                lost.append(drop_connections(server, url))
            return found

        ledger._chain.read = losing
        ledger.charge("a", first=0, steps=1, costs=COSTS)
        assert lost
        assert ledger.charged("a") == 1


def test_a_server_that_is_away_stops_the_release(server, url, monkeypatch):
    monkeypatch.setattr("tacita.ledger.postgres._TIMEOUT", 0.1)
    monkeypatch.setattr("tacita.ledger.store._ATTEMPTS", 1)
    ledger = Ledger.create(url)
    server.stop(signal.SIGQUIT)
    try:
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"cannot be (used|reached).*[Rr]elease nothing"):
                ledger.release("x", costs=COSTS, description="")
    finally:
        server.start()
    ledger.release("x", costs=COSTS, description="")
    assert len(ledger.releases()) == 1


def test_a_turn_that_never_comes_stops_the_release(server, url, monkeypatch):
    monkeypatch.setattr("tacita.ledger.postgres._TIMEOUT", 0.05)
    with Ledger.create(url) as ledger, server.connect(name_of(url)) as other:
        other.execute("BEGIN; LOCK TABLE tacita.turn")
        with pytest.raises(PrivacyError, match="lock timeout"):
            ledger.release("x", costs=COSTS, description="")
        other.execute("ROLLBACK")
        ledger.release("x", costs=COSTS, description="")
        assert len(ledger.releases()) == 1


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "team-budget.md"


def make_roles(server, url):
    """Run the page's SQL for a database of another name, and give each role a member."""
    name = name_of(url)
    sql = PAGE.read_text().split('```sql title="roles.sql"\n')[1].split("```")[0].replace("patients", name)
    members = [f"CREATE ROLE {name}_{role}_member LOGIN PASSWORD 'p' IN ROLE {name}_{role}" for role in ROLES]
    server.run(name, sql, *members, f"CREATE ROLE {name}_stranger LOGIN PASSWORD 'p'")


ROLES = ("read", "charge", "raise")


def test_roles_say_who_may_charge_raise_and_read(server):
    name = name_of(url := server.database())
    Ledger.create(url, epsilon=2.0, delta=1e-5).close()
    make_roles(server, url)

    def opened(member):
        return Ledger.open(server.url(name, f"{name}_{member}", "p"))

    with opened("charge_member") as ledger:
        open_run(ledger)
        ledger.charge("a", first=0, steps=1, costs=COSTS)
        open_run(ledger, "b")
        ledger.reserve("b", costs=COSTS)
        for epsilon in (3.0, 1.0):
            with pytest.raises(PrivacyError, match="row-level security"):
                ledger.set_budget(epsilon, 1e-5, allow_increase=True)
        assert ledger.budget == (2.0, 1e-5)
    with opened("raise_member") as ledger:
        ledger.set_budget(3.0, 1e-5, allow_increase=True)
    with opened("read_member") as ledger:
        assert (ledger.budget, ledger.charged("a")) == ((3.0, 1e-5), 1)
        ledger.verify("a", owner="")
        assert ledger.would_fit(costs=COSTS).fits
        for call in (lambda: ledger.charge("a", first=1, steps=1, costs=COSTS), lambda: ledger.cancel("b")):
            with pytest.raises(PrivacyError, match="permission denied"):
                call()
        assert ledger.charged("a") == 1
    with pytest.raises(PrivacyError, match="permission denied"):
        opened("stranger")


@pytest.mark.parametrize("role", ["tacita", "charge_member"])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE tacita.ledger SET body = '{}'",
        "DELETE FROM tacita.ledger",
        "TRUNCATE tacita.ledger",
        "INSERT INTO tacita.ledger VALUES (9, '', 'event', '', '{}', '')",
        "INSERT INTO tacita.ledger SELECT * FROM tacita.ledger ON CONFLICT (seq) DO UPDATE SET body = '{}'",
    ],
)
def test_l4_the_database_itself_refuses_to_change_a_row(filled, server, role, sql):
    import psycopg

    url, _ = filled
    user = {} if role == "tacita" else {"user": f"{name_of(url)}_{role}", "password": "p"}
    with (
        psycopg.connect(server.url(name_of(url), **user), autocommit=True) as connection,
        pytest.raises(psycopg.Error, match=r"append-only|permission denied"),
    ):
        connection.execute(sql)


@pytest.fixture(scope="module")
def filled(server):
    """A ledger with roles that no test changes, and its head."""
    url = server.database()
    with Ledger.create(url, epsilon=50.0, delta=1e-5) as ledger:
        make_roles(server, url)
        return url, fill(ledger)


def fill(ledger):
    open_run(ledger)
    for i in range(4):
        ledger.charge("a", first=i, steps=1, costs=COSTS)
    return ledger.head


UNGUARDED = "ALTER TABLE tacita.ledger DISABLE TRIGGER {0}; {1}; ALTER TABLE tacita.ledger ENABLE ALWAYS TRIGGER {0}"


@pytest.mark.parametrize("column", ["time", "kind", "run", "body", "hash"])
def test_l4_an_edited_row_is_found_by_the_chain(server, url, column):
    with Ledger.create(url) as ledger:
        fill(ledger)
    edit = f"UPDATE tacita.ledger SET {column} = {column} || ' ' WHERE seq = 3"
    server.run(name_of(url), UNGUARDED.format("append_only", edit))
    with pytest.raises(PrivacyError, match="damaged at row 3"):
        Ledger.open(url)


def test_l4_an_older_copy_is_found_by_its_head(server, url):
    with Ledger.create(url) as ledger, Ledger.open(url) as other:
        head = fill(ledger)
        server.run(name_of(url), UNGUARDED.format("append_only", "DELETE FROM tacita.ledger WHERE seq > 3"))
        with pytest.raises(PrivacyError, match="rolled back or replaced"):
            ledger.charge("a", first=4, steps=1, costs=COSTS)
        other.charge("a", first=2, steps=1, costs=COSTS)
    with Ledger.open(url) as ledger:  # valid in itself
        assert not ledger.contains(head)
        with pytest.raises(PrivacyError, match="rolled back or is a foreign one"):
            ledger.resume("a", step=2, head=head, clean=True)


@pytest.mark.slow
def test_l4_a_restored_backup_is_found_by_its_head(server, url):
    backup = server.folder / "backup"
    with Ledger.create(url) as ledger:
        fill(ledger)
        server.stop()
        subprocess.run(["cp", "-a", server.data, backup], check=True)
        server.start()
        head = ledger.charge("a", first=4, steps=1, costs=COSTS)
        server.stop()
        shutil.rmtree(server.data)
        backup.rename(server.data)
        server.start()
        with pytest.raises(PrivacyError, match="rolled back or replaced"):
            ledger.charge("a", first=5, steps=1, costs=COSTS)
    with Ledger.open(url) as ledger:
        assert ledger.charged("a") == 4
        assert not ledger.contains(head)


def test_l4_a_chain_made_anew_from_an_edited_row_is_found_by_its_head(server, url):
    with Ledger.create(url) as ledger:
        head = fill(ledger)
    with server.connect(name_of(url)) as connection:
        connection.execute("ALTER TABLE tacita.ledger DISABLE TRIGGER append_only")
        connection.execute("UPDATE tacita.ledger SET time = '2020' WHERE seq = 3")
        forged = START
        for row in connection.execute("SELECT seq, time, kind, run, body FROM tacita.ledger ORDER BY seq").fetchall():
            forged = _digest(forged, *row)
            connection.execute("UPDATE tacita.ledger SET hash = %s WHERE seq = %s", (forged, row[0]))
        connection.execute("ALTER TABLE tacita.ledger ENABLE ALWAYS TRIGGER append_only")
    with Ledger.open(url) as ledger:
        assert not ledger.contains(head)


def test_a_transaction_that_failed_unseen_is_not_a_grant(url):
    """Of such a transaction, PostgreSQL answers COMMIT with ROLLBACK and no error."""
    import psycopg

    with Ledger.create(url) as ledger:
        refused = pytest.raises(PrivacyError, match="did not keep a row")
        with refused, ledger._chain.transaction(), contextlib.suppress(psycopg.Error):
            ledger._chain.store.connection.execute("SELECT 1/0")
        ledger.release("x", costs=COSTS, description="")


def test_a_row_that_the_database_swallows_is_not_a_grant(server, url):
    with Ledger.create(url) as ledger:
        server.run(name_of(url), "CREATE RULE swallow AS ON INSERT TO tacita.ledger DO INSTEAD NOTHING")
        with pytest.raises(PrivacyError, match="did not take a row"):
            ledger.release("x", costs=COSTS, description="")
        assert not ledger.releases()


def test_a_forked_child_leaves_its_parents_connection_alone(url):
    with Ledger.create(url) as ledger:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Python 3.12 on, other threads make a fork a warning
            child = os.fork()
        if child == 0:
            ledger.close()
            os._exit(0)
        os.waitpid(child, 0)
        backend = ledger._chain.store.connection.info.backend_pid
        ledger.release("x", costs=COSTS, description="")
        assert ledger._chain.store.connection.info.backend_pid == backend


def test_without_psycopg_the_message_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[postgres\]'"):
        Ledger.open("postgresql://alice@db.example.org/patients")


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER append_only ON tacita.ledger",
        "ALTER TABLE tacita.ledger ENABLE TRIGGER no_gap",
        "CREATE OR REPLACE FUNCTION tacita.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    ],
)
def test_l4_changed_triggers_are_found(server, url, change):
    Ledger.create(url).close()
    server.run(name_of(url), change)
    with pytest.raises(PrivacyError, match="triggers were changed"):
        Ledger.open(url)


def test_a_database_is_for_one_ledger_and_is_never_made_in_passing(server, url):
    with pytest.raises(PrivacyError, match=r"There is no ledger at .*create it first"):
        Ledger.open(url)
    with pytest.raises(ValueError, match="needs both epsilon and delta"):
        Ledger.create(url, epsilon=1.0)
    Ledger.create(url).close()
    with pytest.raises(PrivacyError, match="has a ledger already"):
        Ledger.create(url)
    with Ledger.open(url) as ledger:
        assert (ledger.name, ledger.path) == (name_of(url), None)
        assert len(ledger.rows()) == 1


def test_what_cannot_be_crash_safe_is_refused(server, url):
    Ledger.create(url).close()
    server.stop()
    server.start("fsync=off")
    try:
        with pytest.raises(PrivacyError, match="fsync off"):
            Ledger.open(url)
    finally:
        server.stop()
        server.start()


def said(error):
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hush-hush@/nothing?host=/nowhere",
        "postgresql://me:hush/hush@/nothing?host=/nowhere",
        "postgresql://me:123/hush@server/nothing",
        "postgresql://me:other@hush@server/nothing",
        "postgresql://me:hush-hush@/nothing?host=/nowhere&nonsense=1",
        "postgresql://me:hush-%zz@/nothing?host=/nowhere",
        "postgresql://me:hush-hush@[::1/nothing",
        "postgresql://me@/nothing?host=/nowhere&password=hush-hush",
        "postgresql://me:hush-hush@/?host=/nowhere",
        "postgresql:/me:hush-hush@host/nothing",
    ],
)
def test_passwords_are_in_no_error(url, caplog):
    pytest.importorskip("psycopg")
    with pytest.raises((PrivacyError, ValueError)) as refused:
        Ledger.open(url)
    assert "hush" not in said(refused.value) + caplog.text


def test_passwords_are_in_no_refusal_of_the_server(server, url):
    for place in (url.replace("tacita:", "nobody:"), url.replace(name_of(url), "nothing")):
        with pytest.raises(PrivacyError, match="cannot be reached") as refused:
            Ledger.open(place)
        for secret in (PASSWORD, url.split(":")[2].split("@")[0]):
            assert secret not in said(refused.value)


def test_the_place_that_is_kept_opens_the_ledger_with_pgpassword(url, monkeypatch):
    with Ledger.create(url) as ledger:
        place = ledger.place
    Ledger.open(place).close()  # in the process that was given the password
    monkeypatch.setattr("tacita.ledger.postgres._GIVEN", {})
    with pytest.raises(PrivacyError, match="no password supplied"):
        Ledger.open(place)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with Ledger.open(place) as ledger:
        assert ledger.place == place


@pytest.fixture
def training(url, tmp_path, caplog, monkeypatch):
    torch = pytest.importorskip("torch")
    from tacita.training import PrivateTraining

    caplog.set_level(logging.DEBUG)
    loss = torch.nn.functional.cross_entropy
    records = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))

    def parts():
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "loss_fn": loss, "dataset": records, "optimizer": optimizer}

    Ledger.create(url, epsilon=50.0, delta=1e-5).close()
    run_dir = tmp_path / "run"
    settings = {"nominal_size": 40, "batch_size": 10, "steps": 6, "noise_multiplier": 2.0, "panel": 0}
    made = PrivateTraining(**parts(), ledger=url, run_dir=run_dir, **settings)
    return made, run_dir, parts


def test_a_training_is_charged_there_resumed_and_labelled_without_its_password(
    training, server, url, monkeypatch, caplog
):
    from tacita.training import PrivateTraining, label_of_run

    made, run_dir, parts = training
    made.advance()
    drop_connections(server, url)
    made.advance()
    made.pause()
    monkeypatch.setattr("tacita.ledger.postgres._GIVEN", {})
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    again = PrivateTraining.resume(run_dir, **parts())
    for _ in again:
        pass
    label = again.label()
    assert label_of_run(run_dir).public().worst == label.public().worst
    with Ledger.open(url) as ledger:
        assert ledger.runs().popitem()[1]["charged"] == 6
    written = shown_in(run_dir)
    assert name_of(url) in written
    for secret in (PASSWORD, url.split(":")[2].split("@")[0]):
        assert secret not in written + str(label) + repr(label) + caplog.text + repr(made)


def shown_in(folder):
    return "".join(file.read_bytes().decode("latin-1") for file in Path(folder).rglob("*") if file.is_file())


def without_password(url):
    return url.replace(":" + url.split(":")[2].split("@")[0], "")


def test_the_commands_take_a_url(server, url, tmp_path, monkeypatch):
    made = tacita("ledger", "create", url, "--epsilon", "2", "--delta", "1e-5", "--neighbours", "replace_one")
    assert made.stdout.startswith(f"postgresql://tacita@/{name_of(url)}?host=")
    refused = tacita("ledger", "budget", url, "--epsilon", "3", "--delta", "1e-5")
    assert "pass --raise" in refused.stderr
    write_survey(tmp_path)
    arguments = ("run", tmp_path / "survey.py", "--data", tmp_path / "people.csv", "--run-dir", tmp_path / "run")
    done = tacita(*arguments, "--ledger", url)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr("tacita.ledger.postgres._GIVEN", {})
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    shown = tacita("ledger", "show", without_password(url))
    assert "release survey: " in shown.stdout
    label = tacita("label", tmp_path / "run", "--evidence", tmp_path / "evidence")
    assert label.returncode == 0, label.stderr
    twice = tacita("ledger", "create", url)
    assert "has a ledger already" in twice.stderr
    said = [made, refused, done, shown, label, twice]
    for secret in (PASSWORD, url.split(":")[2].split("@")[0]):
        assert secret not in shown_in(tmp_path) + "".join(one.stdout + one.stderr for one in said)


def test_a_recipe_may_name_a_server_but_no_password(url, tmp_path):
    pytest.importorskip("torch")
    from tacita.synthesis import Recipe
    from tacita.training.recipes import Recipe as Training

    table = {"data": {"name": "digits"}, "epsilon": 2.0}
    for kind in (Recipe, Training):
        with pytest.raises(ValueError, match="must not hold a password") as refused:
            kind.from_dict({**table, "ledger": url})
        assert PASSWORD not in said(refused.value)
    text = f'epsilon = 2.0\nledger = "{without_password(url)}"\n[data]\nname = "digits"\n'
    (tmp_path / "recipe.toml").write_text(text)
    for kind in (Recipe, Training):
        assert kind.read(tmp_path / "recipe.toml").ledger == without_password(url)


@pytest.mark.slow
def test_synthetic_records_are_charged_there_and_labelled(url, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from tacita.synthesis import Recipe, label_of_run, synthesise

    Ledger.create(url).close()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    recipe = Recipe.from_dict({"data": {"name": "digits"}, "epsilon": 2.0, "ledger": without_password(url)})
    label = synthesise(recipe, tmp_path / "run", quality=False)
    assert label_of_run(tmp_path / "run").worst == label.worst
    with Ledger.open(url) as ledger:
        assert len(ledger.runs()) == 1
    assert PASSWORD not in shown_in(tmp_path)


def test_a_federation_is_charged_there_and_resumed(server, url, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from tacita.federated import Federation, federation_plan
    from tacita.federated.storage import label_of_run

    Ledger.create(url, unit="client").close()
    plan = federation_plan(level="client", clients=4, client_rate=0.5, rounds=2, noise_multiplier=2.0)
    data = [(torch.randn(10, 3), torch.arange(10) % 2) for _ in range(4)]
    loss = torch.nn.functional.cross_entropy
    options = {"panel": 0, "record_panel": 0}
    made = Federation(torch.nn.Linear(3, 2), loss, data, plan, ledger=url, run_dir=tmp_path / "run", **options)
    for _ in made:
        break
    monkeypatch.setattr("tacita.ledger.postgres._GIVEN", {})
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    again = Federation.resume(tmp_path / "run", torch.nn.Linear(3, 2), loss, data, record_panel=0).run()
    assert label_of_run(tmp_path / "run").worst == again.label().worst
    with Ledger.open(url) as ledger:
        assert [run["charged"] for run in ledger.runs().values()] == [2]
    assert PASSWORD not in shown_in(tmp_path)


def test_a_tuning_is_charged_there_as_one_entry_and_filed_with_it(server, url, tmp_path):
    torch = pytest.importorskip("torch")
    from tacita.accounting import NegativeBinomial
    from tacita.evidence import write_evidence
    from tacita.runs import Run, read_json
    from tacita.training import tune
    from tests.training.trainings import train

    Ledger.create(url).close()
    data = torch.randn(300, 4), torch.arange(300) % 2

    def make_run(settings, run_dir):
        return train(data, lr=settings["lr"], run_dir=run_dir, panel=0, steps=2)

    law = NegativeBinomial.expecting(1.5, eta=1.0)
    how = {"trials": law, "score": lambda model: 0.0, "delta": 1e-5, "folder": tmp_path / "tuned", "ledger": url}
    best = tune(make_run, {"lr": [0.1, 0.2]}, **how)
    tune(make_run, {"lr": [0.1, 0.2]}, **how)
    with Ledger.open(url) as ledger:
        assert len(ledger.releases()) == 1
    write_evidence(tmp_path / "filed", Run(best.run_dir), best.label)
    (filed,) = read_json(tmp_path / "filed" / "confidential", "ledger.json")["ledgers"]
    assert [row["kind"] for row in filed["rows"]] == ["ledger", "release"]
    assert PASSWORD not in shown_in(tmp_path)
