"""Model cards: metadata that is read back, sentences of the label, and texts of users that stay texts."""

import math
from dataclasses import replace

import pytest
import yaml

from tacita.report.card import model_card
from tests.report.test_registry import label


def front(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_tags_and_sentences():
    card = model_card(label(), tags=("dp-sgd",))
    assert front(card) == {"tags": ["differential-privacy", "dp-sgd", "tacita"]}
    for text in ("# Digits", "right at most", "| Issuer | City Hospital |", "epsilon 1.017 at delta 0.00001"):
        assert text in card
    assert "One record is one person" in card


def test_without_a_guarantee_nothing_is_tagged():
    endless = label(worst=replace(label().worst, epsilon=math.inf))
    assert front(model_card(endless, tags=("dp-sgd",))) == {"tags": ["tacita"]}


def test_texts_of_users_stay_texts():
    card = model_card(label(title="x", purpose="<script>a</script> [b](c) | `d`\n# e"))
    assert r"\<script\>a\</script\> \[b\](c) \| \`d\` \# e" in card


def test_readings_are_refused(make_label):
    with pytest.raises(ValueError, match="public label"):
        model_card(make_label("a"))
