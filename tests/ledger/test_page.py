"""The page of a ledger: the right numbers, safe to open, readable on a phone, and without a password."""

import html
import re

import pytest

from tacita._numbers import epsilon_text
from tacita.ledger import Ledger
from tacita.ledger.history import history
from tests.cli.command import tacita
from tests.ledger.conftest import PASSWORD
from tests.ledger.test_shares import STEP, day

NASTY = "<script>alert(1)</script>"


@pytest.fixture(params=["file", "server"])
def place(request, tmp_path):
    return request.getfixturevalue("server").fresh() if request.param == "server" else str(tmp_path / "l.sqlite")


def fill(place):
    with Ledger.create(place, epsilon=2.0, delta=1e-5, data=f"flights {NASTY}") as ledger:
        me = ledger.analyst or "nobody"
        ledger.set_share("ann", 1.5)
        ledger.set_share("ann", None)
        for name in ("trained", "held", "given back", "over"):
            ledger.open_run(name, mechanism={"steps": 4}, seed_fingerprint=None, seeded=False)
        ledger.charge("trained", first=0, steps=4, costs={11: 0.6})
        ledger.reserve("held", costs={11: 0.6})
        ledger.reserve("given back", costs={11: 0.6})
        ledger.cancel("given back")
        ledger.charge("over", first=0, steps=1, costs=STEP)
        ledger.end("over", "enough")
        ledger.release(NASTY, costs=STEP, description=f"a mean {NASTY}")
        return me, ledger.spent().epsilon, history(ledger.rows())


def test_a_history_tells_what_became_of_each_run(place):
    _, spent, found = fill(place)
    assert {one.name: (one.state, one.charged, one.planned) for one in found.entries} == {
        "trained": ("charged", 4, 4),
        "held": ("reserved", 0, 4),
        "given back": ("cancelled", 0, 4),
        "over": ("ended", 1, 4),
        NASTY: ("released", 1, 1),
    }
    costs = {one.name: one.epsilon for one in found.entries}
    assert costs["given back"] == 0.0 < costs[NASTY] == costs["over"] < costs["trained"]
    assert costs["held"] == pytest.approx(costs["trained"], abs=1e-9)
    totals = [one.epsilon for one in found.moments]
    assert (totals[0], totals[-1], found.moments[-1].budget) == (0.0, spent, 2.0)
    assert totals[3] > totals[4] == totals[2]  # what was reserved is given back
    assert [one.what for one in found.decisions] == [
        "budget: epsilon 2 at delta 0.00001",
        "share of ann: epsilon 1.5",
        "share of ann: none any more",
    ]


def test_the_page_shows_it_and_asks_for_nothing(place, visit, tmp_path):
    me, spent, _ = fill(place)
    made = tacita("ledger", "show", place, "--html", tmp_path / "out.html")
    assert made.stdout.endswith(f"Page:   {tmp_path / 'out.html'}\n"), made.stderr
    document = (tmp_path / "out.html").read_text()
    assert (PASSWORD in document + made.stdout, "/dev/shm" in document, NASTY in document) == (False, False, False)
    for scheme, width in (("light", 1280), ("dark", 390)):
        opened = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
        page = opened.show(document)
        text = page.inner_text("body")
        assert opened.stayed_quiet()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for part in (epsilon_text(spent), "reserved, can be cancelled", "ended early", "4 of 4", f"a mean {NASTY}"):
            assert part in text
        assert (me in text) or me == "nobody"
    assert tacita("ledger", "show", place, "--html", tmp_path / "again.html").returncode == 0
    assert (tmp_path / "again.html").read_text() == document  # equal ledgers give equal pages


def test_an_empty_ledger_and_one_with_a_window_have_a_page(tmp_path):
    file = tmp_path / "l.sqlite"
    Ledger.create(file).close()
    assert tacita("ledger", "show", file, "--html", tmp_path / "a.html").returncode == 0
    assert "Nothing was charged yet." in (tmp_path / "a.html").read_text()
    with Ledger.open(file) as ledger:
        ledger.release("x", costs={}, description="no bound")
        ledger.open_window(day(), day(9), epsilon=1.0, delta=1e-5, data_are_new=True)
        ledger.release("y", pure=0.5, description="")
    assert tacita("ledger", "show", file, "--html", tmp_path / "b.html").returncode == 0
    shown = html.unescape(re.sub("<[^>]*>", " ", (tmp_path / "b.html").read_text()))
    for part in ("before there were windows", "infinite", "no record in them is among", "the data of its window"):
        assert part in shown
