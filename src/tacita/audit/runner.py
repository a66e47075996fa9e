"""Every attack on one run, within a time limit; the results go to the run directory and the owner's label."""

from __future__ import annotations

import html
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tacita import _check, runs
from tacita._progress import Progress, quiet
from tacita._version import __version__
from tacita.audit.attack import Attack, Session, SkippedError, target_of
from tacita.audit.canary_attack import attack_with_canaries
from tacita.audit.inversion_attack import attack_by_inversion
from tacita.audit.leak_attack import attack_readings
from tacita.audit.membership_attack import attack_membership
from tacita.audit.typical_attack import attack_typical_case
from tacita.label import Finding, Label
from tacita.report.text import findings_text
from tacita.training.loop import PrivateTraining

ATTACKS = {  # in the order in which they are made; a new attack is a new file and a new line here
    "canaries": Attack("the training loop on records made to be found", attack_with_canaries),
    "leak": Attack("do the figures themselves tell who took part?", attack_readings),
    "typical": Attack("a second training beside records like the held-out ones", attack_typical_case),
    "membership": Attack("models to compare with, to tell who was trained on", attack_membership),
    "inversion": Attack("a model without privacy, to compare with", attack_by_inversion),
}
SCHEMA = 4


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
        lines = [f"Skipped: {name}: {why}." for name, why in self.skipped]
        return "\n".join([findings_text(self.findings), *([""] if lines else []), *lines])

    def __repr__(self) -> str:
        found = ", ".join(f"{finding.key} {finding.state}" for finding in self.findings)
        return f"<Audit of {self.steps} steps: {found or 'no attack was made'}>"

    def _repr_html_(self) -> str:
        """Show the findings in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

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
        progress: Called as each attack goes on; the note is its activity.

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
        session = Session(target=attacked, references=references, base_seed=seed, deadline=deadline)
        audit = _earlier(folder, Audit(steps=attacked.steps, findings=(), results={}, skipped=(), label=attacked.label))
        for name in ATTACKS:
            if name in wanted:
                audit = _attacked(audit, name, session, progress or quiet)
                if folder is not None:
                    runs.write_json(folder, "audit.json", audit.to_dict())
                    runs.Run(folder).write_owner_label(audit.label)  # label.html is not touched
    return audit


def _earlier(folder: Path | None, audit: Audit) -> Audit:
    """Return what an earlier audit after as many steps found, or the empty one: attacks can be made one by one."""
    if folder is None or not (folder / "audit.json").exists():
        return audit
    document = runs.read_json(folder, "audit.json")
    if document.get("schema") != SCHEMA or document.get("steps") != audit.steps:
        return audit
    try:
        findings = [Finding.from_dict(found) for found in document["findings"]]
        return _with(audit, findings, document["results"], dict(document["skipped"]))
    except (KeyError, TypeError, ValueError) as error:
        raise runs.RunError(f"The audit in {str(folder)!r} is damaged: {error} Delete audit.json.") from error


def _attacked(audit: Audit, name: str, session: Session, progress: Progress) -> Audit:
    """Return the audit with one more attack, or with the reason why it was skipped."""
    findings, results, skipped = {f.key: f for f in audit.findings}, dict(audit.results), dict(audit.skipped)
    skipped.pop(name, None)
    activity = f"{name}: {ATTACKS[name].activity}"
    progress(0, 0, activity)
    try:
        if session.out_of_time():
            raise SkippedError("time ran out")
        told = replace(session, results=audit.results, progress=lambda done, total, _: progress(done, total, activity))
        results[name], finding = ATTACKS[name].run(told)
        findings[finding.key] = finding
    except ValueError as error:  # SkippedError, or something about the run that the attack cannot handle
        skipped[name] = str(error).rstrip(".")
    return _with(audit, findings.values(), results, skipped)


def _with(audit: Audit, findings: Iterable[Finding], results: Mapping[str, Any], skipped: Mapping[str, str]) -> Audit:
    found, label = tuple(findings), audit.label
    if label.readings is not None:
        label = replace(label, readings=replace(label.readings, audit=found))
    return replace(audit, findings=found, results=results, skipped=tuple(skipped.items()), label=label)
