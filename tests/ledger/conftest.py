"""A PostgreSQL server of the tests' own: a temporary folder, a Unix socket and no TCP, stopped by its process id."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tacita.ledger import Ledger
from tests.ledger.nursery import Nursery

INITDB = ("-U", "tacita", "-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "--no-sync")
PASSWORD = "s3cr3t/of@the:tests"  # with all that a URL must write in another way


def programs():
    """Return the folder of initdb and postgres, or None."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


def room():
    """Return where a cluster starts fast: in memory, given a gigabyte. Its processes are killed, not its host."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else Path("/tmp")


class Server:
    """A cluster whose superuser is `tacita`; URLs are with its password."""

    def __init__(self, bin_folder):
        self.bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="tacita-pg-", dir=room()))
        self.data, self.log = self.folder / "data", self.folder / "server.log"
        self.folder.chmod(0o755)
        self.shared, self.user = None, {}
        if os.geteuid() == 0:  # the server refuses to run as root
            names = [entry.pw_name for entry in pwd.getpwall()]
            entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self.user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        secret = self.folder / "password"
        secret.write_text(PASSWORD + "\n")
        secret.chmod(0o644)
        made = subprocess.run(
            [self.bin / "initdb", "-D", self.data, "--pwfile", secret, *INITDB],
            capture_output=True,
            text=True,
            cwd=self.folder,
            **self.user,
        )
        assert made.returncode == 0, made.stderr
        self.start()

    def start(self, *more):
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "max_connections=60", *more]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *(word for line in settings for word in ("-c", line))],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self.user,
            )
        self.wait()

    def wait(self):
        import psycopg

        for _ in range(600):
            assert self.process.poll() is None, self.log.read_text()
            try:
                self.connect("postgres").close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(self.log.read_text())

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait(timeout=60)

    def url(self, database, user="tacita", password=PASSWORD, folder=None):
        return f"postgresql://{user}:{quote(password, safe='')}@/{database}?host={folder or self.folder}"

    def connect(self, database):
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def run(self, database, *statements):
        with self.connect(database) as connection:
            return [connection.execute(statement) for statement in statements]

    def fresh(self):
        """Return a database without a ledger, the same in every test; the earlier test's is dropped."""
        if self.shared is None:
            self.shared = self.database("shared")
        else:
            self.run("shared", "DROP SCHEMA IF EXISTS tacita CASCADE")
        return self.shared

    def database(self, name=None):
        """Make a database, under any name."""
        name = name or "b" + secrets.token_hex(4)
        self.run("postgres", f"CREATE DATABASE {name}")
        return self.url(name)


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[postgres]')")
    folder = programs()
    if folder is None:
        reason = "PostgreSQL is not installed (apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    made = Server(folder)
    yield made
    made.stop(signal.SIGQUIT)  # nothing in it is needed any more
    shutil.rmtree(made.folder)


@pytest.fixture(scope="module")
def nursery():
    children = Nursery()
    yield children
    children.close()


@pytest.fixture(params=["file", "memory", "server"])
def ledger(request, tmp_path):
    path = tmp_path / "l.sqlite" if request.param == "file" else ":memory:"
    if request.param == "server":
        path = request.getfixturevalue("server").fresh()
    with Ledger.create(path, data="flights", epsilon=2.0, delta=1e-5) as opened:
        yield opened
