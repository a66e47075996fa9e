"""The typical case: held-out canaries stay below it, and an accountant that reads too little is found."""

import pytest
import torch
from torch import nn

from tacita import audit
from tacita.audit import typical_canaries
from tacita.data import load
from tacita.training import PrivateTraining
from tacita.training import mechanism as shipped

DELTA = 1e-5
loss_fn = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def make(digits, **settings):
    def start(records):
        x, y = digits
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        return PrivateTraining(
            model,
            loss_fn,
            (x[:400], y[:400]),
            optimizer=torch.optim.SGD(model.parameters(), lr=2.0),
            sample_rate=0.1,
            batch_size=40,
            steps=25,
            clip_norm=6.0,
            noise_multiplier=0.7,
            holdout=records,
            panel=len(records[-1]),
            seed=9,
            **settings,
        )

    return start


@pytest.fixture(scope="module")
def claimed(digits):
    """The plan, its worst case, and the typical case of 200 held-out records."""
    torch.set_num_threads(1)
    shadow = make(digits)((digits[0][400:600], digits[1][400:600]))
    while shadow.advance():
        pass
    typical = shadow.accountants["held-out"].guarantee(delta=DELTA).epsilon
    return shadow.plan, shadow.plan.worst(25, DELTA).epsilon, typical


@pytest.mark.parametrize("every", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_a6_a_held_out_record_stays_below_the_typical_case(digits, claimed, every):
    held = (digits[0][400:416], digits[1][400:416])
    found = typical_canaries(
        make(digits, individual_every=every), held, epsilon=claimed[2], delta=DELTA, count=30_000, seed=11
    )
    assert found.verdict == "not refuted"
    assert 0.1 * found.epsilon < found.lower[0.95] <= found.epsilon


def test_a6_a_clip_norm_canary_exceeds_the_typical_case_and_not_the_worst(claimed):
    plan, worst, typical = claimed
    found = audit.canaries(
        audit.Replay(plan, [(10, 64), (10,)], seed=13, count=30_000),
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
        steps=plan.steps,
        delta=DELTA,
        epsilon=worst,
        count=30_000,
        seed=12,
    )
    assert typical < found.lower[0.9995] <= worst


def test_an_accountant_that_reads_norms_too_small_is_found(digits, monkeypatch):
    """The canaries' norms are measured without the code that trains, so they do not share its bugs."""
    true = shipped.record_norms
    monkeypatch.setattr(shipped, "record_norms", lambda *a, **k: 0.5 * true(*a, **k))
    held = (digits[0][400:416], digits[1][400:416])
    found = typical_canaries(make(digits), held, epsilon=None, delta=DELTA, count=30_000, seed=11)
    assert found.verdict == "claim broken"
