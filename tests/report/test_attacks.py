"""What attacks found: the data, the words, the charts, and where they may be seen."""

import json
import math
import re
from dataclasses import replace

import pytest

from tacita.report import Bound, Chart, Finding, Readings, Series, attacks, label_html, label_text
from tacita.report.text import findings_text as attacks_findings

BARE = Finding(key="membership", heading="Who was in the data?", state="not-refuted", sentence="Nobody can tell.")
SECRET = "0.123456789"


def with_audit(label, *found):
    return replace(label, readings=replace(label.readings, audit=found))


def chart(*lines, log=False):
    series = tuple(Series(hue="anyone", name="n", points=tuple(points)) for points in lines)
    return Chart(heading="h", caption="c", description="d", x_title="x", y_title="y", series=series, log=log)


def test_findings_survive_json(make_findings):
    endless = replace(BARE, bounds=(Bound(who="w", lower=1.0, upper=math.inf, state="open"),))
    for finding in (*make_findings(), *make_findings("<b>"), BARE, endless):
        assert Finding.from_dict(json.loads(json.dumps(finding.to_dict(), allow_nan=False))) == finding


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": SECRET}, "finding state must be one of"),
        ({"heading": 0.123456789}, "finding heading must be text"),
        ({"columns": ("a", "b"), "rows": ((SECRET,),)}, "2 texts each"),
        ({"rows": ((SECRET,),)}, "0 texts each"),
        ({"rows": (SECRET,)}, "finding rows must be a tuple"),
        ({"columns": SECRET}, "finding columns must be a tuple"),
        ({"columns": ("a",), "rows": ((0.123456789,),)}, "finding rows must be text"),
        ({"notes": [SECRET]}, "finding notes must be a tuple"),
        ({"bounds": (SECRET,)}, "finding bounds must be of type Bound"),
        ({"chart": SECRET}, "finding chart must be of type Chart"),
        ({"picture": f"https://evil.example/{SECRET}"}, "finding picture must be empty or"),
        ({"picture": "data:image/svg+xml;base64,AAAA"}, "finding picture must be empty or"),
        ({"picture": 'data:image/png;base64,AA" onerror="alert(1)'}, "finding picture must be empty or"),
        ({"picture": "data:image/png;base64,AAAA\n"}, "finding picture must be empty or"),
        ({"picture": "data:image/png;base64,AAAA"}, "needs a picture_text"),
        ({"tests_claim": SECRET}, "finding tests_claim must be true or false"),
    ],
)
def test_what_is_no_finding_is_refused_without_being_quoted(change, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        replace(BARE, **change)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.5", True, None, 10**400])
def test_points_and_lower_bounds_are_finite_numbers(value):
    with pytest.raises((TypeError, ValueError), match="series points must be"):
        Series(hue="plain", name="n", points=((0.0, value),))
    with pytest.raises((TypeError, ValueError), match=r"bound (lower|epsilon) must be"):
        Bound(who="w", lower=value, upper=1.0, state="not-refuted")


def test_charts_and_bounds_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match="series hue"):
        Series(hue="red", name="n", points=())
    with pytest.raises(TypeError, match="tuples of 2"):
        Series(hue="plain", name="n", points=((1.0, 2.0, 3.0),))
    with pytest.raises(TypeError, match="chart log"):
        replace(chart(), log=1)
    with pytest.raises(TypeError, match="chart series"):
        replace(chart(), series=("a",))
    with pytest.raises(ValueError, match="bound upper"):
        Bound(who="w", lower=1.0, upper=math.nan, state="not-refuted")
    with pytest.raises(TypeError, match="audit must be of type Finding"):
        Readings(audit=("a",))


def test_b1_the_public_page_holds_nothing_of_an_audit(make_label, make_findings, rng):
    label = replace(make_label("run"), included=())
    expected = label_html(label.public()), label_text(label.public())
    secret = f"private {rng.integers(10**9)}"
    broken = replace(BARE, state="warning", sentence=secret)
    for found in ((), make_findings(), make_findings(secret), (broken,)):
        audited = with_audit(label, *found)
        assert (label_html(audited.public()), label_text(audited.public())) == expected
    assert secret in label_html(audited)
    assert secret in label_text(audited)
    for word in (secret, "ttack found", "ttacks found", "tacita audit", "<img", "claim was broken", 'class="bound'):
        assert not any(word in public for public in expected)


def test_the_owner_page_shows_everything_an_attack_found(make_label, make_findings):
    found = make_findings()
    page = label_html(with_audit(make_label("x"), *found))
    assert page.index("What attacks found") < page.index("How the result was made")
    assert page.index('class="cards"') < page.index("What attacks found")
    for finding in found:
        for text in (finding.heading, finding.sentence, *finding.columns, *sum(finding.rows, ()), *finding.notes):
            assert text in page
    assert f'<img src="{found[3].picture}" alt="{found[3].picture_text}">' in page
    assert page.count("<svg") == 4
    told = re.sub(r"<[^>]+>", "", page)
    assert "attack proved at least 0.8871 · label claims at most 1.017" in told
    assert "attack proved at least 0.3107 · label claims at most 0.85" in told


def test_without_an_audit_the_owner_is_told_how_to_run_one(make_label):
    label = with_audit(make_label("x"))
    for shown in (label_html(label), label_text(label)):
        assert "No attack has been run on this result yet." in shown
        assert "tacita audit RUN" in shown
        assert "claim was broken" not in shown


def test_the_verdict_tells_a_broken_claim_from_a_leak():
    broken = replace(BARE, state="warning", heading="Who was in the data?")
    leak = replace(BARE, tests_claim=False, state="warning", heading="The figure itself")
    undecided = replace(BARE, state="open")
    assert attacks.verdict((BARE, undecided)) == attacks.Verdict(state="not-refuted", text="No claim was broken.")
    assert attacks.verdict((undecided,)) == attacks.Verdict(state="open", text="No claim was broken.")
    said = attacks.verdict((BARE, broken))
    assert said == attacks.Verdict(state="warning", text="A claim was broken: see “Who was in the data?”.")
    found = attacks.verdict((leak,)).text
    assert found == "No claim was broken. Something was found that no claim excludes: see “The figure itself”."
    assert attacks.verdict((leak, broken)).text.endswith("that no claim excludes: see “The figure itself”.")


def test_a_bound_above_its_claim_is_a_warning_whatever_the_finding_says(make_label):
    above = Bound(who="w", lower=3.00041, upper=3.0, state="not-refuted")
    finding = replace(BARE, tests_claim=False, bounds=(above,))
    assert attacks.state(finding) == "warning"
    assert attacks.verdict((finding,)).text.startswith("A claim was broken")
    page = label_html(with_audit(make_label("x"), BARE, finding))
    told = re.sub(r"<[^>]+>", "", page)
    assert "Claim broken: attack proved at least 3.0004 · label claims at most 3" in told
    assert [attack.state for attack in attacks.attacks((BARE, finding))] == ["warning", "not-refuted"]
    equal = replace(finding, bounds=(replace(above, lower=3.0),))
    assert attacks.state(equal) == "not-refuted"


def test_the_text_has_one_entry_for_each_finding(make_label):
    broken = replace(BARE, state="warning", heading="Canaries", sentence="They were found.")
    shown = label_text(with_audit(make_label("x"), BARE, broken))
    assert (
        "WHAT ATTACKS FOUND: A claim was broken: see “Canaries”.\n"
        "  - [Warning] Canaries: They were found.\n"
        "  - [Not refuted] Who was in the data? Nobody can tell.\n"
    ) in shown


def test_what_did_not_succeed_is_not_said_to_hold(make_label):
    looked = replace(BARE, tests_claim=False, heading="Pictures")
    assert [attack.told for attack in attacks.attacks((BARE, looked))] == ["Not refuted", "Nothing found"]
    for shown in (label_text(with_audit(make_label("x"), BARE)), label_html(with_audit(make_label("x"), BARE))):
        assert "Not refuted" in shown
        assert "The claim stood" not in shown


def test_what_an_attack_measured_is_a_share_and_missing_in_older_audits():
    old = BARE.to_dict()
    del old["measured"]
    assert Finding.from_dict(old) == BARE
    with pytest.raises(ValueError, match=r"shares in \[0, 1\]"):
        replace(BARE, measured=((0.1, 1.2),))


def test_claims_come_first_and_what_tests_none_follows(make_findings):
    shown = attacks.attacks(make_findings())
    assert [attack.claims for attack in shown] == [True, True, True, False, False]
    text = attacks_findings(make_findings())
    assert text.startswith("No claim was broken.")
    assert text.index(make_findings()[2].heading) < text.index(attacks.LOOKS[:40]) < text.index("rebuilt from")


def test_a_finding_that_does_not_say_whether_it_tests_a_claim_is_refused():
    """Older files decided it by the key."""
    before = replace(BARE, key="leak", state="warning", tests_claim=False).to_dict()
    del before["tests_claim"]
    with pytest.raises(ValueError, match="lacks the field 'tests_claim'"):
        Finding.from_dict(before)
