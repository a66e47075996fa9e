"""What the authors' settings guarantee to anyone, computed by bounds that hold."""

from __future__ import annotations

import numpy as np

from experiments.authors.coded import CODED, DELTA, LONGEST, SIZES
from experiments.rows import Row
from tacita import Guarantee, calibrate, worst_case
from tacita.accounting import participation_bound


def participations(sample_rate: float, noise_multiplier: float, steps: int) -> Guarantee:
    """Return the bound over how often a record takes part, for noise of any size."""
    return participation_bound(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps, delta=DELTA)


def anyone(*, sample_rate: float, noise_multiplier: float, steps: int) -> Guarantee:
    """Return the worst case; the smaller of two bounds where noise is next to none."""
    found = worst_case(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps, delta=DELTA)
    return found if found.epsilon < 500.0 else min(found, participations(sample_rate, noise_multiplier, steps))


def worst(name: str, *, epochs: int, theirs: float, scale: float, points: int) -> Row:
    """Return what the authors' settings guarantee to anyone, by what is clipped and where the noise is.

    Args:
        name: The data.
        epochs: Passes over the training set.
        theirs: The papers' DP figure.
        scale: Of the features.
        points: On each curve.
    """
    m, size = CODED[name], SIZES[name]
    rate, steps = m.batch / size, epochs * (size // m.batch)
    shown = np.linspace(0, steps, points + 1).round().astype(int).tolist()[1:]
    plan = {"sample_rate": rate, "steps": steps, "delta": DELTA}

    def over(noise: float) -> Row:
        curve = [anyone(sample_rate=rate, noise_multiplier=noise, steps=t) for t in shown]
        return {
            "noise_multiplier": noise,
            "epsilon": curve[-1].epsilon,
            "attack": curve[-1].attack_success,
            "curve": [one.epsilon for one in curve],
            "participations": participations(rate, noise, steps).epsilon,
        }

    return {
        "steps": steps,
        "sample_rate": rate,
        "curve_steps": shown,
        "printed": over(m.stddev),  # each record clipped to C = 1, noise on the sum
        "coded": over(m.stddev / 2.0),  # the mean clipped to C: one record can turn it around, from C to -C
        "records": {f"{scale * c:g}": over(m.stddev * m.batch / (scale * c)) for c in LONGEST[name]},
        "moments": worst_case(noise_multiplier=m.stddev, method="rdp", **plan).epsilon,
        "theirs": theirs,
        "noise_for_theirs": calibrate(epsilon=theirs, method="rdp", **plan).noise_multiplier,
    }
