"""Exports and checks: what an auditor holds, and what `tacita ledger check` finds wrong, in files and on a server."""

import hashlib
import json
import shutil

import pytest

from tacita._check import PrivacyError
from tacita.ledger import Damaged, Ledger, export_of
from tacita.ledger.export import export_rows, signed_text, signing_key
from tests.cli.command import tacita
from tests.ledger.conftest import PASSWORD
from tests.ledger.test_faults import damage, edit

COSTS = {7: 0.1, 11: 0.2}


@pytest.fixture(params=["file", "server"])
def place(request, tmp_path):
    if request.param == "server":
        return request.getfixturevalue("server").fresh()
    return str(tmp_path / "l.sqlite")


def fill(place):
    with Ledger.create(place, epsilon=2.0, delta=1e-5, data="flights") as ledger:
        ledger.open_run("a", mechanism={"steps": 9}, seed_fingerprint=None, seeded=False)
        ledger.charge("a", first=0, steps=3, costs=COSTS)
        ledger.release("mean – ä", costs=COSTS, description="d")
        return ledger.head


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Write a key and its public half, and another public key."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as form

    folder = tmp_path_factory.mktemp("keys")
    for name in ("owner", "other"):
        key = ed25519.Ed25519PrivateKey.generate()
        secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pem").write_bytes(secret)
        (folder / f"{name}.pub.pem").write_bytes(public)
    return folder


def test_an_export_can_be_checked_without_this_package(place, keys, tmp_path):
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    head = fill(place)
    done = tacita("ledger", "export", place, "-o", tmp_path / "e.json", "--key", keys / "owner.pem")
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "e.json").read_text()
    document, digest = json.loads(text), "0" * 64
    for row in document["rows"]:
        listed = [row[name] for name in ("seq", "time", "kind", "run", "body")]
        digest = hashlib.sha256((digest + json.dumps(listed)).encode()).hexdigest()
        assert digest == row["hash"]
    assert digest == document["head"] == head
    said = {"kind": "tacita ledger export", "name": document["name"], "exported": document["exported"]}
    signed = json.dumps({**said, "head": head, "rows": 5}, sort_keys=True, separators=(",", ":"))
    public = load_pem_public_key((keys / "owner.pub.pem").read_bytes())
    public.verify(bytes.fromhex(document["signature"]["signature"]), signed.encode())
    assert "/tmp" not in text
    assert "/dev/shm" not in text
    for secret in (PASSWORD, "tacita:", (keys / "owner.pem").read_text().splitlines()[1]):
        assert secret not in text + done.stdout


def test_a_ledger_is_compared_with_what_was_kept(place, keys, tmp_path):
    head, kept = fill(place), tmp_path / "e.json"
    tacita("ledger", "export", place, "-o", kept, "--key", keys / "owner.pem")
    with Ledger.open(place) as ledger:
        ledger.release("later", costs=COSTS, description="d")
    options = ("--head", head, "--export", kept, "--public-key", keys / "owner.pub.pem")
    found = tacita("ledger", "check", place, *options)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "the head that was kept is row 4; 1 rows were added since" in found.stdout
    assert found.stdout.endswith("All is well.\n")
    alone = tacita("ledger", "check", kept, "--public-key", keys / "owner.pub.pem", "--json")
    assert json.loads(alone.stdout)["ok"]
    other = tacita("ledger", "check", place, "--export", kept, "--public-key", keys / "other.pub.pem")
    assert (other.returncode, "signed with another key" in other.stdout) == (1, True)
    missing = tacita("ledger", "check", place, "--head", "0" * 64)
    assert (missing.returncode, "was rolled back, or is another one" in missing.stdout) == (1, True)
    for text in (found, alone, other, missing):
        assert PASSWORD not in text.stdout + text.stderr


def test_a_rolled_back_ledger_is_told_by_its_export(tmp_path):
    fill(tmp_path / "l.sqlite")
    shutil.copy(tmp_path / "l.sqlite", tmp_path / "older.sqlite")
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.release("later", costs=COSTS, description="d")
    tacita("ledger", "export", tmp_path / "l.sqlite", "-o", tmp_path / "e.json")
    assert tacita("ledger", "check", tmp_path / "older.sqlite").returncode == 0  # valid in itself
    found = tacita("ledger", "check", tmp_path / "older.sqlite", "--export", tmp_path / "e.json")
    assert (found.returncode, "WRONG:     The export's head is not in this ledger" in found.stdout) == (1, True)


@pytest.mark.parametrize("kind", ["zero", "truncate", "cut", "drop one", "edit", "forge"])
def test_damage_is_found_with_exit_code_1(kind, tmp_path, rng):
    head = fill(tmp_path / "l.sqlite")
    data = (tmp_path / "l.sqlite").read_bytes()
    if kind in ("zero", "truncate"):
        damage(rng, kind, tmp_path / "l.sqlite", data, b"")
    else:
        edit(rng, kind, tmp_path / "l.sqlite")
    found = tacita("ledger", "check", tmp_path / "l.sqlite", "--head", head)
    assert (found.returncode, "WRONG:" in found.stdout, found.stderr) == (1, True, "")


def test_a_charge_beyond_the_budget_was_written_by_hand(place):
    """The chain alone does not show it: whoever may charge can make a valid one."""
    fill(place)
    with Ledger.open(place) as ledger:
        body = {**ledger.rows()[3].body, "description": "", "pure": "inf", "costs": ["inf"] * 13}
        with ledger._writing():
            ledger._append("release", "by hand", body)
        ledger.event("a", "close")
    found = tacita("ledger", "check", place)
    assert found.returncode == 1
    assert "Beyond the budget in force when they were written: rows 5." in found.stdout


@pytest.mark.parametrize("name", ["body", "hash", "time", "seq"])
def test_an_edited_export_is_damaged(name, keys):
    with Ledger.create(":memory:") as ledger:
        ledger.release("x", costs=COSTS, description="")
        document = export_of(ledger, key=(keys / "owner.pem").read_bytes())
    assert signing_key(document, (keys / "owner.pub.pem").read_bytes()) == signing_key(document)
    document["rows"][1][name] = 7 if name == "seq" else document["rows"][1][name].replace("0", "1")
    with pytest.raises(Damaged, match="damaged at row 1"):
        export_rows(document)


def test_what_is_signed_is_what_is_there(keys):
    with Ledger.create(":memory:") as ledger:
        document = export_of(ledger, key=(keys / "owner.pem").read_bytes())
        ledger.release("x", costs=COSTS, description="")
        longer = export_of(ledger)
    for change in ({"exported": "2020-01-01"}, {"name": "other"}, {"head": longer["head"]}, {"rows": longer["rows"]}):
        changed = {**document, **change}
        assert signed_text(changed) != signed_text(document)
        with pytest.raises(Damaged, match=r"signature .* is wrong"):
            signing_key(changed)
    with pytest.raises(Damaged, match="is not signed"):
        signing_key(longer, (keys / "owner.pub.pem").read_bytes())
    assert signing_key(longer) == ""
    with pytest.raises(Damaged, match="its last row is not its head"):
        export_rows({**longer, "rows": longer["rows"][:1]})


def test_bad_input_ends_with_exit_code_2(keys, tmp_path):
    fill(tmp_path / "l.sqlite")
    (tmp_path / "x.json").write_text('{"kind": "other"}')
    ledger, owner = tmp_path / "l.sqlite", keys / "owner.pem"
    for message, *arguments in (
        ("There is no ledger", "check", tmp_path / "none.sqlite"),
        ("There is no file", "check", tmp_path / "none.json"),
        ("is not an export", "check", tmp_path / "x.json"),
        ("64 digits", "check", ledger, "--head", "abc"),
        ("pass --export", "check", ledger, "--public-key", owner),
        ("not another export", "check", tmp_path / "x.json", "--export", tmp_path / "x.json"),
        ("exists already", "export", ledger, "-o", tmp_path / "x.json"),
        ("openssl genpkey", "export", ledger, "-o", tmp_path / "new.json", "--key", keys / "owner.pub.pem"),
        ("No such file", "export", ledger, "-o", tmp_path / "new.json", "--key", tmp_path / "none.pem"),
    ):
        done = tacita("ledger", *arguments)
        assert (done.returncode, done.stderr.count("\n"), message in done.stderr) == (2, 1, True), done.stderr
    assert not (tmp_path / "new.json").exists()


def test_a_server_that_is_not_there_is_no_finding():
    pytest.importorskip("psycopg")
    done = tacita("ledger", "check", "postgresql://me:hush-hush@/nothing?host=/nowhere")
    assert (done.returncode, "cannot be reached" in done.stderr) == (2, True)
    assert "hush" not in done.stderr + done.stdout


def test_a_key_that_is_encrypted_or_of_another_kind_is_refused(keys):
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key, pem = X25519PrivateKey.generate(), form.Encoding.PEM
    hidden = form.BestAvailableEncryption(b"hush-hush")
    owner = form.load_pem_private_key((keys / "owner.pem").read_bytes(), None)
    with Ledger.create(":memory:") as ledger:
        for secret in (
            key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()),
            owner.private_bytes(pem, form.PrivateFormat.PKCS8, hidden),
            b"",
        ):
            with pytest.raises(PrivacyError, match="must be an Ed25519 key as PEM, not encrypted"):
                export_of(ledger, key=secret)
