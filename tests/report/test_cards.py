"""The first screen: who is answered, where one answer stands for all, and the scale below."""

import math
from dataclasses import replace

import pytest

from tacita.guarantee import Guarantee
from tacita.label import Label, Readings, Shares
from tacita.profile import Profile
from tacita.report import cards, label_html, label_text, scale, table

CURVE = Profile.gaussian(0.5)
WORST = Guarantee(
    kind="worst_case", epsilon=CURVE.epsilon(1e-5), delta=1e-5, method="pld", publishable=True, profile=CURVE
)
ALL = CURVE.attack_success()


def label_of(epsilons, successes, **changes):
    """A label with certified shares and percentiles of these figures."""
    percents = (50.0, 90.0, 99.0)
    pairs = [tuple(zip(percents, values, strict=True)) for values in (epsilons, successes)]
    shares = Shares(epsilons=pairs[0], successes=pairs[1], gamma=1e-6, followed=1000)
    own = Readings(percentiles=pairs[0], successes=pairs[1], shares=shares)
    return Label(title="t", purpose="p", worst=WORST, readings=own, **changes)


def test_three_cards_answer_for_anyone_for_most_people_and_for_you():
    label = label_of((0.5, 1.0, WORST.epsilon), (0.53, 0.56, ALL))
    anyone, most, you = cards.cards(label)
    assert [anyone.heading, most.heading, you.heading] == ["Anyone", "Most people", "You may be anywhere here"]
    # One Gaussian release at distance 0.5: Phi(0.25) = 0.59871; a guess of 10 in 100 becomes Phi(-1.2816 + 0.5).
    assert "".join(anyone.sentence).endswith("is right at most 59.9 times in 100, where guessing gives 50.")
    assert "guessed at most 21.8 times in 100." in anyone.notes[0]
    assert "".join(most.sentence).startswith("For at least 90 of 100 people like those followed, an attacker is right")
    assert [name for name, *_ in most.lines] == ["At least half", "At least 9 in 10"]
    assert "For larger shares, the limit is the one for anyone." in most.notes
    assert "".join(you.sentence) == (
        "For half of the followed records, an attacker is right at most 53 times in 100, where guessing gives 50; "
        "for 99 in 100 of them, at most 59.9."
    )


def test_where_all_cards_would_say_the_same_there_is_one():
    label = label_of((WORST.epsilon,) * 3, (ALL,) * 3)
    (only,) = cards.cards(label)
    note = "To the digits shown, the figure for most people and for each of those followed is the same."
    assert only.notes[-1] == note
    assert label_html(label).count('<section class="card ') == 1
    smaller = label_of((WORST.epsilon,) * 3, (ALL - 0.01, ALL, ALL))
    assert len(cards.cards(smaller)) == 3


def test_the_public_page_has_anyone_and_the_declared_ladder():
    label = label_of((0.5, 1.0, 1.0), (0.53, 0.56, 0.56), ladder=((0.25, 0.8), (0.5, 1.1), (1.0, 2.1)))
    anyone, ladder = cards.cards(label.public())
    assert (anyone.key, ladder.key) == ("anyone", "ladder")
    assert ladder.sentence.figure == "2 smaller limits"
    assert [figure for _, figure, _ in ladder.lines] == ["epsilon 0.8", "epsilon 1.1", "epsilon 2.1"]
    assert "ladder" not in {card.key for card in cards.cards(label)}


def test_the_scale_marks_what_epsilons_alone_would_allow():
    section = cards.sections(label_of((0.5, 1.0, 1.0), (0.53, 0.56, 0.56)))[0]
    found = scale.scale(section)
    for mark, epsilon in zip((*found.usual, found.pair), (1.0, 10.0, WORST.epsilon), strict=True):
        odds = math.exp(epsilon)
        assert mark.success == pytest.approx((odds + 1e-5) / (1.0 + odds), rel=1e-12)
        assert float(mark.place) == pytest.approx(200.0 * (mark.success - 0.5), abs=0.06)
    assert found.found[0].success == ALL < found.pair.success
    pair_only = replace(section, worst=replace(WORST, profile=None))
    assert scale.scale(pair_only).pair is None
    endless = replace(section, worst=replace(WORST, epsilon=math.inf, profile=None))
    assert scale.scale(endless).pair is None


def test_every_figure_stands_in_one_table():
    label = label_of((0.5, 1.0, WORST.epsilon), (0.53, 0.56, ALL))
    tests = ((50.0, ((0.001, 0.002), (0.02, 0.03), (1.0, 1.0))),)
    own = replace(label.readings, shares=replace(label.readings.shares, tests=tests))
    rows = {row.who: row for row in table.rows(replace(label, readings=own))}
    anyone = rows["Anyone (worst case)"]
    # At 1% false alarms a Gaussian at distance 0.5 is found with Phi(-2.3263 + 0.5) = 0.03392; mu is the distance.
    assert anyone.found[0] == "3.4%"
    assert 0.4995 <= float(anyone.mu) <= 0.502
    half = rows["At least half of the population"]
    assert half.found == ("3%", "0.2%")  # read at the next larger rate that is certified
    assert half.figures[3:5] == ("0.5", "0.00001")
    assert "At least 99 in 100 of the population" not in rows  # as for anyone
    assert label_html(label).count('<table class="all"') == 1


def test_how_sure_an_attacker_may_become_names_the_tail_of_the_loss():
    said = label_text(label_of((0.5, 1.0, 1.0), (0.53, 0.56, 0.56)).public())
    sure = 1.0 / (1.0 + math.exp(-CURVE.sure(1e-5)))
    assert f"at most {math.ceil(1000 * sure) / 10:g}% sure, except in" in " ".join(said.split())
    assert "tail of the privacy loss" in said
