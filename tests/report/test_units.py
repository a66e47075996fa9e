"""A label speaks of its own unit: of a person where records alone are protected, of clients, or of two units."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tacita.guarantee import Guarantee
from tacita.report import GroupRow, Label, Readings, cards, label_html, label_text, table, wording
from tacita.report.charts import spread_figure, steps_chart


class Seen(HTMLParser):
    """What a page says: its text and the texts read aloud in place of pictures, without its style."""

    def __init__(self):
        super().__init__()
        self.parts, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.parts += [value for name, value in attrs if name in ("aria-label", "alt", "data-name")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] != "style":
            self.parts.append(data)


def page_words(label):
    seen = Seen()
    seen.feed(label_html(label))
    return " ".join(" ".join(seen.parts).split())


def worst(unit, epsilon, **changes):
    return Guarantee(
        kind="worst_case", epsilon=epsilon, delta=1e-5, method="pld", unit=unit, publishable=True, **changes
    )


def typical(unit, epsilon, **changes):
    return replace(
        worst(unit, epsilon), kind="bayesian", scope="reading", estimator="band", publishable=False, **changes
    )


def one_unit(unit, **changes):
    """A label about one unit, with everything that the report writes words for, and none in its own texts."""
    own = Readings(
        typical=(typical(unit, 0.8), typical(unit, 0.6, model="model-based")),
        panels="20 were followed",
        percentiles=((10.0, 0.1), (50.0, 0.3), (90.0, 0.7), (100.0, 1.0)),
        curve=((1, 0.1), (30, 0.8)),
        groups=(GroupRow(column="size", value="large", records=10, median=0.2, p90=0.4, largest=0.5),),
    )
    fields = {
        "title": "A run",
        "purpose": "A model.",
        "worst": worst(unit, 1.0),
        "comparisons": (replace(worst(unit, 1.3), method="rdp"),),
        "curve": ((1, 0.2), (30, 1.0)),
        "declared": ("Declared.",),
        "readings": own,
    }
    return Label(**(fields | changes))


def client_label():
    return one_unit("client", steps_word="round")


def joint_label():
    label = client_label()
    records = typical("record", 0.05), typical("record", 0.04, composition="independent", is_bound=False)
    beside = worst("record", 0.07), worst("client", 1.3), replace(worst("record", 0.06), method="rdp")
    return replace(
        label, comparisons=beside, readings=replace(label.readings, typical=(*label.readings.typical, *records))
    )


@pytest.mark.parametrize("show", [page_words, label_text], ids=["page", "text"])
@pytest.mark.parametrize("public", [True, False], ids=["public", "owner"])
def test_a_client_label_speaks_of_clients_and_rounds(show, public):
    label = client_label()
    said = " ".join(show(label.public() if public else label).split())
    assert not re.search(r"\b(persons?|people|somebody|anyone|steps?|their)\b", said, re.IGNORECASE)
    holds = re.sub(r"records it holds|which hold the records", "", said)
    assert holds != said
    assert "record" not in holds.lower()
    for text in (
        "whether one client was in the data",
        "Holds for every client, whatever records it holds and whatever the attacker already knows.",
        "Adding or removing one client with all the records it holds changes the probability of anything",
        "equally likely that the client was in the data or not",
        "before the first round",
    ):
        assert text.lower() in said.lower()
    for text in (
        "a typical client",
        "On average over clients like those followed, an attacker who starts from even odds and tries to tell whether",
        "For half of the followed clients",
        "A client may be anywhere here",
        "where a single client stands",
        "It promises nothing to a client unlike those followed.",
        "9 in 10 of the followed clients",
        "a group's followed clients",
    ):
        assert (text.lower() in said.lower()) != public


def test_a_client_labels_pictures_speak_of_clients_and_rounds():
    label = client_label()
    over_rounds, spread = steps_chart(label), spread_figure(label).chart
    assert over_rounds.x_title == "rounds"
    assert over_rounds.caption == "Every round adds to what an outsider could learn."
    assert "After 30 rounds, any one client: epsilon 1; a typical client: epsilon 0.8." in over_rounds.description
    assert spread.y_title == "% of the followed clients"
    assert spread.heading == "How the followed clients spread"
    assert [line.name for line in spread.series] == ["Share of the clients under each attack success"]


def test_a_model_based_figure_names_its_unit():
    label = client_label()
    label = replace(label, readings=replace(label.readings, typical=label.readings.typical[1:]))
    assert "if a few clients contribute far more" in cards.cards(label)[1].notes[-1]


def test_nothing_is_promised_to_a_client_either():
    endless = replace(client_label(), worst=worst("client", math.inf))
    assert wording.meaning(endless) == ("Nothing limits what the result may reveal about one client.",)


RECORD_SENTENCES = {
    "What can an outsider learn about a person from the result?": "page",
    "An attacker who starts from even odds and tries to tell whether a person's record was used is right at most": "",
    "Holds for every person, whatever their record says and whatever the attacker already knows.": "",
    "On average over people like those followed, an attacker who starts from even odds and tries to tell whether their "
    "record was used is right at most": "",
    "It promises nothing to a person unlike those followed.": "",
    "For half of the followed records, an attacker is right at most": "",
    "You may be anywhere here": "page",
    "YOU MAY BE ANYWHERE HERE": "text",
    "each record's individual epsilon, at delta 0.00001": "text",
    "Nobody can tell from this where a single person stands, and it promises nothing to any of them.": "",
    "by a factor of at most 2.719, plus a probability of at most 1 in 100,000.": "",
    "This limits what can be learnt about a person because their data were used. It does not limit what the result "
    "says about people in general, which may also apply to a person whose data were not used.": "",
    "Anyone (worst case), for comparison": "",
    "A typical person, for comparison": "",
    "9 in 10 of the followed records": "",
    "half, 90% and all of a group's followed records stay under": "",
    "Declared before the first step": "page",
    "DECLARED BEFORE THE FIRST STEP": "text",
    "Every step adds to what an outsider could learn.": "page",
    "the attacker finds it equally likely that the record was used or not.": "",
    "One row of the data. The sentences above speak of a person because they assume one record per person; a person "
    "with several records is less protected.": "",
    "How much one record can change the result; 0 means not at all.": "",
    "A limit that holds for every conceivable record, even the most unusual one.": "",
    "A person drawn at random from the population that the followed records represent, on average.": "",
    "The panel: records whose contributions were measured at every step.": "",
}


def test_a_record_label_speaks_of_people_as_it_always_did():
    label = one_unit("record")
    said = {"page": page_words(label), "text": " ".join(label_text(label).split())}
    for sentence, only in RECORD_SENTENCES.items():
        found = {place for place in said if sentence in said[place]}
        assert found == ({only} if only else {"page", "text"}), sentence
    for place in said.values():
        assert not re.search(r"client|\brounds?\b|separate statements|\bunit\b", place, re.IGNORECASE)
    assert label.to_dict()["steps_word"] == "step"


def test_a_record_label_of_a_federation_counts_rounds_and_still_speaks_of_people():
    label = one_unit("record", steps_word="round")
    said = page_words(label)
    assert steps_chart(label).x_title == "rounds"
    assert "Declared before the first round" in said
    assert "Holds for every person, whatever their record" in said
    assert not re.search(r"\bsteps?\b", said)


def test_a_joint_label_answers_for_both_units():
    label = joint_label()
    assert [(card.heading, card.figures) for card in cards.cards(label)] == [
        ("Any one client", "epsilon 1, delta 0.00001"),
        ("A typical client", "epsilon 0.8, delta 0.00001"),
        ("A client may be anywhere here", "each client's individual epsilon, at delta 0.00001"),
        ("Any one record", "epsilon 0.07, delta 0.00001"),
        ("A typical record", "epsilon 0.05, delta 0.00001"),
    ]
    assert [(card.heading, card.success) for card in cards.cards(label.public())] == [
        (card.heading, card.success) for card in cards.cards(label) if card.heading.startswith("Any one")
    ]
    note = (
        "The figures about a client (with all the records it holds) and about a record are separate statements: "
        "neither follows from the other."
    )
    for shown in (label, label.public()):
        for said in (page_words(shown), " ".join(label_text(shown).split())):
            assert note in said
            assert not re.search(r"\b(persons?|people|somebody|anyone)\b", said, re.IGNORECASE)
            assert "Holds for every record, whatever it contains" in said
            assert "by a factor of at most 1.073" in said
            assert "One row of the data; whoever has several records is less protected." in said
    assert note not in page_words(client_label())


def test_the_followed_are_named_with_the_headlines_typical_figure_only():
    clients, records = (card for card in cards.cards(joint_label()) if card.key == "typical")
    assert "20 were followed." in clients.notes
    assert "20 were followed." not in records.notes


def test_the_table_names_the_unit_of_each_figure_where_there_are_two():
    label = joint_label()
    assert [(row.who, row.unit, row.epsilon) for row in table.rows(label) if "followed" not in row.who] == [
        ("Any one client (worst case)", "client", "1"),
        ("A typical client", "client", "0.8"),
        ("Any one record (worst case)", "record", "0.07"),
        ("A typical record", "record", "0.05"),
        ("Any one client (worst case), for comparison", "client", "1.3"),
        ("Any one record (worst case), for comparison", "record", "0.06"),
        ("A typical client, for comparison", "client", "0.6"),
        ("Not an upper bound, for comparison only", "record", "0.04"),
    ]
    assert '<th role="columnheader">Unit</th>' in label_html(label)
    assert label_html(label).count('data-name="Unit">record<') == 4
    assert label_text(label).count("unit: record") == 4
    for alone in (client_label(), one_unit("record")):
        assert ">Unit<" not in label_html(alone)
        assert "unit:" not in label_text(alone)


def test_a_typical_figure_of_another_unit_takes_the_place_of_a_missing_one():
    label = joint_label()
    records_only = replace(label, readings=replace(label.readings, typical=label.readings.typical[2:]))
    assert [card.heading for card in cards.cards(records_only) if card.key == "typical"] == ["A typical record"]


def test_another_unit_is_called_by_its_name():
    said = page_words(one_unit("household"))
    assert "Any one household" in said
    assert "whether one household was in the data" in said
    assert "Household What is in the data, or not, as a whole; whoever stands behind several households" in said
    assert not re.search(r"record|\bpeople\b|\bperson\b", said, re.IGNORECASE)


def test_rounds_survive_json():
    label = joint_label()
    data = json.loads(json.dumps(label.to_dict()))
    assert data["steps_word"] == "round"
    assert Label.from_dict(data) == label
    assert label.public().steps_word == "round"
    for wrong in ("epoch", 5, None):
        with pytest.raises(ValueError, match="steps_word"):
            Label.from_dict(data | {"steps_word": wrong})


@pytest.mark.parametrize("unit", ["record", "W" * 400, "<script>alert(1)</script>"])
@pytest.mark.parametrize("width", [380, 1280])
def test_two_units_fit_the_page(visit, width, unit):
    label = joint_label()
    rename = lambda g: replace(g, unit=unit) if g.unit == "record" else g  # noqa: E731
    own = replace(label.readings, typical=tuple(map(rename, label.readings.typical)))
    label = replace(label, comparisons=tuple(map(rename, label.comparisons)), readings=own)
    opened = visit(viewport={"width": width, "height": 800})
    for shown in (label, label.public()):
        page = opened.show(label_html(shown))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".card.anyone").count() == 2
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        labelled = "[...document.querySelectorAll('[aria-labelledby]')].map(e => e.getAttribute('aria-labelledby'))"
        named = page.evaluate(labelled)
        assert {name for names in named for name in names.split()} <= set(ids)
        assert opened.stayed_quiet()
