"""The privacy label as plain data: what may be published, and what only the data's owner should see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tacita import _check
from tacita.guarantee import Guarantee
from tacita.report import fields
from tacita.report.finding import Finding

SCHEMA = 1
Pairs = tuple[tuple[str, str], ...]
State = Literal["holds", "open", "warning"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One assumption and how it stands: `holds` was enforced or tested, `open` rests on the user, `warning` failed."""

    text: str
    state: State

    def __post_init__(self) -> None:
        fields.text("check text", self.text)
        _check.one_of("check state", self.state, get_args(State))


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """One group of followed records: how many, and the epsilon that half, 90% and all of them stay under."""

    column: str
    value: str
    records: int
    median: float
    p90: float
    largest: float

    def __post_init__(self) -> None:
        fields.text("group column", self.column)
        fields.text("group value", self.value)
        fields.whole("group records", self.records)
        for epsilon in (self.median, self.p90, self.largest):
            fields.epsilon("group", epsilon)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Everything that was computed from private data. It never reaches the public page unless asked for.

    Attributes:
        typical: Bayesian figures, the headline (the larger of the panels) first, then comparisons. The first of
            each unit is shown beside the worst case of that unit.
        panels: Who was followed, in words.
        percentiles: (percent, epsilon that this share of the followed records stays under), at the delta of
            the label's worst case.
        curve: (step, epsilon of the typical record so far).
        groups: Per-group rows, by class or by a column.
        metrics: Accuracy and the like, as (name, value) texts.
        checks: Tests of the data-dependent assumptions.
        certificate: What became of a declared conformal certificate, in words; empty if none was declared.
        facts: Other facts for the owner (number of records, when it ran), as (name, value) texts.
        audit: What attacks found.
    """

    typical: tuple[Guarantee, ...] = ()
    panels: str = ""
    percentiles: tuple[tuple[float, float], ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    groups: tuple[GroupRow, ...] = ()
    metrics: Pairs = ()
    checks: tuple[Check, ...] = ()
    certificate: str = ""
    facts: Pairs = ()
    audit: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        for statement in self.typical:
            _statement("typical", statement)
        fields.text("panels", self.panels)
        for percent, epsilon in self.percentiles:
            fields.epsilon("percentile", epsilon)
            if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
                raise ValueError("percentiles must be given by percentages in [0, 100].")
        _curve_points(self.curve)
        fields.texts("metrics", *self.metrics)
        fields.text("certificate", self.certificate)
        fields.texts("facts", *self.facts)
        fields.several("audit", self.audit, Finding)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. An infinite epsilon is the string "infinity"."""
        return {
            "typical": [g.to_dict() for g in self.typical],
            "panels": self.panels,
            "percentiles": [[percent, fields.to_plain(epsilon)] for percent, epsilon in self.percentiles],
            "curve": [[step, fields.to_plain(epsilon)] for step, epsilon in self.curve],
            "groups": [{name: fields.to_plain(value) for name, value in vars(row).items()} for row in self.groups],
            "metrics": [list(pair) for pair in self.metrics],
            "checks": [vars(check).copy() for check in self.checks],
            "certificate": self.certificate,
            "facts": [list(pair) for pair in self.facts],
            "audit": [finding.to_dict() for finding in self.audit],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Readings:
        """Rebuild what `to_dict` wrote. Readings from before there were audits have none."""
        return cls(
            typical=tuple(_guarantee(g) for g in fields.rows(data["typical"])),
            panels=data["panels"],
            percentiles=fields.points(data["percentiles"]),
            curve=fields.points(data["curve"]),
            groups=tuple(GroupRow(**_epsilons(row)) for row in fields.rows(data["groups"])),
            metrics=fields.pairs(data["metrics"]),
            checks=tuple(Check(**check) for check in fields.rows(data["checks"])),
            certificate=data["certificate"],
            facts=fields.pairs(data["facts"]),
            audit=tuple(Finding.from_dict(finding) for finding in fields.rows(data.get("audit", ()))),
        )


@dataclass(frozen=True, kw_only=True)
class Label:
    """What a run leaks, for people. `public()` holds only what does not depend on the data.

    Attributes:
        title: The run's name.
        purpose: What was made, in a sentence.
        worst: The worst-case guarantee: the headline for anyone. Its unit is what the label speaks of.
        comparisons: Further publishable figures, such as the same run by RDP. The first worst case of another
            unit stands beside the headline.
        curve: (step, worst-case epsilon so far).
        mechanism: (name, value) texts: noise, clipping, sampling, steps.
        declared: Terms declared before the first step (record budgets, certificates), in sentences.
        checks: Assumptions of the publishable figures.
        not_hardened: What an attacker could still use, in sentences.
        included: (name, value) texts that the owner chose to publish although they depend on the data.
        bare_rate: True if a sampling rate was given as a number, which may have been computed from the data.
        end_shown: True if the label tells which of several declared ends was reached, or that its owner ended the run.
        steps_word: What one step of the curves is called: `step`, or `round` in a federation.
        readings: For the owner only; None on a public label.

    Guarantee:
        Two labels that differ in their readings alone have equal `public()` labels, and these give the same
        page, byte for byte. That title, purpose, mechanism, declared terms and checks do not depend on the
        data is up to whoever fills them in.
    """

    title: str
    purpose: str
    worst: Guarantee
    comparisons: tuple[Guarantee, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    mechanism: Pairs = ()
    declared: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    not_hardened: tuple[str, ...] = ()
    included: Pairs = ()
    bare_rate: bool = False
    end_shown: bool = False
    steps_word: Literal["step", "round"] = "step"
    readings: Readings | None = None

    def __post_init__(self) -> None:
        for statement in (self.worst, *self.comparisons):
            _statement("public figure", statement)
            if not statement.publishable:
                raise _check.PrivacyError("A label's public figures must be publishable; put the others into readings.")
        if self.worst.kind != "worst_case":
            raise _check.PrivacyError(f"A label's headline must be a worst_case guarantee, got {self.worst.kind}.")
        fields.text("title", self.title)
        fields.text("purpose", self.purpose)
        _curve_points(self.curve)
        fields.texts("mechanism", *self.mechanism)
        fields.texts("declared", self.declared)
        fields.texts("not_hardened", self.not_hardened)
        fields.texts("included", *self.included)
        _check.one_of("steps_word", self.steps_word, ("step", "round"))
        for name, value in (("bare_rate", self.bare_rate), ("end_shown", self.end_shown)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be true or false.")

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
        """Return plain data for JSON; `from_dict` reads it. An infinite epsilon is the string "infinity".

        Steps that are called steps are not named, as before there were rounds.
        """
        return {
            "schema": SCHEMA,
            "title": self.title,
            "purpose": self.purpose,
            "worst": self.worst.to_dict(),
            "comparisons": [g.to_dict() for g in self.comparisons],
            "curve": [[step, fields.to_plain(epsilon)] for step, epsilon in self.curve],
            "mechanism": [list(pair) for pair in self.mechanism],
            "declared": list(self.declared),
            "checks": [vars(check).copy() for check in self.checks],
            "not_hardened": list(self.not_hardened),
            "included": [list(pair) for pair in self.included],
            "bare_rate": self.bare_rate,
            "end_shown": self.end_shown,
            **({} if self.steps_word == "step" else {"steps_word": self.steps_word}),
            "readings": None if self.readings is None else self.readings.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Label:
        """Rebuild a label written by `to_dict`. Anything else is refused."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise ValueError(f"Not a privacy label of schema {SCHEMA}.")
        try:
            own = data["readings"]
            return cls(
                title=data["title"],
                purpose=data["purpose"],
                worst=_guarantee(data["worst"]),
                comparisons=tuple(_guarantee(g) for g in fields.rows(data["comparisons"])),
                curve=fields.points(data["curve"]),
                mechanism=fields.pairs(data["mechanism"]),
                declared=tuple(fields.rows(data["declared"])),
                checks=tuple(Check(**check) for check in fields.rows(data["checks"])),
                not_hardened=tuple(fields.rows(data["not_hardened"])),
                included=fields.pairs(data["included"]),
                bare_rate=data["bare_rate"],
                end_shown=data["end_shown"],
                steps_word=data.get("steps_word", "step"),
                readings=None if own is None else Readings.from_dict(own),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"This privacy label is damaged: {error}") from error


def _guarantee(data: Mapping[str, Any]) -> Guarantee:
    found = Guarantee.from_dict(data)
    fields.rows(data["assumptions"])  # a text would fall apart into letters
    return found


def _statement(name: str, value: object) -> None:
    """Refuse what is not a guarantee made of the types it should be made of."""
    if not isinstance(value, Guarantee):
        raise TypeError(f"{name} must be a Guarantee, got {type(value).__name__}.")
    _check.one_of(f"{name} neighbours", value.neighbours, ("add_remove", "replace_one"))
    _check.one_of(f"{name} scope", value.scope, ("guarantee", "reading"))
    if not isinstance(value.publishable, bool):
        raise TypeError(f"{name} publishable must be true or false.")
    fields.texts(name, (value.method, value.unit, value.sampling), value.assumptions)
    fields.texts(name, [text for text in (value.estimator, value.composition) if text is not None])
    if value.notion is not None:
        _check.one_of(f"{name} notion", value.notion, ("strong", "weak"))
    if value.model is not None:
        _check.one_of(f"{name} model", value.model, ("distribution-free", "model-based"))
    for part, number in (*value.delta_split, *value.mechanism):
        fields.text(name, part)
        _check.number(name, number)


def _curve_points(points: Iterable[tuple[int, float]]) -> None:
    for step, epsilon in points:
        fields.whole("curve step", step)
        fields.epsilon("curve", epsilon)


def _epsilons(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: fields.from_plain(value) if name in ("median", "p90", "largest") else value for name, value in row.items()
    }
