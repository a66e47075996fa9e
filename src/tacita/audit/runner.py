"""Every attack on one run, within a time limit; the results go to the run directory and the owner's label."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tacita import _check, runs
from tacita._version import __version__
from tacita.audit.attack import Session
from tacita.audit.table import ATTACKS
from tacita.audit.target import SkippedError, target_of
from tacita.label import Finding, Label
from tacita.report.text import findings_text
from tacita.training.loop import PrivateTraining

SCHEMA = 3
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the attacks on one run found. For the data's owner.

    Attributes:
        steps: How many steps the run had taken.
        findings: One for each kind of attack that was made, for people.
        results: The same as plain data, by attack.
        skipped: (attack, why it was not made).
        label: The run's label with the findings on it.
    """

    steps: int
    findings: tuple[Finding, ...]
    results: Mapping[str, Any]
    skipped: tuple[tuple[str, str], ...]
    label: Label = field(repr=False)

    @property
    def broken(self) -> bool:
        """Whether an attack broke a claim. A leak that no claim excludes does not."""
        return any(f.tests_claim and f.state == "warning" for f in self.findings)

    def __str__(self) -> str:
        lines = [f"Not made: {name}: {why}." for name, why in self.skipped]
        return "\n".join([findings_text(self.findings), *([""] if lines else []), *lines])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for audit.json."""
        return {
            "schema": SCHEMA,
            "tacita": __version__,
            "steps": self.steps,
            "delta": self.label.worst.delta,
            "broken": self.broken,
            "findings": [f.to_dict() for f in self.findings],
            "results": dict(self.results),
            "skipped": [list(pair) for pair in self.skipped],
        }


@_check.renamed("rng")
def run(
    target: PrivateTraining | str | Path,
    *,
    attacks: Iterable[str] = ATTACKS,
    minutes: float | None = None,
    references: int = 4,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack a run, and put what was found on its owner's label.

    Args:
        target: A private training that took steps, or a run directory.
        attacks: Names from `ATTACKS`: canaries (the mechanism), leak (the accountant's reading), typical (the typical
            case), membership, inversion. One that does not suit the run is skipped with its reason.
        minutes: About how long it may take. Attacks end early, or are skipped, when the time is up.
        references: How many models membership inference trains to compare with.
        seed: Seeds the attacks' own coins and noise; by default drawn from the operating system.
        progress: Called with (attack, done, of).

    Returns:
        What was found. It is also written to the run directory after every attack, if there is one.

    Guarantee:
        Nothing is charged and the run is not changed. What is found depends on the data: it is for their owner.
    """
    wanted = {_check.one_of("attacks", name, tuple(ATTACKS)) for name in attacks}
    limit = None if minutes is None else _check.in_range("minutes", minutes, 0.0, 1e5)
    if seed is not None:
        _check.count("seed", seed, low=0, high=2**62)
    deadline = None if limit is None else time.monotonic() + 60.0 * limit
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # the global RNG is left untouched
        warnings.filterwarnings("ignore", message="Seems like `optimizer.step\\(\\)` has been overridden")  # a copy's
        attacked, folder = target_of(target)
        audit = _earlier(folder, Audit(steps=attacked.steps, findings=(), results={}, skipped=(), label=attacked.label))
        session = Session(target=attacked, references=references, base_seed=seed, deadline=deadline)
        for name in ATTACKS:
            if name in wanted:
                audit = _attacked(audit, name, session, progress)
                _write(folder, audit)
    return audit


def _earlier(folder: Path | None, audit: Audit) -> Audit:
    """Return what an earlier audit after as many steps found, or the empty one: attacks can be made one by one."""
    if folder is None or not (folder / "audit.json").exists():
        return audit
    document = runs.read_json(folder, "audit.json")
    if document.get("schema") != SCHEMA or document.get("steps") != audit.steps:
        return audit
    try:
        return _with(
            audit,
            findings={f.key: f for f in map(Finding.from_dict, document["findings"])},
            results=dict(document["results"]),
            skipped=dict(document["skipped"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise runs.RunError(f"The audit in {str(folder)!r} is damaged: {error} Delete audit.json.") from error


def _attacked(audit: Audit, name: str, session: Session, progress: Progress | None) -> Audit:
    """Return the audit with one more attack, or with the reason why it was skipped."""
    attack, report = ATTACKS[name], progress or (lambda name, done, of: None)
    findings = {f.key: f for f in audit.findings}
    results, skipped = audit.results, {key: why for key, why in audit.skipped if key != name}
    report(name, 0, 1)
    try:
        if session.out_of_time():
            raise SkippedError("the time was up")
        attack.check(session.target)
        result = attack.run(replace(session, results=results, progress=lambda done, of: report(name, done, of)))
        made = {**results, name: result.to_dict()}
        finding = attack.finding(result, replace(session, results=made))
        results, findings = made, {**findings, finding.key: finding}
    except ValueError as error:  # SkippedError, or something about the run that the attack cannot handle
        skipped[name] = str(error).rstrip(".")
    return _with(audit, findings=findings, results=results, skipped=skipped)


def _with(
    audit: Audit, *, findings: Mapping[str, Finding], results: Mapping[str, Any], skipped: Mapping[str, str]
) -> Audit:
    found, label = tuple(findings.values()), audit.label
    if label.readings is not None:
        label = replace(label, readings=replace(label.readings, audit=found))
    return replace(audit, findings=found, results=results, skipped=tuple(skipped.items()), label=label)


def _write(folder: Path | None, audit: Audit) -> None:
    if folder is not None:
        runs.write_json(folder, "audit.json", audit.to_dict())
        runs.Run(folder).write_owner_label(audit.label)  # label.html is not touched
