"""What tests for presence can find, in numbers: one row for each statement that bounds a whole privacy curve."""

from __future__ import annotations

import math

from tacita._numbers import chance_text, round_up_text, success_text
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.report import wording
from tacita.report.units import spoken

_FLOOR = 1e-5  # what a curve may exceed the Gaussian one by
POWERS = ("About", "Attack success", "Found at 1% false alarms", "Found at 0.1% false alarms", "Gaussian mu")


def powers(label: Label) -> tuple[tuple[str, ...], ...]:
    """Return what tests can find, for each leading statement that bounds a whole curve: rows below `POWERS`."""
    return tuple(
        (wording.who(g, spoken(g.unit, label.worst.unit), also=False), *_powers(g, worst))
        for worst, typical in wording.leading(label)
        for g in (worst, typical)
        if g is not None and g.is_bound and g.profile is not None and g.notion != "strong"
    )


def _powers(g: Guarantee, worst: Guarantee) -> tuple[str, str, str, str]:
    curves = [g.curve, worst.curve] if g.unit == worst.unit else [g.curve]
    found = [min(curve.tpr(rate) for curve in curves) for rate in (0.01, 0.001)]
    mu = min(curve.mu(floor=_FLOOR) for curve in curves)
    return (
        f"at most {success_text(wording.success_of(g, worst))}",
        f"at most {success_text(found[0])}",
        f"at most {success_text(found[1])}",
        "none" if math.isinf(mu) else f"{round_up_text(mu)} (but for {chance_text(_FLOOR)})",
    )
