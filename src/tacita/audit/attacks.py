"""Every attack on one run, within a time limit; the results go to the run directory and the owner's label."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import __version__, _check, runs
from tacita.audit.canaries import CanaryAudit, canaries, finding
from tacita.audit.direct import SAID
from tacita.audit.inversion import inversion, recogniser
from tacita.audit.leak import leak_test
from tacita.audit.membership import membership
from tacita.audit.replay import Replay
from tacita.audit.subject import FEWEST, Data, SkippedError, Subject, both, classification, subject_of
from tacita.audit.typical import typical_canaries
from tacita.label import Finding, Label
from tacita.report.text import findings_text
from tacita.training.loop import PrivateTraining
from tacita.training.records import record_loss
from tacita.training.step import one_thread

ATTACKS = ("canaries", "leak", "typical", "membership", "inversion")
SCHEMA = 2
Progress = Callable[[str, int, int], None]
_IMAGE = 3  # dimensions of one
_PLAIN_STEPS, _PLAIN_BATCH = 400, 128


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
        return any(f.state == "warning" for f in self.findings if f.key in ("canaries", "membership"))

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


def run(
    target: PrivateTraining | str | Path,
    *,
    attacks: Iterable[str] = ATTACKS,
    minutes: float | None = None,
    references: int = 4,
    rng: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack a run, and put what was found on its owner's label.

    Args:
        target: A private training that took steps, or a run directory.
        attacks: Which of `ATTACKS`: canaries (the mechanism), leak (the accountant's reading), typical (the typical
            case), membership, inversion. One that does not fit the run is left out with its reason.
        minutes: About how long it may take. Attacks end early, or are left out, when the time is up.
        references: How many models membership inference trains to compare with.
        rng: A seed for the attacks' own coins and noise.
        progress: Called with (attack, done, of).

    Guarantee:
        Nothing is charged and the run is not changed. What is found depends on the data: it is for their owner.
    """
    wanted = [_check.one_of("attacks", name, ATTACKS) for name in attacks]
    limit = None if minutes is None else _check.in_range("minutes", minutes, 0.0, 1e5)
    if rng is not None:
        _check.count("rng", rng, low=0, high=2**62)
    deadline = None if limit is None else time.monotonic() + 60.0 * limit
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # nobody else's dice are rolled
        warnings.filterwarnings("ignore", message="Seems like `optimizer.step\\(\\)` has been overridden")  # a copy's
        made = _Made(*subject_of(target), deadline, references, rng, progress)
        for name in ATTACKS:
            if name in wanted:
                made.attack(name)
    return made.audit()


class _Made:
    """An audit as it goes on: after every attack what there is is written down."""

    def __init__(
        self,
        subject: Subject,
        folder: Path | None,
        deadline: float | None,
        references: int,
        rng: int | None,
        progress: Progress | None,
    ) -> None:
        self.subject, self.folder, self.deadline = subject, folder, deadline
        self.references, self.rng, self.progress = references, rng, progress
        self.left_out = 0
        self.findings: dict[str, Finding] = {}
        self.results: dict[str, Any] = {}
        self.skipped: dict[str, str] = {}
        self._take_up()

    def _take_up(self) -> None:
        """Keep what an earlier audit of as many steps found: attacks can be made one by one."""
        if self.folder is None or not (self.folder / "audit.json").exists():
            return
        before = runs.read_json(self.folder, "audit.json")
        if before.get("schema") != SCHEMA or before.get("steps") != self.subject.steps:
            return
        try:
            self.results = dict(before["results"])
            self.findings = {f.key: f for f in map(Finding.from_dict, before["findings"])}
            self.skipped = dict(before["skipped"])
        except (KeyError, TypeError, ValueError) as error:
            raise runs.RunError(f"The audit in {str(self.folder)!r} is damaged: {error} Delete audit.json.") from error

    def attack(self, name: str) -> None:
        """Make one attack, or note why not."""
        self.skipped.pop(name, None)
        self._report(name)(0, 1)
        try:
            if self._stop():
                raise SkippedError("the time was up")
            getattr(self, f"_{name}")()
        except ValueError as error:  # SkippedError, or something about the run that the attack does not take
            self.skipped[name] = str(error).rstrip(".")
        if self.folder is not None:
            audit = self.audit()
            runs.write_json(self.folder, "audit.json", audit.to_dict())
            runs.Run(self.folder).write_owner_label(audit.label)

    def audit(self) -> Audit:
        """Return what there is so far."""
        found = tuple(self.findings.values())
        readings = self.subject.label.readings
        label = self.subject.label
        if readings is not None:
            label = replace(label, readings=replace(readings, audit=found))
        return Audit(
            steps=self.subject.steps,
            findings=found,
            results=self.results,
            skipped=tuple(self.skipped.items()),
            label=label,
        )

    def _stop(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _report(self, name: str) -> Callable[[int, int], None]:
        return lambda done, of: None if self.progress is None else self.progress(name, done, of)

    def _coins(self, part: int) -> np.random.Generator:
        return np.random.default_rng(None if self.rng is None else [self.rng, part])

    def _seed(self, part: int) -> int | None:
        return None if self.rng is None else int(self._coins(part).integers(2**40))

    def _canaries(self) -> None:
        subject, plan = self.subject, self.subject.plan
        replay = Replay(plan, subject.shapes, steps=subject.steps, rng=self._seed(1))
        with one_thread():
            audit = canaries(
                replay,
                sample_rate=plan.sample_rate,
                noise_multiplier=plan.noise_multiplier,
                steps=subject.steps,
                delta=subject.label.worst.delta,
                epsilon=plan.worst(subject.steps, subject.label.worst.delta).epsilon,  # of the steps that are replayed
                count=replay.count,
                parts=replay.parts,
                rng=self._seed(2),
                progress=self._report("canaries"),
                stop=self._stop,
            )
        self.left_out = replay.left_out
        self._add_canaries("canaries", audit)

    def _typical(self) -> None:
        subject = self.subject
        readings = subject.label.readings
        if readings is None or not readings.typical:
            raise SkippedError("nobody was followed, so there is no typical case to attack")
        train, held = both(subject)

        def make(records: Data) -> PrivateTraining:
            return subject.private(
                train,
                holdout=records,
                panel=len(records[-1]),
                individual_every=subject.plan.individual_every,
                record_budget=subject.plan.record_budget,
                rng=self._seed(3),
            )

        audit = typical_canaries(
            make,
            held,
            epsilon=readings.typical[0].epsilon,
            delta=subject.label.worst.delta,
            rng=self._seed(4),
            progress=self._report("typical"),
            stop=self._stop,
        )
        self._add_canaries("typical", audit)

    def _add_canaries(self, name: str, audit: CanaryAudit) -> None:
        self.results[name] = audit.to_dict()
        made = [CanaryAudit.from_dict(self.results[n]) for n in ("canaries", "typical") if n in self.results]
        self.findings["canaries"] = finding(made, notes=_canary_notes(made, self.left_out, self.subject.steps))

    def _leak(self) -> None:
        subject = self.subject
        train, held = both(subject)
        if subject.model is None or subject.loss_fn is None:
            raise SkippedError(subject.why)
        if min(len(train[-1]), len(held[-1])) < FEWEST:
            raise SkippedError(f"it compares at least {FEWEST} records a side")
        parameters = {name: p.detach() for name, p in subject.model.named_parameters() if p.requires_grad}
        found = leak_test(
            record_loss(subject.model, subject.loss_fn),
            parameters,
            train,
            held,
            clip_norm=subject.plan.clip_norm,
            epsilon_inside=None if subject.own is None else subject.own[0],
            epsilon_outside=None if subject.own is None else subject.own[1],
            rng=self._coins(5),
        )
        self.results["leak"], self.findings["leak"] = found.to_dict(), found.finding()

    def _membership(self) -> None:
        subject = self.subject
        (inputs, targets), (held, answers) = classification(subject)
        trained = len(targets)

        def train(x: Tensor, y: Tensor) -> nn.Module:
            rate = min(1.0, subject.plan.sample_rate * trained / len(y))
            return subject.private((x, y), sample_rate=rate).run().model

        found = membership(
            subject.model,  # type: ignore[arg-type]
            (inputs, targets),
            (held, answers),
            train=train,
            references=self.references,
            epsilon=subject.label.worst.epsilon,
            delta=subject.label.worst.delta,
            rng=self._coins(6),
            progress=self._report("membership"),
            stop=self._stop,
        )
        self.results["membership"], self.findings["membership"] = found.to_dict(), found.finding()

    def _inversion(self) -> None:
        subject = self.subject
        (inputs, targets), (held, answers) = classification(subject)
        if inputs.dim() != 1 + _IMAGE:
            raise SkippedError("it rebuilds images, and these records are none")
        count = int(targets.max()) + 1
        names = subject.classes or tuple(str(i) for i in range(count))
        if len(answers) < 5 * count:
            raise SkippedError("it needs five held-out records a class, to train a judge on")
        report = self._report("inversion")
        plain = _plain(subject.fresh()[0], subject.loss_fn, inputs, targets, self._coins(7), report)
        found = inversion(
            subject.model,  # type: ignore[arg-type]
            plain,
            torch.stack([inputs[targets == c].mean(0) for c in range(len(names))]),
            recogniser(held, answers, rng=self._coins(8)),
            names,
            private_accuracy=_accuracy(subject.model, held, answers),  # type: ignore[arg-type]
            plain_accuracy=_accuracy(plain, held, answers),
            rng=self._coins(9),
        )
        self.results["inversion"], self.findings["inversion"] = found.to_dict(), found.finding()


def _plain(
    model: nn.Module,
    loss_fn: Any,
    inputs: Tensor,
    targets: Tensor,
    rng: np.random.Generator,
    report: Callable[[int, int], None],
) -> nn.Module:
    """Train without privacy, to compare with."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(_PLAIN_STEPS):
        batch = torch.from_numpy(rng.integers(len(targets), size=min(_PLAIN_BATCH, len(targets))))
        optimizer.zero_grad()
        torch.autograd.backward(loss_fn(model(inputs[batch]), targets[batch]))
        optimizer.step()
        if step % 50 == 0:
            report(step, _PLAIN_STEPS)
    report(_PLAIN_STEPS, _PLAIN_STEPS)
    return model


def _accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


def _canary_notes(audits: list[CanaryAudit], left_out: int, steps: int) -> tuple[str, ...]:
    """Return what the figures rest on."""
    notes = [
        "The shipped training loop was run again, with the run's own sampling, clipping and noise, on records made up "
        "for it. The attacker sees every noisy gradient, which is more than anyone sees of a published model.",
        "“Proved” is a lower confidence limit, read as the epsilon of steps like the claimed ones with as much less "
        "noise as it takes, at the claimed sample rate. A mechanism that keeps its claim is called broken once in a "
        "million audits.",
    ]
    if len(audits) > 1:
        notes.append(
            "A record like those trained on: a canary with the gradient norms that a held-out record had in a second "
            "training. The proof is about the average over such records."
        )
    for audit in audits:
        if audit.tests:
            looked = "; ".join(SAID[test.kind] for test in audit.tests)
            notes.append(
                f"The measured noise is {audit.noise:.4f} times the declared one. Direct tests look whether {looked}."
            )
        if audit.steps < steps:
            notes.append(f"{audit.who}: the time was up after {audit.steps} of {steps} steps; its claim is for those.")
    if left_out:
        notes.append(f"The model is large: {left_out} of its largest tensors were left out of the replay.")
    return tuple(notes)
