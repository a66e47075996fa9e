"""The inspection page: what a person sees of a released set, and nothing a user writes becomes part of it."""

import re
from dataclasses import replace

import torch

from tacita.data import Category
from tacita.data.schema import Field
from tacita.synthesis.alarm import CANNOT, alarms
from tacita.synthesis.inspection import inspection_page
from tests.synthesis.releases import (
    COLUMNS,
    DIGITS,
    FAULTS,
    halves,
    no_cooks,
    one_town,
    release,
    table,
    table_release,
    two_jobs,
    without,
)


def shown(data, reference=None, title="t"):
    return inspection_page(data, alarms(data, reference=reference), title=title, reference=reference)


def test_the_same_release_gives_the_same_alarms_and_page(rng):
    before, after = halves(rng, size=200)
    turned = FAULTS["inverted 30%"][1](*after, rng)
    first, second = (shown(release(turned), release(before)) for _ in range(2))
    assert first == second
    assert "look inverted" in first


def words(document):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", document.split("</style>")[1]))


def test_the_page_shows_samples_alarms_and_their_limits(rng):
    before, after = halves(rng)
    x, y = FAULTS["rotated 30%"][1](*without(4)(*after, rng), rng)
    document = shown(release((x, y)), release(before))
    seen = words(document)
    assert "Made from the released set alone." in seen
    assert "turned by 90° anticlockwise, compared with the trusted release" in seen
    assert CANNOT["rotated"] in seen
    assert "Missing: 4" in seen
    assert "4: none" in seen
    assert "may invent a fault" in seen
    assert document.count("<img ") == 2 * 10 + 9  # samples of both releases, mean images of the classes that are there
    calm = words(shown(release(after), release(before)))
    assert "No alarm: nothing stands out beside the trusted release." in calm
    alone = words(shown(release(after)))
    assert "no trusted release to compare with" in alone
    assert "Trusted" not in alone


def test_the_page_of_a_table_shows_every_column_and_lost_values(rng):
    trusted = table_release(table(rng))
    x, y = no_cooks(*two_jobs(*table(rng)))
    document = shown(table_release((x, y)), trusted)
    seen = words(document)
    for text in ("age", "job", "town", "job: no record has cook", "job: impossible values", "Column job lost what"):
        assert text in seen
    assert document.count("<svg ") == 2
    assert "<img" not in document
    countries = [Field("country", Category(30))]
    wide = torch.eye(30)[torch.from_numpy(rng.integers(30, size=600))], torch.zeros(600, dtype=torch.int64)
    assert "18 more" in words(shown(table_release(wide, ["all"], countries)))
    assert "and a column that never changes. Everything else" in words(shown(trusted))


def test_s4_names_and_titles_are_escaped(rng):
    bad = '"><script>alert(1)</script>'
    before, after = halves(rng, size=200)
    names = [f"{c}{bad}" for c in DIGITS]
    document = shown(release(without(4)(*after, rng), names), release(before, names), bad)
    columns = [
        replace(c, name=c.name + bad, domain=Category(*(v + bad for v in c.labels)) if c.name == "job" else c.domain)
        for c in COLUMNS
    ]
    document += shown(table_release(one_town(*table(rng)), [bad, "b"], columns), title=bad)
    assert "<script" not in document
    assert document.count("&lt;script&gt;") > 40
