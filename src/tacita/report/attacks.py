"""What a label says of the attacks that were tried, in words and rounded figures, for the page and the plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacita._numbers import bound_texts, epsilon_text
from tacita.label import AttackState as State
from tacita.label import Bound, Finding
from tacita.report.charts import Figure, draw
from tacita.report.units import inline

NOT_RUN = "No attack has been run on this result yet."
LOOKS = (
    "No claim of this label is about the following. They show what else an attacker might look at, and their limits."
)
STATES = {"not-refuted": "Not refuted", "open": "No verdict", "warning": "Warning"}
LEAKS = {**STATES, "not-refuted": "Nothing found"}  # of an attack that tests no claim


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bound as a bar: filled up to what an attack proved, a marker at the claim (if there is one), in percent."""

    who: str
    state: State
    proved: str
    claimed: str
    broken: bool
    filled: str
    marker: str


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A finding with everything that is drawn. `told` is its state in words."""

    finding: Finding
    state: State
    told: str
    bars: tuple[Bar, ...]
    scale_end: str
    figure: Figure | None

    @property
    def claims(self) -> bool:
        """Whether a claim of the label is at stake."""
        return _breaks_a_claim(self.finding)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What all attacks together came to."""

    state: State
    text: str


def attacks(findings: Sequence[Finding]) -> tuple[Attack, ...]:
    """Return every finding as it is shown: those that test a claim first, and among them warnings first."""
    found = (
        Attack(
            finding=finding,
            state=state(finding),
            told=STATES[state(finding)] if finding.tests_claim else LEAKS[state(finding)],
            bars=bars(finding.bounds),
            scale_end=epsilon_text(scale_end(finding.bounds)),
            figure=draw(f"attack-{number}", finding.chart),
        )
        for number, finding in enumerate(findings)
    )
    return tuple(sorted(found, key=lambda attack: (not _breaks_a_claim(attack.finding), attack.state != "warning")))


def state(finding: Finding) -> State:
    """Return how a finding stands. A bound above its claim is a warning, whatever the finding says."""
    return "warning" if any(bound.broken for bound in finding.bounds) else finding.state


def verdict(findings: Sequence[Finding]) -> Verdict:
    """Say in a sentence what the attacks came to."""
    alarms = [finding for finding in findings if state(finding) == "warning"]
    broken = [finding for finding in alarms if _breaks_a_claim(finding)]
    leaks = [finding for finding in alarms if not _breaks_a_claim(finding)]
    if broken:
        also = f" Something was found, too, that no claim excludes: see {_named(leaks)}." if leaks else ""
        return Verdict(state="warning", text=f"A claim was broken: see {_named(broken)}.{also}")
    if leaks:
        found = f"Something was found that no claim excludes: see {_named(leaks)}."
        return Verdict(state="warning", text=f"No claim was broken. {found}")
    tried = any(finding.state == "not-refuted" for finding in findings)
    return Verdict(state="not-refuted" if tried else "open", text="No claim was broken.")


def bars(bounds: Sequence[Bound]) -> tuple[Bar, ...]:
    """Return bounds as bars on one scale, from 0 to the largest claim, or further where an attack proved more."""
    top, made = scale_end(bounds), []
    for bound in bounds:
        lower, upper = bound_texts(bound.lower, bound.upper)
        claims = math.isfinite(bound.upper)
        made.append(
            Bar(
                who=bound.who,
                state="warning" if bound.broken else bound.state,
                proved=f"attack proved at least {lower}",
                claimed=f"label claims at most {upper}" if claims else "label claims no limit",
                broken=bound.broken,
                filled=f"{100.0 * bound.lower / top:.2f}",
                marker=f"{100.0 * bound.upper / top:.2f}" if claims else "",
            )
        )
    return tuple(made)


def scale_end(bounds: Sequence[Bound]) -> float:
    """Return where the scale of the bars ends."""
    known = [epsilon for bound in bounds for epsilon in (bound.lower, bound.upper) if math.isfinite(epsilon)]
    return max(known, default=0.0) or 1.0


def _breaks_a_claim(finding: Finding) -> bool:
    return finding.tests_claim or any(bound.broken for bound in finding.bounds)


def _named(findings: Sequence[Finding]) -> str:
    return " and ".join(f"“{inline(finding.heading)}”" for finding in findings)
