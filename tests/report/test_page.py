"""What the page and the text say, and what the public ones cannot say."""

import html
import math
import re
import subprocess
import sys
from dataclasses import replace

import tacita
from tacita.guarantee import Guarantee
from tacita.report import Label, Readings, cards, label_html, label_text, table, units, wording

PLAIN = {"method": "pld", "unit": "record", "estimator": None, "composition": None}


def plain(label, **changes):
    """Give the label's worst case the fields of an ordinary one."""
    return replace(label, worst=replace(label.worst, **(PLAIN | changes)))


def test_b1_the_public_page_and_text_are_the_same_whatever_was_read(make_label, make_readings, rng):
    for _ in range(100):
        label = plain(make_label(f"run {rng.integers(1000)}"), epsilon=float(rng.uniform(0.1, 9.0)))
        first, second = (
            replace(label, readings=make_readings(f"private {rng.integers(10**9)}", float(rng.uniform(0.05, 1.0))))
            for _ in range(2)
        )
        assert first != second
        assert label_html(first.public()) == label_html(second.public())
        assert label_text(first.public()) == label_text(second.public())
    assert label_html(first) != label_html(second)
    assert re.search(r"private \d", label_html(first))
    assert not re.search(r"private \d", label_html(first.public()))


def test_the_sentence_gives_attack_success_in_a_hundred(make_label):
    page = label_html(plain(make_label("x"), epsilon=2.6).public())
    sentence = (
        "An attacker who starts from even odds and tries to tell whether a person's record was used is right at most "
        "<strong>93.1 times in 100,</strong> where guessing gives 50."
    )
    assert sentence.replace("'", "&#39;") in page


def test_public_and_owner_pages_say_which_they_are(make_label):
    label = replace(make_label("x"), included=())
    public, owner = label_html(label.public()), label_html(label)
    assert "Nothing on this page was computed from the data." in public
    assert "do not publish" not in public
    assert "Published by choice" not in public
    assert (
        "<strong>For the data&#39;s owner.</strong> Contains figures computed from private data: do not publish."
        in owner
    )
    assert "Nothing on this page" not in owner
    assert 'content="noindex' in owner


def test_a_page_that_tells_which_end_was_reached_says_so(make_label):
    label = replace(make_label("x"), included=(), end_shown=True, readings=None)
    assert "Apart from which declared end was reached, nothing on this page was computed from the data." in label_html(
        label
    )
    for other in (replace(label, bare_rate=True), replace(label, included=(("accuracy", "90%"),))):
        assert "Nothing on this page" not in label_html(other)
        assert "which declared end was reached" in label_html(other)
        assert Label.from_dict(other.to_dict()) == other


def test_figures_published_by_choice_stand_in_their_own_box(make_label):
    label = replace(make_label("x"), included=())
    label = replace(label, readings=replace(label.readings, metrics=(("accuracy", "95.2%"),)))
    page = label_html(label.public(["accuracy"]))
    assert "95.2%" in page
    assert "chose to publish these figures although they depend on the data" in page
    assert "Apart from the figures published by choice, nothing on this page was computed from the data." in page


def test_the_page_forbids_scripts_and_requests(make_label):
    page = label_html(make_label("x"))
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:,\"|data:image/png;base64,[\w+/=]*\")|https?:|url\(|@import", page)
    assert f"tacita {tacita.__version__}" in page


def test_an_infinite_epsilon_promises_nothing(make_label):
    label = replace(plain(make_label("x"), epsilon=math.inf), curve=((1, math.inf), (2, math.inf)), comparisons=())
    page = label_html(label.public())
    assert "<strong>Nothing is promised.</strong>" in page
    assert "width:100.0%" in page
    assert "<svg" not in page
    assert "Nothing is promised." in label_text(label.public())
    worse = replace(label.readings, percentiles=((50.0, 0.4), (90.0, 0.8), (100.0, math.inf)))
    assert "infinite" in label_html(replace(label, readings=worse))


def test_what_is_not_an_upper_bound_claims_no_attack_success(make_label, make_guarantee):
    label = plain(make_label("x"))
    comparison = make_guarantee("x", kind="bayesian", composition="independent", publishable=False, is_bound=False)
    attack = make_guarantee("x", kind="empirical_lower", epsilon=0.4999, publishable=False)
    owner = replace(label, readings=Readings(typical=(comparison, attack)))
    card = cards.cards(owner)[1]
    assert card.success is None
    assert "".join(card.sentence).startswith("Not an upper bound.")
    rows = {row.who: row for row in table.rows(owner)}
    assert rows["Not an upper bound, for comparison only"].attack == "none"
    assert rows["An attack that was tried (lower bound)"].attack == "none"
    assert rows["An attack that was tried (lower bound)"].epsilon == "at least 0.4999"


def test_the_typical_card_names_scope_panels_and_model(make_label):
    label = plain(make_label("x"))
    own = replace(label.readings, panels="training panel only")
    card = cards.cards(replace(label, readings=own))[1]
    assert card.tag == "reading of this run"
    assert "Training panel only." in card.notes
    nobody, *_ = cards.cards(replace(label, readings=Readings(panels="nobody was followed.")))
    assert nobody.notes[-1] == "Nobody was followed."
    assert "Nobody was followed." in label_text(replace(label, readings=Readings(panels="nobody was followed.")))
    other = replace(own, typical=own.typical[1:])
    assert any("model-based" in note for note in cards.cards(replace(label, readings=other))[1].notes)


def test_the_attacker_is_told_what_the_unit_and_the_relation_are(make_guarantee):
    ask = lambda **changes: units.target(make_guarantee("x", **changes))  # noqa: E731
    assert ask(unit="record") == "whether a person's record was used"
    assert ask(unit="client") == "whether one client was in the data"
    assert ask(unit="record", neighbours="replace_one") == "which of two records was used"


def test_a_bare_label_has_a_page(make_guarantee):
    worst = Guarantee(kind="worst_case", epsilon=30.0, delta=0.0, method="pld", publishable=True)
    for own in (None, Readings(), Readings(percentiles=((33.0, 0.5),))):
        label = Label(title="t", purpose="", worst=worst, readings=own)
        assert "<svg" not in label_html(label)
        assert "100 times in 100" in label_text(label)
        assert str(label) == label_text(label)
        assert label.html() == label_html(label)


def test_odd_percentiles_are_named_by_their_share(make_label):
    label = plain(make_label("x"))
    label = replace(label, readings=replace(label.readings, percentiles=((33.0, 0.2), (66.0, 0.4))))
    assert [e.who for e in cards.exposures(label.readings, label.worst)] == ["33%", "66%"]
    assert "For 66% of the followed records" in label_text(label)


def test_untested_assumptions_rest_on_the_user_and_warnings_come_first(make_label):
    found = wording.checks(make_label("x"))
    assert [check.state for check in found] == ["warning", "open", "holds"]


def test_the_text_stays_within_100_columns_and_sends_nothing_to_the_terminal(make_label):
    for text in ("word " * 80, "W" * 500, "\x1b[31mred\x1b]0;title\x07\x9b2J", "a\u202eb\nc"):
        for label in (make_label(text), make_label(text).public()):
            shown = label_text(label)
            assert max(map(len, shown.splitlines())) <= 100
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)


def test_broken_characters_can_be_written(make_label):
    page = label_html(make_label("a\ud800b\x00c\x1bd"))
    assert "a\ufffdb\ufffdc\ufffdd" in page
    page.encode("utf-8")


def test_a_missing_jinja2_names_the_install_command():
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from tacita import Guarantee\nfrom tacita.report import Label\n"
        "worst = Guarantee(kind='worst_case', epsilon=1.0, delta=1e-5, method='pld', publishable=True)\n"
        "label = Label(title='t', purpose='p', worst=worst)\n"
        "print(str(label)[:13])\n"
        "for call in (label.html, label._repr_html_):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *rest = result.stdout.splitlines()
    assert first == "PRIVACY LABEL"
    assert rest == ["Pages need jinja2: pip install -e '.[report]' in the checkout of tacita"] * 2


SAID = re.compile(r"<style.*?</style>|<details class=\"fold\"><summary><h2 id=\"words-name\">.*", re.DOTALL)


def test_the_glossary_holds_only_words_that_occur(make_label):
    seen = set()
    for label in (make_label("x"), plain(make_label("run")), plain(make_label("run"), method="rdp").public()):
        page = label_html(label)
        before = html.unescape(re.sub(r"<[^>]*>", " ", SAID.sub("", page))).casefold()
        terms = [html.unescape(term) for term in re.findall(r"<dt>([^<]*)</dt>", page.split('id="words"')[1])]
        assert len(terms) > 3
        assert [term for term in terms if term.casefold() not in before] == []
        text, words = label_text(label).split("WORDS USED HERE")
        told = re.findall(r"^  - ([^:]*):", words, re.MULTILINE)
        assert [term for term in told if term.casefold() not in " ".join(text.split()).casefold()] == []
        seen |= set(terms)
    assert {"Epsilon", "Even odds", "Reading", "RDP", "PLD"} <= seen
    assert "Round" not in seen


def test_page_and_text_have_the_same_parts_in_the_same_order(make_label):
    for label in (make_label("x"), make_label("x").public()):
        page, text = label_html(label), label_text(label).upper()
        shown = [wording.TITLES._asdict()[name] for name, _ in wording.contents(label)]
        for said, titles in ((page, [f">{title}</h2>" for title in shown]), (text, [f"\n{t.upper()}" for t in shown])):
            places = [said.index(title) for title in titles]
            assert places == sorted(places)


def test_words_that_confused_readers_are_gone(make_label):
    label = plain(make_label("x"), method="pld")
    for shown in (label_html(label), label_text(label)):
        for words in ("independent coin", "or as unlikely", "least to the most exposed", "in a replay", "weak notion"):
            assert words not in shown
