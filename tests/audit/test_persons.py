"""Audits of runs whose unit is the person: canaries are persons."""

import torch

from tacita.audit import canaries
from tacita.audit import run as audit
from tacita.audit.replay import Replay
from tacita.training import Plan, clipped_sum
from tests.training.trainings import train


def audited(plan, count=800):
    replay = Replay(plan, [(8, 4), (8,)], count=count, seed=1)
    assert replay.each == 4
    return canaries(
        replay, sample_rate=plan.sample_rate, noise_multiplier=plan.noise_multiplier, steps=plan.steps, delta=1e-5,
        count=replay.count, parts=replay.parts, seed=2,
    )  # fmt: skip


def test_canaries_are_persons_and_find_contributions_clipped_record_by_record(monkeypatch):
    plan = Plan.declare(steps=5, batch_size=50, nominal_size=100, noise_multiplier=1.0, records_per_person=3)
    assert audited(plan).state == "not-refuted"

    def by_record(loss, parameters, persons, bounds, **how):
        return clipped_sum(loss, parameters, persons.records, bounds.repeat_interleave(persons.counts), **how)

    monkeypatch.setattr("tacita.training.mechanism.clipped_sum", by_record)
    assert audited(plan).state == "warning"


def test_an_audit_of_persons_skips_what_tells_records_apart():
    torch.manual_seed(0)
    data, ids = (torch.randn(300, 4), torch.arange(300) % 2), torch.arange(300) % 60
    private = train(
        data, person=ids, holdout=data, holdout_person=ids + 100, records_per_person=2, panel=30, steps=4
    ).run()
    found = audit(private, attacks=("leak", "typical", "membership", "inversion"))
    assert found.findings == ()
    assert all("persons with several records" in why for _, why in found.skipped)
    assert len(found.skipped) == 4
