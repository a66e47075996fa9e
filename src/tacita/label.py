"""The privacy label as plain data: what may be published, and what only the data's owner should see.

It knows no page: `tacita.report` renders it, and is imported when a label is asked to show itself.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tacita import _check, _codec
from tacita.assumptions import Assumption, assume
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.publication import Publication

SCHEMA = 4
PERCENTS = (0.5, *range(1, 100), 99.5, 99.9, 100)  # at which the spread of records' own epsilons is shown
Pairs = tuple[tuple[str, str], ...]
Points = tuple[tuple[float, float], ...]
AttackState = Literal["not-refuted", "open", "warning"]
Hue = Literal["anyone", "typical", "spread", "half", "attack", "plain"]
_LARGEST = sys.float_info.max
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")
_STATUS = {"budget-spent": "stopped by the ledger's budget"}


@dataclass(frozen=True, kw_only=True)
class Series(_codec.Checked):
    """A line of a chart, in one of the label's colours. A histogram is a line with corners."""

    hue: Hue
    name: str
    points: Points

    def __post_init__(self) -> None:
        super().__post_init__()
        _finite("series points", *(value for point in self.points for value in point))


@dataclass(frozen=True, kw_only=True)
class Chart(_codec.Checked):
    """A chart and what it shows in words.

    `log` makes both axes logarithmic; points that are not above 0 on both have no place there and are left out.
    """

    heading: str
    caption: str
    description: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Bound(_codec.Checked):
    """An epsilon that an attack proved, beside the one that the label claims.

    Attributes:
        who: About which record.
        lower: The mechanism has at least this epsilon: a lower confidence bound.
        upper: The label claims at most this epsilon. It may be infinite: nothing is claimed.
        state: As for a finding. A bound that is above its claim is shown as a warning in any case.
    """

    who: str
    lower: float
    upper: float
    state: AttackState

    def __post_init__(self) -> None:
        super().__post_init__()
        _epsilons("bound", self.lower, self.upper)
        _finite("bound lower", self.lower)

    @property
    def broken(self) -> bool:
        """Whether the attack proved more than the label claims."""
        return self.lower > self.upper


@dataclass(frozen=True, kw_only=True)
class Finding(_codec.Checked):
    """One attack's result.

    Attributes:
        key: Which attack; a label shows one finding of a key.
        heading: Its name, for people.
        state: `not-refuted` if the attack could have broken a claim, or shown a leak, and did not: that proves neither.
            `warning` if it did, `open` if it cannot be judged.
        sentence: The result in plain words.
        columns: Heads of the table.
        rows: Its rows, as many texts each as there are columns.
        bounds: Lower bounds on epsilon beside the claims.
        chart: A chart to draw.
        picture: A PNG as a `data:` address.
        picture_text: What the picture shows, for those who cannot see it. A picture needs one.
        notes: What the figures rest on, in sentences.
        tests_claim: Whether the attack tests a claim of the label, so that a warning breaks it. False if it looks for
            a leak that no claim excludes.
        measured: (false alarms, share of those present that were found), as fractions: what the attack achieved, to be
            drawn beside what the label allows.
    """

    key: str
    heading: str
    state: AttackState
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[Bound, ...] = ()
    chart: Chart | None = None
    picture: str = ""
    picture_text: str = ""
    notes: tuple[str, ...] = ()
    tests_claim: bool = True
    measured: Points = ()

    def __repr__(self) -> str:
        return f"<Finding {self.key!r}, {self.state}: {self.sentence}>"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= value <= 1 for point in self.measured for value in point):
            raise ValueError("finding measured must be shares in [0, 1].")
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"finding rows must have {len(self.columns)} texts each, as there are columns.")
        # Nothing but an embedded PNG may be fetched or run from the page.
        if self.picture and not _PICTURE.fullmatch(self.picture):
            raise ValueError('finding picture must be empty or "data:image/png;base64," and base64 characters.')
        if self.picture and not self.picture_text:
            raise ValueError("finding picture needs a picture_text that says what it shows.")

    @classmethod
    def from_dict(cls, data: Any) -> Finding:
        """Rebuild what `to_dict` wrote; audits of older versions have no `measured`."""
        return super().from_dict({"measured": [], **data} if isinstance(data, Mapping) else data)


@dataclass(frozen=True, kw_only=True)
class GroupRow(_codec.Checked):
    """One group of followed records: how many, and the epsilon that half, 90% and all of them stay under."""

    column: str
    value: str
    records: int
    median: float
    p90: float
    largest: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _epsilons("group", self.median, self.p90, self.largest)
        if self.records < 0:
            raise ValueError("group records must be a whole number.")


@dataclass(frozen=True, kw_only=True)
class Shares(_codec.Checked):
    """What shares of the *population* stay under, as far as records certify it that were drawn from it.

    Attributes:
        epsilons: (percent, epsilon that at least this share stays under), at the delta of the label's worst case.
        successes: (percent, attack success that at least this share stays under).
        tests: (percent, points (false-positive rate, true-positive rate)): at each of these rates, tests for the
            presence of any one of at least this share find it at most so often. Empty if they were not computed.
        gamma: The probability, over who was followed, that any of these fails.
        followed: How many records certify them.
    """

    epsilons: Points
    successes: Points
    gamma: float
    followed: int
    tests: tuple[tuple[float, Points], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _epsilons("share", *(epsilon for _, epsilon in self.epsilons))
        if [percent for percent, _ in self.epsilons] != [percent for percent, _ in self.successes]:
            raise ValueError("shares must give an epsilon and a success for the same percentages.")
        if not all(0.5 <= success <= 1 for _, success in self.successes):
            raise ValueError("successes must be in [0.5, 1].")
        if not all(0 <= fpr <= tpr <= 1 for _, points in self.tests for fpr, tpr in points):
            raise ValueError("tests must give true-positive rates in [0, 1], not below their false-positive rates.")
        _check.probability("gamma", self.gamma)


@dataclass(frozen=True, kw_only=True)
class Readings(_codec.Checked):
    """Everything that was computed from private data. It never reaches the public page unless asked for.

    Attributes:
        typical: Bayesian figures, the headline (the larger of the panels) first, then comparisons. The first of
            each unit is shown beside the worst case of that unit.
        panels: Who was followed, in words.
        percentiles: (percent, epsilon that this share of the followed records stays under), at the delta of
            the label's worst case.
        successes: (percent, attack success that this share of them stays under), from their own curves.
        shares: What shares of the population stay under; None where no records outside the training data were followed.
        curve: (step, epsilon of the typical record so far).
        groups: Per-group rows, by class or by a column.
        metrics: Accuracy and the like, as (name, value) texts.
        rung_counts: How many training records ended on each rung of the ladder: exact.
        rung_shares: At least which share of the population stands on each rung or below, from records not trained on;
            fails with a probability of at most 1e-6. Empty where there were none.
        checks: Tests of the data-dependent assumptions.
        certificate: What became of a declared conformal certificate, in words; empty if none was declared.
        facts: Other facts for the owner (number of records, when it ran), as (name, value) texts.
        audit: What attacks found.
    """

    typical: tuple[Guarantee, ...] = ()
    panels: str = ""
    percentiles: Points = ()
    successes: Points = ()
    shares: Shares | None = None
    curve: tuple[tuple[int, float], ...] = ()
    groups: tuple[GroupRow, ...] = ()
    metrics: Pairs = ()
    rung_counts: tuple[int, ...] = ()
    rung_shares: tuple[float, ...] = ()
    checks: tuple[Assumption, ...] = ()
    certificate: str = ""
    facts: Pairs = ()
    audit: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _epsilons("percentile", *(epsilon for _, epsilon in self.percentiles))
        if not all(0.5 <= success <= 1 for _, success in self.successes):
            raise ValueError("successes must be in [0.5, 1].")
        if not all(0 <= percent <= 100 for percent, _ in (*self.percentiles, *self.successes)):
            raise ValueError("percentiles must be given by percentages in [0, 100].")
        _curve("readings curve", self.curve)


@dataclass(frozen=True, kw_only=True)
class Label(_codec.Checked):
    """What a run leaks, for people. `public()` holds only what does not depend on the data.

    Attributes:
        title: The run's name.
        purpose: What was made, in a sentence.
        worst: The worst-case guarantee: the headline for anyone. Its unit is what the label speaks of, and its
            assumptions are what the label rests on.
        comparisons: Further publishable figures, such as the same run by RDP. The first worst case of another
            unit stands beside the headline.
        curve: (step, worst-case epsilon so far).
        mechanism: (name, value) texts: noise, clipping, sampling, steps.
        declared: Terms declared before the first step (record budgets, certificates), in sentences.
        ladder: The rungs declared before the first step, as (fraction of the plan, epsilon), in the weak notion and
            with equal shares of the worst case's delta. Who stands where is not in it.
        not_hardened: What an attacker could still use, in sentences.
        included: (name, value) texts that the owner chose to publish although they depend on the data.
        bare_rate: True if a sampling rate was given as a number, which may have been computed from the data.
        end_shown: True if the label tells which of several declared ends was reached, or that its owner ended the run.
        steps_word: What one step of the curves is called: `step`, or `round` in a federation.
        audit_command: The command that attacks such a run; empty if there is none.
        publication: Who issued it, for which model and when, as the issuer stated.
        nominal_size: The declared public size of the data; None if it was not declared.
        readings: For the owner only; None on a public label.

    Guarantee:
        Two labels that differ in their readings alone have equal `public()` labels, and these give the same
        page, byte for byte. That title, purpose, mechanism, declared terms and assumptions do not depend on the
        data is up to whoever fills them in.
    """

    title: str
    purpose: str
    worst: Guarantee
    comparisons: tuple[Guarantee, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    mechanism: Pairs = ()
    declared: tuple[str, ...] = ()
    ladder: Points = ()
    not_hardened: tuple[str, ...] = ()
    included: Pairs = ()
    bare_rate: bool = False
    end_shown: bool = False
    steps_word: Literal["step", "round"] = "step"
    audit_command: str = ""
    publication: Publication = field(default_factory=Publication)
    nominal_size: int | None = None
    readings: Readings | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(statement.publishable for statement in (self.worst, *self.comparisons)):
            raise _check.PrivacyError("A label's public figures must be publishable; put the others into readings.")
        if self.worst.kind != "worst_case":
            raise _check.PrivacyError(f"A label's headline must be a worst_case guarantee, got {self.worst.kind}.")
        _curve("label curve", self.curve)
        _epsilons("rung", *(epsilon for _, epsilon in self.ladder))
        found = (self.readings.rung_counts, self.readings.rung_shares) if self.readings else ()
        if any(part and len(part) != len(self.ladder) for part in found):
            raise ValueError("rung_counts and rung_shares must have one entry for each rung of the ladder.")

    def __repr__(self) -> str:
        return f"<Label {self.title!r}, {'public' if self.readings is None else 'for the owner'}: {self.worst!r}>"

    def __str__(self) -> str:
        from tacita.report.text import label_text

        return label_text(self)

    def html(self) -> str:
        """Return the label as a self-contained page: the owner's if there are readings, else the public one."""
        from tacita.report.page import label_html

        return label_html(self)

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame of its own. A saved notebook keeps what it shows."""
        from tacita.report.page import label_frame

        return label_frame(self)

    @property
    def checks(self) -> tuple[Assumption, ...]:
        """What the publishable figures rest on."""
        return self.worst.assumptions

    def resting_on(self, *more: Assumption) -> Label:
        """Return the label with further assumptions under its public figures."""
        figures = tuple(replace(g, assumptions=(*g.assumptions, *more)) for g in (self.worst, *self.comparisons))
        return replace(self, worst=figures[0], comparisons=figures[1:])

    def public(self, include: Iterable[str] = ()) -> Label:
        """Return the label without readings, except for the metrics named in `include`."""
        wanted = list(dict.fromkeys(include))
        have = dict(self.readings.metrics) if self.readings else {}
        for name in wanted:
            if name not in have:
                listed = ", ".join(repr(n) for n in have) or "none were recorded"
                raise ValueError(f"include={name!r} is not a metric of this run; there is: {listed}.")
        return replace(self, readings=None, included=tuple((name, have[name]) for name in wanted))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it. An infinite epsilon is the string "infinity"."""
        return {"schema": SCHEMA, **super().to_dict()}

    @classmethod
    def from_dict(cls, data: Any) -> Label:
        """Rebuild a label written by `to_dict`. Anything else is refused."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise ValueError(f"Not a privacy label of schema {SCHEMA}.")
        try:
            return super().from_dict({name: value for name, value in data.items() if name != "schema"})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"This privacy label is damaged: {error}") from error


def build(facts: RunFacts, worst: Guarantee, *, rests_on: Sequence[Assumption], **parts: Any) -> Label:
    """Return the label of a run: what it knows about itself, its worst case and what this rests on.

    Args:
        facts: Title and purpose are taken from here.
        worst: The headline.
        rests_on: The assumptions of every publishable figure, in place of what accounting assumes by itself.
        parts: Other fields of `Label`.
    """
    known = (*rests_on, *(assume("fresh-data", first=a, last=b, unit=unit) for a, b, unit in facts.fresh))
    comparisons = tuple(replace(g, assumptions=known) for g in parts.pop("comparisons", ()))
    headline = replace(worst, assumptions=known)
    return Label(title=facts.title, purpose=facts.purpose, worst=headline, comparisons=comparisons, **parts)


def no_guarantee(*, delta: float, unit: str = "record") -> Guarantee:
    """Return the worst case of a run without noise: an infinite epsilon."""
    return Guarantee(
        kind="worst_case",
        epsilon=math.inf,
        delta=delta,
        method="none",
        unit=unit,
        sampling="none",
        publishable=True,
    )


def noise_assumption(facts: RunFacts, *, exact: bool = False) -> Assumption:
    """Return where the noise came from, and what that means."""
    if facts.seeded:
        return assume("chosen-seed")
    if exact:
        return assume("exact-gaussian")
    return assume("fresh-noise-there", device=facts.device) if facts.device else assume("fresh-noise")


def end_assumption(ended: str, word: str) -> Assumption:
    """Return what a label assumes about when the run ended; nothing in it tells whether that was early."""
    return assume("end-declared", reason=ended) if ended else assume("end-from-outputs", step=word)


def declared_ends(planned: int, stops: tuple[tuple[int, float], ...], end: int, ended: str) -> str:
    """Return the planned steps and the declared end that a label speaks of, for the table of its mechanism."""
    if ended:
        return f"{end} of {planned} planned; ended early by its owner"
    if not stops:
        return f"{planned} planned; the figures are for all of them"
    return f"{planned} planned, declared ends {', '.join(str(stop) for stop, _ in stops)}; ended at {end} or earlier"


def ends_remark(stops: tuple[tuple[int, float], ...], ended: str, word: str) -> tuple[str, ...]:
    """Return what a label with several declared ends says about its figures for attacks."""
    if not stops or ended:
        return ()
    return (f"Epsilon is for the declared end; what an attack can do is for all planned {word}s, whenever it ends.",)


def run_rows(facts: RunFacts) -> Pairs:
    """Return how a run was seeded and where it was charged, for the table of its mechanism."""
    seed = "a chosen seed" if facts.seeded else "seeded by the operating system"
    ledger = "in memory only" if facts.in_memory else facts.ledger or "the run's own"
    return ("Randomness", f"server: {seed}" if facts.client_noise else seed), ("Ledger", ledger)


def status_rows(facts: RunFacts) -> Pairs:
    """Return when a run started and how it stands, for its owner."""
    return ("Started", facts.started), ("Status", _STATUS.get(facts.status, facts.status))


def not_hardened(
    facts: RunFacts,
    timing: str = "how long a step takes depends on how many records were drawn, and on whether the model fails on one",
    *,
    exact: bool = False,
) -> tuple[str, ...]:
    """Return what an attacker could still use.

    Args:
        facts: Of the run.
        timing: What the clock gives away.
        exact: Whether contributions and noise are whole numbers on a public grid.
    """
    lines = ["Floating point: the noise is not hardened against attacks on its low-order bits."]
    if exact:
        lines, timing = [], f"{timing}; how long the noise takes depends on the noise, not on the records"
    if facts.seeded:
        lines.append("Random numbers: a statistical generator (PCG64), not a cryptographic one.")
    if facts.device:
        drawn = f"the noise is drawn by torch's generator for {facts.device}, seeded anew at every step with 63 bits"
        lines.append(f"Random numbers: {drawn}; it is not a cryptographic one.")
    return (*lines, f"Timing: {timing}.")


def percentile(epsilons: Iterable[float], percent: float) -> float:
    """Return the epsilon that so many percent of the records stay under."""
    return _at(sorted(map(float, epsilons)), percent)


def percentiles(epsilons: Iterable[float]) -> Points:
    """Return the spread of records' own figures, as a label shows it; nothing if there are none."""
    ordered = sorted(map(float, epsilons))
    return tuple((float(p), _at(ordered, p)) for p in PERCENTS) if ordered else ()


def _at(ordered: Sequence[float], percent: float) -> float:
    return ordered[max(0, math.ceil(percent / 100.0 * len(ordered)) - 1)]


def _finite(name: str, *values: float) -> None:
    if not all(-_LARGEST <= value <= _LARGEST for value in values):  # of a huge int too
        raise ValueError(f"{name} must be finite numbers.")


def _epsilons(name: str, *values: float) -> None:
    if not all(value >= 0 for value in values):
        raise ValueError(f"{name} epsilon must be a number that is at least 0.")


def _curve(name: str, points: tuple[tuple[int, float], ...]) -> None:
    _epsilons(name, *(epsilon for _, epsilon in points))
    if any(step < 0 for step, _ in points):
        raise ValueError(f"{name} step must be a whole number.")
