"""Where an attack success stands between guessing and certainty, beside what usual epsilons alone would allow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacita._numbers import delta_text, epsilon_text, success_text
from tacita.guarantee import Guarantee, attack_success
from tacita.report.cards import Section

# (epsilon, what it is called): the thresholds of the guide named first in SOURCES.
PRACTICE = ((1.0, "strong"), (10.0, "reasonable"))
SOURCES = (
    "Ponomareva et al., How to DP-fy ML: a practical guide to machine learning with differential privacy, Journal of "
    "Artificial Intelligence Research 77, 2023: an epsilon of at most 1 is called strong, of at most 10 reasonable.",
    "TensorFlow Privacy, guide “Measure privacy”: epsilon should be less than 10, or less than 1 for stricter "
    "guarantees.",
    "Google Research, “Advances in private training for production on-device language models”, 2024: keyboard models "
    "in use had epsilons from 0.994 to 13.69, at a delta of 1e-10.",
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark on the scale: what it is, its attack success, and how far from guessing to certainty it is, in percent."""

    key: str
    name: str
    success: float

    @property
    def text(self) -> str:
        """The attack success, rounded up."""
        return success_text(self.success)

    @property
    def place(self) -> str:
        """How far along the scale."""
        return f"{min(100.0, max(0.0, 200.0 * (self.success - 0.5))):.1f}"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What stands on one scale.

    Attributes:
        found: The label's own figures, as on the cards.
        usual: What epsilons that are called strong or reasonable would allow by themselves.
        pair: What the label's own epsilon would allow by itself, to compare with those; None where it is no other
            figure than the first one.
    """

    found: tuple[Mark, ...]
    usual: tuple[Mark, ...]
    pair: Mark | None


def scale(section: Section) -> Scale:
    """Return the scale of a section's cards."""
    worst = section.worst
    found = tuple(
        Mark(key=card.key, name=card.heading, success=card.success)
        for card in section.cards
        if card.success is not None
    )
    usual = tuple(_alone(eps, worst.delta, f"epsilon {eps:g} alone (called {name})") for eps, name in PRACTICE)
    pair = None
    if math.isfinite(worst.epsilon):
        name = f"this result's epsilon of {epsilon_text(worst.epsilon)} alone"
        pair = _alone(worst.epsilon, worst.delta, name)
        pair = None if pair.text == success_text(worst.curve.attack_success()) else pair
    return Scale(found=found, usual=usual, pair=pair)


def sentences(worst: Guarantee) -> tuple[str, ...]:
    """Say what the marks mean, and what they do not."""
    said = [
        "The scale shows how often an attacker who starts from even odds is right: from 50 times in 100, which is "
        "guessing, to 100, which is certainty.",
        "Practice usually judges epsilon. Each mark shows what an epsilon would allow if nothing else were known of "
        f"the mechanism: the attack success of the pair of this epsilon and the delta of {delta_text(worst.delta)}.",
    ]
    if math.isfinite(worst.epsilon):
        said.append(
            "The figures of this label follow from the whole privacy curve where it is known, and are then smaller "
            "than what the epsilon alone would allow. So a figure to the left of the mark of epsilon 1 does not mean "
            "an epsilon below 1: to compare with those marks, take the epsilon of this label, "
            f"{epsilon_text(worst.epsilon)}."
        )
    return (*said, "The words “strong” and “reasonable” are those of the first source.")


def _alone(epsilon: float, delta: float, name: str) -> Mark:
    return Mark(key="usual", name=name, success=attack_success(epsilon, delta))
